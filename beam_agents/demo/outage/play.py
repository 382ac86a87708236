"""The play in three acts: all is well, Redis is gone, Redis is back."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from beam_agents.demo.outage.healthy import MINUTES, would_fire
from beam_agents.demo.outage.servers import RedisServer, server
from beam_agents.demo.outage.watching import EVERY_S, watching
from beam_agents.demo.outage.worker import AGENTS
from beam_agents_dashboards import Settings
from beam_agents_dashboards.grafana import dashboards
from beam_agents_dashboards.render import Prometheus, PrometheusError, render, window

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from beam_agents.demo.outage.watching import Watch
    from beam_agents.demo.outage.webhook import Told

__all__ = ["EXPECTED", "SETTINGS", "Acts", "Play", "Unexpected", "play"]

SETTINGS: Final = Settings(for_scale=0.05, window_scale=0.05, wedged_s=5.0)
"""What an operator would change to be told twenty times sooner."""

EXPECTED: Final = (
    "BeamAgentsStoreDown",
    "BeamAgentsTimerBundlesFailing",
    "BeamAgentsExpireTimersWedged",
)
"""What must be told of a store that is down while keys expire."""

_URI: Final = "redis://127.0.0.1:{port}/0?probe_period_s=1&connect_timeout_s=1&operation_timeout_s=1"
_WITHIN_S: Final = 180.0
_POLL_S: Final = 0.2

_AT_WORK: Final = (
    # Each agent runs, keys have expired and were written, and the rules are loaded.
    'count(sum by (agent) (rate(beam_agents_activations_total{outcome="complete"}[5s])) > 0)',
    'count(beam_agents_expire_flushes_total{outcome="ok"} > 0)',
    "count(slo:beam_agents_activations:objective)",
)


class Unexpected(Exception):
    """Something came otherwise than it should have. The text says what."""


@dataclass(frozen=True, slots=True)
class Acts:
    """How long each act lasts at least, in seconds.

    Attributes:
        healthy_s: From when all is at work to when Redis is stopped.
        down_s: From there to when it is started again.
        quiet_s: From when the last alert ended to the end.
    """

    healthy_s: float = 45.0
    down_s: float = 30.0
    quiet_s: float = 20.0

    @property
    def longest_s(self) -> float:
        """How long workers must have work for, whatever each act waits for."""
        return self.healthy_s + self.down_s + self.quiet_s + 3 * _WITHIN_S


@dataclass(frozen=True, slots=True)
class Play:
    """What happened. Times are in seconds since the Unix epoch.

    Attributes:
        began_s: When all was at work.
        stopped_s: When Redis was stopped.
        back_s: When it was started again.
        over_s: When the last alert had ended.
        told: What the webhook was told.
        drawn: The pages and pictures of the outage.
    """

    began_s: float
    stopped_s: float
    back_s: float
    over_s: float
    told: tuple[Told, ...]
    drawn: tuple[Path, ...]


def play(folder: Path, acts: Acts, browser: str | None, say: Callable[[str], None]) -> Play:
    """Run all of it, and draw each dashboard as it was just before Redis came back.

    Args:
        folder: Where logs, pages and pictures go; what an earlier run left there is replaced.
        acts: How long it lasts.
        browser: The path of a Chromium, for pictures; None for pages alone.
        say: Is told what happens.

    Raises:
        Unexpected: An alert came that should not have, or one that should have did not.
        ServerMissing: A server is not installed.
        ServerFailed: One did not come up.
        OSError: A file can't be written.
    """
    # Prometheus takes paths as from its own file's folder.
    folder = folder.resolve()
    servers, targets = folder / "servers", folder / "targets"
    for each in (servers, targets):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir(parents=True)
    with ExitStack() as stack:
        redis = RedisServer(servers)
        stack.callback(redis.stop)
        redis.start()
        watch = stack.enter_context(watching(servers, SETTINGS, targets))
        workers = [
            stack.enter_context(_worker(agent, redis.port, targets, servers, acts.longest_s))
            for agent in AGENTS
        ]
        prometheus = stack.enter_context(Prometheus(watch.prometheus))

        say("waiting until flights come in, are remembered in Redis, and aircraft expire")
        _await(
            lambda: _all_run(workers) and all(_value(prometheus, each) for each in _AT_WORK),
            "the agents are at work",
        )
        began_s = time.time()
        say(f"all is well; Redis will be stopped in {acts.healthy_s:g} s")
        time.sleep(acts.healthy_s)
        _demand_quiet(watch, prometheus, "before Redis was stopped")
        if fires := would_fire(prometheus, servers / "healthy"):
            raise Unexpected(f"an alert would fire in {MINUTES} minutes of healthy traffic: {fires}")
        say(f"nothing has fired, nor would in {MINUTES} minutes of such traffic, says promtool")

        redis.stop()
        stopped_s = time.time()
        say("Redis is stopped")
        for told in _all_told(watch, "firing"):
            say(f"after {told.at_s - stopped_s:.0f} s: {told.name}: {told.annotations['description']}")
        time.sleep(max(0.0, stopped_s + acts.down_s - time.time()))

        redis.start()
        back_s = time.time()
        say("Redis is started again")
        for told in _all_told(watch, "resolved"):
            say(f"after {told.at_s - back_s:.0f} s: {told.name} has ended")
        _await(lambda: not watch.webhook.firing, "all alerts have ended")
        over_s = time.time()
        say(f"all alerts have ended; it should stay quiet for {acts.quiet_s:g} s, while pages are drawn")
        before = len(watch.webhook.told)
        drawn = tuple(_draw(folder, watch, began_s - acts.quiet_s / 2, back_s, browser))
        time.sleep(max(0.0, over_s + acts.quiet_s - time.time()))
        if len(watch.webhook.told) > before:
            raise Unexpected(f"an alert came after Redis was back: {watch.webhook.told[-1].name}")
        found = Play(began_s, stopped_s, back_s, over_s, tuple(watch.webhook.told), drawn)
    with (folder / "alerts.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(f"{json.dumps(asdict(each))}\n" for each in found.told)
    return found


@contextmanager
def _worker(
    agent: str, port: int, targets: Path, logs: Path, seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "beam_agents.demo.outage.worker", agent, _URI.format(port=port)]
    command += [str(targets), f"{seconds:.0f}"]
    # It is up when Prometheus finds it: that is waited for once, for all workers.
    path = os.pathsep.join(each for each in sys.path if each)
    log = logs / f"{agent}.log"
    with server(command, lambda: True, log, environment={"PYTHONPATH": path}) as process:
        yield process


def _all_run(workers: Iterable[subprocess.Popen[bytes]]) -> bool:
    if any(each.poll() is not None for each in workers):
        raise Unexpected("a worker has ended by itself")
    return True


def _draw(folder: Path, watch: Watch, start_s: float, end_s: float, browser: str | None) -> Iterator[Path]:
    shown = window(start_s, end_s, EVERY_S)
    try:
        yield from render(dashboards(SETTINGS), watch.prometheus, folder / "dashboards", shown, browser)
    except PrometheusError as error:
        raise Unexpected(error.problem) from error


def _value(prometheus: Prometheus, query: str) -> float:
    """Return the value of a query's one series; 0 where there is none, or nobody answers yet."""
    try:
        found = prometheus.at(query, time.time())
    except PrometheusError:
        return 0.0
    return found[0].points[-1][1] if found else 0.0


def _all_told(watch: Watch, status: Literal["firing", "resolved"]) -> Iterator[Told]:
    """Wait for each of the expected alerts."""
    for name in EXPECTED:
        try:
            yield watch.webhook.wait_for(name, status, _WITHIN_S)
        except TimeoutError as error:
            raise Unexpected(str(error)) from error


def _demand_quiet(watch: Watch, prometheus: Prometheus, when: str) -> None:
    """Demand that nothing was told, nor is about to be."""
    if watch.webhook.told:
        raise Unexpected(f"an alert came {when}: {watch.webhook.told[0].name}")
    found = prometheus.at("ALERTS", time.time())
    if found:
        shown = ", ".join(
            sorted({f"{each.labels['alertname']} {each.labels['alertstate']}" for each in found})
        )
        raise Unexpected(f"{when} there were alerts: {shown}")


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _WITHIN_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise Unexpected(f"it never came to be that {what}")
        time.sleep(_POLL_S)

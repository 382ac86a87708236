"""Faults made for real, the real Prometheus and Alertmanager with the shipped rules: each alert is told."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from beam_agents import (
    AgentContext,
    Complete,
    LlmRequest,
    LlmResponse,
    Suspend,
)
from beam_agents.demo.outage.servers import RedisServer, ServerMissing
from beam_agents.demo.outage.watching import watching
from beam_agents.demo.store import provision_store
from beam_agents.errors import ExpireFlushFailed
from beam_agents.testing import AgentHarness, event
from beam_agents_dashboards import parse_settings
from beam_agents_dashboards.grafana import dashboards
from beam_agents_dashboards.grafana_check import panels_without_data
from beam_agents_dashboards.render import Prometheus, window
from beam_agents_dashboards.render.model import read_board
from beam_agents_telemetry.prometheus import PrometheusMetrics
from tests.servers.disks import mounted
from tests.servers.process import unavailable
from tests.servers.proxy import Fault, Proxy, proxied
from tests.telemetry.everything import TTL_MS, everything
from tests.telemetry.losing import Loses
from tests.telemetry.scraping import endpoint, forget_all

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from beam_agents.demo.outage.watching import Watch

SETTINGS = parse_settings(
    [
        *("for_scale=0.005", "window_scale=0.01", "wedged_s=1", "flush_latency_s=0.25"),
        *("activation_timeout_s=0.5", "min_failures=2"),
    ]
)
TOLD_WITHIN_S = 90.0
HOUR_S = 36.0
START_MS = 10_000
BIG = 150_000

release = threading.Event()


def respond(request: LlmRequest) -> LlmResponse:
    if b"broken" in request.body:
        raise ConnectionError
    return LlmResponse(b"answer", prompt_tokens=3, completion_tokens=2)


async def agent(ctx: AgentContext) -> Complete | Suspend:
    """Do what the event says, and a bit of everything."""
    what = ctx.event or b""
    if what == b"wait":
        release.wait(TOLD_WITHIN_S)
        return Complete(b"done")
    ctx.memory.append("log", what)
    await ctx.memory.longterm.load("row")
    ctx.memory.longterm.save("row", bytes(1_500_000) if what == b"row" else what)
    await ctx.call_model(LlmRequest("small", b"question"))
    await ctx.run_tool("look_up", what)
    ctx.act("notify")
    if what == b"large":
        ctx.memory.set(f"large/{ctx.now_ms % 20}", bytes(BIG))
    if what == b"overflow":
        ctx.memory.set("large", bytes(2_000_000))
    return Suspend() if what == b"ask" else Complete(b"done")


class Stage:
    """Where faults are made, and what is seen of them."""

    def __init__(self, watch: Watch, plugin: PrometheusMetrics) -> None:
        self.watch = watch
        self.prometheus = Prometheus(watch.prometheus)
        self.plugin = plugin
        self.now_ms = START_MS

    @contextmanager
    def harness(
        self, name: str, uri: str, *plugins: object, on_failure: str = "fail_bundle"
    ) -> Iterator[AgentHarness]:
        configured = everything(
            uri, respond, self.plugin, *plugins, on_failure=on_failure, keep_recent=1, trigger_bytes=2_000
        )
        with AgentHarness(agent, configured, name=name) as harness:
            yield harness

    def firing(self, name: str, **labels: str) -> bool:
        inside = "".join(f', {label}="{value}"' for label, value in labels.items())
        query = f'ALERTS{{alertname="{name}", alertstate="firing"{inside}}}'
        return bool(self.prometheus.at(query, time.time()))

    def until_told(self, make: Callable[[], object], *names: str, **labels: str) -> None:
        """Make a fault again and again until the webhook has been told of it, by one of some alerts."""
        self._until(
            make,
            lambda: any(
                each.name in names and each.status == "firing" and labels.items() <= each.labels.items()
                for each in self.watch.webhook.told
            ),
            f"{names} are told of",
        )

    def until_over(self, make: Callable[[], object], *names: str) -> None:
        """Do what is healthy until some alerts fire no more."""
        self._until(make, lambda: not any(self.firing(name) for name in names), f"{names} are over")

    def _until(self, make: Callable[[], object], condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TOLD_WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, f"it never came to be that {what}"
            make()
            time.sleep(0.1)

    def send(self, harness: AgentHarness, key: bytes, what: bytes = b"x") -> None:
        self.now_ms += 1
        harness.send(event(key, what, time_ms=self.now_ms))


@pytest.fixture
def stage(tmp_path: pathlib.Path) -> Iterator[Stage]:
    forget_all()
    release.clear()
    targets = tmp_path / "targets"
    targets.mkdir()
    with ExitStack() as stack:
        try:
            watch = stack.enter_context(watching(tmp_path, SETTINGS, targets))
        except ServerMissing as missing:
            unavailable(str(missing))
        yield Stage(watch, PrometheusMetrics(port=0, sd_dir=str(targets)))
    release.set()
    forget_all()


def slow_store(stage: Stage, harness: AgentHarness, proxy: Proxy) -> None:
    proxy.fail(Fault.DELAY)
    stage.until_told(
        lambda: stage.send(harness, b"a"), "BeamAgentsStoreLatencyHigh", backend="redis", severity="ticket"
    )
    proxy.fail(Fault.NONE)
    stage.until_over(lambda: stage.send(harness, b"a"), "BeamAgentsStoreLatencyHigh")


def store_down_and_expiry_wedged(stage: Stage, harness: AgentHarness, redis: RedisServer) -> None:
    stage.send(harness, b"due")
    due_ms = stage.now_ms + TTL_MS

    def fire() -> None:
        with suppress(ExpireFlushFailed):
            harness.fire_expiry(b"due", due_ms)

    redis.stop()
    for name in (
        "BeamAgentsStoreDown",
        "BeamAgentsExpireTimersWedged",
        "BeamAgentsTimerBundlesFailing",
        "BeamAgentsActivationErrorBudgetBurn",
    ):
        stage.until_told(lambda: (fire(), stage.send(harness, b"a")), name, severity="page")
    redis.start()
    fire()
    stage.until_over(
        lambda: stage.send(harness, b"a"),
        "BeamAgentsStoreDown",
        "BeamAgentsExpireTimersWedged",
        "BeamAgentsTimerBundlesFailing",
        "BeamAgentsActivationErrorBudgetBurn",
    )


def disk_full(stage: Stage, disk: pathlib.Path) -> None:
    uri = f"sqlite+aiosqlite:///{disk}/longterm.db?probe_period_s=60"
    provision_store(uri)
    with stage.harness("full", uri) as harness:
        stage.send(harness, b"a")
        filler = disk / "filler"
        with suppress(OSError):
            filler.write_bytes(bytes(4 * 1024 * 1024))
        # Reads still work, so that it need not be down for all of its calls.
        stage.until_told(
            lambda: stage.send(harness, b"a", b"row"),
            "BeamAgentsStoreDown",
            "BeamAgentsStoreFlushErrorBudgetBurn",
            backend="sqlite",
            severity="page",
        )
        filler.unlink()
        stage.until_over(
            lambda: stage.send(harness, b"a"), "BeamAgentsStoreDown", "BeamAgentsStoreFlushErrorBudgetBurn"
        )


def working_memory(stage: Stage, harness: AgentHarness) -> None:
    stage.until_told(
        lambda: stage.send(harness, b"b", b"large"), "BeamAgentsEvictionStorm", severity="ticket"
    )
    stage.until_told(lambda: stage.send(harness, b"c", b"overflow"), "BeamAgentsMemoryOverflow")
    stage.until_told(
        lambda: stage.send(harness, b"d", b"broken" * 500), "BeamAgentsSummariesFailing", severity="ticket"
    )


def stale_rows(stage: Stage, harness: AgentHarness) -> None:
    """The same entity again, from the beginning, by a pipeline that knows nothing of it."""
    stage.send(harness, b"again")
    with stage.harness("again", "memory://") as other:
        times = iter(range(1, START_MS))
        stage.until_told(
            lambda: other.send(event(b"again", b"x", time_ms=next(times))),
            "BeamAgentsStaleUpserts",
            agent="again",
        )


def suspensions_wiped(stage: Stage, harness: AgentHarness) -> None:
    def ask_and_go() -> None:
        stage.send(harness, b"asks", b"ask")
        harness.fire_expiry(b"asks", stage.now_ms + TTL_MS)

    stage.until_told(ask_and_go, "BeamAgentsSuspensionsWiped")


def stuck(stage: Stage, harness: AgentHarness) -> None:
    thread = threading.Thread(target=lambda: stage.send(harness, b"stuck", b"wait"))
    thread.start()
    stage.until_told(lambda: None, "BeamAgentsActivationStuck", severity="page")
    release.set()
    thread.join()
    stage.until_over(lambda: None, "BeamAgentsActivationStuck")


def telemetry_lost(stage: Stage) -> None:
    with stage.harness("loses", "memory://", Loses()) as harness:
        stage.until_told(lambda: stage.send(harness, b"a"), "BeamAgentsTelemetryDropping", plugin="loses")


@pytest.mark.xdist_group("faults")
def test_each_fault_is_told(stage: Stage, tmp_path: pathlib.Path) -> None:
    redis = RedisServer(tmp_path)
    disk = tmp_path / "disk"
    with ExitStack() as stack:
        stack.callback(redis.stop)
        redis.start()
        proxy = stack.enter_context(proxied(redis.port))
        stack.enter_context(mounted(disk, "size=2m"))
        uri = f"redis://127.0.0.1:{proxy.port}/0?operation_timeout_s=1&connect_timeout_s=1&probe_period_s=0.2"
        with endpoint(stage.plugin):
            began_s = time.time()
            with stage.harness("remote", uri) as remote, stage.harness("local", "memory://") as local:
                stage.send(local, b"b", b"large")
                slow_store(stage, remote, proxy)
                store_down_and_expiry_wedged(stage, remote, redis)
                disk_full(stage, disk)
                stuck(stage, local)
                suspensions_wiped(stage, local)
                stale_rows(stage, local)
                telemetry_lost(stage)
                # An hour, as these rules have it, is needed to know what is usual.
                while time.time() < began_s + HOUR_S + 5:
                    stage.send(local, b"e")
                    time.sleep(0.1)
                working_memory(stage, local)
            end_s = time.time()
        # The process's endpoint is gone, and with it the only worker.
        stage.until_told(lambda: None, "BeamAgentsWorkersAbsent", severity="page")
        boards = [read_board(json.loads(text)) for text in dashboards(SETTINGS).values()]
        empty = {
            each.place for each in panels_without_data(boards, stage.prometheus, window(began_s, end_s, 1))
        }
        assert empty == set()

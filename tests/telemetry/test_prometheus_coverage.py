"""Every metric of the catalogue is made to be more than zero, for real, and read from the endpoint."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from beam_agents import (
    AgentConfig,
    AgentContext,
    AgentEnvelope,
    Complete,
    LlmRequest,
    LlmResponse,
    Suspend,
    ToolResult,
)
from beam_agents.errors import ExpireFlushFailed
from beam_agents.model.stash import process_stash
from beam_agents.runtime import bridge
from beam_agents.signals import catalogue, wedges
from beam_agents.testing import AgentHarness, FailOnce, event
from beam_agents_telemetry.prometheus import PrometheusMetrics
from tests.servers.redis import DurableServer
from tests.telemetry.everything import TTL_MS, everything
from tests.telemetry.losing import Loses
from tests.telemetry.scraping import endpoint, forget_all, scrape

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

PLUGIN = PrometheusMetrics(port=0)
BIG = 150_000
START_MS = 10_000

answers = itertools.count()


def respond(request: LlmRequest) -> LlmResponse:
    # Different each time, and too large to be kept.
    drifting = request.body == b"drift"
    text = b"%d" % next(answers) * 70_000 if drifting else b"answer"
    return LlmResponse(text, prompt_tokens=3, completion_tokens=2)


async def busy(ctx: AgentContext) -> Complete | Suspend:
    """Do what the event says, and a bit of everything."""
    what = ctx.event or b""
    ctx.memory.append("log", b"a line of the log")
    ctx.memory.longterm.save("row", what)
    await ctx.call_model(LlmRequest("small", what))
    await ctx.call_model(LlmRequest("small", what))
    await ctx.run_tool("look_up", what)
    ctx.act("notify")
    if what.isdigit():
        ctx.memory.set(f"big/{int(what) % 20}", b"x" * BIG)
    if what == b"overflow":
        ctx.memory.set("large", b"x" * 2_000_000)
    if what == b"fail":
        raise ValueError
    return Suspend() if what == b"ask" else Complete(b"done")


async def waits(ctx: AgentContext) -> Complete:
    """Wait until the test has seen it, or hold up the process's event loop."""
    await asyncio.sleep(0)
    if ctx.event == b"block":
        blocking.set()
        release.wait(30)
    while not release.is_set():  # noqa: ASYNC110 - the event is a thread's
        await asyncio.sleep(0.01)
    return Complete(b"done")


blocking, release = threading.Event(), threading.Event()


class Seen:
    """Which metrics a scrape has shown to be more than zero."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.names: set[str] = set()

    def look(self) -> None:
        found = scrape(self._url)
        for metric in catalogue.METRICS:
            # A histogram has measured something, and more than nothing.
            names = (metric.name, f"{metric.name}_sum")
            if any(found.total(name) > 0 for name in names):
                self.names.add(metric.name)

    def until(self, *metrics: str) -> None:
        deadline = time.monotonic() + 30
        while not self.names.issuperset(metrics):
            assert time.monotonic() < deadline, f"never seen: {set(metrics) - self.names}"
            self.look()


def config(uri: str, on_failure: str = "fail_bundle", *plugins: object) -> AgentConfig:
    return everything(
        uri, respond, PLUGIN, *plugins, on_failure=on_failure, keep_recent=3, trigger_bytes=2 * BIG
    )


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for each in (blocking, release):
        each.clear()
    forget_all()
    yield
    forget_all()


def run_busily(seen: Seen, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations of all kinds, on a store that is there."""
    with AgentHarness(
        busy, config(uri, "fail_bundle", Loses()), name="busy", probe=FailOnce("flush", key=b"d")
    ) as harness:
        for number in range(30):
            harness.send(event(b"a", b"%d" % number, time_ms=START_MS + number))
        for number, what in enumerate((b"overflow", b"fail", b"ask")):
            harness.send(event(b"b", what, time_ms=START_MS + number))
        # A retry whose answer differs: the process kept no more of the first one than that.
        monkeypatch.setattr(process_stash(), "_max_bytes", 10_000)
        harness.send(event(b"d", b"drift", time_ms=START_MS), attempts=2)
        harness.send(AgentEnvelope(entity_key=b"b", tool_result=ToolResult(intent_id="stranger")))
        assert harness.fire_expiry(b"b", START_MS) == []
        harness.advance_watermark(START_MS + 2 * TTL_MS)
        seen.look()


def run_without_store(seen: Seen, uri: str, server: DurableServer) -> None:
    """The store goes: flushes fail and are tried again, timers are wedged, and one of them is forgotten."""
    with (
        AgentHarness(busy, config(uri), name="fails") as fails,
        AgentHarness(busy, config(uri, "rearm"), name="rearms") as rearms,
    ):
        for harness in (fails, rearms):
            harness.send(*(event(key, b"x", time_ms=START_MS) for key in (b"a", b"b")))
        server.kill()
        fails.send(event(b"c", b"x", time_ms=START_MS))
        for harness in (fails, rearms):
            for key in (b"a", b"b"):
                with suppress(ExpireFlushFailed):
                    harness.fire_expiry(key, START_MS + TTL_MS)
        seen.until("expire_wedged_oldest_seconds")
        server.start()


def run_slowly(seen: Seen, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations that last, and one that blocks the loop which another one waits for."""
    monkeypatch.setattr(bridge, "STALL_AFTER_S", 0.05)
    with AgentHarness(waits, config(uri), name="waits") as harness:

        def apart(key: bytes, what: bytes) -> threading.Thread:
            thread = threading.Thread(target=harness.send, args=(event(key, what, time_ms=START_MS),))
            thread.start()
            return thread

        waiting = apart(b"a", b"wait")
        seen.until("activations_in_flight", "oldest_activation_age_seconds")
        release.set()
        waiting.join()
        release.clear()
        blocks = apart(b"b", b"block")
        assert blocking.wait(30)
        threading.Timer(0.3, release.set).start()
        harness.send(event(b"c", b"x", time_ms=START_MS))
        blocks.join()
        seen.look()


def test_every_metric_is_seen_at_work(server: DurableServer, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"redis://127.0.0.1:{server.port}/0?operation_timeout_s=0.5&connect_timeout_s=0.5"
    # The table's bound is thousands of timers: with one, the second makes it forget the first.
    monkeypatch.setattr(wedges._table, "value", wedges.WedgeTable(size=1))
    with endpoint(PLUGIN) as observer:
        seen = Seen(observer.url)
        run_busily(seen, uri, monkeypatch)
        run_without_store(seen, uri, server)
        run_slowly(seen, uri, monkeypatch)
    unseen = {metric.name for metric in catalogue.METRICS} - seen.names
    assert unseen == set()


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[DurableServer]:
    server = DurableServer(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.close()

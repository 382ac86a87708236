"""Expiry while Redis is down, for real: what a scrape shows, and what Beam's own metrics don't."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm, RunAgent
from beam_agents.errors import ExpireFlushFailed
from beam_agents.memory.stores.registry import open_store
from beam_agents.runtime.bridge import shared_bridge
from beam_agents.signals import Observer, Worker, catalogue
from beam_agents.testing import AdvanceWatermark, AgentHarness, event
from beam_agents.testing.pipeline import _source
from beam_agents.testing.registry import Shared
from beam_agents_telemetry.prometheus import PrometheusMetrics
from tests.servers.redis import DurableServer
from tests.telemetry.scraping import Scrape, endpoint, forget_all, get, scrape
from tests.workers import end_workers

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

KEYS = [b"aircraft-%d" % number for number in range(5)]
TTL_MS = 1_000
DUE_MS = 10_000 + TTL_MS
PLUGIN = PrometheusMetrics(port=0)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget_all()
    yield
    forget_all()


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[DurableServer]:
    server = DurableServer(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.close()


async def remember(ctx: AgentContext) -> Complete:
    assert ctx.event is not None
    ctx.memory.set("last", ctx.event)
    return Complete(b"done")


def uri(server: DurableServer) -> str:
    return (
        f"redis://127.0.0.1:{server.port}/0?operation_timeout_s=0.5&connect_timeout_s=0.5&probe_period_s=0.1"
    )


def config(server: DurableServer, on_failure: str, *plugins: object) -> AgentConfig:
    return AgentConfig(
        longterm_memory=uri(server),
        ttl_ms=TTL_MS,
        on_expire=FlushToLongterm(on_failure=on_failure),
        telemetry=plugins,  # type: ignore[arg-type]  # plugins
    )


def saved(server: DurableServer) -> list[bytes]:
    """Return the keys whose working memory is in Redis."""

    async def read() -> list[bytes]:
        store = open_store(uri(server))
        rows = [key for key in KEYS if await store.load(key, "working_memory") is not None]
        await store.close()
        return rows

    return shared_bridge().run(read(), 60, inline=False)


def until(url: str, condition: Callable[[Scrape], bool]) -> Scrape:
    deadline = time.monotonic() + 30
    while not condition(found := scrape(url)):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return found


def failed_flushes(found: Scrape) -> float:
    return found.total("expire_flushes_total") - found.total("expire_flushes_total", outcome="ok")


@pytest.mark.parametrize("on_failure", ["fail_bundle", "rearm"])
def test_wedged_timers_are_seen_until_their_store_is_back(on_failure: str, server: DurableServer) -> None:
    with (
        endpoint(PLUGIN) as observer,
        AgentHarness(remember, config(server, on_failure, PLUGIN), name="watcher") as harness,
    ):

        def fire_all() -> None:
            for key in KEYS:
                at_ms = max([DUE_MS, *harness.timers(key).values()])
                with suppress(ExpireFlushFailed):
                    assert harness.fire_expiry(key, at_ms) == []
                    assert on_failure == "rearm" or harness.states.get(key) is None

        for key in KEYS:
            harness.send(event(key, b"x", time_ms=10_000))
        before = until(observer.url, lambda found: found.total("store_up", backend="redis") == 1)
        assert before.total("expire_wedged_timers") == before.total("expire_wedged_oldest_seconds") == 0
        states = harness.states

        server.kill()
        fire_all()
        first = scrape(observer.url)
        fire_all()
        # Its age grows while nothing happens.
        oldest_s = first.total("expire_wedged_oldest_seconds", agent="watcher", backend="redis")
        second = until(
            observer.url, lambda found: found.total("expire_wedged_oldest_seconds") > oldest_s + 0.1
        )
        assert oldest_s > 0
        for rounds, found in enumerate((first, second), 1):
            assert found.total("expire_wedged_timers", agent="watcher", backend="redis") == len(KEYS)
            assert failed_flushes(found) == rounds * len(KEYS)
            assert found.total("expire_flushes_total", outcome="ok") == 0
            assert found.total("store_up", backend="redis") == 0
            assert found.total("ttl_wipes_total") == 0
            fails, rearms = rounds * len(KEYS), 0
            if on_failure == "rearm":
                fails, rearms = rearms, fails
            assert found.total("bundle_failures_total", phase="timer") == fails
            assert found.total("expire_rearms_total") == rearms
        # The store's health is known without traffic too.
        pings = second.total("store_operation_duration_seconds_count", operation="ping", outcome="error")
        until(
            observer.url,
            lambda found: (
                found.total("store_operation_duration_seconds_count", operation="ping", outcome="error")
                > pings
            ),
        )
        _, page = get(observer.url)
        assert "1 store down · 5 wedged timers" in page
        assert page.count("<td>2</td><td>StoreUnavailable</td><td>watcher</td>") == len(KEYS)
        assert "aircraft" not in page
        assert {key: state.memory for key, state in harness.states.items()} == {
            key: state.memory for key, state in states.items()
        }

        server.start()
        fire_all()
        after = until(observer.url, lambda found: found.total("store_up", backend="redis") == 1)
        assert after.total("expire_wedged_timers") == after.total("expire_wedged_oldest_seconds") == 0
        assert after.total("expire_flushes_total", outcome="ok") == len(KEYS)
        assert failed_flushes(after) == 2 * len(KEYS)
        assert after.total("ttl_wipes_total", flushed="true") == len(KEYS)
        assert after.total("expire_wedges_lost_sight_total") == 0
        assert harness.states == {}
        assert saved(server) == KEYS
        assert "Nothing is known to be wrong" in get(observer.url)[1]


class Repair(Shared, Observer):
    """Scrapes as each timer's bundle fails, and starts Redis again after some."""

    name = "repair"

    def __init__(self, server: DurableServer, url: str, failures: int) -> None:
        super().__init__()
        self.server = server
        self.scrapes: list[Scrape] = []
        self._url = url
        self._failures = failures

    def build(self) -> Observer:
        return self

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:  # noqa: ARG002 - as it is called
        assert (phase, error_type) == ("timer", "ExpireFlushFailed")
        self.scrapes.append(scrape(self._url))
        if len(self.scrapes) == self._failures:
            self.server.start()


class StopsRedis(Shared):
    """An agent that ends Redis at one of its events."""

    def __init__(self, server: DurableServer) -> None:
        super().__init__()
        self._server = server

    async def __call__(self, ctx: AgentContext) -> Complete:
        ctx.memory.set("last", b"x")
        if ctx.event == b"last":
            self._server.kill()
        return Complete(b"done")


def test_beams_metrics_alone_do_not_tell(server: DurableServer) -> None:
    failures = 3
    with endpoint(PLUGIN) as observer:
        repair = Repair(server, observer.url, failures)
        configured = config(server, "fail_bundle", "beam", PLUGIN, repair)
        script = [event(key, b"last" if key == KEYS[-1] else b"x", time_ms=10_000) for key in KEYS]
        pipeline = beam.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"]))
        _ = (
            pipeline
            | _source([*script, AdvanceWatermark(DUE_MS)], streaming=True)
            | RunAgent(StopsRedis(server), config=configured, name="watcher")
        )
        result = pipeline.run()
        result.wait_until_finish()
        after = scrape(observer.url)
        # This runner tears no DoFn down whose bundle has failed.
        end_workers()

    # While it failed, the endpoint told it.
    for number, found in enumerate(repair.scrapes, 1):
        assert found.total("expire_wedged_timers", backend="redis") >= 1
        assert failed_flushes(found) == number
        assert found.total("store_up", backend="redis") == 0
        assert found.total("bundle_failures_total", phase="timer") == number - 1
        assert found.total("ttl_wipes_total") == 0
    assert len(repair.scrapes) == failed_flushes(after) == failures
    assert after.total("expire_wedged_timers") == 0
    assert after.total("bundle_failures_total", phase="timer") == failures
    assert after.total("ttl_wipes_total", flushed="true") == len(KEYS)
    assert saved(server) == KEYS

    # The numbers that docs/telemetry/prometheus.md shows. A bundle ends at its first failing timer, so that
    # this runner, which puts all timers into one, gets to no other.
    assert repair.scrapes[-1].total("expire_wedged_timers") == 1
    assert after.total("activations_total", outcome="complete") == len(KEYS)
    query = result.metrics().query(MetricsFilter().with_namespace(catalogue.BEAM_NAMESPACE))
    assert {each.key.metric.name: each.committed for each in query["counters"]} == {"activations": 1}
    assert query["gauges"] == []

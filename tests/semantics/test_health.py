"""What the process knows of its stores, its wedged timers and its traces, whatever becomes of its bundles."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm, Suspend
from beam_agents.errors import ExpireFlushFailed
from beam_agents.signals.stores import StoreHealth, store_table
from beam_agents.signals.wedges import wedge_table
from beam_agents.testing import AgentHarness, FailOnce, answer, event
from tests.servers import redis
from tests.servers.process import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

eventually = partial(wait_until, within_s=30)

OPTIONS = "operation_timeout_s=0.5&connect_timeout_s=0.5&probe_period_s=0.05"


async def remember(ctx: AgentContext) -> Complete:
    ctx.memory.set("seen", b"%d" % (int(ctx.memory.get("seen", b"0")) + 1))
    return Complete()


async def save(ctx: AgentContext) -> Complete:
    for number in range(3):
        ctx.memory.longterm.save(f"row/{number}", b"value")
    await ctx.memory.longterm.search("row/")
    return Complete()


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[redis.DurableServer]:
    made = redis.DurableServer(tmp_path)
    made.start()
    yield made
    made.close()


def config(server: redis.DurableServer, on_failure: str = "fail_bundle") -> AgentConfig:
    return AgentConfig(
        longterm_memory=f"redis://127.0.0.1:{server.port}/0?{OPTIONS}",
        on_expire=FlushToLongterm(on_failure=on_failure, timeout_s=2.0),
        ttl_ms=1_000,
    )


def health() -> StoreHealth:
    (known,) = (known for known in store_table().all() if known.backend == "redis")
    return known


def threads() -> set[threading.Thread]:
    """The probes of this process; those of other tests' pipelines may be among them."""
    return {each for each in threading.enumerate() if each.name.startswith("beam-agents-probe")}


def test_an_idle_store_is_known_to_be_down_and_to_be_back(server: redis.DurableServer) -> None:
    before = threads()
    with AgentHarness(remember, config(server)) as harness:
        eventually(lambda: health().up is True)
        server.kill()
        eventually(lambda: health().up is False)
        assert health().error_type in {"StoreUnavailable", "StoreTimeout"}
        server.start()
        eventually(lambda: health().up is True)
        eventually(lambda: len(harness.signals.probes) > 3)
        told = [each.event.name for record in harness.signals.probes for each in record.happenings]
        assert told == ["store_down", "store_recovered"]
        outcomes = {
            labels for record in harness.signals.probes for _, _, labels in record.measurements if labels
        }
        assert {labels[:2] for labels in outcomes} == {("redis", "ping")}
        assert harness.signals.records == []
    assert not [known for known in store_table().all() if known.backend == "redis"]
    assert threads() == before


def test_one_probe_serves_all_agents_of_a_store(server: redis.DurableServer) -> None:
    before = threads()

    def probes() -> int:
        return len(threads() - before)

    with AgentHarness(remember, config(server)) as first:
        with AgentHarness(remember, config(server)) as second:
            assert probes() == 1
            eventually(lambda: len(first.signals.probes) > 0)
            assert second.signals.probes == []
        count = len(first.signals.probes)
        eventually(lambda: len(first.signals.probes) > count)
    assert probes() == 0


@pytest.mark.parametrize("on_failure", ["fail_bundle", "rearm"])
def test_a_timer_is_wedged_until_its_flush_succeeds(server: redis.DurableServer, on_failure: str) -> None:
    with AgentHarness(remember, config(server, on_failure)) as harness:
        keys = (b"a", b"b", b"c")
        harness.send(*(event(key, time_ms=1_000) for key in keys))
        server.kill()
        for _ in range(2):
            for key in keys:
                if on_failure == "rearm":
                    harness.fire_expiry(key, 2_000)
                else:
                    with pytest.raises(ExpireFlushFailed):
                        harness.fire_expiry(key, 2_000)
        wedged = wedge_table().wedged()
        assert [wedge.attempts for wedge in wedged] == [2, 2, 2]
        assert {wedge.backend for wedge in wedged} == {"redis"}
        assert wedged[0].age_s >= wedged[-1].age_s > 0
        assert [each.attributes["attempt"] for each in harness.signals.happenings("expire_wedged")] == [
            *(1, 1, 1, 2, 2, 2)
        ]
        server.start()
        harness.send(event(b"a", time_ms=2_100))
        assert len(wedge_table()) == 2, "a key that woke has a new timer"
        for key in keys:
            (at_ms,) = harness.timers(key).values() if key == b"a" else (1_000_000,)
            harness.fire_expiry(key, at_ms)
        assert wedge_table().wedged() == []
        assert wedge_table().lost_sight() == {}
        assert harness.states == {}
        recovered = harness.signals.happenings("expire_recovered")
        assert [each.attributes["attempt"] for each in recovered] == [3, 3]


def test_a_flush_has_a_step_of_its_own_for_each_attempt(server: redis.DurableServer) -> None:
    with AgentHarness(save, config(server)) as harness:
        harness.send(event(b"k", time_ms=1_000))
        server.kill()
        assert harness.send(event(b"k", time_ms=2_000)).errors[0].reason == "longterm_read_failed"
        first, second = harness.signals.records
    assert [(moment.name, dict(moment.attributes)) for moment in first.moments] == [
        (
            "longterm.stage",
            {"beam_agents.longterm.key_length": 5, "beam_agents.longterm.value_bytes": 5},
        )
    ] * 3
    search, flush = (step for step in first.steps if step.target == "redis")
    assert search.attributes["beam_agents.longterm.rows_overlaid"] == 3
    assert flush.attributes["db.system.name"] == "redis"
    assert flush.attributes["server.port"] == server.port
    (attempt,) = (step for step in first.steps if step.parent is flush)
    assert attempt.span.filled(attempt.target) == "flush"
    assert attempt.attributes["db.operation.batch.size"] == 3
    assert flush.start_ns <= attempt.start_ns <= attempt.end_ns <= flush.end_ns
    (failed,) = (step for step in second.steps if step.target == "redis")
    attempts = [step for step in second.steps if step.parent is failed]
    assert len(attempts) == failed.attributes["beam_agents.longterm.retries"] + 1 > 1  # type: ignore[operator]  # an int
    assert {step.error_type for step in attempts} <= {"StoreUnavailable", "StoreTimeout"}


def test_a_retry_is_another_attempt_in_the_same_trace() -> None:
    with AgentHarness(remember, probe=FailOnce("commit")) as harness:
        harness.send(event(b"k", time_ms=1_000), attempts=2)
        first, second = harness.signals.records
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.trace_id == second.trace_id
    assert first.span_id != second.span_id


def test_a_resume_and_an_expiry_know_the_activation_before_them() -> None:
    async def ask(ctx: AgentContext) -> Complete | Suspend:
        ctx.memory.set("asked", b"1")
        if ctx.event is None:
            return Complete()
        ctx.act("question")
        return Suspend()

    with AgentHarness(ask, AgentConfig(ttl_ms=1_000)) as harness:
        (intent,) = harness.send(event(b"k", time_ms=1_000)).intents
        harness.send(answer(intent, b"answer", time_ms=1_500))
        harness.advance_watermark(10_000)
        asked, resumed, expired = harness.signals.records
    assert asked.link is None
    assert resumed.link is not None
    assert resumed.link[:2] == (asked.trace_id, asked.span_id)
    assert expired.link is not None
    assert expired.link[:2] == (resumed.trace_id, resumed.span_id)

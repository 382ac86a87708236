"""The long-term tier in an agent's life: staged, flushed once, guarded; and what outlasts an expiring key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm, restore_working_memory
from beam_agents.errors import ExpireFlushFailed, StoreTimeout, StoreUnavailable
from beam_agents.memory.expiry import FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS, ExpiringKey, backoff_ms
from beam_agents.memory.facade import WorkingMemory
from beam_agents.memory.stores.contract import decode_record
from beam_agents.memory.stores.inprocess import InProcessAdmin, InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.signals.stores import store_table
from beam_agents.signals.wedges import wedge_table
from beam_agents.testing import AdvanceWatermark, AgentHarness, event, run_events

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.signals.types import UpsertResult

TTL_MS = 1_000
CONFIG = AgentConfig(longterm_memory="memory://", ttl_ms=TTL_MS)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    forget_rows()
    yield
    forget_rows()


class Outage:
    """Makes the in-process store fail, as an unreachable one would, or as one that hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down = False
        self.hangs = False
        self.calls = 0
        save_many, ping = InProcessStore.save_many, InProcessStore.ping

        async def failing(store: InProcessStore, rows: Sequence[StoreRow]) -> list[UpsertResult]:
            self.calls += 1
            if self.down:
                raise StoreUnavailable("inprocess", "flush", "ConnectionRefusedError")
            if self.hangs:
                raise StoreTimeout("inprocess", "flush")
            return await save_many(store, rows)

        async def probed(store: InProcessStore) -> None:
            if self.hangs:
                raise StoreTimeout("inprocess", "ping")
            await ping(store)

        monkeypatch.setattr(InProcessStore, "ping", probed)
        monkeypatch.setattr(InProcessStore, "save_many", failing)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


def rows() -> dict[tuple[bytes, str], tuple[bytes, int]]:
    store = InProcessStore(parse_store_uri("memory://"))
    found = asyncio.run(InProcessAdmin(store).scan(None, 1_000))
    return {(row.entity_key, row.key): (decode_record(row).value, row.seq) for row in found}


async def keep(ctx: AgentContext) -> Complete:
    """Save the event, and count in working memory."""
    assert ctx.event is not None
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    ctx.memory.longterm.save("last", ctx.event)
    if ctx.event == b"fail":
        raise ValueError
    return Complete(b"%d" % seen)


def test_saves_are_flushed_once_with_the_activations_seq(outage: Outage) -> None:
    async def agent(ctx: AgentContext) -> Complete:
        for index in range(5):
            ctx.memory.longterm.save(f"row/{index}", b"%d" % index)
        ctx.memory.longterm.save("row/0", b"again")
        found = await ctx.memory.longterm.search("row/", limit=2)
        return Complete(b",".join(record.value for record in found))

    with AgentHarness(agent, CONFIG) as harness:
        assert harness.send(event(b"k", time_ms=7_000)).outputs == [b"again,1"]
        assert outage.calls == 1
        assert rows() == {
            (b"k", f"row/{index}"): (b"again" if index == 0 else b"%d" % index, 7_000) for index in range(5)
        }
        signals = harness.signals
        assert signals.total("longterm_staged_total", backend="inprocess") == 5
        assert signals.total("longterm_upserts_total", result="applied") == 5
        assert signals.values("longterm_flush_rows", outcome="ok") == [5]
        assert len(signals.values("store_operation_duration_seconds", operation="flush")) == 1
        (step,) = signals.steps("upsert_memory {target}")
        assert step.attributes["beam_agents.longterm.rows_applied"] == 5
        assert step.attributes.keys() <= set(step.span.attributes)


def test_an_activation_that_saves_nothing_calls_no_store(outage: Outage) -> None:
    async def agent(ctx: AgentContext) -> Complete:
        assert ctx.memory.longterm is not None
        return Complete()

    with AgentHarness(agent, CONFIG) as harness:
        harness.send(event(b"k", time_ms=7_000))
    assert outage.calls == 0


def test_a_failed_activation_flushes_nothing(outage: Outage) -> None:
    with AgentHarness(keep, CONFIG) as harness:
        (error,) = harness.send(event(b"k", b"fail", time_ms=7_000)).errors
        assert error.reason == "activation_error"
    assert outage.calls == 0
    assert rows() == {}


def test_a_failed_flush_fails_the_activation_closed(outage: Outage) -> None:
    with AgentHarness(keep, CONFIG) as harness:
        harness.send(event(b"k", b"one", time_ms=1_000))
        before = harness.states
        outage.down = True
        emitted = harness.send(event(b"k", b"two", time_ms=2_000))
        (error,) = emitted.errors
        assert error.reason == "longterm_flush_failed"
        assert error.detail.startswith("StoreUnavailable: inprocess: flush failed (ConnectionRefusedError)")
        assert (emitted.outputs, emitted.intents) == ([], [])
        assert harness.states == before
        assert rows() == {(b"k", "last"): (b"one", 1_000)}
        signals = harness.signals
        assert signals.total("longterm_flush_failures_total", error_type="StoreUnavailable") == 1
        assert signals.total("store_retries_total", error_type="StoreUnavailable") == 2
        assert len(signals.happenings("longterm_flush_failed")) == 1
        outage.down = False
        assert harness.send(event(b"k", b"two", time_ms=2_000)).outputs == [b"2"]


def test_a_failed_read_that_the_agent_lets_raise_has_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(store: InProcessStore, entity_key: bytes, key: str) -> None:  # noqa: ARG001 - a store's
        raise StoreUnavailable("inprocess", "load")

    async def agent(ctx: AgentContext) -> Complete:
        await ctx.memory.longterm.load("k")
        return Complete()

    monkeypatch.setattr(InProcessStore, "load", load)
    with AgentHarness(agent, CONFIG) as harness:
        (error,) = harness.send(event(b"k", time_ms=1)).errors
        assert error.reason == "longterm_read_failed"
        (step,) = harness.signals.steps("search_memory {target}")
        assert step.error_type == "StoreUnavailable"


def test_a_woken_key_and_a_new_pipeline_can_update_their_old_rows() -> None:
    with AgentHarness(keep, CONFIG) as harness:
        harness.send(*(event(b"k", b"%d" % number, time_ms=1_000) for number in range(50)))
        harness.advance_watermark(10_000)
        assert harness.states == {}
        harness.send(event(b"k", b"woken", time_ms=10_001))
    assert rows() == {(b"k", "last"): (b"woken", 10_001)}
    with AgentHarness(keep, CONFIG) as harness:
        harness.send(event(b"k", b"new pipeline", time_ms=20_000))
    assert rows() == {(b"k", "last"): (b"new pipeline", 20_000)}


def test_reprocessed_events_overwrite_nothing_and_say_so() -> None:
    with AgentHarness(keep, CONFIG) as harness:
        harness.send(event(b"k", b"newest", time_ms=20_000))
    with AgentHarness(keep, CONFIG) as harness:
        emitted = harness.send(event(b"k", b"old", time_ms=10_000))
        assert emitted.outputs == [b"1"]
        assert harness.signals.total("longterm_upserts_total", result="stale") == 1
        assert harness.signals.total("longterm_upserts_total", result="applied") == 0
        (told,) = harness.signals.happenings("longterm_upsert_stale")
        assert told.attributes == {"backend": "inprocess", "rows": 1, "seq": 10_000}
        (step,) = harness.signals.steps("upsert_memory {target}")
        assert step.attributes["beam_agents.longterm.rows_stale"] == 1
    assert rows() == {(b"k", "last"): (b"newest", 20_000)}


# Expiry


async def remember(ctx: AgentContext) -> Complete:
    """Bring back what expired, and count."""
    if len(ctx.memory) == 0:
        kept = await ctx.memory.longterm.load("working_memory")
        if kept is not None:
            restore_working_memory(ctx.memory, kept.value)
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    ctx.memory.append("ring", b"item %d" % seen, max_items=3)
    return Complete(b"%d" % seen)


def expiring(**fields: object) -> AgentConfig:
    hook = FlushToLongterm(**fields)  # type: ignore[arg-type]  # as given
    return AgentConfig(longterm_memory="memory://", ttl_ms=TTL_MS, on_expire=hook)


def test_memory_outlasts_its_key_and_comes_back() -> None:
    with AgentHarness(remember, expiring()) as harness:
        harness.send(event(b"k", time_ms=1_000), event(b"k", time_ms=1_100))
        memory = harness.states[b"k"].memory
        harness.advance_watermark(2_100)
        assert harness.states == {}
        assert rows() == {(b"k", "working_memory"): (memory, 1_100)}
        assert harness.signals.total("ttl_wipes_total", flushed="true") == 1
        assert harness.signals.total("expire_flushes_total", outcome="ok") == 1
        assert harness.send(event(b"k", time_ms=9_000)).outputs == [b"3"]
        restored = harness.states[b"k"].working_memory
        assert restored.ring("ring") == (b"item 1", b"item 2", b"item 3")


def test_a_key_that_no_row_could_have_is_refused_before_it_has_a_memory() -> None:
    async def remembers(ctx: AgentContext) -> Complete:
        ctx.memory.set("seen", b"1")
        return Complete()

    with AgentHarness(remembers, expiring()) as harness:
        assert harness.send(event(b"e" * 512, time_ms=1_000)).errors == []
        (error,) = harness.send(event(b"e" * 513, time_ms=1_000)).errors
        assert error.reason == "invalid_envelope"
        assert "may have 512 bytes; this one has 513" in error.detail
        assert set(harness.states) == {b"e" * 512}


def test_an_empty_memory_makes_no_store_call(outage: Outage) -> None:
    async def idle(ctx: AgentContext) -> Complete:  # noqa: ARG001 - an agent's signature
        return Complete()

    with AgentHarness(idle, expiring()) as harness:
        harness.send(event(b"k", time_ms=1_000))
        harness.advance_watermark(5_000)
        assert harness.states == {}
        assert harness.signals.total("ttl_wipes_total", flushed="empty") == 1
    assert outage.calls == 0


def test_the_wipe_waits_for_the_flush(outage: Outage) -> None:
    outage.down = True
    with AgentHarness(remember, expiring()) as harness:
        harness.send(event(b"k", time_ms=1_000))
        before = harness.states
        for _ in range(3):
            with pytest.raises(ExpireFlushFailed, match="StoreUnavailable"):
                harness.fire_expiry(b"k", 2_000)
            assert harness.states == before
        assert harness.signals.bundle_failures == [("timer", "ExpireFlushFailed")] * 3
        assert harness.signals.total("expire_flushes_total", outcome="error") == 3
        assert len(harness.signals.happenings("expire_wedged")) == 3
        outage.down = False
        assert harness.fire_expiry(b"k", 2_000) == []
        assert harness.states == {}
    assert rows() == {(b"k", "working_memory"): (before[b"k"].memory, 1_000)}


def test_on_a_runner_a_failing_timer_bundle_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [True, True]
    save_many = InProcessStore.save_many

    async def failing(store: InProcessStore, given: Sequence[StoreRow]) -> list[UpsertResult]:
        if failures:
            failures.pop()
            raise ValueError  # not transient: each is the end of an attempt of the bundle
        return await save_many(store, given)

    monkeypatch.setattr(InProcessStore, "save_many", failing)
    run = run_events(
        remember,
        [event(b"k", time_ms=1_000), AdvanceWatermark(3_000), event(b"k", time_ms=4_000)],
        config=expiring(),
    )
    assert run.outputs == [b"1", b"2"]
    assert run.signals.bundle_failures == [("timer", "ExpireFlushFailed")] * 2
    assert run.expired == [b"k", b"k"]
    assert (b"k", "working_memory") in rows()


def test_rearming_keeps_the_key_and_lets_the_others_go_on(outage: Outage) -> None:
    with AgentHarness(remember, expiring(on_failure="rearm")) as harness:
        harness.send(event(b"k", time_ms=1_000))
        memory = harness.states[b"k"].memory
        outage.down = True
        fired_ms = 2_000
        for failures in range(1, 4):
            assert harness.fire_expiry(b"k", fired_ms) == []
            control = harness.states[b"k"].decoded_control
            assert (control.expire_failures, control.expire_failing_since_ms) == (failures, 2_000)
            assert harness.states[b"k"].memory == memory
            (fired_ms,) = harness.timers(b"k").values()
        assert fired_ms == 2_000 + FIRST_BACKOFF_MS * (1 + 2 + 4)
        assert harness.signals.bundle_failures == []
        assert harness.signals.total("expire_rearms_total") == 3
        outage.down = False
        harness.advance_watermark(fired_ms)
        assert harness.states == {}
        (told,) = harness.signals.happenings("expire_recovered")
        assert told.attributes["attempt"] == 4
    assert rows() == {(b"k", "working_memory"): (memory, 1_000)}


def test_a_store_that_hangs_holds_up_no_keys(outage: Outage) -> None:
    outage.hangs = True
    keys = [b"%d" % number for number in range(20)]
    with AgentHarness(remember, expiring(on_failure="rearm", max_attempts=2)) as harness:
        harness.send(*(event(key, time_ms=1_000) for key in keys))
        store_table().failed(parse_store_uri("memory://"), "StoreTimeout")
        for _ in range(3):
            for key in keys:
                assert harness.fire_expiry(key, 2_000) == []
        assert outage.calls == 0
        control = harness.states[keys[0]].decoded_control
        # What was not tried has not failed again: it neither waits longer nor uses up the attempts.
        assert (control.expire_failures, control.expire_failing_since_ms) == (1, 2_000)
        assert harness.timers(keys[0]) == {"": 2_000 + FIRST_BACKOFF_MS}
        assert harness.signals.total("expire_flushes_total") == 0
        assert harness.signals.total("expire_rearms_total") == 60
        assert len(wedge_table()) == 20
        outage.hangs = False
        store_table().answered(parse_store_uri("memory://"))
        harness.advance_watermark(60_000)
        assert harness.states == {}
        assert len(harness.signals.happenings("expire_recovered")) == 20
    assert len(rows()) == 20


def test_a_store_that_hangs_fails_every_bundle_that_is_to_fail(outage: Outage) -> None:
    outage.hangs = True
    with AgentHarness(remember, expiring()) as harness:
        harness.send(event(b"k", time_ms=1_000))
        for _ in range(2):
            with pytest.raises(ExpireFlushFailed, match="StoreTimeout"):
                harness.fire_expiry(b"k", 2_000)
    assert outage.calls >= 2


def test_a_wedged_key_that_wakes_is_an_ordinary_key_again(outage: Outage) -> None:
    with AgentHarness(remember, expiring(on_failure="rearm")) as harness:
        harness.send(event(b"k", time_ms=1_000))
        outage.down = True
        harness.fire_expiry(b"k", 2_000)
        assert harness.send(event(b"k", time_ms=2_500)).outputs == [b"2"]
        control = harness.states[b"k"].decoded_control
        assert (control.expire_failures, control.expire_failing_since_ms) == (0, 0)
        assert harness.timers(b"k") == {"": 3_500}


def test_rearming_ends_where_it_was_told_to(outage: Outage) -> None:
    outage.down = True
    with AgentHarness(remember, expiring(on_failure="rearm", max_attempts=2)) as harness:
        harness.send(event(b"k", time_ms=1_000))
        assert harness.fire_expiry(b"k", 2_000) == []
        with pytest.raises(ExpireFlushFailed):
            harness.fire_expiry(b"k", 62_000)


def test_the_backoff_is_bounded_and_never_shrinks() -> None:
    waits = [backoff_ms(failures) for failures in range(1, 100)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (FIRST_BACKOFF_MS, LONGEST_BACKOFF_MS)


class KeepTheCount:
    """A hook of a user's own."""

    on_failure = "fail_bundle"
    timeout_s = 5.0
    max_attempts = None

    def rows(self, expiring_key: ExpiringKey) -> Mapping[str, bytes]:
        seen = WorkingMemory(expiring_key.memory).get("seen")
        return {} if seen == b"1" else {"count": seen or b"0", "due": b"%d" % expiring_key.due_ms}


def test_a_hook_of_ones_own() -> None:
    config = AgentConfig(longterm_memory="memory://", ttl_ms=TTL_MS, on_expire=KeepTheCount())
    with AgentHarness(remember, config) as harness:
        harness.send(
            event(b"once", time_ms=1_000), event(b"twice", time_ms=1_000), event(b"twice", time_ms=1_001)
        )
        harness.advance_watermark(5_000)
        assert harness.signals.total("ttl_wipes_total", flushed="true") == 1
        assert harness.signals.total("ttl_wipes_total", flushed="false") == 1
    assert rows() == {(b"twice", "count"): (b"2", 1_001), (b"twice", "due"): (b"2001", 1_001)}


def test_restoring_keeps_what_is_there_and_the_order_of_use() -> None:
    old = WorkingMemory()
    for key in ("a", "b", "c"):
        old.set(key, key.encode())
    old.append("ring", b"1")
    old.append("ring", b"2")
    old.get("a")
    value = old.encode()
    assert value is not None
    memory = WorkingMemory()
    memory.set("b", b"newer")
    assert restore_working_memory(memory, value) == 3
    assert memory.get("b") == b"newer"
    assert memory.ring("ring") == (b"1", b"2")
    assert [info.key for info in memory.entries()][:2] == ["c", "a"]

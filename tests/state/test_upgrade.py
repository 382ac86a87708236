"""A job is stopped with a savepoint, changed, and started from it: version 1's state and timers go on.

``golden/savepoint*_v1.json`` are the savepoints of ``jobs.agent_v1``, as Beam's state and data API carried
them.
"""

from __future__ import annotations

import asyncio
import pathlib
from dataclasses import replace

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm, WorkingMemory
from beam_agents.memory.compaction import DropOldestCompactor
from beam_agents.memory.expiry import restore_working_memory
from beam_agents.memory.stores.contract import StoreRow, decode_record, encode_record
from beam_agents.memory.stores.inprocess import InProcessAdmin, InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.runtime import clock
from beam_agents.testing import AgentHarness, KeyState, answer, event
from beam_agents.wire.beam_agents_pb2 import ReplayState, ToolIntent
from tests.state.jobs import EVENTS, HOUR_MS, START_MS, V1, V2, agent_v1, agent_v2
from tests.state.savepoints import Run, Savepoint, start

GOLDEN = pathlib.Path(__file__).with_name("golden")
DEADLINES_V1 = replace(V1, suspension_timeout_ms=HOUR_MS)
STEP = "Agent/Activate/ParDo(AgentDoFn)"
LATER_MS = START_MS + 1_000


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    # Deadlines are by the worker's clock, and part of the savepoint.
    monkeypatch.setattr(clock, "wall_clock_ms", lambda: START_MS)
    forget_rows()


def golden(name: str) -> Savepoint:
    return Savepoint.loads((GOLDEN / name).read_text())


def savepoint_v1() -> Savepoint:
    return golden("savepoint_v1.json")


def states(savepoint: Savepoint) -> dict[bytes, KeyState]:
    """Return the keys' cells; keys and values have a length before them."""
    found: dict[bytes, KeyState] = {}
    for (_, state_id, _, key_hex), value in savepoint.cells.items():
        key = bytes.fromhex(key_hex)[1:]
        found[key] = found.get(key, KeyState()).with_cell(state_id, nested(bytes.fromhex(value)))
    return found


def nested(encoded: bytes) -> bytes:
    """Return what follows a varint that tells its length."""
    size = shift = index = 0
    while True:
        digit = encoded[index]
        size |= (digit & 0x7F) << shift
        index, shift = index + 1, shift + 7
        if digit < 0x80:
            break
    assert len(encoded) == index + size
    return encoded[index:]


def upgraded(*events: object, config: AgentConfig = V2, stop: bool = True, **options: object) -> Run:
    """Start version 2 from version 1's savepoint, under another name of the agent."""
    options = {"start_from": savepoint_v1(), "name": "renamed", **options}
    return start(agent_v2, config, events, stop=stop, **options)  # type: ignore[arg-type]  # envelopes, and start's own


def intents_v1(config: AgentConfig = V1) -> dict[bytes, list[ToolIntent]]:
    """Return what version 1 asked for, by key."""
    intents = start(agent_v1, config, EVENTS, stop=True).intents
    return {key: [each for each in intents if each.entity_key == key] for key in (b"bob", b"cyd")}


@pytest.mark.parametrize(
    ("name", "config"), [("savepoint_v1.json", V1), ("savepoint_deadlines_v1.json", DEADLINES_V1)]
)
def test_version_1_still_leaves_this_savepoint(name: str, config: AgentConfig) -> None:
    run = start(agent_v1, config, EVENTS, stop=True)
    assert run.outputs == [b"VERSION 1: TEA", b"VERSION 1: COFFEE", b"VERSION 1: WATER"]
    assert run.savepoint == golden(name)


def test_memory_is_carried_on_by_a_changed_agent() -> None:
    before = states(savepoint_v1())[b"ada"]
    run = upgraded(event(b"ada", b"milk", time_ms=LATER_MS), event(b"eve", b"milk", time_ms=LATER_MS))
    assert (run.outputs, run.errors) == ([b"2+1 tea,coffee version 2", b"0+1 nothing version 2"], [])
    after = states(run.savepoint)[b"ada"].working_memory
    assert set(before.working_memory.keys()) == {"seen", "recent", "answer", "long"}
    assert set(after.keys()) == {"seen", "recent", "answer", "count"}
    assert after.ring("recent") == (b"tea", b"coffee")


def test_keys_that_get_no_event_stay_byte_for_byte() -> None:
    before, run = savepoint_v1(), upgraded(event(b"ada", time_ms=LATER_MS))
    untouched = {place: value for place, value in before.cells.items() if place[3] != b"\x03ada".hex()}
    assert {place: run.savepoint.cells[place] for place in untouched} == untouched


@pytest.mark.parametrize(("time_ms", "seq"), [(None, START_MS + 2), (5, START_MS + 2), (LATER_MS, LATER_MS)])
def test_seq_goes_on(time_ms: int | None, seq: int) -> None:
    run = upgraded(event(b"ada", time_ms=time_ms))
    assert states(run.savepoint)[b"ada"].seq == seq


def test_replay_answers_of_version_1_are_kept_within_the_new_bounds() -> None:
    def cached(savepoint: Savepoint) -> list[tuple[int, bytes]]:
        replay = ReplayState.FromString(states(savepoint)[b"ada"].replay or b"")
        return [(entry.seq, entry.response) for entry in replay.entries]

    first, second = cached(savepoint_v1())
    assert [first[0], second[0]] == [START_MS, START_MS + 1]
    wide = upgraded(event(b"ada", time_ms=LATER_MS), config=replace(V2, replay_cache=V1.replay_cache))
    assert cached(wide.savepoint)[:2] == [first, second]
    assert len(cached(wide.savepoint)) == 3
    (only,) = cached(upgraded(event(b"ada", time_ms=LATER_MS)).savepoint)
    assert only[0] == LATER_MS


def test_a_job_without_a_model_leaves_the_replay_cell_as_it_is() -> None:
    before = states(savepoint_v1())[b"ada"]
    run = start(forget, replace(V2, provider_factory=None), [event(b"ada", time_ms=LATER_MS)],
                start_from=savepoint_v1(), stop=True)  # fmt: skip
    assert run.errors == []
    after = states(run.savepoint)[b"ada"]
    assert after.replay == before.replay
    assert after.memory is None


async def forget(ctx: AgentContext) -> Complete:
    for key in tuple(ctx.memory.keys()):
        ctx.memory.delete(key)
    return Complete()


def test_suspensions_of_version_1_are_answered_in_version_2() -> None:
    intents = intents_v1()
    (bob,), (cyd, cyd_too) = intents[b"bob"], intents[b"cyd"]
    run = upgraded(
        answer(cyd, b"one", time_ms=LATER_MS),
        answer(bob, b"yes", time_ms=LATER_MS),
        answer(bob, b"yes again", time_ms=LATER_MS),
        answer(cyd_too, b"two", time_ms=LATER_MS),
    )
    assert run.outputs == [
        b"version 1 waits for suspend one: yes",
        b"version 1 waits for suspend two: one+two",
    ]
    assert [(each.reason, each.detail[:5]) for each in run.errors] == [("orphaned_result", "twice")]


def test_half_an_answer_survives_the_stop() -> None:
    first, second = intents_v1()[b"cyd"]
    half = start(agent_v1, V1, [*EVENTS, answer(first, b"one", time_ms=START_MS + 5)], stop=True)
    run = upgraded(answer(second, b"two", time_ms=LATER_MS), start_from=half.savepoint)
    assert run.outputs == [b"version 1 waits for suspend two: one+two"]


@pytest.mark.parametrize(
    ("ttl_ms", "expires_ms"), [(60_000, START_MS + 1 + HOUR_MS), (2 * HOUR_MS, LATER_MS + 2 * HOUR_MS)]
)
def test_a_key_never_expires_earlier_than_version_1_promised(ttl_ms: int, expires_ms: int) -> None:
    run = upgraded(event(b"ada", time_ms=LATER_MS), config=replace(V2, ttl_ms=ttl_ms))
    assert states(run.savepoint)[b"ada"].decoded_control.expires_at_ms == expires_ms


def rows() -> dict[tuple[bytes, str], StoreRow]:
    found = asyncio.run(InProcessAdmin(InProcessStore(parse_store_uri("memory://"))).scan(None, 1_000))
    return {(row.entity_key, row.key): row for row in found}


def test_timers_of_version_1_fire_in_version_2_and_its_hook_gets_the_memory() -> None:
    """Also of keys that never get an event again; the hook is new with version 2."""
    config = replace(V2, longterm_memory="memory://", on_expire=FlushToLongterm())
    before = states(savepoint_v1())
    run = upgraded(event(b"ada", time_ms=LATER_MS), config=config, stop=False)
    assert {key for key, _ in rows()} == {b"ada", b"bob", b"cyd", b"dan"}
    dan = rows()[b"dan", "working_memory"]
    assert decode_record(dan).value == before[b"dan"].memory
    assert (dan.seq, dan.updated_at_ms) == (START_MS + 4, START_MS + 4 + HOUR_MS)
    assert b"count" in decode_record(rows()[b"ada", "working_memory"]).value
    wiped = [(each.entity_key, each.reason, each.event_time_ms) for each in run.errors]
    assert sorted(wiped) == [
        (b"bob", "ttl_wiped_suspension", START_MS + 2 + HOUR_MS),
        (b"cyd", "ttl_wiped_suspension", START_MS + 3 + HOUR_MS),
    ]


def test_deadlines_that_version_1_set_fire_in_version_2() -> None:
    (bob,) = intents_v1(DEADLINES_V1)[b"bob"]
    savepoint = golden("savepoint_deadlines_v1.json")
    family = (STEP, "ts-suspension")
    # Without the expiry's timers: which family of a bundle fires first is this runner's whim.
    savepoint = Savepoint(savepoint.cells, {family: savepoint.timers[family]})
    config = replace(V2, suspension_timeout_ms=5 * HOUR_MS)
    run = upgraded(answer(bob, b"in time", time_ms=LATER_MS), config=config, stop=False, start_from=savepoint)
    assert run.outputs == [b"version 1 waits for suspend one: in time"]
    assert [(each.entity_key, each.reason) for each in run.errors] == [(b"cyd", "suspension_timeout")]


def test_a_deadline_that_version_2_adds_is_none_of_version_1s_suspensions() -> None:
    config = replace(V2, suspension_timeout_ms=HOUR_MS)
    run = upgraded(event(b"bob", time_ms=LATER_MS), config=config)
    assert len(states(run.savepoint)[b"bob"].decoded_control.suspensions) == 1
    assert (STEP, "ts-suspension") not in run.savepoint.timers
    run = upgraded(event(b"bob", time_ms=LATER_MS), config=config, stop=False)
    assert {each.reason for each in run.errors} == {"ttl_wiped_suspension"}


def test_a_failing_expiry_of_version_1_is_taken_up_where_it_was() -> None:
    """Version 1 set its timer again; version 2 succeeds, or fails the bundle."""
    control = states(savepoint_v1())[b"dan"].decoded_control
    control.expire_failures, control.expire_failing_since_ms = 3, START_MS
    state = replace(states(savepoint_v1())[b"dan"], control=control.SerializeToString(deterministic=True))
    config = replace(V2, longterm_memory="memory://", on_expire=FlushToLongterm(on_failure="fail_bundle"))
    with AgentHarness(agent_v2, config) as harness:
        harness.put_state(b"dan", state)
        harness.fire_expiry(b"dan", control.expires_at_ms + 1)
        assert harness.states.get(b"dan", KeyState()) == KeyState()
        (recovered,) = harness.signals.happenings("expire_recovered")
        assert recovered.attributes["attempt"] == 4
    assert (b"dan", "working_memory") in rows()


def test_a_smaller_target_of_eviction_takes_effect_at_the_next_eviction() -> None:
    memory = WorkingMemory(compactor=None)
    for index in range(700):
        memory.set(f"fact/{index:03d}", bytes(1_000))
    state = states(savepoint_v1())[b"ada"]
    control = state.decoded_control
    control.memory_bytes, control.memory_entries = memory.size_bytes, len(memory)
    state = KeyState(control.SerializeToString(deterministic=True), memory.encode(), state.replay)

    async def grow(ctx: AgentContext) -> Complete:
        ctx.memory.set("more", bytes(int(ctx.event or b"0")))
        return Complete()

    with AgentHarness(grow, replace(V2, compactor=DropOldestCompactor(target_bytes=100_000))) as harness:
        harness.put_state(b"ada", state)
        harness.send(event(b"ada", b"1", time_ms=LATER_MS))
        assert len(harness.states[b"ada"].working_memory) == 701
        harness.send(event(b"ada", b"90000", time_ms=LATER_MS))
        assert harness.states[b"ada"].working_memory.size_bytes <= 100_000


def test_memory_that_version_1_flushed_at_expiry_is_restored_in_version_2() -> None:
    memory = states(savepoint_v1())[b"dan"].memory or b""
    row = StoreRow(b"dan", "working_memory", 1, encode_record(memory, 1, 1), 1)
    asyncio.run(InProcessStore(parse_store_uri("memory://")).save_many([row]))

    async def restore(ctx: AgentContext) -> Complete:
        found = await ctx.memory.longterm.load("working_memory")
        assert found is not None
        return Complete(b"%d" % restore_working_memory(ctx.memory, found.value))

    with AgentHarness(restore, replace(V2, longterm_memory="memory://")) as harness:
        assert harness.send(event(b"dan", time_ms=LATER_MS)).outputs == [b"4"]
        assert harness.states[b"dan"].working_memory.ring("recent") == (b"water",)

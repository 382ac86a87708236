"""What a newer version wrote: fields that this one does not know are kept, a newer format is refused.

``golden/*_extended.bin`` are the golden files of version 1 with a field that nobody knows in each message, as
a later version may add; ``golden/*_newer.bin`` are the same with a version that this one does not know.
"""

from __future__ import annotations

import asyncio
import pathlib
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, WorkingMemory
from beam_agents.cli.store_repair import plan_repair
from beam_agents.errors import StateVersionUnsupported
from beam_agents.memory.expiry import FlushToLongterm, restore_working_memory
from beam_agents.memory.stores.contract import StoreRow, decode_record
from beam_agents.memory.stores.inprocess import InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.model import LlmRequest
from beam_agents.model.scripted import ScriptedModel
from beam_agents.testing import AgentHarness, KeyState, event
from beam_agents.wire.beam_agents_pb2 import ControlState, LongTermRecord, MemoryBlob, ReplayState

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = pathlib.Path(__file__).with_name("golden")
MEMORY_V1 = pathlib.Path(__file__).parents[1] / "unit/memory/golden/memory_v1.bin"
LATER = b"\xa2\x06\x05later"
"""The field that nobody knows: number 100, five bytes."""
NOW_MS = 2_000_000
KEY = b"k"


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    forget_rows()
    yield
    forget_rows()


def store() -> InProcessStore:
    return InProcessStore(parse_store_uri("memory://"))


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


async def remember(ctx: AgentContext) -> Complete:
    """Write over one entry of the golden memory, one of its long values and one of its rings."""
    ctx.memory.set("fact/07", b"anew")
    ctx.memory.set("photo", b"p" * 2_000)
    ctx.memory.append("log", b"a further line")
    await ctx.call_model(LlmRequest("model", ctx.event or b""))
    return Complete(ctx.memory.get("fact/39", b""))


def config(**options: object) -> AgentConfig:
    return AgentConfig(provider_factory=ScriptedModel(lambda request: request.body), **options)  # type: ignore[arg-type]  # of the caller's choice


def control_of(memory: WorkingMemory, stored: bytes) -> bytes:
    """Return a golden control cell that tells of a golden memory and of a replay cell."""
    control = ControlState.FromString(stored)
    control.memory_bytes, control.memory_entries = memory.size_bytes, len(memory)
    control.replay_seq = control.seq
    return control.SerializeToString(deterministic=True)


def extended_state() -> KeyState:
    memory = golden("memory_extended")
    control = control_of(WorkingMemory(memory), golden("control_extended"))
    return KeyState(control, memory, golden("replay_extended"))


def test_fields_of_a_newer_version_are_kept_through_an_activation() -> None:
    with AgentHarness(remember, config()) as harness:
        harness.put_state(KEY, extended_state())
        emitted = harness.send(event(KEY, b"hello", time_ms=NOW_MS))
        assert (emitted.outputs, emitted.errors) == ([b"39" * 4], [])
        state = harness.states[KEY]
    control = state.decoded_control
    assert control.seq == NOW_MS
    for message in (control, *control.suspensions[:1], *control.settled[:1]):
        assert LATER in message.SerializeToString()
    replay = ReplayState.FromString(state.replay or b"")
    assert LATER in replay.SerializeToString()
    assert len(replay.entries) == 4
    assert all(LATER in entry.SerializeToString() for entry in replay.entries[:3])
    assert LATER in (state.memory or b"")


def test_what_is_written_anew_loses_them_and_the_rest_of_memory_keeps_them() -> None:
    memory = WorkingMemory(golden("memory_extended"))
    memory.set("fact/07", b"anew")
    memory.set("photo", b"p" * 2_000)
    memory.append("log", b"a further line")
    memory.get("fact/39")
    blob = MemoryBlob.FromString(memory.encode() or b"")
    head = MemoryBlob()
    head.CopyFrom(blob)
    del head.pages[:], head.extents[:]
    assert LATER in head.SerializeToString()
    entries = {key: entry for page in blob.pages for key, entry in page.scalars.items()}
    extended = {key: entry for page in blob.pages for key, entry in page.extended.items()}
    without = {
        key for key, entry in {**entries, **extended}.items() if LATER not in entry.SerializeToString()
    }
    assert without == {"fact/07", "photo"}
    for page in blob.pages:
        bare = type(page)()
        bare.CopyFrom(page)
        bare.scalars.clear()
        bare.extended.clear()
        assert LATER in bare.SerializeToString()


def test_a_memory_with_unknown_fields_has_all_its_entries() -> None:
    extended, plain = WorkingMemory(golden("memory_extended")), WorkingMemory(MEMORY_V1.read_bytes())
    assert set(extended.keys()) == set(plain.keys())
    for info in plain.entries():
        read = WorkingMemory.ring if info.kind.value == "ring" else WorkingMemory.get
        assert read(extended, info.key) == read(plain, info.key)  # type: ignore[operator]  # both take the key


@pytest.mark.parametrize("cell", ["control", "memory", "replay"])
def test_a_newer_version_is_refused_and_its_bytes_are_left(cell: str) -> None:
    state = extended_state().with_cell(cell, golden(f"{cell}_newer"))
    with AgentHarness(remember, config()) as harness:
        harness.put_state(KEY, state)
        (error,) = harness.send(event(KEY, b"hello", time_ms=NOW_MS)).errors
        assert error.reason == "state_version_unsupported"
        for told in (cell, "1000000", "1"):
            assert told in error.detail
        assert harness.states[KEY] == state


def test_a_newer_control_cell_is_not_wiped_when_its_key_expires() -> None:
    state = extended_state().with_cell("control", golden("control_newer"))
    with AgentHarness(remember, config()) as harness:
        harness.put_state(KEY, state)
        (error,) = harness.fire_expiry(KEY, NOW_MS)
        assert error.value.reason == "state_version_unsupported"  # type: ignore[union-attr]  # a tagged output
        assert harness.states[KEY] == state


def test_a_newer_memory_is_flushed_at_expiry_as_it_is() -> None:
    """No worker needs to read it for that, and whoever reads the row sees the version."""
    state = extended_state().with_cell("memory", golden("memory_newer"))
    hook = FlushToLongterm()
    configured = config(longterm_memory="memory://", on_expire=hook)
    with AgentHarness(remember, configured) as harness:
        harness.put_state(KEY, state)
        harness.fire_expiry(KEY, NOW_MS)
        assert harness.states.get(KEY, KeyState()) == KeyState()
        row = asyncio.run(store().load(KEY, hook.key))
    assert row is not None
    value = decode_record(row).value
    assert value == golden("memory_newer")
    with pytest.raises(StateVersionUnsupported):
        restore_working_memory(WorkingMemory(), value)


def row(name: str, seq: int = 1_700_000_000_123) -> StoreRow:
    return StoreRow(KEY, "profile", seq, golden(name), 1_700_000_000_456)


def test_a_record_with_unknown_fields_is_read() -> None:
    assert decode_record(row("record_extended")).value == b"a value of version 1"


def test_a_repair_keeps_them_and_leaves_a_newer_record_alone() -> None:
    plan = plan_repair([row("record_extended"), row("record_newer")], 5)
    assert plan.unreadable == [row("record_newer")]
    ((_, lowered),) = plan.lowered
    assert LATER in lowered.rec
    record = LongTermRecord.FromString(lowered.rec)
    assert (lowered.seq, record.seq, record.value) == (5, 5, b"a value of version 1")


async def load_or_save(ctx: AgentContext) -> Complete:
    if ctx.event == b"load":
        found = await ctx.memory.longterm.load("profile")
        return Complete(b"" if found is None else found.value)
    if ctx.event == b"search":
        return Complete(b"%d" % len(await ctx.memory.longterm.search("")))
    ctx.memory.longterm.save("profile", b"of this version")
    return Complete()


@pytest.mark.parametrize("read", [b"load", b"search"])
def test_reading_a_newer_record_fails_the_activation_and_saving_replaces_it(read: bytes) -> None:
    newer = row("record_newer", seq=1)
    asyncio.run(store().save_many([newer]))
    with AgentHarness(load_or_save, AgentConfig(longterm_memory="memory://")) as harness:
        (error,) = harness.send(event(KEY, read, time_ms=NOW_MS)).errors
        assert error.reason == "state_version_unsupported"
        assert asyncio.run(store().load(KEY, "profile")) == newer
        assert harness.send(event(KEY, b"save", time_ms=NOW_MS)).errors == []
        assert harness.send(event(KEY, b"load", time_ms=NOW_MS)).outputs == [b"of this version"]

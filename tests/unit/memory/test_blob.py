from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from beam_agents.errors import MemoryOverflow, StateUndecodable, StateVersionUnsupported
from beam_agents.memory.facade import WorkingMemory
from beam_agents.memory.layout import HARD_CAP_BYTES, SCHEMA_VERSION, page_of
from beam_agents.wire.beam_agents_pb2 import MemoryBlob

GOLDEN = Path(__file__).parent / "golden" / "memory_v1.bin"


def write_golden(memory: WorkingMemory) -> None:
    for index in range(40):
        memory.set(f"fact/{index:02d}", b"%d" % index * (index % 7))
    memory.set("photo", bytes(range(256)) * 20)
    memory.set("caf\u00e9/\U0001f600", b"")
    for index in range(150):
        memory.append("log", b"line %d" % index, max_items=130)
    memory.append("big-items", b"x" * 5_000)
    memory.append("big-items", b"y" * 3_000)
    memory.append("big-items", b"z" * 3_000)
    memory.get("fact/07")
    memory.delete("fact/08")


def contents(memory: WorkingMemory) -> dict[str, bytes | tuple[bytes, ...]]:
    found: dict[str, bytes | tuple[bytes, ...]] = {}
    for key in memory.keys():  # noqa: SIM118 - no mapping
        try:
            found[key] = memory.ring(key)
        except TypeError:
            found[key] = memory.get(key, b"absent")
    return found


def read_plainly(blob: bytes) -> dict[str, bytes | tuple[bytes, ...]]:
    """What any reader of protobuf finds, by what beam_agents.proto says alone."""
    message = MemoryBlob.FromString(blob)
    extents = iter(message.extents)
    found: dict[str, bytes | tuple[bytes, ...]] = {}
    for index, page in enumerate(message.pages):
        for key, scalar in page.scalars.items():
            found[key] = scalar.value
            assert page_of(crc32(key.encode()), len(message.pages)) == index
        for key in sorted(page.extended, key=str.encode):
            if page.extended[key].ring:
                chunks = [next(extents).items for _ in page.extended[key].chunk_items]
                found[key] = tuple(item for chunk in chunks for item in chunk)
            else:
                found[key] = next(extents).value
    assert next(extents, None) is None
    assert message.entries == len(found)
    assert message.blob_bytes == len(blob)
    assert len(message.page_bytes) == len(message.page_checksums) == len(message.pages)
    assert len(message.extent_bytes) == len(message.pages)
    return found


def encoded(memory: WorkingMemory) -> bytes:
    blob = memory.encode()
    assert blob is not None
    return blob


def reopened(memory: WorkingMemory) -> WorkingMemory:
    return WorkingMemory(encoded(memory))


def test_an_empty_memory_has_no_bytes() -> None:
    memory = WorkingMemory()
    assert memory.encode() is None
    memory.set("a", b"1")
    memory = reopened(memory)
    assert memory.delete("a")
    assert memory.changed
    assert memory.encode() is None


def test_what_did_not_change_is_the_same_object() -> None:
    memory = WorkingMemory()
    write_golden(memory)
    blob = encoded(memory)
    again = WorkingMemory(blob)
    assert again.encode() is blob
    assert "photo" in again
    assert again.get("absent") is None
    assert again.size_of("log") > 0
    assert again.encode() is blob
    assert not again.changed


def test_a_read_is_kept_as_an_access() -> None:
    memory = WorkingMemory()
    memory.set("a", b"1")
    blob = encoded(memory)
    again = WorkingMemory(blob)
    assert again.get("a") == b"1"
    assert again.changed
    assert again.encode() != blob


def test_any_reader_of_protobuf_finds_all_entries() -> None:
    memory = WorkingMemory()
    write_golden(memory)
    blob = encoded(memory)
    found = read_plainly(blob)
    assert found == contents(WorkingMemory(blob))
    assert len(found) == 43
    assert found["log"] == tuple(b"line %d" % index for index in range(20, 150))


def test_the_bytes_are_protobufs_own() -> None:
    memory = WorkingMemory()
    write_golden(memory)
    blob = encoded(memory)
    assert MemoryBlob.FromString(blob).SerializeToString(deterministic=True) == blob


def test_version_1_is_read_and_written_as_ever() -> None:
    golden = GOLDEN.read_bytes()
    memory = WorkingMemory()
    write_golden(memory)
    assert memory.encode() == golden
    memory = WorkingMemory(golden)
    assert memory.get("fact/39") == b"39" * 4
    assert memory.ring("big-items") == (b"x" * 5_000, b"y" * 3_000, b"z" * 3_000)
    assert contents(WorkingMemory(golden)) == read_plainly(golden)


def test_the_bytes_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import sys; sys.path[:0] = [sys.argv[1]]; from test_blob import *; memory = WorkingMemory(); "
        "write_golden(memory); memory = reopened(memory); contents(memory); memory.set('new', b'1'); "
        "sys.stdout.buffer.write(encoded(memory))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(outputs) == 1
    assert read_plainly(outputs.pop())["new"] == b"1"


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0, 10, 1024, 1025, 3000])), max_size=120),
    st.sets(st.integers(0, 119)),
)
@settings(deadline=None)
def test_pages_follow_the_number_of_entries(writes: list[tuple[int, int]], commits: set[int]) -> None:
    """Where activations end has no part in what is found, nor in where it lies."""
    memory, whole = WorkingMemory(), WorkingMemory()
    expected: dict[str, bytes | tuple[bytes, ...]] = {}
    for step, (index, size) in enumerate(writes):
        key = f"k{index}"
        for each in (memory, whole):
            if key in expected and size == 0:
                each.delete(key)
            else:
                each.set(key, bytes(size))
        if key in expected and size == 0:
            del expected[key]
        else:
            expected[key] = bytes(size)
        if step in commits and expected:
            memory = reopened(memory)
            assert read_plainly(encoded(memory)) == expected
    if expected:
        assert len(MemoryBlob.FromString(encoded(memory)).pages) == -(-len(expected) // 8)
        assert contents(WorkingMemory(memory.encode())) == expected
        if not writes or len(expected) == len(writes):
            assert memory.encode() == whole.encode()


def test_where_activations_end_leaves_no_trace_in_the_bytes() -> None:
    together, apart = WorkingMemory(), WorkingMemory()
    for index in range(300):
        for memory in (together, apart):
            memory.set(f"k{index % 90}", b"v" * (index * 7 % 1_500))
            memory.append(f"ring{index % 5}", b"i" * (index * 13 % 900), max_items=40)
            if index % 3 == 0:
                memory.delete(f"k{(index * 5) % 90}")
        apart = reopened(apart)
    assert apart.encode() == together.encode()


def test_a_refused_write_leaves_the_very_bytes() -> None:
    memory = WorkingMemory()
    memory.set("__langgraph__/state", bytes(600_000))
    memory.append("__langgraph__/log", b"1")
    blob = encoded(memory)
    again = WorkingMemory(blob)
    with pytest.raises(MemoryOverflow):
        again.set("new", bytes(500_000))
    with pytest.raises(MemoryOverflow):
        again.append("__langgraph__/log", bytes(500_000), max_items=1)
    assert again.stats.overflows == 2
    assert again.stats.compactions == []
    assert not again.changed
    assert again.encode() is blob
    assert again.ring("__langgraph__/log") == (b"1",)


def test_a_newer_version_is_told_apart_from_damage() -> None:
    with pytest.raises(StateVersionUnsupported) as caught:
        WorkingMemory(MemoryBlob(state_schema_version=SCHEMA_VERSION + 1).SerializeToString())
    assert (caught.value.cell, caught.value.found, caught.value.supported) == ("memory", 2, 1)
    memory = WorkingMemory()
    memory.set("a", b"1")
    message = MemoryBlob.FromString(encoded(memory))
    message.state_schema_version = 77
    with pytest.raises(StateVersionUnsupported):
        WorkingMemory(message.SerializeToString())


@pytest.mark.parametrize("blob", [b"", b"\0", b"no memory blob", bytes(100), b"\x0d\x01\0\0\0"])
def test_other_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(StateUndecodable) as caught:
        WorkingMemory(blob)
    assert caught.value.cell == "memory"


def use(blob: bytes) -> None:
    """Read and change everything that can be."""
    memory = WorkingMemory(blob)
    contents(memory)
    for index in range(12):
        memory.set(f"new/{index}", b"1")
    for key in memory.keys():  # noqa: SIM118 - no mapping
        if key.startswith("r"):
            memory.append(key, b"item", max_items=2)
            memory.trim_ring(key, 1)
    again = WorkingMemory(memory.encode())
    contents(again)


def test_damage_at_any_byte_shows_as_damage_or_not_at_all() -> None:
    memory = WorkingMemory()
    memory.set("a", b"1")
    memory.set("b" * 20, b"22" * 20)
    memory.set("large", bytes(1_100))
    for index in range(5):
        memory.append("ring", b"item %d" % index)
    blob = encoded(memory)
    outcomes: set[type[Exception] | None] = set()
    for index in range(len(blob)):
        for damaged in (
            blob[:index],
            blob[:index] + blob[index + 1 :],
            blob[:index] + bytes([blob[index] ^ 0x01]) + blob[index + 1 :],
            blob[:index] + bytes([blob[index] ^ 0x80]) + blob[index + 1 :],
            blob[:index] + b"\xff" + blob[index + 1 :],
        ):
            try:
                use(damaged)
            except (StateUndecodable, StateVersionUnsupported) as error:
                outcomes.add(type(error))
            else:
                outcomes.add(None)
    assert outcomes == {StateUndecodable, StateVersionUnsupported, None}


def test_damage_to_the_head_shows_at_once() -> None:
    memory = WorkingMemory()
    write_golden(memory)
    blob = encoded(memory)
    for index in range(MemoryBlob.FromString(blob).head_bytes):
        with pytest.raises((StateUndecodable, StateVersionUnsupported)):
            WorkingMemory(blob[:index] + bytes([blob[index] ^ 0x10]) + blob[index + 1 :])


def test_a_memory_that_was_emptied_starts_anew() -> None:
    memory, fresh = WorkingMemory(), WorkingMemory()
    memory.set("a", b"1")
    memory.delete("a")
    assert memory.encode() is None
    for each in (memory, fresh):
        each.set("b", b"2")
    assert memory.encode() == fresh.encode()


def test_pages_go_with_their_entries() -> None:
    memory = WorkingMemory()
    for index in range(100):
        memory.set(f"k{index}", b"v")
    memory = reopened(memory)
    for index in range(95):
        memory.delete(f"k{index}")
    found = read_plainly(encoded(memory))
    assert found == {f"k{index}": b"v" for index in range(95, 100)}


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises((StateUndecodable, StateVersionUnsupported)):
        use(blob)


@pytest.mark.parametrize("size", [0, 1, 100, 1_024, 1_025, 2_100, 4_097, 70_000])
def test_what_is_measured_bounds_what_is_stored(size: int) -> None:
    memory = WorkingMemory(compactor=None)
    index = 0
    try:
        while index < 2_000:
            memory.set(f"k{index}", bytes(size))
            memory.append(f"r{index % 3}", bytes(size), max_items=10_000)
            index += 1
    except MemoryOverflow:
        pass
    assert len(encoded(memory)) <= memory.size_bytes <= HARD_CAP_BYTES

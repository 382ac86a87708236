from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest

from beam_agents.errors import ActivationClosed, LongTermDisabled, MemoryKindError, MemoryOverflow
from beam_agents.memory.compaction import Compactor, DropOldestCompactor, EntryInfo
from beam_agents.memory.facade import WorkingMemory
from beam_agents.memory.layout import HARD_CAP_BYTES, SOFT_CAP_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WRONG_CALLS: list[tuple[Callable[[Any], object], type[Exception]]] = [
    (lambda memory: memory.get(b"a"), TypeError),
    (lambda memory: memory.get(["a"]), TypeError),
    (lambda memory: memory.get(""), ValueError),
    (lambda memory: memory.get("\ud800"), ValueError),
    (lambda memory: memory.set("", b"1"), ValueError),
    (lambda memory: memory.set("\ud800", b"1"), ValueError),
    (lambda memory: memory.set("a", "text"), TypeError),
    (lambda memory: memory.set("a", bytearray(b"1")), TypeError),
    (lambda memory: memory.set("a", None), TypeError),
    (lambda memory: memory.set(1, b"1"), TypeError),
    (lambda memory: memory.append("r", "text"), TypeError),
    (lambda memory: memory.append("r", b"1", max_items=0), ValueError),
    (lambda memory: memory.append("r", b"1", max_items=True), TypeError),
    (lambda memory: memory.append("r", b"1", max_items=1.0), TypeError),
    (lambda memory: memory.append("a", b"1"), MemoryKindError),
    (lambda memory: memory.set("r", b"1"), MemoryKindError),
    (lambda memory: memory.get("r"), MemoryKindError),
    (lambda memory: memory.ring("a"), MemoryKindError),
    (lambda memory: memory.trim_ring("a", 1), MemoryKindError),
    (lambda memory: memory.trim_ring("r", -1), ValueError),
    (lambda memory: memory.trim_ring("r", None), TypeError),
    (lambda memory: memory.keys(b""), TypeError),
    (lambda memory: memory.size_of(""), ValueError),
    (lambda memory: 1 in memory, TypeError),
]


@pytest.mark.parametrize(("call", "error"), WRONG_CALLS)
def test_a_wrong_call_raises_and_changes_nothing(
    call: Callable[[WorkingMemory], object], error: type[Exception]
) -> None:
    memory = WorkingMemory()
    memory.set("a", b"secret")
    memory.append("r", b"secret")
    blob = memory.encode()
    memory = WorkingMemory(blob)
    with pytest.raises(error) as caught:
        call(memory)
    assert "secret" not in str(caught.value)
    assert memory.encode() is blob
    assert not memory.changed


def test_the_wrong_kind_is_told() -> None:
    memory = WorkingMemory()
    memory.append("r", b"1")
    with pytest.raises(MemoryKindError) as caught:
        memory.get("r")
    assert (caught.value.key, caught.value.expected, caught.value.actual) == ("r", "scalar", "ring")


@pytest.mark.parametrize("wrong", [{"blob": "text"}, {"blob": bytearray()}, {"compactor": "drop"}])
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        WorkingMemory(**wrong)


def test_absent_keys() -> None:
    memory = WorkingMemory()
    assert memory.get("a") is None
    assert memory.get("a", b"default") == b"default"
    assert memory.ring("a") == ()
    assert memory.trim_ring("a", 0) == ()
    assert memory.delete("a") is False
    assert memory.size_of("a") == 0
    assert "a" not in memory
    assert not memory.changed


def test_keys_may_be_of_an_enumeration() -> None:
    class Key(StrEnum):
        PLAN = "plan"

    memory = WorkingMemory()
    memory.set(Key.PLAN, b"1")
    memory.append("log", b"1")
    again = WorkingMemory(memory.encode())
    assert again.get("plan") == again.get(Key.PLAN) == b"1"
    assert [type(key) for key in again.keys()] == [str, str]  # noqa: SIM118 - no mapping


def test_a_ring_that_loses_its_last_item_is_gone() -> None:
    memory = WorkingMemory()
    memory.append("r", b"1")
    assert memory.trim_ring("r", 0) == (b"1",)
    assert "r" not in memory
    memory.set("r", b"now a scalar")
    assert WorkingMemory(memory.encode()).get("r") == b"now a scalar"


def test_a_closed_memory_refuses_every_use_but_its_commit() -> None:
    memory = WorkingMemory(longterm=object())
    memory.set("a", b"1")
    memory.close()
    uses: list[Callable[[], object]] = [
        lambda: memory.get("a"),
        lambda: memory.set("a", b"2"),
        lambda: memory.append("r", b"2"),
        lambda: memory.ring("r"),
        lambda: memory.trim_ring("r", 0),
        lambda: memory.delete("a"),
        memory.keys,
        lambda: memory.size_of("a"),
        lambda: "a" in memory,
        memory.entries,
        lambda: memory.longterm,
    ]
    for use in uses:
        with pytest.raises(ActivationClosed):
            use()
    # What is there can still be committed.
    assert (len(memory), memory.changed, memory.stats.overflows) == (1, True, 0)
    assert WorkingMemory(memory.encode()).size_bytes == memory.size_bytes


def test_longterm_is_what_was_given() -> None:
    tier = object()
    assert WorkingMemory(longterm=tier).longterm is tier
    with pytest.raises(LongTermDisabled):
        _ = WorkingMemory().longterm


class Scripted(Compactor):
    """Answers what it was told to, and notes what is written when it is asked."""

    def __init__(self, answer: list[Any], asked: list[str]) -> None:
        self.answer = answer
        self.asked = asked

    def select_evictions(
        self,
        entries: Sequence[EntryInfo],  # noqa: ARG002 - the answer is fixed
        *,
        total_bytes: int,  # noqa: ARG002 - as above
        writing: str,
    ) -> Sequence[str]:
        self.asked.append(writing)
        return self.answer


def filled(count: int, size: int, **options: Any) -> WorkingMemory:
    memory = WorkingMemory(**options)
    for index in range(count):
        memory.set(f"k{index:02d}", bytes(size))
    return memory


def test_the_soft_cap_makes_room_down_to_the_target() -> None:
    memory = filled(8, 100_000)
    (run,) = memory.stats.compactions
    assert memory.stats.soft_cap_crossings == 1
    assert memory.keys() == ("k03", "k04", "k05", "k06", "k07")
    assert (run.trigger, run.scalars, run.rings, run.evictions) == ("soft_cap", 3, 0, 3)
    assert run.size_before - run.evicted_bytes == run.size_after == memory.size_bytes <= 524_288
    assert run.started_ns <= run.ended_ns


def test_the_least_recently_used_go_across_activations() -> None:
    memory = filled(7, 100_000)
    memory = WorkingMemory(memory.encode())
    memory.get("k00")
    memory = WorkingMemory(memory.encode())
    memory.append("log", bytes(100_000))
    assert memory.keys() == ("k00", "k04", "k05", "k06", "log")


def test_a_ring_that_is_read_or_trimmed_is_used() -> None:
    memory = WorkingMemory(compactor=DropOldestCompactor(target_bytes=700_000))
    for key in ("r1", "r2", "r3"):
        memory.append(key, bytes(100_000))
        memory.append(key, bytes(100_000))
    memory.ring("r1")
    memory.trim_ring("r2", 1)
    memory.set("new", bytes(300_000))
    assert memory.keys() == ("new", "r1", "r2")
    assert [run.rings for run in memory.stats.compactions] == [1]


def test_the_hard_cap_makes_room_before_the_write() -> None:
    memory = filled(10, 100_000, soft_cap_compacts=False)
    assert memory.stats.soft_cap_crossings == 1
    assert memory.stats.compactions == []
    memory.append("log", bytes(100_000))
    (run,) = memory.stats.compactions
    assert (run.trigger, run.evictions) == ("hard_cap", 6)
    assert memory.size_bytes == run.size_after <= 524_288


def test_rings_are_evicted_whole() -> None:
    memory = WorkingMemory()
    memory.append("r", bytes(300_000))
    memory.append("r", bytes(300_000))
    memory.set("a", bytes(300_000))
    assert memory.keys() == ("a",)
    assert memory.stats.compactions[0].rings == 1


def test_what_is_being_written_is_never_evicted() -> None:
    memory = WorkingMemory()
    memory.set("old", bytes(500_000))
    memory.set("new", bytes(400_000))
    assert memory.keys() == ("new",)
    memory.set("new", bytes(800_000))
    assert memory.keys() == ("new",)
    assert memory.stats.soft_cap_crossings == 2
    assert len(memory.stats.compactions) == 1


def test_protected_entries_stay_and_a_write_that_fits_is_admitted() -> None:
    memory = WorkingMemory()
    memory.set("__langgraph__/state", bytes(700_000))
    memory.set("a", bytes(200_000))
    assert memory.keys() == ("__langgraph__/state", "a")
    memory.set("b", bytes(200_000))
    assert memory.keys() == ("__langgraph__/state", "b")
    assert memory.size_bytes > 524_288
    with pytest.raises(MemoryOverflow) as caught:
        memory.set("c", bytes(400_000))
    assert memory.keys() == ("__langgraph__/state", "b")
    assert caught.value.key == "c"
    assert caught.value.cap_bytes == HARD_CAP_BYTES < caught.value.attempted_bytes


def test_a_write_over_the_cap_by_itself_evicts_nothing() -> None:
    asked: list[str] = []
    memory = WorkingMemory(compactor=Scripted([], asked))
    memory.set("a", b"1")
    with pytest.raises(MemoryOverflow):
        memory.set("b", bytes(HARD_CAP_BYTES))
    with pytest.raises(MemoryOverflow):
        memory.append("r", bytes(HARD_CAP_BYTES), max_items=1)
    assert asked == []
    assert memory.keys() == ("a",)
    assert memory.stats.overflows == 2


def test_without_a_compactor_nothing_is_ever_evicted() -> None:
    memory = filled(10, 100_000, compactor=None)
    with pytest.raises(MemoryOverflow):
        memory.set("k10", bytes(100_000))
    assert len(memory) == 10
    assert memory.stats.soft_cap_crossings == 1
    assert memory.stats.compactions == []


def test_the_caps_are_reached_to_the_byte() -> None:
    memory = WorkingMemory()
    overhead = WorkingMemory()
    overhead.set("a", b"")
    memory.set("a", bytes(SOFT_CAP_BYTES - overhead.size_bytes))
    assert memory.size_bytes == SOFT_CAP_BYTES
    assert memory.stats.soft_cap_crossings == 0
    memory.set("a", bytes(HARD_CAP_BYTES - overhead.size_bytes))
    assert memory.size_bytes == HARD_CAP_BYTES
    assert memory.stats.soft_cap_crossings == 1


def test_a_compactor_of_ones_own() -> None:
    seen: list[tuple[list[str], int, str]] = []

    class DropLargest(Compactor):
        def select_evictions(
            self, entries: Sequence[EntryInfo], *, total_bytes: int, writing: str
        ) -> Sequence[str]:
            seen.append(([info.key for info in entries], total_bytes, writing))
            return [max(entries, key=lambda info: info.size_bytes).key]

    memory = WorkingMemory(compactor=DropLargest())
    memory.set("small", bytes(100))
    memory.set("large", bytes(400_000))
    memory.get("small")
    memory.set("new", bytes(390_000))
    with_nothing_evicted = memory.size_bytes + memory.stats.compactions[0].evicted_bytes
    assert seen == [(["large", "small"], with_nothing_evicted, "new")]
    assert memory.keys() == ("new", "small")


@pytest.mark.parametrize("answer", [["absent"], ["new"], ["k00", "k00"], [["k00"]]])
def test_a_compactor_that_makes_keys_up_is_refused(answer: list[Any]) -> None:
    memory = filled(7, 100_000, compactor=Scripted(answer, []))
    blob = memory.encode()
    memory = WorkingMemory(blob, compactor=Scripted(answer, []))
    with pytest.raises(ValueError, match=r"Scripted\.select_evictions"):
        memory.set("new", bytes(200_000))
    assert memory.encode() is blob


def test_one_write_compacts_once() -> None:
    compactor = DropOldestCompactor(target_bytes=1, protected_prefixes=("p/",))
    memory = WorkingMemory(compactor=compactor)
    memory.set("p/1", bytes(500_000))
    memory.set("a", bytes(250_000))
    memory.set("b", bytes(400_000))
    assert memory.keys() == ("b", "p/1")
    assert [run.trigger for run in memory.stats.compactions] == ["hard_cap"]
    assert memory.stats.soft_cap_crossings == 1

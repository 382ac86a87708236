"""Working memory against a plain model of it: dict, lists, and the order of accesses."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from beam_agents.errors import MemoryKindError, MemoryOverflow
from beam_agents.memory.compaction import DropOldestCompactor
from beam_agents.memory.facade import WorkingMemory
from beam_agents.memory.layout import (
    ENTRY_OVERHEAD_BYTES,
    HARD_CAP_BYTES,
    ITEM_OVERHEAD_BYTES,
    SOFT_CAP_BYTES,
)

# Few keys, so that calls meet entries of either kind; and enough more for several pages.
FEW = ["a", "log", "chat/1", "p/1", "\u00e9", "\U0001f600", "\uffee"]
KEYS = st.one_of(
    st.sampled_from(FEW), st.sampled_from(FEW), st.sampled_from([f"many/{i}" for i in range(40)])
)
# Sizes at the boundaries of the layout, and large enough for a few to reach the caps.
SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([1023, 1024, 1025, 4095, 4096, 4097]),
    st.integers(100_000, 420_000),
    st.sampled_from([HARD_CAP_BYTES - 100, HARD_CAP_BYTES, HARD_CAP_BYTES + 1]),
)
CONTENT = st.builds(lambda size, byte: bytes([byte]) * size, SIZES, st.integers(0, 255))
COMPACTORS = st.sampled_from(
    [
        None,
        DropOldestCompactor(protected_prefixes=("p/",)),
        DropOldestCompactor(target_bytes=300_000, protected_prefixes=("p/", "chat/")),
        DropOldestCompactor(target_bytes=1_000_000, protected_prefixes=()),
    ]
)


def measured(key: str, value: bytes | list[bytes]) -> int:
    size = ENTRY_OVERHEAD_BYTES + len(key.encode())
    if isinstance(value, bytes):
        return size + len(value)
    return size + sum(len(item) + ITEM_OVERHEAD_BYTES for item in value)


class MemoryMachine(RuleBasedStateMachine):
    """The model: entries in the order of their last access, oldest first."""

    @initialize(compactor=COMPACTORS, soft=st.booleans())
    def start(self, compactor: DropOldestCompactor | None, soft: bool) -> None:  # noqa: FBT001 - hypothesis calls it
        self.compactor = compactor
        self.soft = soft
        self.model: dict[str, bytes | list[bytes]] = {}
        self.blob: bytes | None = None
        self.reopen()

    def reopen(self) -> None:
        self.memory = WorkingMemory(self.blob, compactor=self.compactor, soft_cap_compacts=self.soft)
        self.touched = False
        self.crossings = self.overflows = 0
        self.evicted: list[int] = []

    def total(self) -> int:
        return sum(measured(key, value) for key, value in self.model.items())

    def access(self, key: str, value: bytes | list[bytes]) -> None:
        self.model.pop(key, None)
        self.model[key] = value
        self.touched = True

    def evictions(self, writing: str, total: int) -> list[str]:
        """What goes, least recently used first."""
        assert self.compactor is not None
        chosen = []
        for key, value in self.model.items():
            if total <= self.compactor.target_bytes:
                break
            if key != writing and not key.startswith(self.compactor.protected_prefixes):
                chosen.append(key)
                total -= measured(key, value)
        return chosen

    def write(self, key: str, value: bytes | list[bytes]) -> bool:
        """Model a write; tell whether it is admitted."""
        before = self.total()
        after = before + measured(key, value)
        if key in self.model:
            after -= measured(key, self.model[key])
        chosen: list[str] = []
        if after > HARD_CAP_BYTES:
            if self.compactor is not None and measured(key, value) <= HARD_CAP_BYTES:
                chosen = self.evictions(key, after)
            gone = sum(measured(each, self.model[each]) for each in chosen)
            if after - gone > HARD_CAP_BYTES:
                self.overflows += 1
                return False
            self.crossings += before <= SOFT_CAP_BYTES < after - gone
        elif before <= SOFT_CAP_BYTES < after:
            self.crossings += 1
            if self.soft and self.compactor is not None:
                chosen = self.evictions(key, after)
        if chosen:
            self.evicted.append(len(chosen))
        for each in chosen:
            del self.model[each]
        self.access(key, value)
        return True

    @rule(key=KEYS, value=CONTENT)
    def set(self, key: str, value: bytes) -> None:
        if isinstance(self.model.get(key), list):
            with pytest.raises(MemoryKindError):
                self.memory.set(key, value)
        elif self.write(key, value):
            self.memory.set(key, value)
        else:
            with pytest.raises(MemoryOverflow):
                self.memory.set(key, value)

    @rule(
        key=KEYS, item=CONTENT, max_items=st.sampled_from([1, 2, 3, 64, 65, 1000]), times=st.integers(1, 90)
    )
    def append(self, key: str, item: bytes, max_items: int, times: int) -> None:
        for _ in range(times if len(item) < 5_000 else 1):
            held = self.model.get(key, [])
            if isinstance(held, bytes):
                with pytest.raises(MemoryKindError):
                    self.memory.append(key, item, max_items)
            elif self.write(key, [*held, item][-max_items:]):
                self.memory.append(key, item, max_items)
            else:
                with pytest.raises(MemoryOverflow):
                    self.memory.append(key, item, max_items)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        held = self.model.get(key)
        if isinstance(held, list):
            with pytest.raises(MemoryKindError):
                self.memory.get(key)
        else:
            assert self.memory.get(key) == held
            if held is not None:
                self.access(key, held)

    @rule(key=KEYS)
    def ring(self, key: str) -> None:
        held = self.model.get(key, [])
        if isinstance(held, bytes):
            with pytest.raises(MemoryKindError):
                self.memory.ring(key)
        else:
            assert self.memory.ring(key) == tuple(held)
            if held:
                self.access(key, held)

    @rule(key=KEYS, keep=st.integers(0, 70))
    def trim(self, key: str, keep: int) -> None:
        held = self.model.get(key, [])
        if isinstance(held, bytes):
            with pytest.raises(MemoryKindError):
                self.memory.trim_ring(key, keep)
            return
        split = max(0, len(held) - keep)
        assert self.memory.trim_ring(key, keep) == tuple(held[:split])
        if split and keep:
            self.access(key, held[split:])
        elif split:
            del self.model[key]
            self.touched = True

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.memory.delete(key) is (key in self.model)
        if self.model.pop(key, None) is not None:
            self.touched = True

    @rule(key=KEYS)
    def look(self, key: str) -> None:
        assert (key in self.memory) is (key in self.model)
        assert self.memory.size_of(key) == (measured(key, self.model[key]) if key in self.model else 0)

    @rule(prefix=st.sampled_from(["", "chat/", "many/1", "zzz"]))
    def keys(self, prefix: str) -> None:
        expected = sorted((key for key in self.model if key.startswith(prefix)), key=str.encode)
        assert self.memory.keys(prefix) == tuple(expected)

    @rule()
    def commit(self) -> None:
        encoded = self.memory.encode()
        if not self.touched:
            assert encoded is self.blob
        self.blob = encoded
        assert (encoded is None) is (not self.model)
        self.reopen()

    @precondition(lambda self: self.touched)
    @rule()
    def encode_and_go_on(self) -> None:
        encoded = self.memory.encode()
        assert self.memory.encode() is encoded
        if encoded is not None:
            assert len(encoded) <= self.memory.size_bytes + 64

    @invariant()
    def agrees(self) -> None:
        memory = self.memory
        assert memory.size_bytes == self.total()
        assert len(memory) == len(self.model)
        assert memory.changed is self.touched
        assert memory.stats.soft_cap_crossings == self.crossings
        assert memory.stats.overflows == self.overflows
        assert [run.evictions for run in memory.stats.compactions] == self.evicted

    def teardown(self) -> None:
        if not hasattr(self, "memory"):
            return
        memory = WorkingMemory(self.memory.encode())
        assert memory.keys() == tuple(sorted(self.model, key=str.encode))
        for key, value in self.model.items():
            assert (memory.get(key) if isinstance(value, bytes) else list(memory.ring(key))) == value


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)

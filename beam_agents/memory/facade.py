"""Working memory as agents use it: calls, kinds, caps and eviction over the entries of one key."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, overload

from beam_agents.checks import check_int, kind_of
from beam_agents.errors import (
    ActivationClosed,
    InvalidArgument,
    InvalidArgumentType,
    LongTermDisabled,
    MemoryKindError,
    MemoryOverflow,
)
from beam_agents.memory.blob import MemoryImage
from beam_agents.memory.compaction import Compactor, DropOldestCompactor, EntryInfo, EntryKind
from beam_agents.memory.layout import HARD_CAP_BYTES, SOFT_CAP_BYTES, entry_bytes
from beam_agents.memory.ring import Ring

if TYPE_CHECKING:
    from beam_agents.memory.blob import Entry
    from beam_agents.memory.longterm import LongTermMemory

__all__ = ["CompactionRun", "MemoryStats", "WorkingMemory"]

DefaultT = TypeVar("DefaultT")

_DROP_OLDEST = DropOldestCompactor()


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """One write that evicted entries.

    Attributes:
        trigger: ``"soft_cap"`` or ``"hard_cap"``.
        scalars: Scalars evicted.
        rings: Rings evicted.
        evictions: Both together.
        evicted_bytes: What they counted.
        size_before: What memory would have measured after the write without evictions.
        size_after: What it measured after the write.
        started_ns: Start, by ``time.perf_counter_ns``.
        ended_ns: End, likewise.
    """

    trigger: str
    scalars: int
    rings: int
    evictions: int
    evicted_bytes: int
    size_before: int
    size_after: int
    started_ns: int
    ended_ns: int


@dataclass(slots=True)
class MemoryStats:
    """What happened to one activation's working memory, in counts.

    Attributes:
        soft_cap_crossings: Writes that took memory from the soft cap or below to above it.
        overflows: Writes refused at the hard cap.
        compactions: Writes that evicted entries, in order.
    """

    soft_cap_crossings: int = 0
    overflows: int = 0
    compactions: list[CompactionRun] = field(default_factory=list)


class WorkingMemory:
    """A key's working memory during one activation: scalars and rings of bytes, by name.

    Reading an entry counts as an access, as writing does; ``in``, ``len``, :meth:`keys` and sizes do not. A
    call that raises leaves memory as it was. Not safe for threads.

    Attributes:
        stats: What happened so far. May still be read after :meth:`close`.
    """

    __slots__ = ("_closed", "_compactor", "_image", "_longterm", "_soft_cap_compacts", "stats")

    def __init__(
        self,
        blob: bytes | None = None,
        *,
        compactor: Compactor | None = _DROP_OLDEST,
        soft_cap_compacts: bool = True,
        longterm: LongTermMemory | None = None,
    ) -> None:
        """Open working memory.

        Args:
            blob: What :meth:`encode` returned; None for an empty memory.
            compactor: What makes room; None: nothing is ever evicted.
            soft_cap_compacts: Whether to make room already at the soft cap.
            longterm: What :attr:`longterm` returns; None where that tier is off.

        Raises:
            StateUndecodable: ``blob`` is damaged. Damage outside its head shows when it is read.
            StateVersionUnsupported: A newer version wrote ``blob``.
        """
        if blob is not None and not isinstance(blob, bytes):
            raise InvalidArgumentType(f"a memory blob must be bytes or None, not {kind_of(blob)}")
        if compactor is not None and not isinstance(compactor, Compactor):
            raise InvalidArgumentType(f"compactor must be a Compactor or None, not {kind_of(compactor)}")
        self._image = MemoryImage(blob)
        self._compactor = compactor
        self._soft_cap_compacts = soft_cap_compacts
        self._longterm = longterm
        self._closed = False
        self.stats = MemoryStats()

    @overload
    def get(self, key: str) -> bytes | None: ...

    @overload
    def get(self, key: str, default: DefaultT) -> bytes | DefaultT: ...

    def get(self, key: str, default: DefaultT | None = None) -> bytes | DefaultT | None:
        """Return a scalar's value, or ``default`` where there is no such entry.

        Raises:
            MemoryKindError: The key holds a ring.
        """
        key, entry = self._find(key)
        if entry is None:
            return default
        _check_scalar(key, entry)
        value = entry.read()
        self._image.touch(key, entry)
        return value

    def set(self, key: str, value: bytes) -> None:
        """Write a scalar.

        Raises:
            MemoryKindError: The key holds a ring.
            MemoryOverflow: Memory would be over its hard cap, and no room could be made.
        """
        key, entry = self._find(key)
        value = _check_bytes("value", value)
        if entry is not None:
            _check_scalar(key, entry)
        size = entry_bytes(len(key.encode()), len(value))
        delta = size - entry.size_bytes if entry is not None else size
        self._make_room(key, size, delta)
        entry = self._image.put(key, entry, delta)
        entry.value = value
        entry.fresh = True

    def append(self, key: str, item: bytes, max_items: int = 64) -> None:
        """Add an item to a ring, and drop its oldest items over ``max_items``.

        Raises:
            MemoryKindError: The key holds a scalar.
            MemoryOverflow: Memory would be over its hard cap, and no room could be made.
        """
        key, entry = self._find(key)
        item = _check_bytes("item", item)
        check_int("max_items", max_items, 1)
        ring = Ring() if entry is None else _ring_of(key, entry)
        excess = max(0, ring.items + 1 - max_items)
        dropped = ring.oldest(excess)
        before = 0 if entry is None else entry.size_bytes
        content = ring.content_bytes + len(item) - sum(map(len, dropped))
        size = entry_bytes(len(key.encode()), content, ring.items + 1 - excess)
        self._make_room(key, size, size - before)
        entry = self._image.put(key, entry, size - before)
        entry.ring = ring
        ring.append(item)
        ring.drop(excess)

    def ring(self, key: str) -> tuple[bytes, ...]:
        """Return a ring's items, oldest first; none where there is no such entry.

        Raises:
            MemoryKindError: The key holds a scalar.
        """
        key, entry = self._find(key)
        if entry is None:
            return ()
        items = _ring_of(key, entry).all()
        self._image.touch(key, entry)
        return items

    def trim_ring(self, key: str, keep: int) -> tuple[bytes, ...]:
        """Drop a ring's items but the newest ``keep``, and return what was dropped, oldest first.

        A ring of which nothing is left is gone. Where there is nothing to drop, nothing changes.

        Raises:
            MemoryKindError: The key holds a scalar.
        """
        key, entry = self._find(key)
        check_int("keep", keep, 0)
        if entry is None:
            return ()
        ring = _ring_of(key, entry)
        excess = ring.items - keep
        if excess <= 0:
            return ()
        dropped = tuple(ring.oldest(excess))
        if keep == 0:
            self._image.remove(key)
            return dropped
        content = ring.content_bytes - sum(map(len, dropped))
        size = entry_bytes(len(key.encode()), content, keep)
        self._image.put(key, entry, size - entry.size_bytes)
        ring.drop(excess)
        return dropped

    def delete(self, key: str) -> bool:
        """Delete an entry of either kind; return whether there was one."""
        key, _ = self._find(key)
        return self._image.remove(key) is not None

    def keys(self, prefix: str = "") -> tuple[str, ...]:
        """Return the keys that begin with ``prefix``, in the order of their UTF-8 bytes. Reads every page."""
        self._check_open()
        if not isinstance(prefix, str):
            raise InvalidArgumentType(f"prefix must be a str, not {kind_of(prefix)}")
        # Code points sort as their UTF-8 bytes do.
        return tuple(sorted(key for key in self._image.keys() if key.startswith(prefix)))  # noqa: SIM118 - no mapping

    def entries(self) -> tuple[EntryInfo, ...]:
        """Return what all entries are, the least recently used first. Reads every page; no access."""
        self._check_open()
        infos = self._image.describe()
        return tuple(sorted(infos, key=lambda info: (info.accessed_tick, info.inserted_tick, info.key)))

    def size_of(self, key: str) -> int:
        """Return what an entry counts towards the caps, in bytes; 0 where there is none."""
        _, entry = self._find(key)
        return 0 if entry is None else entry.size_bytes

    def __contains__(self, key: str) -> bool:
        return self._find(key)[1] is not None

    def __len__(self) -> int:
        return self._image.entries

    @property
    def size_bytes(self) -> int:
        """What all entries count, in bytes: what the caps are held against."""
        return self._image.size_bytes

    @property
    def changed(self) -> bool:
        """Whether anything, an access included, differs from the bytes that memory was opened with."""
        return self._image.changed

    @property
    def longterm(self) -> LongTermMemory:
        """The long-term tier.

        Raises:
            LongTermDisabled: It is off.
        """
        self._check_open()
        if self._longterm is None:
            raise LongTermDisabled
        return self._longterm

    def encode(self) -> bytes | None:
        """Return memory's bytes: None if it is empty, the very same object if nothing has changed."""
        return self._image.encode()

    def close(self) -> None:
        """End it: no entry can be read or written any more, and what is there can be committed.

        Every later use raises ActivationClosed, but for sizes, :attr:`changed`, :attr:`stats` and
        :meth:`encode`.
        """
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ActivationClosed

    def _find(self, key: str) -> tuple[str, Entry | None]:
        """Return a key as plain text and its entry."""
        if self._closed:
            raise ActivationClosed
        if type(key) is not str:
            if not isinstance(key, str):
                raise InvalidArgumentType(f"a memory key must be a str, not {kind_of(key)}")
            key = str.__str__(key)
        return key, self._image.find(key)

    def _make_room(self, key: str, size: int, delta: int) -> None:
        """See that a write fits, evicting if need be.

        Args:
            key: The key that is about to be written.
            size: What its entry will count.
            delta: By how much memory grows.

        Raises:
            MemoryOverflow: The write does not fit; nothing was evicted.
        """
        before = self._image.size_bytes
        after = before + delta
        if after <= SOFT_CAP_BYTES:
            return
        evicted_bytes = 0
        if after > HARD_CAP_BYTES:
            if self._compactor is None or size > HARD_CAP_BYTES:
                self._refuse(key, after)
            evicted_bytes = self._compact("hard_cap", key, after)
        crosses = before <= SOFT_CAP_BYTES < after - evicted_bytes
        self.stats.soft_cap_crossings += crosses
        if crosses and not evicted_bytes and self._soft_cap_compacts and self._compactor is not None:
            self._compact("soft_cap", key, after)

    def _compact(self, trigger: str, key: str, after: int) -> int:
        """Evict what the compactor chooses, if the write then fits; return the evicted entries' bytes."""
        started_ns = time.perf_counter_ns()
        chosen = self._choose(key, after)
        evicted_bytes = sum(info.size_bytes for info in chosen)
        if after - evicted_bytes > HARD_CAP_BYTES:
            self._refuse(key, after)
        if not chosen:
            return 0
        for info in chosen:
            self._image.remove(info.key)
        rings = sum(info.kind is EntryKind.RING for info in chosen)
        self.stats.compactions.append(
            CompactionRun(
                trigger=trigger,
                scalars=len(chosen) - rings,
                rings=rings,
                evictions=len(chosen),
                evicted_bytes=evicted_bytes,
                size_before=after,
                size_after=after - evicted_bytes,
                started_ns=started_ns,
                ended_ns=time.perf_counter_ns(),
            )
        )
        return evicted_bytes

    def _choose(self, key: str, after: int) -> list[EntryInfo]:
        """Ask the compactor what to evict for a write of ``key``, and check its answer."""
        compactor = self._compactor
        if compactor is None:
            return []
        entries = [info for info in self.entries() if info.key != key]
        by_key = {info.key: info for info in entries}
        chosen = compactor.select_evictions(entries, total_bytes=after, writing=key)
        try:
            return [by_key.pop(each) for each in chosen]
        except (KeyError, TypeError):
            raise InvalidArgument(
                f"{kind_of(compactor)}.select_evictions must return keys that it was offered, each once"
            ) from None

    def _refuse(self, key: str, after: int) -> None:
        self.stats.overflows += 1
        raise MemoryOverflow(key, after, HARD_CAP_BYTES)


def _ring_of(key: str, entry: Entry) -> Ring:
    if entry.ring is None:
        raise MemoryKindError(key, EntryKind.RING.value, EntryKind.SCALAR.value)
    return entry.ring


def _check_scalar(key: str, entry: Entry) -> None:
    if entry.ring is not None:
        raise MemoryKindError(key, EntryKind.SCALAR.value, EntryKind.RING.value)


def _check_bytes(name: str, value: object) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes):
        return bytes(value)
    raise InvalidArgumentType(f"a memory {name} must be bytes, not {kind_of(value)}: encode it first")

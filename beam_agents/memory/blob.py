"""The memory cell's bytes as entries: read page by page when asked for, written by splicing what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from google.protobuf.message import DecodeError

from beam_agents.errors import InvalidArgument, StateUndecodable
from beam_agents.memory.compaction import EntryInfo, EntryKind
from beam_agents.memory.layout import (
    CELL,
    EXTENT_TAG,
    INLINE_BYTES,
    PROLOGUE_BYTES,
    VALUE_TAG,
    Buffer,
    Directory,
    entry_bytes,
    frame,
    page_of,
    pages_for,
    parent_of,
    prologue,
    read_prologue,
    splice,
)
from beam_agents.memory.ring import Ring
from beam_agents.wire.beam_agents_pb2 import MemoryBlob

if TYPE_CHECKING:
    from beam_agents.memory.layout import Part
    from beam_agents.wire.beam_agents_pb2 import MemoryExtended, MemoryPage, MemoryScalar

__all__ = ["Entry", "MemoryImage"]


class Entry:
    """One entry, as far as it was read.

    Attributes:
        key_hash: CRC-32 of the key's UTF-8 bytes.
        size_bytes: What it counts towards the caps.
        accessed: Tick of the last access.
        inserted: Tick of the insertion.
        value: A scalar's value; None for a ring, and for a scalar whose extent was not read yet.
        extent: The extent of a scalar that has one in the blob.
        ring: The ring; None for a scalar.
        fresh: Whether its content is not (or no longer) what the blob holds for the key.
    """

    __slots__ = ("accessed", "extent", "fresh", "inserted", "key_hash", "ring", "size_bytes", "value")

    def __init__(
        self,
        key_hash: int,
        size_bytes: int,
        accessed: int = 0,
        inserted: int = 0,
        value: bytes | None = None,
    ) -> None:
        self.key_hash = key_hash
        self.size_bytes = size_bytes
        self.accessed = accessed
        self.inserted = inserted
        self.value = value
        self.extent = memoryview(b"")
        self.ring: Ring | None = None
        self.fresh = False

    @property
    def kind(self) -> EntryKind:
        """Scalar or ring."""
        return EntryKind.SCALAR if self.ring is None else EntryKind.RING

    def read(self) -> bytes:
        """Return a scalar's value."""
        if self.value is None:
            self.value = bytes(self.extent)
        return self.value


class _Page:
    """A page while it is open: its message, where it was, and the extents of its extended entries."""

    __slots__ = ("_holder", "end", "extents", "message", "start")

    def __init__(self, holder: MemoryBlob, message: MemoryPage, start: int, end: int) -> None:
        """Open a page.

        Args:
            holder: A blob of this page alone, which is what its bytes are.
            message: The page in it.
            start: Where its bytes were in the whole blob.
            end: Where they ended.
        """
        self._holder = holder
        self.message = message
        self.start = start
        self.end = end
        self.extents: dict[str, list[Buffer]] = {}

    def discard(self, key: str) -> None:
        """Remove an entry, if it is there."""
        message = self.message
        if key in message.scalars:
            del message.scalars[key]
        elif key in message.extended:
            del message.extended[key]
            del self.extents[key]

    def move(self, key: str, target: _Page) -> None:
        """Move an entry as it is, unread."""
        if key in self.message.scalars:
            target.message.scalars[key].CopyFrom(self.message.scalars[key])
        else:
            target.message.extended[key].CopyFrom(self.message.extended[key])
            target.extents[key] = self.extents[key]
        self.discard(key)

    def keys(self) -> list[str]:
        """Return the keys, in no particular order."""
        return [*self.message.scalars, *self.message.extended]

    def write(self, key: str, entry: Entry) -> None:
        """Bring an entry into the page."""
        target: MemoryScalar | MemoryExtended
        value = entry.value
        if value is not None and len(value) <= INLINE_BYTES:
            if key in self.extents:
                self.discard(key)
            target = self.message.scalars[key]
            if entry.fresh:
                # What a newer version told of the value that was there is not true of this one.
                target.DiscardUnknownFields()
                target.value = value
        else:
            if entry.fresh:
                self.discard(key)
            target = extended = self.message.extended[key]
            if entry.ring is not None:
                self.extents[key] = entry.ring.write(extended)
            elif entry.fresh:
                value = entry.read()
                before = _before_value(len(value))
                extended.content_bytes = len(value)
                extended.stored_bytes = len(before) + len(value)
                self.extents[key] = [before, value]
        target.accessed = entry.accessed
        target.inserted = entry.inserted

    def record(self) -> bytes:
        """Return the page's bytes in the blob.

        Its keys are sorted, so the bytes do not depend on history or hashing. Implementations of protobuf
        differ in where they put a key that begins with another one; each reads what any other wrote.
        """
        return self._holder.SerializeToString(deterministic=True)

    def extent_buffers(self) -> list[Buffer]:
        """Return its extents' bytes in the blob."""
        return [buffer for key in sorted(self.extents) for buffer in self.extents[key]]


class MemoryImage:
    """A key's memory: what the blob holds, and over it what was read or changed since.

    The caller sees to kinds and caps.

    Attributes:
        tick: The logical clock of accesses.
        size_bytes: What all entries count.
        entries: How many there are.
        changed: Whether anything differs from the bytes that it was opened with.
    """

    __slots__ = (
        "_blob",
        "_bytes",
        "_cache",
        "_dirty",
        "_extents",
        "_head",
        "_head_bytes",
        "_open",
        "_pages",
        "_ready",
        "_view",
        "changed",
        "entries",
        "size_bytes",
        "tick",
    )

    def __init__(self, blob: bytes | None) -> None:
        """Open a blob; None for an empty memory.

        Raises:
            StateUndecodable: The bytes are no memory blob, or their head is damaged.
            StateVersionUnsupported: A newer version wrote them.
        """
        self.changed = False
        self._blob = blob
        self._ready = False
        if blob is None:
            self._head = MemoryBlob()
            self._head_bytes = self.tick = self.size_bytes = self.entries = 0
        else:
            rest = read_prologue(blob)
            self._head = head = _parse(rest)
            self._head_bytes = PROLOGUE_BYTES + len(rest)
            self.tick = head.tick
            self.size_bytes = head.size_bytes
            self.entries = head.entries

    def _prepare(self) -> None:
        """Make ready to read what is stored. Done at first use: most of it is for nothing otherwise."""
        head = self._head
        self._ready = True
        self._bytes = self._blob or b""
        self._view = memoryview(self._bytes)
        self._pages = Directory(head.page_bytes, head.page_group_bytes, self._head_bytes)
        self._extents = Directory(head.extent_bytes, head.extent_group_bytes, self._pages.end)
        self._open: dict[int, _Page] = {}
        # What was looked up, by key; None for a key without an entry. It goes before what is stored.
        self._cache: dict[str, Entry | None] = {}
        # Keys of what is to be written, in no order that matters.
        self._dirty: set[str] = set()

    def find(self, key: str) -> Entry | None:
        """Return the key's entry, if there is one. No access.

        Raises:
            ValueError: The key is empty or no valid text.
            StateUndecodable: The entry's page is damaged.
        """
        if not self._ready:
            self._prepare()
        cache = self._cache
        if key in cache:
            return cache[key]
        entry = cache[key] = self._load(key, _encode_key(key))
        return entry

    def touch(self, key: str, entry: Entry) -> None:
        """Count an access of an entry that was found."""
        self.tick += 1
        entry.accessed = self.tick
        self._dirty.add(key)
        self.changed = True

    def put(self, key: str, entry: Entry | None, delta_bytes: int) -> Entry:
        """Count a write: an access, which makes the entry if there is none.

        Args:
            key: The entry's key.
            entry: What :meth:`find` returned for it.
            delta_bytes: By how much its size grows.

        Returns:
            The entry, for its content to be written.
        """
        if entry is None:
            entry = self._cache[key] = Entry(crc32(key.encode()), 0, inserted=self.tick + 1)
            entry.fresh = True
            self.entries += 1
        entry.size_bytes += delta_bytes
        self.size_bytes += delta_bytes
        self.touch(key, entry)
        return entry

    def remove(self, key: str) -> Entry | None:
        """Remove the key's entry and return it; None if there is none."""
        entry = self.find(key)
        if entry is not None:
            self._cache[key] = None
            self._dirty.add(key)
            self.entries -= 1
            self.size_bytes -= entry.size_bytes
            self.changed = True
        return entry

    def keys(self) -> list[str]:
        """Return all keys, in no particular order."""
        pages = self._all_pages()
        cache = self._cache
        stored = [key for page in pages for key in page.keys() if key not in cache]  # noqa: SIM118 - no mapping
        return [*stored, *(key for key, entry in cache.items() if entry is not None)]

    def describe(self) -> list[EntryInfo]:
        """Return what a compactor may know of all entries, in no particular order."""
        pages = self._all_pages()
        cache = self._cache
        infos = [
            EntryInfo(key, entry.kind, entry.size_bytes, entry.accessed, entry.inserted)
            for key, entry in cache.items()
            if entry is not None
        ]
        for page in pages:
            for key, scalar in page.message.scalars.items():
                if key not in cache:
                    size = entry_bytes(len(key.encode()), len(scalar.value))
                    infos.append(EntryInfo(key, EntryKind.SCALAR, size, scalar.accessed, scalar.inserted))
            for key, stored in page.message.extended.items():
                if key not in cache:
                    size = entry_bytes(len(key.encode()), stored.content_bytes, stored.items)
                    kind = EntryKind.RING if stored.ring else EntryKind.SCALAR
                    infos.append(EntryInfo(key, kind, size, stored.accessed, stored.inserted))
        return infos

    def encode(self) -> bytes | None:
        """Return the memory's bytes; None for an empty memory, the same object if nothing has changed."""
        if not self._ready or not self._dirty:
            return self._blob
        # What is open is used up by writing it.
        self._ready = False
        if not self.entries:
            self._blob = None
            self._head = MemoryBlob()
            self._head_bytes = self.tick = 0
            return None
        count = pages_for(self.entries)
        changed = self._write_pages(count)
        head, pages, extents = self._head, self._pages, self._extents
        page_parts: list[Part] = []
        extent_parts: list[Part] = []
        checksums = head.page_checksums
        del checksums[count:]
        for index in sorted(changed):
            page = self._open[index]
            record = page.record()
            if index < len(checksums):
                checksums[index] = crc32(record)
            else:
                checksums.append(crc32(record))
            page_parts.append((index, page.start, page.end, (record,)))
            start, end = extents.span(index)
            if page.extents or start < end or index >= pages.count:
                extent_parts.append((index, start, end, page.extent_buffers()))
        parts = splice(self._view, pages, count, page_parts)
        if extent_parts or count < pages.count:
            parts += splice(self._view, extents, count, extent_parts)
        else:
            parts.append(self._view[extents.start :])
        head.tick = self.tick
        head.size_bytes = self.size_bytes
        head.entries = self.entries
        rest = head.SerializeToString()
        self._head_bytes = PROLOGUE_BYTES + len(rest)
        self._blob = blob = b"".join((prologue(rest, sum(map(len, parts))), rest, *parts))
        return blob

    def _write_pages(self, count: int) -> set[int]:
        """Bring all changes into the pages, ``count`` afterwards, and return which of these changed."""
        before = self._pages.count
        changed: set[int] = set()
        written: list[tuple[str, Entry]] = []
        for key in self._dirty:
            entry = self._cache[key]
            if entry is not None:
                written.append((key, entry))
            elif before:
                index = page_of(crc32(key.encode()), before)
                self._page(index).discard(key)
                changed.add(index)
        for index in range(before, count):
            changed |= self._split(index)
        for index in range(before - 1, count - 1, -1):
            changed |= self._merge(index)
        for key, entry in written:
            index = page_of(entry.key_hash, count)
            self._page(index).write(key, entry)
            changed.add(index)
        return changed if count >= before else {index for index in changed if index < count}

    def _split(self, index: int) -> set[int]:
        """Add a page at the end, with the entries that now belong there."""
        holder = MemoryBlob()
        page = self._open[index] = _Page(holder, holder.pages.add(), self._pages.end, self._pages.end)
        if not index:
            return {index}
        parent = parent_of(index)
        source = self._page(parent)
        for key in source.keys():  # noqa: SIM118 - no mapping
            if page_of(crc32(key.encode()), index + 1) == index:
                source.move(key, page)
        return {index, parent}

    def _merge(self, index: int) -> set[int]:
        """Move the last page's entries to where they now belong."""
        parent = parent_of(index)
        page, target = self._page(index), self._page(parent)
        for key in page.keys():  # noqa: SIM118 - no mapping
            page.move(key, target)
        return {parent}

    def _all_pages(self) -> list[_Page]:
        if not self._ready:
            self._prepare()
        return [self._page(index) for index in range(self._pages.count)]

    def _page(self, index: int) -> _Page:
        """Return a page, opened."""
        page = self._open.get(index)
        if page is None:
            start, end = self._pages.span(index)
            record = self._bytes[start:end]
            if crc32(record) != self._head.page_checksums[index]:
                raise StateUndecodable(CELL)
            holder = _parse(record)
            page = self._open[index] = _Page(holder, holder.pages[0], start, end)
            extended = page.message.extended
            if extended:
                start, _ = self._extents.span(index)
                for key in sorted(extended):
                    end = start + extended[key].stored_bytes
                    page.extents[key] = [self._view[start:end]]
                    start = end
        return page

    def _load(self, key: str, encoded: bytes) -> Entry | None:
        """Read an entry from its page."""
        count = self._pages.count
        if not count:
            return None
        key_hash = crc32(encoded)
        page = self._page(page_of(key_hash, count))
        scalar = page.message.scalars.get(key)
        if scalar is not None:
            value = scalar.value
            size = entry_bytes(len(encoded), len(value))
            return Entry(key_hash, size, scalar.accessed, scalar.inserted, value)
        if key not in page.extents:
            return None
        stored = page.message.extended[key]
        size = entry_bytes(len(encoded), stored.content_bytes, stored.items)
        entry = Entry(key_hash, size, stored.accessed, stored.inserted)
        extent = memoryview(page.extents[key][0])
        if stored.ring:
            entry.ring = Ring(stored, extent)
        else:
            before = _before_value(stored.content_bytes)
            if extent[: len(before)] != before or len(extent) != len(before) + stored.content_bytes:
                raise StateUndecodable(CELL)
            entry.extent = extent[len(before) :]
        return entry


def _parse(data: bytes) -> MemoryBlob:
    try:
        return MemoryBlob.FromString(data)
    except (DecodeError, ValueError) as error:
        raise StateUndecodable(CELL) from error


def _before_value(size: int) -> bytes:
    """Return what goes before a value of ``size`` bytes in its extent."""
    inner = frame(VALUE_TAG, size)
    return frame(EXTENT_TAG, len(inner) + size) + inner


def _encode_key(key: str) -> bytes:
    if not key:
        raise InvalidArgument("a memory key must not be empty")
    try:
        return key.encode()
    except UnicodeEncodeError:
        # Without the cause, whose text has the key in it.
        raise InvalidArgument("a memory key must be text that UTF-8 can hold (no lone surrogates)") from None

"""The layout of the memory cell's bytes, as constants and pure functions: sizes, hashing, framing, offsets.

The cell is a serialised ``MemoryBlob`` (see ``beam_agents.proto``): a head, the pages, the extents. Only the
head says where the parts are, so what an activation does not touch is neither parsed nor built again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias
from zlib import crc32

from beam_agents.errors import StateUndecodable, StateVersionUnsupported

if TYPE_CHECKING:
    from collections.abc import MutableSequence, Sequence

__all__ = [
    "CELL",
    "CHUNK_BYTES",
    "CHUNK_ITEMS",
    "ENTRY_OVERHEAD_BYTES",
    "EXTENT_TAG",
    "HARD_CAP_BYTES",
    "INLINE_BYTES",
    "ITEM_OVERHEAD_BYTES",
    "PROLOGUE_BYTES",
    "SCHEMA_VERSION",
    "SOFT_CAP_BYTES",
    "VALUE_TAG",
    "Buffer",
    "Directory",
    "Part",
    "entry_bytes",
    "frame",
    "page_of",
    "pages_for",
    "parent_of",
    "prologue",
    "read_prologue",
    "splice",
]

Buffer: TypeAlias = bytes | memoryview

Part: TypeAlias = "tuple[int, int, int, Sequence[Buffer]]"
"""A part to write: its index, where it was in the blob (the directory's end for a new one), its new bytes."""

CELL: Final = "memory"
"""The state cell's name in errors."""

SCHEMA_VERSION: Final = 1

SOFT_CAP_BYTES: Final = 786_432
HARD_CAP_BYTES: Final = 1_048_576

ENTRY_OVERHEAD_BYTES: Final = 48
"""What an entry counts beside its key and content: more than its ticks, framing and directory ever take."""

ITEM_OVERHEAD_BYTES: Final = 16
"""What a ring's item counts beside its bytes: more than its framing and its chunk's directory ever take."""

INLINE_BYTES: Final = 1_024
"""A longer value has an extent of its own, so that its page stays cheap to rewrite."""

CHUNK_ITEMS: Final = 64
CHUNK_BYTES: Final = 4_096
"""Bounds of a ring's chunk: items, and bytes of them (a longer item is a chunk of its own)."""

PAGE_ENTRIES: Final = 8
"""Entries per page on average: a page is what one access parses and writes anew."""

GROUP_PARTS: Final = 32
"""Parts per group of a directory: finding one adds up at most so many sizes, and the groups'."""

EXTENT_TAG: Final = b"\x72"
VALUE_TAG: Final = b"\x0a"
"""Protobuf's tags of MemoryBlob.extents and MemoryExtent.value."""

_VARINT_MORE: Final = 0x80

_PROLOGUE: Final = struct.Struct("<BIBIBIBI")
_PROLOGUE_TAGS: Final = (0x0D, 0x15, 0x1D, 0x25)
PROLOGUE_BYTES: Final = _PROLOGUE.size
_VERSION_END: Final = 5


def pages_for(entries: int) -> int:
    """Return how many pages so many entries are kept in."""
    return -(-entries // PAGE_ENTRIES)


def page_of(key_hash: int, pages: int) -> int:
    """Return the page of a key among ``pages`` of them (at least one), by linear hashing."""
    power = 1 << (pages - 1).bit_length()
    index = key_hash & (power - 1)
    return index if index < pages else index - (power >> 1)


def parent_of(page: int) -> int:
    """Return the page that ``page`` (at least 1) is split off from, and merged back into."""
    return page - (1 << (page.bit_length() - 1))


def frame(tag: bytes, size: int) -> bytes:
    """Return the bytes that go before a length-delimited protobuf field of ``size`` bytes."""
    digits = bytearray(tag)
    while size >= _VARINT_MORE:
        digits.append(size & (_VARINT_MORE - 1) | _VARINT_MORE)
        size >>= 7
    digits.append(size)
    return bytes(digits)


def prologue(head: bytes, parts_bytes: int) -> bytes:
    """Return the first fields of a blob, before the rest of its head and parts of so many bytes."""
    first, second, third, fourth = _PROLOGUE_TAGS
    head_bytes = PROLOGUE_BYTES + len(head)
    return _PROLOGUE.pack(
        first, SCHEMA_VERSION, second, head_bytes, third, head_bytes + parts_bytes, fourth, crc32(head)
    )


def entry_bytes(key_bytes: int, content_bytes: int, items: int = 0) -> int:
    """Return what an entry counts towards the caps.

    Args:
        key_bytes: Length of its key's UTF-8 form.
        content_bytes: Length of its value, or of its items together.
        items: How many items a ring has; 0 for a scalar.
    """
    return ENTRY_OVERHEAD_BYTES + key_bytes + content_bytes + ITEM_OVERHEAD_BYTES * items


def read_prologue(blob: bytes) -> bytes:
    """Check a blob's first fields and return the rest of its head, undamaged.

    Raises:
        StateUndecodable: The bytes are no memory blob, or their head is damaged.
        StateVersionUnsupported: A newer version wrote them.
    """
    if len(blob) >= _VERSION_END and blob[0] == _PROLOGUE_TAGS[0]:
        found = int.from_bytes(blob[1:_VERSION_END], "little")
        if found > SCHEMA_VERSION:
            raise StateVersionUnsupported(CELL, found, SCHEMA_VERSION)
    if len(blob) < PROLOGUE_BYTES:
        raise StateUndecodable(CELL)
    first, version, second, head_bytes, third, blob_bytes, fourth, checksum = _PROLOGUE.unpack_from(blob)
    head = blob[PROLOGUE_BYTES:head_bytes]
    if (
        (first, second, third, fourth) != _PROLOGUE_TAGS
        or version != SCHEMA_VERSION
        or blob_bytes != len(blob)
        or crc32(head) != checksum
    ):
        raise StateUndecodable(CELL)
    return head


class Directory:
    """Where parts are that lie one after the other: their sizes, and the sums of these in groups.

    Attributes:
        start: Where the first part starts, in bytes from the start of the blob.
        end: Where the last one ends.
        count: How many there are.
    """

    __slots__ = ("_groups", "_sizes", "count", "end", "start")

    def __init__(self, sizes: MutableSequence[int], groups: MutableSequence[int], start: int) -> None:
        self._sizes = sizes
        self._groups = groups
        self.start = start
        self.end = start + sum(groups)
        self.count = len(sizes)

    def span(self, index: int) -> tuple[int, int]:
        """Return where a part starts and ends; an empty part at the end for one past the last."""
        sizes = self._sizes
        if self.start == self.end or index >= self.count:
            return self.end, self.end
        group = index // GROUP_PARTS
        start = self.start + sum(self._groups[:group]) + sum(sizes[group * GROUP_PARTS : index])
        return start, start + sizes[index]

    def replace(self, index: int, size: int) -> None:
        """Note a part's new size; a part right after the last one is added."""
        group = index // GROUP_PARTS
        if index < len(self._sizes):
            self._groups[group] += size - self._sizes[index]
            self._sizes[index] = size
            return
        self._sizes.append(size)
        if group < len(self._groups):
            self._groups[group] += size
        else:
            self._groups.append(size)

    def truncate(self, count: int) -> None:
        """Forget all parts but the first ``count`` (at least one), if there are more."""
        if count >= len(self._sizes):
            return
        last = (count - 1) // GROUP_PARTS
        del self._sizes[count:]
        del self._groups[last:]
        self._groups.append(sum(self._sizes[last * GROUP_PARTS :]))


def splice(blob: memoryview, directory: Directory, count: int, parts: Sequence[Part]) -> list[Buffer]:
    """Return the buffers of all parts, old and new, and bring the directory up to date.

    Args:
        blob: What holds the parts as they were.
        directory: Where they were.
        count: How many parts there are now.
        parts: What replaces or extends them, by rising index.
    """
    out: list[Buffer] = []
    copied = directory.start
    kept_end = directory.span(count)[0]
    for _, start, end, buffers in parts:
        out.append(blob[copied:start])
        out += buffers
        copied = end
    out.append(blob[copied:kept_end])
    directory.truncate(count)
    for index, _, _, buffers in parts:
        directory.replace(index, sum(map(len, buffers)))
    return out

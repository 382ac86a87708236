"""A ring: items in chunks, of which only the first and the last are ever parsed to append."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from beam_agents.errors import StateUndecodable
from beam_agents.memory.layout import CELL, CHUNK_BYTES, CHUNK_ITEMS, EXTENT_TAG, Buffer, frame
from beam_agents.wire.beam_agents_pb2 import MemoryBlob, MemoryExtended, MemoryExtent

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Ring"]

_NOTHING: Final = memoryview(b"")


class Ring:
    """The items of one ring: parsed chunks in front, stored chunks that nobody parsed, parsed chunks behind.

    Where chunks begin and end depends only on what was appended and dropped, never on what was parsed when.

    Attributes:
        items: How many there are.
        content_bytes: Bytes of the items together.
    """

    __slots__ = (
        "_back",
        "_end",
        "_first",
        "_front",
        "_last",
        "_source",
        "_start",
        "_stored",
        "content_bytes",
        "items",
    )

    def __init__(self, stored: MemoryExtended | None = None, source: memoryview = _NOTHING) -> None:
        """Open a ring.

        Args:
            stored: Its directory; None for a new ring.
            source: Its extents.
        """
        self._stored = MemoryExtended() if stored is None else stored
        self._source = source
        # The chunks that nobody parsed: their range in the directory and in the source.
        self._first = 0
        self._last = len(self._stored.chunk_items)
        self._start = 0
        self._end = len(source)
        self._front: list[list[bytes]] = []
        self._back: list[list[bytes]] = []
        self.items = self._stored.items
        self.content_bytes = self._stored.content_bytes

    def all(self) -> tuple[bytes, ...]:
        """Return the items, oldest first."""
        between = self._parse(self._first, self._last, self._start, self._end)
        return tuple(chain.from_iterable(chain(self._front, between, self._back)))

    def oldest(self, count: int) -> list[bytes]:
        """Return the ``count`` oldest items (all, if there are fewer)."""
        parsed = sum(map(len, self._front))
        while parsed < count and self._first < self._last:
            end = self._start + self._stored.chunk_bytes[self._first]
            chunk = self._parse(self._first, self._first + 1, self._start, end)
            self._front += chunk
            self._first += 1
            self._start = end
            parsed += len(chunk[0])
        return list(islice(chain.from_iterable(chain(self._front, self._back)), count))

    def append(self, item: bytes) -> None:
        """Add the newest item."""
        if not self._back:
            if self._first < self._last:
                start = self._end - self._stored.chunk_bytes[self._last - 1]
                self._back = self._parse(self._last - 1, self._last, start, self._end)
                self._last -= 1
                self._end = start
            elif self._front:
                self._back.append(self._front.pop())
        chunk = self._back[-1] if self._back else None
        if chunk is None or len(chunk) >= CHUNK_ITEMS or sum(map(len, chunk)) + len(item) > CHUNK_BYTES:
            self._back.append([item])
        else:
            chunk.append(item)
        self.items += 1
        self.content_bytes += len(item)

    def drop(self, count: int) -> None:
        """Drop the ``count`` oldest items (all, if there are fewer)."""
        dropped = self.oldest(count)
        left = len(dropped)
        for chunks in (self._front, self._back):
            while left and chunks:
                chunk = chunks[0]
                if left < len(chunk):
                    del chunk[:left]
                    left = 0
                else:
                    left -= len(chunk)
                    del chunks[0]
        self.items -= len(dropped)
        self.content_bytes -= sum(map(len, dropped))
        if self.items < 0 or self.content_bytes < 0:
            raise StateUndecodable(CELL)

    def write(self, target: MemoryExtended) -> list[Buffer]:
        """Bring the ring's directory into ``target`` and return its extents.

        Args:
            target: The directory that the ring was opened with, or a copy of it; an empty one for a new
                ring. The ring is not used afterwards.
        """
        front = [_extent(chunk) for chunk in self._front]
        back = [_extent(chunk) for chunk in self._back]
        for directory in (target.chunk_bytes, target.chunk_items):
            del directory[self._last :]
            del directory[: self._first]
        for index, (extent, chunk) in enumerate(zip(front, self._front, strict=True)):
            target.chunk_bytes.insert(index, len(extent))
            target.chunk_items.insert(index, len(chunk))
        target.chunk_bytes.extend(map(len, back))
        target.chunk_items.extend(map(len, self._back))
        between = self._source[self._start : self._end]
        target.ring = True
        target.items = self.items
        target.content_bytes = self.content_bytes
        target.stored_bytes = _total(front) + len(between) + _total(back)
        return [*front, between, *back]

    def _parse(self, first: int, last: int, start: int, end: int) -> list[list[bytes]]:
        """Return stored chunks, given their range in the directory and in the source."""
        if first == last:
            return []
        try:
            extents = MemoryBlob.FromString(bytes(self._source[start:end])).extents
        except (DecodeError, ValueError) as error:
            raise StateUndecodable(CELL) from error
        chunks = [list(extent.items) for extent in extents]
        if [len(chunk) for chunk in chunks] != self._stored.chunk_items[first:last]:
            raise StateUndecodable(CELL)
        return chunks


def _extent(chunk: list[bytes]) -> bytes:
    body = MemoryExtent(items=chunk).SerializeToString()
    return frame(EXTENT_TAG, len(body)) + body


def _total(buffers: Iterable[Buffer]) -> int:
    return sum(map(len, buffers))

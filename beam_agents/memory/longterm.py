"""The long-term tier as agents use it: reads go to the store, saves are staged until the flush."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from beam_agents.checks import check_int
from beam_agents.errors import ActivationClosed, InvalidArgument, InvalidArgumentType
from beam_agents.memory.stores.contract import (
    MAX_FOUND,
    MemoryRecord,
    StoreRow,
    check_key,
    decode_record,
    encode_record,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.contract import StoreLimits

__all__ = ["LongTermMemory", "Reader", "Watcher"]


class Reader(Protocol):
    """What reads of the tier need of a store."""

    @property
    def limits(self) -> StoreLimits:
        """What a row may measure."""
        ...

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        ...

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> Sequence[StoreRow]:
        """Return an entity's first rows whose key begins with ``prefix``."""
        ...


class Watcher(Protocol):
    """Who is told what the overlay did."""

    def saved(self, key_bytes: int, value_bytes: int) -> None:
        """A row was staged; its key and value have so many bytes."""
        ...

    def overlaid(self, rows: int) -> None:
        """Of what the last search returns, so many rows are staged ones."""
        ...


class LongTermMemory:
    """One entity's rows in the long-term store, during one activation.

    Reads see the store as it is at that moment, and over it what this activation has saved. What is saved
    must be a function of the event, of working memory and of model answers alone, never of what a read of the
    same key returned: a retry may read what its failed attempt flushed.
    """

    def __init__(
        self, reader: Reader, *, entity_key: bytes, seq: int, now_ms: int, watcher: Watcher | None = None
    ) -> None:
        """Open the tier.

        Args:
            reader: The store.
            entity_key: The entity.
            seq: The activation's seq, which the guard compares.
            now_ms: The activation's clock, milliseconds since the Unix epoch.
            watcher: Is told what is staged, and what of it reads see.
        """
        self._reader = reader
        self._watcher = watcher
        self._entity_key = entity_key
        self._seq = seq
        self._now_ms = now_ms
        self._staged: dict[str, bytes] = {}
        self._closed = False

    async def load(self, key: str) -> MemoryRecord | None:
        """Return a row, or None.

        Raises:
            StoreError: The store failed.
            StateUndecodable: The row's bytes do not decode.
            StateVersionUnsupported: A newer version wrote the row.
            ValueError: The key is empty, too long, or no text that UTF-8 can hold.
        """
        self._check_open()
        key = check_key(key, self._reader.limits)
        staged = self._staged.get(key)
        if staged is not None:
            return self._record(key, staged)
        row = await self._reader.load(self._entity_key, key)
        return None if row is None else decode_record(row)

    async def search(self, prefix: str = "", limit: int = 20) -> tuple[MemoryRecord, ...]:
        """Return the first rows whose key begins with ``prefix``, in the order of the keys' UTF-8 bytes.

        Args:
            prefix: What keys begin with; characters of patterns mean themselves. Empty for all.
            limit: The most rows to return.

        Raises:
            StoreError: The store failed.
            StateUndecodable: A row's bytes do not decode.
            StateVersionUnsupported: A newer version wrote a row.
            TypeError: ``prefix`` is no str, or ``limit`` no int.
            ValueError: ``limit`` is below 1, or ``prefix`` no text that UTF-8 can hold.
        """
        self._check_open()
        if prefix:
            check_key(prefix, self._reader.limits)
        elif not isinstance(prefix, str):
            raise InvalidArgumentType(f"search takes a prefix as a str, not {type(prefix).__name__}")
        check_int("search's limit", limit, 1)
        # What is staged takes the place of rows or goes between them: more than `limit` stored rows are
        # never among the first `limit` of both together.
        stored = await self._reader.search(self._entity_key, prefix, min(limit, MAX_FOUND))
        found = {row.key: decode_record(row) for row in stored}
        for key, value in self._staged.items():
            if key.startswith(prefix):
                found[key] = self._record(key, value)
        keys = sorted(found, key=str.encode)[:limit]
        if self._watcher is not None:
            self._watcher.overlaid(sum(key in self._staged for key in keys))
        return tuple(found[key] for key in keys)

    def save(self, key: str, value: bytes) -> None:
        """Stage a row, to be written when the activation has succeeded; the last save of a key wins.

        Raises:
            TypeError: The key is no str, or the value no bytes.
            ValueError: The key is empty, too long or no text that UTF-8 can hold; or the value, or the
                entity's own key, is longer than the store may hold.
        """
        self._check_open()
        limits = self._reader.limits
        key = check_key(key, limits)
        if not isinstance(value, bytes):
            raise InvalidArgumentType(
                f"a long-term value must be bytes, not {type(value).__name__}: encode it first"
            )
        if len(value) > limits.max_value_bytes:
            raise InvalidArgument(
                f"a long-term value may have {limits.max_value_bytes} bytes on this store; "
                f"this one has {len(value)}"
            )
        if len(self._entity_key) > limits.max_entity_key_bytes:
            raise InvalidArgument(
                f"an entity key may have {limits.max_entity_key_bytes} bytes in the long-term tier; "
                f"this one has {len(self._entity_key)}"
            )
        self._staged[key] = bytes(value)
        if self._watcher is not None:
            self._watcher.saved(len(key.encode()), len(value))

    @property
    def staged(self) -> tuple[StoreRow, ...]:
        """What is to be flushed, in the order of the keys' bytes: the same on every retry."""
        return tuple(
            StoreRow(
                self._entity_key,
                key,
                self._seq,
                encode_record(self._staged[key], self._seq, self._now_ms),
                self._now_ms,
            )
            for key in sorted(self._staged, key=str.encode)
        )

    def close(self) -> None:
        """End it: every later use raises ActivationClosed."""
        self._closed = True

    def _record(self, key: str, value: bytes) -> MemoryRecord:
        return MemoryRecord(key, value, self._seq, self._now_ms)

    def _check_open(self) -> None:
        if self._closed:
            raise ActivationClosed

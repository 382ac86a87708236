"""What a long-term store is: rows, the guard, and the calls that every backend answers alike.

A backend stores rows ``(entity_key, key, seq, rec)``. ``rec`` is a serialised ``LongTermRecord``: the same
bytes on every backend, so that rows are copied between them verbatim.

The guard: an upsert is applied if its seq is greater than or equal to the stored one, else it is stale and
changes nothing. The backend's own atomic primitive holds it, never a read followed by a write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from beam_agents.errors import (
    InvalidArgument,
    InvalidArgumentType,
    StateUndecodable,
    StateVersionUnsupported,
    hash_entity_key,
)
from beam_agents.wire.beam_agents_pb2 import LongTermRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.uri import StoreUri
    from beam_agents.signals.types import UpsertResult

__all__ = [
    "MAX_FOUND",
    "MAX_KEY_BYTES",
    "MAX_SEQ",
    "RECORD_VERSION",
    "MemoryRecord",
    "MemoryStore",
    "RowId",
    "StoreAdmin",
    "StoreLimits",
    "StoreRow",
    "check_key",
    "decode_record",
    "encode_record",
    "with_seq",
]

RECORD_VERSION: Final = 1
"""The newest ``record_schema_version`` that this code reads, and the one it writes."""

MAX_KEY_BYTES: Final = 512
"""The longest key, in UTF-8 bytes, on every backend: with an entity key it must fit into a Firestore id."""

MAX_ENTITY_KEY_BYTES: Final = 512
"""The longest entity key that the long-term tier takes, on every backend."""

MAX_SEQ: Final = 2**63 - 1

MAX_FOUND: Final = 2**31 - 1
"""What one search may ask for: more rows than any entity has, and no more than each backend can be asked."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A row as an agent sees it.

    Attributes:
        key: Its key.
        value: What was saved.
        seq: The seq of the activation that saved it.
        updated_at_ms: That activation's clock, milliseconds since the Unix epoch.
    """

    key: str
    value: bytes
    seq: int
    updated_at_ms: int


class RowId(NamedTuple):
    """Where a row is. Ordered by the entity key's bytes, then by the key's UTF-8 bytes, on every backend.

    Attributes:
        entity_key: The entity.
        key: The row's key.
    """

    entity_key: bytes
    key: str

    @property
    def sort_key(self) -> tuple[bytes, bytes]:
        """What rows are ordered by."""
        return self.entity_key, self.key.encode()


class StoreRow(NamedTuple):
    """A row as a store holds it.

    A tuple, because one search makes hundreds, and a frozen dataclass takes thrice as long to make.

    Attributes:
        entity_key: The entity.
        key: Its key.
        seq: What the guard compares, from 0 to 2**63 - 1.
        rec: The serialised LongTermRecord.
        updated_at_ms: Milliseconds since the Unix epoch, for retention.
    """

    entity_key: bytes
    key: str
    seq: int
    rec: bytes
    updated_at_ms: int

    @property
    def row_id(self) -> RowId:
        """Where it is."""
        return RowId(self.entity_key, self.key)

    @property
    def sort_key(self) -> tuple[bytes, bytes]:
        """What rows are ordered by: their RowId's."""
        return self.entity_key, self.key.encode()


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What one row may measure on a backend.

    Attributes:
        max_value_bytes: The longest value that an agent may save.
        max_key_bytes: The longest key, in UTF-8 bytes.
        max_entity_key_bytes: The longest entity key.
    """

    max_value_bytes: int
    max_key_bytes: int = MAX_KEY_BYTES
    max_entity_key_bytes: int = MAX_ENTITY_KEY_BYTES


class MemoryStore(ABC):
    """A store as the runtime uses it. Made, used and closed on the process's event loop.

    Every method raises StoreUnavailable, StoreTimeout or StoreRejected, and nothing else of the client's; a
    method makes one attempt, under the deadline of the URI's options. Retries are the caller's.

    Attributes:
        uri: What it was opened with.
        limits: What a row may measure.
    """

    limits: StoreLimits

    def __init__(self, uri: StoreUri) -> None:
        self.uri = uri

    @property
    def backend(self) -> str:
        """The backend's label."""
        return self.uri.backend

    @abstractmethod
    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""

    @abstractmethod
    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first rows whose key begins with ``prefix``, by the key's bytes.

        Args:
            entity_key: The entity.
            prefix: What keys begin with; empty for all.
            limit: The most rows to return, from 1 to MAX_FOUND.
        """

    @abstractmethod
    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        """Upsert rows under the guard, each row id at most once, and tell each one's result in their order.

        Safe to repeat whole. Atomic where the backend can do it.
        """

    @abstractmethod
    async def ping(self) -> None:
        """Ask for a sign of life, as cheaply as the backend can give one."""

    @abstractmethod
    async def close(self) -> None:
        """Release all connections. A second call does nothing."""


class StoreAdmin(ABC):
    """What an operator does to a store, beside what the runtime does. Never used by the runtime."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    @abstractmethod
    def provision_plan(self) -> str:
        """Return what :meth:`provision` would run, as text: the DDL, or that nothing is needed."""

    @abstractmethod
    async def provision(self) -> bool:
        """Create what is missing; return whether anything was. Safe to repeat."""

    @abstractmethod
    async def scan(
        self, after: RowId | None, limit: int, *, entity_key: bytes | None = None
    ) -> list[StoreRow]:
        """Return the next rows after a place, in the order of RowId, of one entity or of all."""

    @abstractmethod
    async def delete(self, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have the seq that is given; return how many were deleted."""

    @abstractmethod
    async def replace_seq(self, row: StoreRow, replacement: StoreRow) -> bool:
        """Put a row in the place of one that still has the seq that is given, whatever the guard says."""


def check_key(key: object, limits: StoreLimits) -> str:
    """Return a row's key if it is one.

    Raises:
        TypeError: It is no str.
        ValueError: It is empty, too long, or no text that UTF-8 can hold.
    """
    if not isinstance(key, str):
        raise InvalidArgumentType(f"a long-term key must be a str, not {type(key).__name__}")
    # A subclass may encode itself otherwise the next time.
    key = str.__str__(key)
    if not key:
        raise InvalidArgument("a long-term key must not be empty")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        # Without the cause, whose text has the key in it.
        raise InvalidArgument(
            "a long-term key must be text that UTF-8 can hold (no lone surrogates)"
        ) from None
    if size > limits.max_key_bytes:
        raise InvalidArgument(
            f"a long-term key may have {limits.max_key_bytes} bytes in UTF-8; this one has {size}"
        )
    return key


def encode_record(value: bytes, seq: int, updated_at_ms: int) -> bytes:
    """Return the row's bytes: the same on every backend and in every process."""
    record = LongTermRecord(
        record_schema_version=RECORD_VERSION, value=value, seq=seq, updated_at_ms=updated_at_ms
    )
    return record.SerializeToString(deterministic=True)


def decode_record(row: StoreRow) -> MemoryRecord:
    """Return a row as an agent sees it.

    Raises:
        StateUndecodable: Its bytes do not decode; the row is left as it is.
        StateVersionUnsupported: A newer version wrote it; likewise.
    """
    record = _parse_record(row)
    return MemoryRecord(row.key, record.value, record.seq, record.updated_at_ms)


def with_seq(row: StoreRow, seq: int) -> StoreRow:
    """Return a row with another seq; all else stays, fields that a newer version added included.

    Raises:
        StateUndecodable: Its bytes do not decode.
        StateVersionUnsupported: A newer version wrote it.
    """
    record = _parse_record(row)
    record.seq = seq
    return row._replace(seq=seq, rec=record.SerializeToString(deterministic=True))


def _parse_record(row: StoreRow) -> LongTermRecord:
    entity = hash_entity_key(row.entity_key)
    try:
        record = LongTermRecord.FromString(row.rec)
    except DecodeError:
        # The parser's own error may quote the bytes.
        raise StateUndecodable("longterm", entity) from None
    version = record.record_schema_version
    if version > RECORD_VERSION:
        raise StateVersionUnsupported("longterm", version, RECORD_VERSION, entity)
    if version == 0:
        raise StateUndecodable("longterm", entity)
    return record

"""The reference store, in this process's memory: for tests, and for a single worker that may forget."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from beam_agents.memory.stores.contract import MemoryStore, RowId, StoreAdmin, StoreLimits, StoreRow
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["InProcessAdmin", "InProcessStore", "forget_rows"]

MAX_VALUE_BYTES: Final = 16 * 1024 * 1024


class _Rows:
    """The rows of this process; a forked child begins with none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.by_id: dict[RowId, StoreRow] = {}


_rows = _Rows()


def _current() -> _Rows:
    global _rows  # noqa: PLW0603 - one per process is the point
    if _rows.pid != os.getpid():
        _rows = _Rows()
    return _rows


def forget_rows() -> None:
    """Empty the store, for a test that begins."""
    rows = _current()
    with rows.lock:
        rows.by_id.clear()


class InProcessStore(MemoryStore):
    """``memory://``: all that name it share one set of rows."""

    limits = StoreLimits(max_value_bytes=MAX_VALUE_BYTES)

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        return _current().by_id.get(RowId(entity_key, key))

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first rows whose key begins with ``prefix``."""
        rows = _current()
        with rows.lock:
            found = [
                row
                for row in rows.by_id.values()
                if row.entity_key == entity_key and row.key.startswith(prefix)
            ]
        return sorted(found, key=lambda row: row.sort_key)[:limit]

    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        """Upsert rows under the guard."""
        held = _current()
        with held.lock:
            return [_upsert(held.by_id, row) for row in rows]

    async def ping(self) -> None:
        """Do nothing: it is there."""

    async def close(self) -> None:
        """Do nothing: the rows outlast whoever wrote them."""


def _upsert(by_id: dict[RowId, StoreRow], row: StoreRow) -> UpsertResult:
    stored = by_id.get(row.row_id)
    if stored is not None and stored.seq > row.seq:
        return UpsertResult.STALE
    by_id[row.row_id] = row
    return UpsertResult.APPLIED


class InProcessAdmin(StoreAdmin):
    """The operator's side of the reference store."""

    def provision_plan(self) -> str:
        """Say that nothing is needed."""
        return "nothing to create: rows live in the process's memory"

    async def provision(self) -> bool:
        """Do nothing."""
        return False

    async def scan(
        self, after: RowId | None, limit: int, *, entity_key: bytes | None = None
    ) -> list[StoreRow]:
        """Return the next rows after a place."""
        held = _current()
        with held.lock:
            rows = sorted(held.by_id.values(), key=lambda row: row.sort_key)
        return [
            row
            for row in rows
            if (entity_key is None or row.entity_key == entity_key)
            and (after is None or row.sort_key > after.sort_key)
        ][:limit]

    async def delete(self, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have the seq that is given."""
        held = _current()
        with held.lock:
            going = [row for row in rows if (stored := held.by_id.get(row.row_id)) and stored.seq == row.seq]
            for row in going:
                del held.by_id[row.row_id]
        return len(going)

    async def replace_seq(self, row: StoreRow, replacement: StoreRow) -> bool:
        """Put a row in the place of one that still has the seq that is given."""
        held = _current()
        with held.lock:
            stored = held.by_id.get(row.row_id)
            if stored is None or stored.seq != row.seq:
                return False
            held.by_id[row.row_id] = replacement
            return True

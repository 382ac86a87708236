"""Retention that works on every backend: deletes rows by when they were last written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from beam_agents.cli.store_session import OpenStore
    from beam_agents.memory.stores.contract import StoreRow

__all__ = ["TrimTotals", "trim_rows"]


@dataclass(slots=True)
class TrimTotals:
    """What a trim did so far.

    Attributes:
        scanned: Rows that were read.
        old: Rows of these that are older.
        old_bytes: Bytes of their records.
        deleted: Rows that were deleted.
    """

    scanned: int = 0
    old: int = 0
    old_bytes: int = 0
    deleted: int = 0


async def trim_rows(
    opened: OpenStore,
    totals: TrimTotals,
    *,
    before_ms: int,
    entity_key: bytes | None,
    batch: int,
    dry_run: bool,
    on_rows: Callable[[Sequence[StoreRow]], None],
) -> None:
    """Delete the rows that were last written before a time, unless they are written meanwhile.

    Args:
        opened: The store.
        totals: Counts what is done as it is done.
        before_ms: The time, milliseconds since the Unix epoch.
        entity_key: The one entity to look at; None for all.
        batch: Rows that are read, and at most deleted, at once.
        dry_run: Whether to count alone.
        on_rows: Told each batch after it was dealt with.
    """
    async for rows in opened.pages(batch, entity_key):
        old = [row for row in rows if row.updated_at_ms < before_ms]
        if old and not dry_run:
            totals.deleted += await opened.delete(old)
        totals.scanned += len(rows)
        totals.old += len(old)
        totals.old_bytes += sum(len(row.rec) for row in old)
        on_rows(rows)

"""Copies rows from one store to another as they are, and compares the two afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from beam_agents.errors import StateUndecodable, StateVersionUnsupported
from beam_agents.memory.stores.contract import decode_record
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from beam_agents.cli.store_session import OpenStore
    from beam_agents.memory.stores.contract import RowId, StoreLimits, StoreRow

__all__ = ["Comparison", "CopyTotals", "compare", "copy_rows", "fits"]

_MAX_NAMED: Final = 5
"""Rows that are named; of more, there is a number."""


@dataclass(slots=True)
class CopyTotals:
    """What a copy did so far.

    Attributes:
        scanned: Rows that were read.
        applied: Rows that the destination took.
        stale: Rows that the destination has newer.
        too_large: Rows that the destination cannot hold.
        bytes: Bytes of the records that were read.
        first_too_large: The first of those rows.
        after: The last row that is dealt with.
    """

    scanned: int = 0
    applied: int = 0
    stale: int = 0
    too_large: int = 0
    bytes: int = 0
    first_too_large: list[RowId] = field(default_factory=list)
    after: RowId | None = None


@dataclass(slots=True)
class Comparison:
    """How rows of a source are found at a destination.

    Attributes:
        same: Equal in all bytes.
        newer: The destination has a higher seq.
        missing: Not there.
        different: There with a lower seq, or with the same and other bytes.
        first_wrong: The first of the latter two.
    """

    same: int = 0
    newer: int = 0
    missing: int = 0
    different: int = 0
    first_wrong: list[RowId] = field(default_factory=list)


def fits(row: StoreRow, limits: StoreLimits) -> bool:
    """Tell whether a backend takes a row."""
    try:
        size = len(decode_record(row).value)
    except (StateUndecodable, StateVersionUnsupported):
        # A row that another version wrote is copied as it is.
        size = len(row.rec)
    return (
        size <= limits.max_value_bytes
        and len(row.key.encode()) <= limits.max_key_bytes
        and len(row.entity_key) <= limits.max_entity_key_bytes
    )


async def copy_rows(
    source: OpenStore,
    destination: OpenStore,
    totals: CopyTotals,
    *,
    entity_key: bytes | None,
    batch: int,
    on_rows: Callable[[Sequence[StoreRow]], None],
) -> None:
    """Copy rows in their order, each under the destination's guard. Safe to repeat, and to begin again.

    Args:
        source: Where from.
        destination: Where to.
        totals: Where it begins, by ``after``; counts what is done as it is done.
        entity_key: The one entity to copy; None for all.
        batch: Rows that are read and written at once.
        on_rows: Told each batch after it was written.
    """
    async for rows in source.pages(batch, entity_key, totals.after):
        fitting = [row for row in rows if fits(row, destination.store.limits)]
        results = await destination.save_many(fitting) if fitting else []
        totals.scanned += len(rows)
        totals.applied += results.count(UpsertResult.APPLIED)
        totals.stale += results.count(UpsertResult.STALE)
        totals.too_large += len(rows) - len(fitting)
        totals.bytes += sum(len(row.rec) for row in rows)
        taken = {row.row_id for row in fitting}
        _name(totals.first_too_large, [row.row_id for row in rows if row.row_id not in taken])
        totals.after = rows[-1].row_id
        on_rows(rows)


async def compare(
    source: OpenStore,
    destination: OpenStore,
    *,
    entity_key: bytes | None,
    batch: int,
    on_rows: Callable[[Sequence[StoreRow]], None],
) -> Comparison:
    """Look for each row of a source at a destination, by reading both in order, once.

    Args:
        source: Whose rows are looked for.
        destination: Where.
        entity_key: The one entity to compare; None for all.
        batch: Rows that are read at once.
        on_rows: Told each batch of the source after it was compared.
    """
    found = Comparison()
    others = _rows(destination, batch, entity_key)
    other = await anext(others, None)
    async for rows in source.pages(batch, entity_key):
        for row in rows:
            while other is not None and other.sort_key < row.sort_key:
                other = await anext(others, None)
            _compare(found, row, other)
        on_rows(rows)
    await others.aclose()
    return found


async def _rows(opened: OpenStore, batch: int, entity_key: bytes | None) -> AsyncGenerator[StoreRow, None]:
    async for rows in opened.pages(batch, entity_key):
        for row in rows:
            yield row


def _compare(found: Comparison, row: StoreRow, other: StoreRow | None) -> None:
    if other == row:
        found.same += 1
    elif other is None or other.row_id != row.row_id:
        found.missing += 1
        _name(found.first_wrong, [row.row_id])
    elif other.seq > row.seq:
        found.newer += 1
    else:
        found.different += 1
        _name(found.first_wrong, [row.row_id])


def _name(names: list[RowId], more: Sequence[RowId]) -> None:
    names += more[: _MAX_NAMED - len(names)]

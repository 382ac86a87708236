"""What must be true of a long-term store, whatever failed: a plain model to compare it with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.memory.stores.contract import decode_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from beam_agents.memory.stores.contract import MemoryRecord, RowId, StoreRow

__all__ = ["StoreModel"]


class StoreModel:
    """Remembers what was attempted and what was committed, and checks what is found against it.

    A row that was attempted and not committed may be in the store or not: a failed activation's write may
    have happened. A row that was committed is there, or a newer one is.
    """

    def __init__(self) -> None:
        self._attempted: dict[tuple[RowId, int], StoreRow] = {}
        self._committed: dict[RowId, StoreRow] = {}
        self._found_seqs: dict[RowId, int] = {}

    def attempted(self, rows: Iterable[StoreRow]) -> None:
        """Note what may be written from now on."""
        for row in rows:
            same = self._attempted.setdefault((row.row_id, row.seq), row)
            assert same == row, "two attempts with one seq wrote different rows"

    def committed(self, rows: Iterable[StoreRow]) -> None:
        """Note what was told to be written."""
        for row in rows:
            self._committed[row.row_id] = row

    def check_read(self, row_id: RowId, record: MemoryRecord | None) -> None:
        """Check what an agent read in a committed activation."""
        committed = self._committed.get(row_id)
        if record is None:
            assert committed is None, "a committed row was not found"
            return
        assert record == decode_record(self._attempted[row_id, record.seq])
        assert committed is None or record.seq >= committed.seq, "an agent read an older row"

    def check_store(self, rows: Iterable[StoreRow]) -> int:
        """Check all rows of the store, and return how many of them no committed activation wrote."""
        found = {row.row_id: row for row in rows}
        for row_id, row in found.items():
            wrote = self._attempted.get((row_id, row.seq))
            assert wrote == row, f"a row that nobody wrote: {row}, but {wrote}"
            assert row.seq >= self._found_seqs.get(row_id, 0), "a row's seq went back"
            self._found_seqs[row_id] = row.seq
        for row_id, row in self._committed.items():
            assert row_id in found, "a committed row is lost"
            assert found[row_id].seq >= row.seq, "a committed row was lost to an older one"
        return sum(self._committed.get(row_id) != row for row_id, row in found.items())

"""What a disturbed job is held against: a model of its store, and what an undisturbed run has left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.runners.killed_job import MEMORY_KEY, entity_of, lines_of, rows_written
from tests.runners.stores import rows_of
from tests.semantics.longterm_model import StoreModel

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from beam_agents.memory.stores.contract import StoreRow

__all__ = ["KillModel"]


class KillModel:
    """The model of one store, over which jobs of the same events run.

    Args:
        uri: The store.
        events: Of each job.

    Attributes:
        rows: What the store holds in the end; the undisturbed run's.
        written: What the activation of each event saves.
        counts: What happened, how often.
    """

    def __init__(self, uri: str, events: int) -> None:
        self.uri = uri
        self.rows: list[StoreRow] = []
        self.counts: Counter[str] = Counter()
        self._model = StoreModel()
        self._whole: dict[str, list[str]] = {}
        seen: Counter[bytes] = Counter()
        self.written: dict[int, list[StoreRow]] = {}
        for number in range(events):
            entity = entity_of(number)
            seen[entity] += 1
            self.written[number] = rows_written(number, seen[entity])

    def undisturbed(self, folder: pathlib.Path, uri: str) -> None:
        """Take what a run that nobody disturbed has left in its own folder and store."""
        found = rows_of(uri)
        last = {row.row_id: row for rows in self.written.values() for row in rows}
        memories = {row.row_id: row for row in found if row.key == MEMORY_KEY}
        assert {row.entity_key for row in memories.values()} == {row.entity_key for row in last.values()}
        assert {row.row_id: row for row in found} == last | memories
        for rows in (*self.written.values(), memories.values()):
            self._model.attempted(rows)
        self.rows = found
        self._whole = {name: sorted(lines_of(folder, name)) for name in ("outputs", "intents")}
        for lines in self._whole.values():
            assert len(lines) == len(set(lines)) == len(self.written)
        assert not lines_of(folder, "errors")

    def done(self, folders: Sequence[pathlib.Path]) -> set[int]:
        """Return the events that jobs have put an output out for."""
        return {int(line.split(maxsplit=1)[0]) for folder in folders for line in lines_of(folder, "outputs")}

    def check_store(self, folders: Sequence[pathlib.Path]) -> None:
        """Hold the store against what is out by now: nothing of it is lost, and no row has gone back."""
        for number in sorted(self.done(folders)):
            self._model.committed(self.written[number])
        self._model.check_store(rows_of(self.uri))
        self.counts["looks at the store"] += 1

    def is_whole(self) -> bool:
        """Tell whether the store has as many rows as in the end."""
        return len(rows_of(self.uri)) == len(self.rows)

    def compare(self, folders: Sequence[pathlib.Path]) -> None:
        """Hold all that was put out in the end, and the store, against the undisturbed run."""
        assert rows_of(self.uri) == self.rows
        for name, whole in self._whole.items():
            lines = [line for folder in folders for line in lines_of(folder, name)]
            # What came twice is the same; nothing is missing.
            assert sorted(set(lines)) == whole, f"{name} are not those of the undisturbed run"
            self.counts[f"{name} in all"] = len(lines)
        assert not [line for folder in folders for line in lines_of(folder, "errors")]
        self.counts |= {"events": len(self.written), "rows": len(self.rows)}

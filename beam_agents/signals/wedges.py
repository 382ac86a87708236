"""The expiry timers of this process that have failed and not yet succeeded.

Whatever a timer's bundle did is discarded when it fails, so nothing in Beam can tell that a timer is wedged.
This table, which is the process's own, can.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from beam_agents.errors import hash_entity_key
from beam_agents.signals.per_process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_WEDGES", "SIGHT_S", "Wedge", "WedgeTable", "wedge_table"]

MAX_WEDGES: Final = 10_000
"""Timers that are remembered. Of more, the ones that were seen longest ago are forgotten, and counted."""

SIGHT_S: Final = 2 * 3600.0
"""A timer that did not fail or succeed here for so long may be another worker's now: twice the longest
back-off of a timer that is set again."""


@dataclass(frozen=True, slots=True)
class Wedge:
    """One timer that has failed and not yet succeeded.

    Attributes:
        pipeline: The pipeline's name.
        agent: The agent's name.
        backend: The store's label.
        entity: The key's hash.
        since_s: When it failed first, seconds since the Unix epoch.
        attempts: How often it has failed in this process.
        error_type: What failed it last.
        age_s: How long ago it failed first, seconds, at the time of asking.
    """

    pipeline: str
    agent: str
    backend: str
    entity: str
    since_s: float
    attempts: int
    error_type: str
    age_s: float = 0.0


@dataclass(slots=True)
class _Entry:
    wedge: Wedge
    first_s: float
    seen_s: float


class WedgeTable:
    """Remembers which timers are wedged. Its methods may be called from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, size: int = MAX_WEDGES) -> None:
        self._clock = clock
        self._size = size
        self._lock = threading.Lock()
        # By the order in which they were seen last.
        self._entries: OrderedDict[tuple[str, str, bytes], _Entry] = OrderedDict()
        self._lost: Counter[tuple[str, str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def failed(self, pipeline: str, agent: str, entity_key: bytes, *, backend: str, error_type: str) -> Wedge:
        """Note a failure, and return what is known of the timer."""
        key, now_s = (pipeline, agent, entity_key), self._clock()
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                wedge = Wedge(
                    pipeline, agent, backend, hash_entity_key(entity_key), time.time(), 1, error_type
                )
                entry = _Entry(wedge, now_s, now_s)
            else:
                entry.wedge = replace(
                    entry.wedge, backend=backend, attempts=entry.wedge.attempts + 1, error_type=error_type
                )
            entry.seen_s = now_s
            self._entries[key] = entry
            while len(self._entries) > self._size:
                self._lose(next(iter(self._entries)))
            return replace(entry.wedge, age_s=now_s - entry.first_s)

    def ended(self, pipeline: str, agent: str, entity_key: bytes) -> Wedge | None:
        """Take a timer out, because it succeeded or its key went on; return what was known of it."""
        if not self._entries:
            # The common case, without the lock.
            return None
        with self._lock:
            entry = self._entries.pop((pipeline, agent, entity_key), None)
        return None if entry is None else replace(entry.wedge, age_s=self._clock() - entry.first_s)

    def wedged(self) -> list[Wedge]:
        """Return all of them, the oldest first; those that were not seen for long are forgotten first."""
        now_s = self._clock()
        with self._lock:
            while self._entries:
                key, entry = next(iter(self._entries.items()))
                if now_s - entry.seen_s < SIGHT_S:
                    break
                self._lose(key)
            wedges = [replace(entry.wedge, age_s=now_s - entry.first_s) for entry in self._entries.values()]
        return sorted(wedges, key=lambda wedge: -wedge.age_s)

    def lost_sight(self) -> dict[tuple[str, str, str], int]:
        """Return how many were forgotten without having succeeded, by (pipeline, agent, backend)."""
        with self._lock:
            return dict(self._lost)

    def _lose(self, key: tuple[str, str, bytes]) -> None:
        wedge = self._entries.pop(key).wedge
        self._lost[wedge.pipeline, wedge.agent, wedge.backend] += 1


_table = PerProcess(WedgeTable)
"""A forked child has none of its parent's timers."""


def wedge_table() -> WedgeTable:
    """Return this process's table."""
    return _table.value

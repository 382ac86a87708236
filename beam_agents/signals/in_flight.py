"""The activations that run in this process right now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals.per_process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from beam_agents.signals.observer import Record

__all__ = ["InFlight", "in_flight"]


class InFlight:
    """Knows what runs. Each of its steps is one operation on a set, so it needs no lock.

    Attributes:
        began: Notes that an activation began.
        ended: Notes that it ended; nothing happens for one that was not noted.
    """

    def __init__(self) -> None:
        self._records: set[Record] = set()
        # Called for every activation: the set's own methods, with nothing around them.
        self.began: Callable[[Record], None] = self._records.add
        self.ended: Callable[[Record], None] = self._records.discard

    def running(self) -> list[Record]:
        """Return what runs, the oldest first."""
        return sorted(self._records.copy(), key=lambda record: record.start_ns)


_running = PerProcess(InFlight)


def in_flight() -> InFlight:
    """Return this process's activations."""
    return _running.value

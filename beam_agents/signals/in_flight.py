"""The activations that run in this process right now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals.per_process import PerProcess

if TYPE_CHECKING:
    from beam_agents.signals.observer import Record

__all__ = ["InFlight", "in_flight"]


class InFlight:
    """Knows what runs. Each of its steps is one operation on a dict, so it needs no lock."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}

    def began(self, record: Record) -> None:
        """Note that an activation began."""
        self._records[id(record)] = record

    def ended(self, record: Record) -> None:
        """Note that it ended; nothing happens for one that was not noted."""
        self._records.pop(id(record), None)

    def running(self) -> list[Record]:
        """Return what runs, the oldest first."""
        return sorted(self._records.copy().values(), key=lambda record: record.start_ns)


_running = PerProcess(InFlight)


def in_flight() -> InFlight:
    """Return this process's activations."""
    return _running.value

"""Time that is not the runtime's own: waits for models, tools and stores."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from beam_agents.signals.observer import Record

__all__ = ["ExternalWaits"]


class ExternalWaits:
    """Adds up an activation's waits on its record; where several overlap, their time counts once."""

    __slots__ = ("_record", "_running", "_since_ns")

    def __init__(self, record: Record) -> None:
        self._record = record
        self._running = 0
        self._since_ns = 0

    @property
    def running(self) -> bool:
        """Whether the activation waits for something outside right now."""
        return self._running > 0

    def enter(self) -> int:
        """Begin a wait; return when, by ``time.perf_counter_ns``."""
        now_ns = time.perf_counter_ns()
        if self._running == 0:
            self._since_ns = now_ns
        self._running += 1
        return now_ns

    def leave(self, entered_ns: int) -> int:
        """End a wait; return how long it was, in nanoseconds."""
        now_ns = time.perf_counter_ns()
        self._running -= 1
        if self._running == 0:
            self._record.external_ns += now_ns - self._since_ns
        return now_ns - entered_ns

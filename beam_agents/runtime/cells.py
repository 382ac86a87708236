"""A key's state and timers, as the DoFn is handed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from apache_beam.utils.timestamp import Timestamp

__all__ = ["Cells", "StateCell", "Timer"]


class StateCell(Protocol):
    """A Beam state cell that holds bytes."""

    def read(self) -> bytes | None:
        """Return the value, or None where the cell is empty."""
        ...

    def write(self, value: bytes) -> None:
        """Put a value in the place of what is there."""
        ...

    def clear(self) -> None:
        """Empty the cell."""
        ...


class Timer(Protocol):
    """A Beam timer."""

    def set(self, timestamp: Timestamp, dynamic_timer_tag: str = "") -> None:
        """Set the timer, or set it again; each tag is a timer of its own."""
        ...

    def clear(self, dynamic_timer_tag: str = "") -> None:
        """Take the timer back."""
        ...


@dataclass(slots=True)
class Cells:
    """One key's state and timers, as a bundle hands them over.

    Attributes:
        control: Seq, clock, expiry, suspensions.
        memory: The working memory.
        replay: Kept model responses.
        ttl: The event-time timer of the key's expiry.
        suspension: The processing-time timer of suspensions' deadlines; None without deadlines.
    """

    control: StateCell
    memory: StateCell
    replay: StateCell
    ttl: Timer
    suspension: Timer | None = None

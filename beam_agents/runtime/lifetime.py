"""The decisions about a key's time: its next seq, its clock, when it expires. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from beam_agents.wire.beam_agents_pb2 import ControlState

__all__ = ["advance_clock", "event_clock_ms", "is_in_future", "next_seq"]

MAX_SEQ: Final = 2**63 - 1
"""The largest seq that a signed 64-bit column can hold."""


def next_seq(previous: int, event_time_ms: int | None) -> int:
    """Return the seq of the activation that follows ``previous`` (0 for none).

    A hybrid logical clock (Kulkarni et al., 2014): ``max(previous + 1, event_time_ms)``. It is the same
    under replay, increases strictly within one life of a key, and is ahead of every earlier life.
    """
    if event_time_ms is None:
        return previous + 1
    return max(previous + 1, event_time_ms)


def is_in_future(event_time_ms: int, wall_ms: int, max_skew_ms: int) -> bool:
    """Tell whether an event's time is further ahead of the worker's clock than allowed."""
    return event_time_ms - wall_ms > max_skew_ms


def event_clock_ms(control: ControlState, event_time_ms: int | None) -> int:
    """Return the activation clock: the event's time, or the key's clock for an event without one."""
    return control.clock_ms if event_time_ms is None else event_time_ms


def advance_clock(control: ControlState, event_time_ms: int | None, ttl_ms: int) -> None:
    """Take an event's time into a key's clock and expiry; neither ever goes back."""
    now_ms = event_clock_ms(control, event_time_ms)
    control.clock_ms = max(control.clock_ms, now_ms)
    control.expires_at_ms = max(control.expires_at_ms, now_ms + ttl_ms)

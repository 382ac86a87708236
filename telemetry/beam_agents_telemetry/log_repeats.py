"""Which log lines go out and which are held back, so that a fault that repeats does not flood the log."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_WINDOWS", "Kind", "Repeats"]

MAX_WINDOWS: Final = 1_000
"""Kinds of line that are told apart at a time. More of them share one window for each event."""

Kind: TypeAlias = tuple[tuple[str, str], ...]
"""What makes two lines alike: (field, value) pairs, the event first."""


@dataclass(slots=True)
class _Window:
    ends_s: float
    passed: int = 0
    held: int = 0


class Repeats:
    """Lets the first few lines of a kind pass in each window of time, and counts the others.

    A kind's window opens with its first line. Its methods may be called from any thread.

    Args:
        limit: Lines of a kind that pass in a window; 0 for all of them.
        window_s: How long a window is, seconds.
        clock: A monotonic clock, seconds.
    """

    def __init__(self, limit: int, window_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[Kind, _Window] = {}
        self._over: Counter[Kind] = Counter()

    def passes(self, kind: Kind) -> bool:
        """Tell whether a line of a kind may go out now; if not, it is counted."""
        if self._limit == 0:
            return True
        now_s = self._clock()
        with self._lock:
            if kind not in self._windows and len(self._windows) >= MAX_WINDOWS:
                kind = kind[:1]
            window = self._windows.get(kind)
            if window is None or now_s >= window.ends_s:
                if window is not None:
                    self._end(kind, window)
                window = self._windows[kind] = _Window(now_s + self._window_s)
            if window.passed < self._limit:
                window.passed += 1
                return True
            window.held += 1
            return False

    def held_back(self, *, everything: bool = False) -> list[tuple[Kind, int]]:
        """Return how many lines of each kind were held back, and begin again at none.

        Args:
            everything: Whether windows that have not ended yet end now.
        """
        now_s = self._clock()
        with self._lock:
            ended = [kind for kind, window in self._windows.items() if everything or now_s >= window.ends_s]
            for kind in ended:
                self._end(kind, self._windows.pop(kind))
            held = list(self._over.items())
            self._over.clear()
        return held

    def wait_s(self) -> float | None:
        """Return how long it is until a window ends, seconds; None where there is none."""
        with self._lock:
            if self._over:
                return 0.0
            ends_s = min((window.ends_s for window in self._windows.values()), default=None)
        return None if ends_s is None else max(0.0, ends_s - self._clock())

    def _end(self, kind: Kind, window: _Window) -> None:
        if window.held:
            # Whoever asks may be stuck: what waits to be asked for is bounded, too.
            if kind not in self._over and len(self._over) >= MAX_WINDOWS:
                kind = kind[:1]
            self._over[kind] += window.held

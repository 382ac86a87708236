"""Which long-term stores this process uses, and whether they answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from beam_agents.signals.per_process import PerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StoreHealth", "StoreTable", "store_table"]


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What the last calls of a store told.

    Attributes:
        backend: Its label.
        shown: Its URI, without the password.
        up: Whether the last call or probe was answered; None before the first.
        last_success_s: When one was answered last, seconds since the Unix epoch; 0 for never.
        down_since_s: When it stopped answering, likewise; 0 while it answers.
        error_type: How it failed last; empty while it answers.
        last_failure_s: When it did not answer last, seconds since the Unix epoch; 0 while it answers.
    """

    backend: str
    shown: str
    up: bool | None = None
    last_success_s: float = 0.0
    down_since_s: float = 0.0
    error_type: str = ""
    last_failure_s: float = 0.0


class StoreTable:
    """Remembers how each store does. Its methods may be called from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stores: dict[object, StoreHealth] = {}

    def opened(self, store: object, backend: str, shown: str) -> None:
        """Note that the process uses a store.

        Args:
            store: What tells it from every other: its parsed URI.
            backend: Its label.
            shown: Its URI, without the password.
        """
        with self._lock:
            self._stores.setdefault(store, StoreHealth(backend, shown))

    def closed(self, store: object) -> None:
        """Forget a store that the process uses no longer."""
        with self._lock:
            self._stores.pop(store, None)

    def answered(self, store: object) -> float | None:
        """Note that a call succeeded.

        Returns:
            How long the store was down, in seconds, if it was down until now; else None.
        """
        now_s = self._clock()
        with self._lock:
            known = self._stores.get(store)
            if known is None:
                return None
            self._stores[store] = replace(
                known, up=True, last_success_s=now_s, down_since_s=0.0, error_type="", last_failure_s=0.0
            )
        return max(0.0, now_s - known.down_since_s) if known.up is False else None

    def failed(self, store: object, error_type: str) -> bool:
        """Note that the store did not answer; return whether that is news."""
        with self._lock:
            known = self._stores.get(store)
            if known is None:
                return False
            now_s = self._clock()
            self._stores[store] = replace(
                known,
                up=False,
                down_since_s=known.down_since_s or now_s,
                error_type=error_type,
                last_failure_s=now_s,
            )
        return known.up is not False

    def is_down(self, store: object) -> bool:
        """Tell whether the last call or probe of a store was not answered."""
        with self._lock:
            known = self._stores.get(store)
        return known is not None and known.up is False

    def failed_within(self, store: object, seconds: float, error_type: str) -> bool:
        """Tell whether a store that does not answer failed in one way, last, so many seconds ago at most."""
        with self._lock:
            known = self._stores.get(store)
        return (
            known is not None
            and known.error_type == error_type
            and self._clock() - known.last_failure_s <= seconds
        )

    def all(self) -> list[StoreHealth]:
        """Return what is known of each store."""
        with self._lock:
            return list(self._stores.values())


_table = PerProcess(StoreTable)
"""A forked child opens its own clients."""


def store_table() -> StoreTable:
    """Return this process's table."""
    return _table.value

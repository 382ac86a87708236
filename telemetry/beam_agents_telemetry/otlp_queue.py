"""A bounded queue of activations and the thread that sends them: nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SendQueue"]

T = TypeVar("T")


class SendQueue(Generic[T]):
    """Takes items with a weight each, and hands them over in batches on a thread of its own.

    What does not fit is refused whole; the thread waits until a batch is full, or for the period.

    Args:
        send: Called with a batch; what it raises goes to ``lost`` with the batch's weight.
        lost: Told of (reason, weight, what was raised or None) for everything that is not sent.
        max_weight: What the queue holds at most.
        batch_weight: What a batch has at most, unless one item alone has more.
        period_s: How long an item waits at most before it is sent.
        name: The thread's name.
        on_thread: Called on the thread before anything else.
    """

    def __init__(
        self,
        send: Callable[[list[T]], None],
        lost: Callable[[str, int, BaseException | None], None],
        *,
        max_weight: int,
        batch_weight: int,
        period_s: float,
        name: str,
        on_thread: Callable[[], None],
    ) -> None:
        self._send = send
        self._lost = lost
        self._max_weight = max_weight
        self._batch_weight = batch_weight
        self._period_s = period_s
        self._on_thread = on_thread
        self._items: deque[tuple[int, T]] = deque()
        self._weight = 0
        self._taken = 0
        self._sent = 0
        self._hurried = False
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def weight(self) -> int:
        """What is queued, by weight."""
        return self._weight

    def put(self, item: T, weight: int) -> None:
        """Queue an item, or count it as lost. Returns at once."""
        with self._changed:
            reason = ""
            if self._closed:
                reason = "closed"
            elif self._weight + weight > self._max_weight:
                reason = "queue_full"
            else:
                self._items.append((weight, item))
                self._weight += weight
                self._taken += 1
                if len(self._items) == 1 or self._weight >= self._batch_weight:
                    self._changed.notify_all()
        if reason:
            self._lost(reason, weight, None)

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued now; tell whether that was done within the bound."""
        with self._changed:
            target = self._taken
            self._hurried = bool(self._items)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._sent >= target, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more, send what is queued, and count what could not be sent within the bound.

        Returns:
            Whether the thread has ended.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            left = self._weight
            self._items.clear()
            self._weight = 0
        if left:
            self._lost("closed", left, None)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._on_thread()
        while True:
            batch, weight = self._next()
            if not batch:
                return
            try:
                self._send(batch)
            except BaseException as error:  # noqa: BLE001 - a batch's fault must not end the thread
                self._lost("span_export", weight, error)
            count = len(batch)
            # Not kept until the next one comes.
            batch.clear()
            with self._changed:
                self._sent += count
                self._changed.notify_all()

    def _next(self) -> tuple[list[T], int]:
        """Wait for a batch and take it; an empty one is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            # Let it fill up.
            self._changed.wait_for(
                lambda: self._closed or self._hurried or self._weight >= self._batch_weight, self._period_s
            )
            batch: list[T] = []
            total = 0
            while self._items and (not batch or total + self._items[0][0] <= self._batch_weight):
                weight, item = self._items.popleft()
                batch.append(item)
                total += weight
            self._weight -= total
            self._hurried = self._hurried and bool(self._items)
            return batch, total

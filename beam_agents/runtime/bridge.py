"""The process's one event loop, and how threads that run bundles use it.

Async clients belong to the loop that made them, so a worker process has one loop, on a thread of its own,
for all agents. Handing a coroutine to another thread and waiting for it costs more than the rest of a small
activation, so the first step of a coroutine is taken on the calling thread: the caller borrows the loop,
that is, it holds the lock under which the loop's own thread runs its callbacks, and is then, for asyncio
and for the coroutine, the loop's thread. A coroutine that waits for nothing is done with that step. One that
waits stays behind as a task of the loop, and the caller waits for it.

The lock makes borrowing safe: ``BaseEventLoop`` touches its queues only between two calls of
``selector.select``, and :class:`_LockingSelector` holds the lock exactly then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine
    from contextvars import Context

__all__ = ["CANCEL_GRACE_S", "AsyncBridge", "DeadlineExceeded", "on_loop_thread", "shared_bridge"]

T = TypeVar("T")

_logger = logging.getLogger(__name__)

STALL_AFTER_S: Final = 1.0
"""A thread that waited longer than this for the loop reports a stall."""

CANCEL_GRACE_S: Final = 5.0
"""How long a cancelled coroutine may take to clean up before it is left behind."""


class DeadlineExceeded(TimeoutError):
    """A coroutine took longer than it may.

    Attributes:
        how: What became of it, as a clause.
    """

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how)


class _LockingSelector(selectors.DefaultSelector):
    """A selector that gives up the loop's lock while it waits."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self._loop_lock = lock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop_lock.release()
        try:
            return super().select(timeout)
        finally:
            self._loop_lock.acquire()


class _BridgeLoop(asyncio.SelectorEventLoop):
    """An event loop that other threads can borrow."""

    # BaseEventLoop's own queues; they have no public name.
    _ready: Collection[asyncio.Handle]
    _scheduled: Collection[asyncio.Handle]

    def __init__(self, lock: threading.Lock) -> None:
        self._captured: list[asyncio.Handle] | None = None
        self.thread_id = 0
        super().__init__(_LockingSelector(lock))

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        captured = self._captured
        if captured is not None:
            # The first callback that a new task asks for is its first step: borrow() takes it itself.
            self._captured = None
            handle = asyncio.Handle(callback, args, self, context)
            captured.append(handle)
            return handle
        return super().call_soon(callback, *args, context=context)

    @property
    def has_work(self) -> bool:
        """Whether the loop's own thread has callbacks to run, now or later: only then must it be woken."""
        return bool(self._ready) or bool(self._scheduled)

    def first_step(self, coroutine: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Make a task of ``coroutine`` and run its first step here and now. The lock must be held."""
        captured: list[asyncio.Handle] = []
        self._captured = captured
        try:
            task = asyncio.Task(coroutine, loop=self)
        finally:
            self._captured = None
        captured[0]._run()  # noqa: SLF001 - what the loop itself does with a handle; it has no public name
        return task


class AsyncBridge:
    """Runs coroutines for threads that have no event loop.

    Attributes:
        pid: The process that it belongs to: its thread does not survive a fork.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._loop = _BridgeLoop(self._lock)
        self._closing = False
        self._thread = threading.Thread(target=self._run_loop, name="beam-agents-loop", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.thread_id = threading.get_ident()
        self._lock.acquire()
        try:
            while not self._closing:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    # asyncio lets these out of a task or callback. Whoever raised them must not end the loop
                    # that all agents of the process share; neither must a stray stop().
                    # Without its text, which may hold content.
                    _logger.error("%s ended a task of the event loop", type(error).__name__)  # noqa: TRY400 - as above
        finally:
            self._lock.release()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that all agents and clients of this process share."""
        return self._loop

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._loop.is_closed()

    def run(
        self,
        coroutine: Coroutine[object, object, T],
        timeout_s: float | None = None,
        *,
        on_stall: Callable[[], None] | None = None,
        inline: bool = True,
        on_first_step: Callable[[bool], None] | None = None,
    ) -> T:
        """Run a coroutine to its end and return what it returns.

        Args:
            coroutine: What to run. It finds a running loop, a current task and can be cancelled.
            timeout_s: Seconds until it is cancelled, counted from its first step; None for no bound. A
                coroutine that never waits cannot be cancelled: it fails when it has ended.
            on_stall: Called when this thread had to wait for the loop for over a second, because
                something that ran on it blocked.
            inline: Whether the first step may be taken on the calling thread. A coroutine that goes on after
                that goes on on the loop's thread, which libraries with thread-local state do not take well.
            on_first_step: Told, at the end of the first step, whether that was the last one.

        Raises:
            DeadlineExceeded: The bound passed.
            RuntimeError: Called on the event loop itself, which would wait for itself.
            BaseException: Whatever the coroutine raises.
        """
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 - None where there is no loop at all
            coroutine.close()
            raise RuntimeError(
                "AsyncBridge.run was called on the event loop that it would wait for: await it"
            )
        begin = self._begin_here if inline else self._begin_on_loop
        task, started_s = begin(coroutine, on_stall or _nothing, on_first_step or _ignored)
        if not task.done():
            return self._wait(task, None if timeout_s is None else started_s + timeout_s)
        if timeout_s is not None and time.monotonic() - started_s > timeout_s:
            _retrieve(task)
            raise DeadlineExceeded("it blocked its thread, so that it could not be cancelled")
        return task.result()

    def _begin_here(
        self,
        coroutine: Coroutine[object, object, T],
        on_stall: Callable[[], None],
        on_first_step: Callable[[bool], None],
    ) -> tuple[asyncio.Task[T], float]:
        """Take the first step on this thread; return the task and when that began."""
        if not self._lock.acquire(timeout=STALL_AFTER_S):
            on_stall()
            self._lock.acquire()
        started_s = time.monotonic()
        outer = asyncio._get_running_loop()  # noqa: SLF001 - the documented pair for those who implement loops
        asyncio._set_running_loop(self._loop)  # noqa: SLF001 - as above
        try:
            task = self._loop.first_step(coroutine)
            on_first_step(task.done())
        finally:
            asyncio._set_running_loop(outer)  # noqa: SLF001 - as above
            self._lock.release()
        # What the step scheduled (tasks that the coroutine started, callbacks) is the loop's to run.
        if task.done() and self._loop.has_work:
            self._loop.call_soon_threadsafe(_nothing)
        return task, started_s

    def _begin_on_loop(
        self,
        coroutine: Coroutine[object, object, T],
        on_stall: Callable[[], None],
        on_first_step: Callable[[bool], None],
    ) -> tuple[asyncio.Task[T], float]:
        """Take the first step on the loop's thread; return the task and when that began."""
        begun: Future[tuple[asyncio.Task[T], float]] = Future()

        def begin() -> None:
            started_s = time.monotonic()
            try:
                task = self._loop.first_step(coroutine)
                on_first_step(task.done())
            except BaseException as error:  # noqa: BLE001 - whatever it is, the waiting thread raises it
                begun.set_exception(error)
            else:
                begun.set_result((task, started_s))

        self._loop.call_soon_threadsafe(begin)
        try:
            return begun.result(STALL_AFTER_S)
        except TimeoutError:
            if begun.done():
                raise
            on_stall()
            return begun.result()

    def _wait(self, task: asyncio.Task[T], deadline_s: float | None) -> T:
        ended = threading.Event()
        self._loop.call_soon_threadsafe(task.add_done_callback, lambda _: ended.set())
        if ended.wait(None if deadline_s is None else max(0.0, deadline_s - time.monotonic())):
            return task.result()
        cancelled = threading.Event()
        self._loop.call_soon_threadsafe(_cancel, task, cancelled)
        if not ended.wait(CANCEL_GRACE_S):
            self._loop.call_soon_threadsafe(task.add_done_callback, _retrieve)
            if not cancelled.is_set():
                raise DeadlineExceeded(
                    "it blocks the event loop, could not be cancelled, and was left behind"
                )
            raise DeadlineExceeded("it did not end when it was cancelled, and was left behind")
        _retrieve(task)
        if not cancelled.is_set() or not task.cancelled():
            raise DeadlineExceeded("it ended late, before it could be cancelled or in spite of that")
        raise DeadlineExceeded("it was cancelled")

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        """Start a coroutine on the loop and return at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what runs, stop the loop and join its thread, within the bound."""
        if self.closed or self.pid != os.getpid():
            return
        try:
            self.submit(_cancel_all()).result(timeout_s)
        finally:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._loop.close()


def _retrieve(task: asyncio.Task[T]) -> None:
    """Look at what a task ended with, so that asyncio does not report it as lost: it came too late."""
    if not task.cancelled():
        task.exception()


def _cancel(task: asyncio.Task[T], cancelled: threading.Event) -> None:
    """Cancel a task and tell that it was, unless it has ended meanwhile."""
    if task.cancel():
        cancelled.set()


def _nothing() -> None:
    """Wake the loop; tell nobody of a stall."""


def _ignored(_: bool) -> None:  # noqa: FBT001 - a callback's argument
    """Tell nobody how a first step ended."""


async def on_loop_thread() -> None:
    """Go on on the loop's own thread: what follows may use clients that belong to it."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, _BridgeLoop) and loop.thread_id != threading.get_ident():
        await asyncio.sleep(0)


async def _cancel_all() -> None:
    """Cancel all other tasks of the loop and wait for their end."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_shared: AsyncBridge | None = None
_shared_lock = threading.Lock()


def shared_bridge() -> AsyncBridge:
    """Return this process's bridge, made at the first call and again after a fork."""
    global _shared  # noqa: PLW0603 - one per process is the point
    bridge = _shared
    if bridge is not None and bridge.pid == os.getpid() and not bridge.closed:
        return bridge
    with _shared_lock:
        if _shared is None or _shared.pid != os.getpid() or _shared.closed:
            _shared = AsyncBridge()
        return _shared


def _renew_lock() -> None:
    """Give a forked child a lock that no thread of its parent holds."""
    global _shared_lock  # noqa: PLW0603 - as above
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)

"""Writes log lines on a thread of its own, so that a full pipe or a disk that hangs stops nobody else."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from beam_agents.signals import count_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from beam_agents.signals import AttributeValue

__all__ = ["MAX_LINES", "FileTarget", "GaveUp", "Line", "LineWriter", "StreamTarget", "Target"]

MAX_LINES: Final = 10_000
"""Lines that may wait; a line that comes when so many do is dropped, and counted."""

_POLL_S: Final = 0.1
"""How often whoever waits for a full pipe looks whether it should give up."""

Line: TypeAlias = "dict[str, AttributeValue]"


class GaveUp(Exception):
    """A target did not take a line before the writer had to end."""


class Target(Protocol):
    """Where lines go."""

    def write(self, data: bytes, give_up: Callable[[], bool]) -> None:
        """Write one line.

        Raises:
            OSError: It could not be written.
            GaveUp: ``give_up`` said so before there was room for it.
        """

    def close(self) -> None:
        """Release what is held."""


class StreamTarget:
    """Standard output or standard error, whatever the program has put in its place by the time of a line.

    Lines go to the file descriptor: a thread that is stuck while it holds the lock of Python's own buffer
    would abort the interpreter at its exit.

    Args:
        name: ``"stdout"`` or ``"stderr"``.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, data: bytes, give_up: Callable[[], bool]) -> None:
        """Write one line."""
        stream = getattr(sys, self._name)
        if stream is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            descriptor = stream.fileno()
        except (AttributeError, io.UnsupportedOperation):
            # A notebook's, or a test's.
            stream.write(data.decode())
            stream.flush()
        else:
            _write(descriptor, data, give_up)

    def close(self) -> None:
        """Leave the stream as it is: it is the program's."""


class FileTarget:
    """A file that lines are appended to; made anew when it was moved away, as log rotation does.

    Several processes may share it: each line is one append.

    Args:
        path: The file; its folder must exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._torn = False

    def write(self, data: bytes, give_up: Callable[[], bool]) -> None:
        """Append one line."""
        descriptor = self._opened()
        if self._torn:
            # The disk was full within the line before.
            data = b"\n" + data
        self._torn = True
        _write(descriptor, data, give_up)
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is not None and self._moved(self._descriptor):
            self.close()
        if self._descriptor is None:
            self._torn = False
            self._descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640
            )
        return self._descriptor

    def _moved(self, descriptor: int) -> bool:
        try:
            there = Path(self._path).stat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(there, os.fstat(descriptor))


def _write(descriptor: int, data: bytes, give_up: Callable[[], bool]) -> None:
    """Write all of it; of a pipe, only as much at a time as it takes without waiting."""
    at_once = len(data) if stat.S_ISREG(os.fstat(descriptor).st_mode) else select.PIPE_BUF
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    left = memoryview(data)
    while left:
        while not room.poll(_POLL_S * 1000):
            if give_up():
                raise GaveUp
        try:
            left = left[os.write(descriptor, left[:at_once]) :]
        except BlockingIOError:
            # Somebody else was faster.
            continue


class Extra(Protocol):
    """Lines that come of themselves, with time."""

    def due(self, *, everything: bool) -> Iterable[Line]:
        """Return those that are due; with ``everything``, those that would be due later as well."""

    def wait_s(self) -> float | None:
        """Return how long it is until some are due, seconds; None for never."""


class LineWriter:
    """A bounded queue of lines, and the thread that writes them.

    Args:
        plugin: The name under which lost lines are counted.
        target: Where lines go.
        render: Makes the bytes of a line, its end included.
        extra: Lines that come of themselves.
        size: Lines that may wait.
    """

    def __init__(
        self,
        plugin: str,
        target: Target,
        render: Callable[[Line], bytes],
        extra: Extra,
        *,
        size: int = MAX_LINES,
    ) -> None:
        self._plugin = plugin
        self._target = target
        self._render = render
        self._extra = extra
        self._queue: Queue[Line | threading.Event | None] = Queue(size)
        self._closing = threading.Event()
        self._deadline_s = float("inf")
        self._thread = threading.Thread(target=self._run, name=f"beam-agents-{plugin}-writer", daemon=True)
        self._thread.start()

    def put(self, line: Line) -> None:
        """Queue a line; never waits."""
        if self._closing.is_set():
            count_lost(self._plugin, "closed")
            return
        try:
            self._queue.put_nowait(line)
        except Full:
            count_lost(self._plugin, "queue_full")

    def flush(self, timeout_s: float) -> bool:
        """Wait until what is queued now is written, or the time is over; tell whether it is."""
        written = threading.Event()
        started_s = time.monotonic()
        try:
            self._queue.put(written, timeout=timeout_s)
        except Full:
            return False
        return written.wait(max(0.0, started_s + timeout_s - time.monotonic()))

    def close(self, timeout_s: float) -> None:
        """Write what is queued and what is yet to come, and end the thread, within the bound."""
        # The thread is to end by itself, if the system lets it, before nobody waits for it any more.
        self._deadline_s = time.monotonic() + 0.8 * timeout_s
        self._closing.set()
        # Where it is full, the thread does not wait for it.
        with contextlib.suppress(Full):
            self._queue.put_nowait(None)
        self._thread.join(0.9 * timeout_s)
        if self._thread.is_alive():
            self._abandon()
            # It may have taken lines from the queue that it has not counted yet.
            self._thread.join(0.1 * timeout_s)

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() and self._queue.empty()):
                self._step()
            self._write_all(self._extra.due(everything=True))
        except GaveUp:
            count_lost(self._plugin, "closed")
            self._abandon()
        finally:
            self._target.close()

    def _step(self) -> None:
        try:
            queued = self._queue.get(timeout=self._extra.wait_s())
        except Empty:
            queued = None
        if isinstance(queued, threading.Event):
            queued.set()
        elif queued is not None:
            self._write_all([queued])
        self._write_all(self._extra.due(everything=False))

    def _write_all(self, lines: Iterable[Line]) -> None:
        for line in lines:
            if self._gives_up():
                raise GaveUp
            try:
                self._target.write(self._render(line), self._gives_up)
            except GaveUp:
                raise
            except Exception as error:  # noqa: BLE001 - the next line may do better, and the thread must live
                count_lost(self._plugin, "write", type(error).__name__)

    def _gives_up(self) -> bool:
        return time.monotonic() >= self._deadline_s

    def _abandon(self) -> None:
        """Count what is still queued as lost."""
        lost = 0
        while True:
            try:
                queued = self._queue.get_nowait()
            except Empty:
                break
            if isinstance(queued, threading.Event):
                queued.set()
            elif queued is not None:
                lost += 1
        if lost:
            count_lost(self._plugin, "closed", amount=lost)

"""SIGTERM: telemetry is flushed first; then the signal does what it would have done without us.

Workers are ended by SIGTERM, which Python leaves to the system: the process is gone without its exit hooks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["PATIENCE_S", "watch_termination"]

PATIENCE_S: Final = 0.5
"""How long the main thread waits for telemetry: it may hold what that needs, then it has to go on first."""

Finish: TypeAlias = "Callable[[bool], None]"
"""Sends what is queued, within a bound of its own; it is told whether the process ends then for sure."""


def watch_termination(finish: Finish) -> None:
    """Have ``finish`` called at SIGTERM, before what SIGTERM does otherwise.

    It is installed by the main thread, which alone may do that: at once, or when it next runs Python code. A
    handler that the application has installed is called afterwards; where it has been installed since the
    last call, this one is put before it again. A signal that is ignored stays ignored.
    """
    if threading.current_thread() is threading.main_thread():
        _install(finish)
    else:
        _pending.append(finish)
        ctypes.pythonapi.Py_AddPendingCall(_INSTALL_PENDING, None)


_pending: list[Finish] = []


def _install_pending(_: object) -> int:
    while _pending:
        _install(_pending.pop())
    return 0


# Held for good: it is called at some later time.
_INSTALL_PENDING: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_install_pending)


def _install(finish: Finish) -> None:
    before = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_DFL or (callable(before) and not isinstance(before, _Handler)):
        # Not in a subinterpreter.
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, _Handler(finish, before))


# Python's own sets a handler on the main thread alone; the system knows no such rule.
_libc_signal: Final = ctypes.CDLL(None).signal
_libc_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc_signal.restype = ctypes.c_void_p


class _Handler:
    """What Python calls at SIGTERM, on the main thread.

    Telemetry is finished on a thread of its own: what it needs to lock, the interrupted main thread may hold.
    Where that takes too long, the main thread goes on, and the signal is raised again at the end: for whoever
    handles it, or, where nobody does, with what the system does then.

    Args:
        finish: What is to be done first.
        before: What was installed.
    """

    def __init__(self, finish: Finish, before: Callable[[int, FrameType | None], object] | int) -> None:
        self._finish = finish
        self._before = before
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._started = False
        self._done = threading.Event()
        self._left = False
        self._lock = threading.Lock()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._pid != os.getpid():
            self._begin()
        if not self._started:
            self._started = True
            thread = threading.Thread(
                target=self._run, args=(number,), name="beam-agents-termination", daemon=True
            )
            # There are no more threads at the interpreter's exit.
            with suppress(RuntimeError):
                thread.start()
                self._done.wait(PATIENCE_S)
                with self._lock:
                    if not self._done.is_set():
                        self._left = True
                        return
        # Finished, or somebody does not want to wait for it.
        self._left = False
        if callable(self._before):
            if self._done.is_set():
                self._begin()
            self._before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _run(self, number: int) -> None:
        try:
            self._finish(not callable(self._before))
        finally:
            with self._lock:
                self._done.set()
                left = self._left
            if left and not callable(self._before):
                # Not by way of Python's handlers: an application's that calls this one has been called.
                _libc_signal(number, signal.SIG_DFL)
            if left:
                os.kill(self._pid, number)

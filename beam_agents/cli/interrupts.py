"""SIGINT and SIGTERM, as exceptions that end a run, and put off while it must not end."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["Terminated", "exit_code", "interruptible", "uninterrupted"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM came. It ends a run as SIGINT does, with another exit code."""


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return what a shell expects of a process that ended so: 128 and the signal's number."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Raise KeyboardInterrupt, or Terminated, where a signal comes; again at the end of the block.

    At the end, because one that hits an element is made an error of the pipeline by Beam, and one that hits
    an agent ends that activation alone. What the block is given tells whether a signal has come.
    """
    came: list[type[KeyboardInterrupt]] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        came.append(Terminated if number == signal.SIGTERM else KeyboardInterrupt)
        raise came[0]

    with _handled_by(interrupt):
        try:
            yield lambda: bool(came)
        finally:
            if came:
                raise came[0]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put signals off to the end of a short block.

    Handlers rather than the thread's signal mask: the system gives a signal to any thread that takes it.
    """
    came: list[int] = []
    try:
        with _handled_by(lambda number, _frame: came.append(number)):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread alone
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # One that whoever started this process wants ignored stays ignored.
    taken = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    try:
        for number in taken:
            signal.signal(number, handler)
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])

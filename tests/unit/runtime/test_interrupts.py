"""What a signal's handler raises is told from what an agent raises, whatever kind of callable it is."""

from __future__ import annotations

import functools
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from beam_agents.runtime.interrupts import ends_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Stopped(Exception):
    """A handler's own."""


def stop(*_: object) -> None:
    raise Stopped


class Stops:
    def __call__(self, *_: object) -> None:
        raise Stopped

    def method(self, *_: object) -> None:
        raise Stopped


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [stop, lambda *_: stop(), functools.partial(stop), Stops(), Stops().method],
    ids=["function", "lambda", "partial", "object", "method"],
)
def test_what_a_handler_raises_ends_the_program(handler: Callable[..., None]) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(Stopped) as raised:
        signal.raise_signal(signal.SIGUSR1)
    assert ends_program(raised.value)
    with pytest.raises(SystemExit) as left:
        raise SystemExit
    assert not ends_program(left.value)


def test_a_handler_that_is_not_pythons_is_no_obstacle() -> None:
    signal.signal(signal.SIGUSR1, print)
    assert not ends_program(ValueError())


def test_ctrl_c_ends_the_program_on_the_main_thread_alone() -> None:
    assert ends_program(KeyboardInterrupt())
    told = []
    thread = threading.Thread(target=lambda: told.append(ends_program(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert told == [False]

"""One object per process: a forked child begins with another, and with locks that nobody holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PerProcess", "renew_all"]

T = TypeVar("T")

_all: list[PerProcess[object]] = []


class PerProcess(Generic[T]):
    """Holds the object of this process.

    Args:
        make: Makes it: at once, and again in each forked child.

    Attributes:
        value: The object.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.value: T = make()
        _all.append(self)  # type: ignore[arg-type]  # what they hold is not looked at

    def renew(self) -> None:
        """Begin with a new one."""
        self.value = self._make()


def renew_all() -> None:
    """Begin with new ones; also called by who finds itself forked past Python's hooks."""
    for each in _all:
        each.renew()


os.register_at_fork(after_in_child=renew_all)

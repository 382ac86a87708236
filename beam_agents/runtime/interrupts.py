"""What ends the program, told from what ends an activation."""

from __future__ import annotations

import signal
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["ends_program"]


def ends_program(error: BaseException) -> bool:
    """Tell whether an exception is meant for the program: Ctrl-C, or what a signal's handler raised.

    Python runs handlers on the main thread, in the middle of whatever runs there, an agent say: what they
    raise comes out of it as if it were its own.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = {
        _code(handler) for number in signal.valid_signals() if callable(handler := signal.getsignal(number))
    }
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(handler: object) -> CodeType | None:
    """Return what a handler's frames run; None for one that is not Python's."""
    function = getattr(handler, "func", handler)
    for each in (function, type(function).__call__):
        code: CodeType | None = getattr(each, "__code__", None)
        if code is not None:
            return code
    return None

"""What is told of an exception that may be of the user's own code: class and place, never its text."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from beam_agents.errors import BeamAgentsError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["class_and_place", "hide_exception_texts", "is_full_disk"]

_FRAME: Final = re.compile(r'^\s+File "(?P<file>[^"\n]+)", line (?P<line>\d+), in ')
_CLASS: Final = re.compile(r"^(?P<name>[A-Za-z_][A-Za-z0-9_.]*)(?::|$| \[)")
_STEP: Final = re.compile(r" \[while running '(?P<step>[A-Za-z0-9_/()\[\]: -]+)'\]\s*$")
_OURS: Final = "beam_agents.errors."
_FULL: Final = f"OSError: [Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"


def class_and_place(error: BaseException) -> str:
    """Return an exception's class, and the file and line that raised it, as far as they are known.

    Runners put whole tracebacks into the text of what they raise: then it is the class and the place that
    these end in.
    """
    text = str(error)
    name, place = _of_text(text)
    if not name:
        name, place = type(error).__name__, _of_frames(error)
    step = _STEP.search(text)
    told = [name.removeprefix(_OURS) + _own_text(error, name)]
    if place:
        told.append(f"at {place}")
    if step is not None:
        told.append(f"in the step {step['step']}")
    return " ".join(told)


def _own_text(error: BaseException, name: str) -> str:
    """Return the text of an exception of ours: it is built of types, sizes and hashes, so it may be shown."""
    if isinstance(error, BeamAgentsError):
        text = str(error).partition("\n")[0]
    elif name.startswith(_OURS):
        text = re.findall(rf"^{re.escape(name)}: (.+)$", str(error), re.MULTILINE)[-1]
    else:
        return ""
    return f": {_STEP.sub('', text)}"


def is_full_disk(error: BaseException) -> bool:
    """Tell whether an exception, or the traceback in its text, is that of a full disk."""
    return (isinstance(error, OSError) and error.errno == errno.ENOSPC) or _FULL in str(error)


def hide_exception_texts() -> None:
    """Let exceptions that nobody handles, in threads and in finalizers, tell their class and place alone."""
    threading.excepthook = _tell_of_thread
    sys.unraisablehook = _tell_unraisable


def _of_text(text: str) -> tuple[str, str]:
    name = place = ""
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            name, place = "", f"{Path(frame['file']).name}:{frame['line']}"
        elif place and not name:
            found = _CLASS.match(line)
            name = found["name"] if found is not None else ""
    return name, place


def _of_frames(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}:{error.lineno}"
    return _last_frame(error.__traceback__)


def _last_frame(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _tell_of_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is not None and not isinstance(told.exc_value, SystemExit):
        _tell(told.exc_value)


def _tell_unraisable(told: sys.UnraisableHookArgs) -> None:
    if told.exc_value is not None:
        _tell(told.exc_value)


def _tell(error: BaseException) -> None:
    sys.stderr.write(f"beam-agents: {class_and_place(error)} was raised, and nothing handled it\n")

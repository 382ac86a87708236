"""The files of events: which can be read, and copies of those that can be read once."""

from __future__ import annotations

import os
import select
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from beam_agents.cli.interrupts import uninterrupted
from beam_agents.cli.rows import Input, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["STANDARD_INPUT", "SpoolError", "check_events", "opened"]

STANDARD_INPUT: Final = "-"
POLL_S: Final = 0.2
BLOCK_BYTES: Final = 65_536


class SpoolError(Exception):
    """An input that can be read once cannot be copied."""


def check_events(names: Sequence[str]) -> None:
    """Refuse what cannot be read.

    Raises:
        InputError: A file is not there, or may not be read, or is given twice and can be read once.
    """
    for name in names:
        once = name == STANDARD_INPUT
        if not once:
            _check_file(name)
            once = _read_once(name)
        elif sys.stdin is None:
            raise InputError("standard input is closed")
        if once and names.count(name) > 1:
            raise InputError(f"{'standard input' if name == STANDARD_INPUT else repr(name)} can be read once")


def _check_file(name: str) -> None:
    try:
        mode = Path(name).stat().st_mode
    except FileNotFoundError:
        raise InputError(f"there is no file {name!r}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a file"
        raise InputError(f"{name!r} cannot be read: {reason}") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{name!r} is a folder")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        raise InputError(f"{name!r} is neither a file nor a pipe")
    if not os.access(name, os.R_OK):
        raise InputError(f"{name!r} may not be read")


@contextmanager
def opened(names: Sequence[str]) -> Iterator[tuple[Input, ...]]:
    """Give the inputs as files that can be read again, by other processes too; copies end with the block.

    Raises:
        SpoolError: An input that can be read once cannot be copied.
    """
    with uninterrupted():
        folder = tempfile.mkdtemp(prefix="beam-agents-")
    try:
        yield tuple(_input(name, Path(folder) / f"input-{number}") for number, name in enumerate(names))
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)


def _input(name: str, copy: Path) -> Input:
    if name != STANDARD_INPUT and not _read_once(name):
        return Input(str(Path(name).absolute()), name)
    label = "standard input" if name == STANDARD_INPUT else name
    try:
        if name == STANDARD_INPUT:
            _copy(sys.stdin.buffer, copy)
        else:
            with open(name, "rb") as source:  # noqa: PTH123 - a plain path, as it was given
                _copy(source, copy)
    except OSError as error:
        raise SpoolError(f"{label} cannot be copied to {str(copy.parent)!r}: {error.strerror}") from error
    return Input(str(copy), label)


def _copy(source: IO[bytes], target: Path) -> None:
    """Copy all that can be read.

    A signal that comes just before a read that blocks is noticed after that read only: so what may block is
    waited for in pieces.
    """
    with target.open("wb") as file:
        while True:
            if not select.select([source], [], [], POLL_S)[0]:
                continue
            block = os.read(source.fileno(), BLOCK_BYTES)
            if not block:
                return
            file.write(block)


def _read_once(name: str) -> bool:
    # A file of /dev/fd is open in this process alone, whatever it is; workers cannot open it.
    path = Path(name)
    return not stat.S_ISREG(path.stat().st_mode) or (
        path.absolute().parts[1] in {"dev", "proc"} and Path(os.path.realpath(path)) != path.absolute()
    )

"""Output files that are there complete or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Self

from beam_agents.cli.interrupts import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

__all__ = ["OutputError", "StagedFile", "is_streamed", "publish"]

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NAME_SHOWN: Final = 40
"""Characters of the file's name in its folder's: that must not become too long where the file's own fits."""


class OutputError(Exception):
    """An output cannot be written, and none was replaced.

    Attributes:
        path: Which.
        is_full: Whether the disk, or what may be used of it, is full.
    """

    def __init__(self, path: Path, error: OSError) -> None:
        self.path = path
        self.is_full = error.errno in _FULL
        super().__init__(f"{str(path)!r} cannot be written: {os.strerror(error.errno or errno.EIO)}")


def is_streamed(path: Path) -> bool:
    """Tell whether an output is written to as it is, and not replaced: a device, a FIFO, an open file.

    Raises:
        OSError: The path cannot be looked at, or is of a kind that cannot be written to.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISREG(mode):
        # /dev/stdout and its kin name a file that a process has open: replacing it would not reach that.
        return path.absolute().parts[1] in {"dev", "proc"} and Path(os.path.realpath(path)) != path.absolute()
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return True
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "")


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


class StagedFile:
    """A file in the making: shards in a folder beside it, put together, and renamed by :func:`publish`.

    Args:
        path: The file; its folder must exist. A symbolic link is followed. A device or a FIFO is written to
            when all is well. None: nothing is kept, the lines are only counted.

    A context manager: on leaving, what was not published is removed.

    Raises:
        OutputError: The file cannot be made there.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._folder: Path | None = None
        self._target: Path | None = None
        self._streamed = False
        self._is_new = False

    def __enter__(self) -> Self:
        try:
            if self.path is not None:
                self._streamed = is_streamed(self.path)
                self._target = self.path if self._streamed else Path(os.path.realpath(self.path))
            beside = self._target if self._target is not None and not self._streamed else None
            self._is_new = beside is not None and not _exists(beside)
            name = beside.name[:_NAME_SHOWN] if beside is not None else "beam-agents"
            parent = beside.parent if beside is not None else None
            with uninterrupted():
                folder = tempfile.mkdtemp(prefix=f".{name}.", suffix=".part", dir=parent)
                self._folder = Path(folder).absolute()
        except OSError as error:
            raise self._failed(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with uninterrupted():
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """Where the shards are."""
        if self._folder is None:
            raise RuntimeError("StagedFile is used outside of its with block")
        return self._folder

    @property
    def shard_prefix(self) -> str:
        """What the shards' names begin with."""
        return str(self.folder / "shard")

    def assemble(self, visit: Callable[[bytes], None] = lambda _line: None) -> int:
        """Put the shards together in the order of their names, safe on the disk; return the number of lines.

        Args:
            visit: Called with each line, its end included.

        Raises:
            OutputError: The disk is full, or fails.
        """
        try:
            with self._whole.open("wb") as whole:
                lines = self._assemble(whole, visit)
                whole.flush()
                os.fsync(whole.fileno())
        except OSError as error:
            raise self._failed(error) from error
        return lines

    def _assemble(self, whole: IO[bytes], visit: Callable[[bytes], None]) -> int:
        lines = 0
        for shard in sorted(self.folder.glob("shard*")):
            with shard.open("rb") as source:
                for line in source:
                    lines += 1
                    visit(line)
                    if self.path is not None:
                        whole.write(line)
            shard.unlink()
        return lines

    def stream(self) -> None:
        """Write the whole to a device or a FIFO, which waits for its reader; do nothing for a file.

        Raises:
            OutputError: It does not take it.
        """
        if self._target is None or not self._streamed:
            return
        try:
            descriptor = os.open(self._target, os.O_WRONLY | os.O_APPEND)
            with os.fdopen(descriptor, "wb") as target, self._whole.open("rb") as whole:
                shutil.copyfileobj(whole, target)
        except OSError as error:
            raise self._failed(error) from error

    def rename(self) -> None:
        """Put the whole in the file's place; do nothing for what is streamed or only counted.

        Raises:
            OutputError: It cannot be put there; the file is as it was.
        """
        if self._target is None or self._streamed:
            return
        try:
            # Where the file system has no such links, there is no way back: see withdraw.
            with suppress(OSError):
                os.link(self._target, self._before)
            self._whole.replace(self._target)
        except OSError as error:
            raise self._failed(error) from error

    def withdraw(self) -> None:
        """Undo :meth:`rename`, as far as the file system lets it be undone."""
        if self._target is None or self._streamed:
            return
        if self._before.exists():
            self._before.replace(self._target)
        elif self._is_new:
            self._target.unlink()

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(self.path if self.path is not None else Path(tempfile.gettempdir()), error)

    @property
    def _whole(self) -> Path:
        return self.folder / "whole"

    @property
    def _before(self) -> Path:
        return self.folder / "before"


def publish(files: Sequence[StagedFile]) -> None:
    """Rename assembled files into their places: all of them, or none.

    Raises:
        OutputError: One of them cannot be put there.
    """
    done: list[StagedFile] = []
    try:
        for file in files:
            file.rename()
            done.append(file)
    except OutputError:
        for file in reversed(done):
            file.withdraw()
        raise

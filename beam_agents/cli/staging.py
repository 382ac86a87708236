"""Output files that are there complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["StagedFile"]


class StagedFile:
    """A file in the making: shards in a folder beside it, put together and renamed when all is well.

    Args:
        path: The file; its folder must exist. None: nothing is kept, the lines are only counted.

    A context manager: on leaving, what was not committed is removed.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        parent = self.path.parent if self.path is not None else None
        name = self.path.name if self.path is not None else "beam-agents"
        self._folder = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".part", dir=parent)).absolute()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def commit(self, visit: Callable[[bytes], None] = lambda _line: None) -> int:
        """Put the shards together in the order of their names, as the file; return the number of lines.

        Args:
            visit: Called with each line, its end included.
        """
        lines = 0
        whole = self.folder / "whole"
        with whole.open("wb") as target:
            for shard in sorted(self.folder.glob("shard*")):
                with shard.open("rb") as source:
                    for line in source:
                        lines += 1
                        visit(line)
                        if self.path is not None:
                            target.write(line)
                shard.unlink()
            target.flush()
            os.fsync(target.fileno())
        if self.path is not None:
            whole.replace(self.path)
        return lines

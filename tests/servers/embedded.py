"""Stores that need no server: in-process, and a SQLite file.

The contract of every module of this folder: ``running…(folder)`` is a context manager that yields the URI of
a store that is up.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from beam_agents.memory.stores.inprocess import forget_rows

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@contextmanager
def running_inprocess(folder: pathlib.Path) -> Iterator[str]:  # noqa: ARG001 - as the others
    """Yield the URI of the empty in-process store."""
    forget_rows()
    yield "memory://"
    forget_rows()


@contextmanager
def running_sqlite(folder: pathlib.Path) -> Iterator[str]:
    """Yield the URI of a SQLite file."""
    yield f"sqlite+aiosqlite:///{folder}/longterm.db"

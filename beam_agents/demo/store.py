"""The demo's long-term store: a SQLite file that a run makes anew and publishes like its other files."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from beam_agents.cli.interrupts import uninterrupted
from beam_agents.cli.staging import OutputError, publish
from beam_agents.cli.store_session import opened, read_uri, run_on_loop
from beam_agents.demo.flights import MONTH_PREFIX, PROFILE, WORKING_MEMORY

if TYPE_CHECKING:
    from beam_agents.cli.staging import StagedFile

__all__ = [
    "StoredRows",
    "command_line",
    "count_rows",
    "provision_store",
    "publish_store",
    "sqlite_uri",
    "store_in_use",
]

PAGE_ROWS: Final = 1_000


@dataclass(slots=True)
class StoredRows:
    """How many rows a store has.

    Attributes:
        profiles: Totals of an aircraft.
        months: Totals of an aircraft in a month.
        working_memories: Working memories of aircraft that expired.
    """

    profiles: int = 0
    months: int = 0
    working_memories: int = 0


def sqlite_uri(path: Path) -> str:
    """Return the URI of a SQLite file; one that needs no quotes in a shell."""
    return f"sqlite+aiosqlite:///{quote(os.fsencode(path))}"


def store_in_use(staged: StagedFile) -> Path:
    """Return the file that the run reads and writes, before it is published."""
    return staged.folder / "in_use.sqlite"


def provision_store(uri: str) -> None:
    """Create the store, as ``beam-agents store provision`` does: the runtime creates nothing.

    Raises:
        typer.Exit: It cannot be created; standard error says why.
        typer.BadParameter: The client library is not installed; the message names the extra.
    """

    async def provisioned() -> None:
        async with opened(read_uri(uri)) as store:
            await store.call(store.admin.provision())

    run_on_loop(provisioned())


def publish_store(staged: StagedFile, path: Path) -> None:
    """Put a copy of the store in use in the place of the one that an earlier run left.

    Args:
        staged: Where the store in use is.
        path: What ``staged`` stands for.

    Raises:
        OutputError: It cannot be put there.
    """
    try:
        # Copied by SQLite: so it does not matter what of it is still in a write-ahead log.
        with (
            closing(sqlite3.connect(store_in_use(staged))) as in_use,
            closing(sqlite3.connect(staged.shard_prefix)) as copied,
        ):
            in_use.backup(copied)
        staged.assemble()
        with uninterrupted():
            # SQLite would take the write-ahead log of the earlier store for the new one's.
            for suffix in ("-wal", "-shm"):
                Path(os.path.realpath(path) + suffix).unlink(missing_ok=True)
            publish([staged])
    except sqlite3.Error as error:
        is_full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
        raise OutputError(path, OSError(errno.ENOSPC if is_full else errno.EIO, "")) from error
    except OSError as error:
        raise OutputError(path, error) from error


def count_rows(uri: str) -> StoredRows:
    """Return how many rows a store has of each kind.

    Raises:
        typer.Exit: The store failed; standard error says why.
    """

    async def counted() -> StoredRows:
        found = StoredRows()
        async with opened(read_uri(uri)) as store:
            async for rows in store.pages(PAGE_ROWS, None):
                for row in rows:
                    found.profiles += row.key == PROFILE
                    found.months += row.key.startswith(MONTH_PREFIX)
                    found.working_memories += row.key == WORKING_MEMORY
        return found

    return run_on_loop(counted())


def command_line(*arguments: str) -> str:
    """Return a ``beam-agents`` command that works when it is pasted into the shell that the demo runs in."""
    # The one of this installation: `make run` installs into an environment that no shell has activated.
    script = Path(sys.executable).parent / "beam-agents"
    on_path = shutil.which("beam-agents")
    if on_path is not None and Path(on_path).absolute() == script:
        command = ["beam-agents"]
    elif script.is_file():
        here = Path.cwd()
        shown = script.relative_to(here) if script.is_relative_to(here) else script
        command = [str(shown)]
    else:
        command = [sys.executable, "-m", "beam_agents.cli"]
    return shlex.join([*command, *arguments])

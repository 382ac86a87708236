"""Tells Prometheus where this process is scraped: a file for file-based service discovery.

Each process writes a file of its own, so that none has to lock or merge. Its name says whose it is, so that
the next process to start can remove what a crash left behind.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Owner", "TargetFile", "remove_abandoned", "this_process"]

_NAME: Final = re.compile(
    r"beam-agents\.(?P<host>.+)\.(?P<namespace>\d+)\.(?P<pid>\d+)\.(?P<started>\d+)\.(?P<port>\d+)\.json"
)


@dataclass(frozen=True, slots=True)
class Owner:
    """One process, told apart from every other one that had or will have its id.

    Attributes:
        host: The machine's name.
        namespace: Which set of process ids is meant: containers have their own. 0 where it is not known.
        pid: The process's id.
        started: When it started, in the kernel's ticks since the machine did; 0 where it is not known.
    """

    host: str
    namespace: int
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it still runs; it must be of this machine and namespace."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        now = _started(self.pid)
        return not now or not self.started or now == self.started


def this_process() -> Owner:
    """Return this process."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return Owner(socket.gethostname(), namespace, os.getpid(), _started(os.getpid()))


def _started(pid: int) -> int:
    """Return when a process started; 0 where that is not known, -1 for one that only has to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command's name, in parentheses, may hold anything; what follows has no parenthesis.
    fields = text.rpartition(")")[2].split()
    return -1 if fields[0] == "Z" else int(fields[19])


class TargetFile:
    """The file of one endpoint, from its making until :meth:`remove`.

    Args:
        folder: Where it goes; made if need be.
        owner: The process that is scraped.
        host: The name or address under which Prometheus reaches it.
        port: Its port.
        tls: Whether it is reached by HTTPS.

    Raises:
        OSError: The folder cannot be made or written.
    """

    def __init__(self, folder: Path, owner: Owner, host: str, port: int, *, tls: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"beam-agents.{owner.host}.{owner.namespace}.{owner.pid}.{owner.started}.{port}.json"
        self.path = folder / name
        # No pipeline: one process may run several, and their series tell which.
        labels = {"host": owner.host, "process": str(owner.pid)}
        if tls:
            labels["__scheme__"] = "https"
        shown = f"[{host}]" if ":" in host else host
        text = json.dumps([{"targets": [f"{shown}:{port}"], "labels": labels}], indent=2)
        _write(self.path, text + "\n")

    def remove(self) -> None:
        """Take the target out of the discovery. A second call does nothing."""
        self.path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Put a file in place as a whole: Prometheus may read at any time."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # Prometheus runs as another user, and there is nothing to hide.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def remove_abandoned(folder: Path, me: Owner) -> list[Path]:
    """Remove the files of processes that have ended without removing theirs.

    Only those of this machine and of its set of process ids are judged; others are left alone.

    Args:
        folder: Where the files are.
        me: This process.

    Returns:
        What was removed.
    """
    removed = []
    for path in sorted(folder.glob("beam-agents.*.json")):
        named = _NAME.fullmatch(path.name)
        if named is None:
            continue
        owner = Owner(named["host"], int(named["namespace"]), int(named["pid"]), int(named["started"]))
        if (owner.host, owner.namespace) != (me.host, me.namespace) or owner.alive:
            continue
        # Another user's stay where the folder has it so.
        with suppress(OSError):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed

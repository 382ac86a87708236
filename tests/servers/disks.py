"""Disks of their own for tests: small, full or read-only."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers.process import unavailable

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@contextmanager
def mounted(folder: pathlib.Path, options: str) -> Iterator[None]:
    """Mount an empty file system in memory; where nobody may, skip the test, or fail it in CI."""
    if os.geteuid() != 0:
        unavailable("a file system is mounted by root alone")
    folder.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False, capture_output=True
    )
    if made.returncode != 0:
        unavailable("this machine lets nobody mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)

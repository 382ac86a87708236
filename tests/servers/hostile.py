"""Collectors that do harm: that refuse, hang, answer 500, send elsewhere, or answer a byte at a time."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.servers.process import accepts, free_port, server

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

KINDS = ("refusing", "hanging", "failing", "redirecting", "slow", "endless")
ANSWERING = ("failing", "redirecting")
"""Those that answer at once."""


class HostileServer:
    """A server of one kind.

    Attributes:
        endpoint: Its base URL.
        requests: How many connections it took.
    """

    def __init__(self, kind: str, port: int = 0) -> None:
        self.requests = 0
        self._answer: Callable[[socket.socket], None] | None = None
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        if kind == "refusing":
            self.endpoint = f"http://127.0.0.1:{free_port()}"
            return
        self._answer = {
            "hanging": self._hang,
            "failing": lambda connection: self._refuse(connection, b"500 SECRET"),
            # To where somebody might take it for success.
            "redirecting": lambda connection: self._refuse(connection, b"302 SECRET\r\nLocation: /elsewhere"),
            "slow": self._dribble,
            "endless": self._flood,
        }[kind]
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.05)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        """End it, and what it is in the middle of."""
        self._ended.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="hostile-server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with self._listener:
            while not self._ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = self._listener.accept()
                    self.requests += 1
                    self._start(lambda taken=connection: self._serve(taken))  # type: ignore[misc]  # bound now

    def _serve(self, connection: socket.socket) -> None:
        assert self._answer is not None
        # Whoever gave up has closed the connection.
        with connection, suppress(OSError):
            connection.settimeout(0.05)
            self._answer(connection)

    def _hang(self, _: socket.socket) -> None:
        self._ended.wait()

    def _refuse(self, connection: socket.socket, status: bytes) -> None:
        while not self._ended.is_set():
            with suppress(TimeoutError):
                if not connection.recv(65_536):
                    return
                connection.sendall(
                    b"HTTP/1.1 %b\r\nContent-Length: 6\r\nConnection: close\r\n\r\nSECRET" % status
                )
                return

    def _dribble(self, connection: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Padding: " + b"." * 1_000_000:
            connection.sendall(bytes([byte]))
            if self._ended.wait(0.05):
                return

    def _flood(self, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        connection.settimeout(5)
        while not self._ended.is_set():
            connection.sendall(b"." * 65_536)


@contextmanager
def running_aside(kind: str, folder: pathlib.Path) -> Iterator[str]:
    """Run one in a process of its own, which takes no time from the one that is measured; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    if kind == "refusing":
        yield url
        return
    command = [sys.executable, "-m", "tests.servers.hostile", kind, str(port)]
    with server(command, lambda: accepts(port), folder / "hostile.log"):
        yield url


@contextmanager
def running(kind: str) -> Iterator[HostileServer]:
    """Run a server of one of :data:`KINDS` while the block runs."""
    hostile = HostileServer(kind)
    try:
        yield hostile
    finally:
        hostile.close()


if __name__ == "__main__":
    HostileServer(sys.argv[1], int(sys.argv[2]))
    threading.Event().wait()

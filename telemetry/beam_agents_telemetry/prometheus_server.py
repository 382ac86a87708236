"""An HTTP server that no client can make hang, or make grow.

Each connection has a thread and carries one request. There are only so many at a time, each has a deadline,
and when all are taken the oldest one goes: a scrape takes milliseconds, so that one is stuck.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Final, TypeAlias, cast

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from http import HTTPStatus

__all__ = ["DEADLINE_S", "MAX_CONNECTIONS", "BoundedServer", "Request", "Respond", "Response"]

_logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 8
"""Connections that are served at a time."""

DEADLINE_S: Final = 15.0
"""How long a connection may take, from its start to the last byte of the answer; longer than a scrape may."""

_POLL_S: Final = 0.1
"""How often deadlines are looked at; a close waits this long."""

_FULL_S: Final = 0.01
"""How long connections wait for room at a time."""

_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked.

    Attributes:
        method: ``"GET"``, say.
        path: Without the query.
        query: What follows the question mark; empty for nothing.
        headers: By name, in lower case.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered.

    Attributes:
        status: The HTTP status.
        body: All of it.
        headers: (name, value), without the length.
    """

    status: HTTPStatus
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Respond: TypeAlias = "Callable[[Request], Response]"
"""Answers a request, on the connection's thread; it must not raise."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One client. What it is not told once it has asked, is lost; one that asks nothing loses nothing."""

    socket: socket.socket
    respond: Respond
    ends_s: float
    asked: bool = False
    answered: bool = False
    cut: bool = False

    def cut_off(self) -> None:
        """End it from another thread: whatever it waits for returns."""
        self.cut = True
        # Not the TLS socket's own method, which would take its state from under the thread that uses it.
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class BoundedServer:
    """Listens from its making until :meth:`stop`.

    Args:
        address: Where to bind: an IPv4 or IPv6 address, or a name of this machine.
        port: Which port; 0 for any that is free.
        respond: What answers.
        tls: Returns how a connection is secured; None for plain HTTP.
        on_lost: Is told why a client that had asked was not answered: ``"scrape_deadline"``,
            ``"scrape_pushed_out"``, or ``"scrape_refused"`` for one that was not even heard.
        deadline_s: See :data:`DEADLINE_S`.

    Attributes:
        port: Where it listens.

    Raises:
        OSError: The port is taken, or the address is not this machine's.
    """

    def __init__(
        self,
        address: str,
        port: int,
        respond: Respond,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        on_lost: Callable[[str], None],
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.respond = respond
        self._tls = tls
        self._on_lost = on_lost
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        # In the order in which they came.
        self._open: dict[_Connection, None] = {}
        self._stopping = threading.Event()
        self._pid = os.getpid()
        family, _, _, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Every address means those of IPv4, too.
        both = address == "::" and socket.has_dualstack_ipv6()
        self._listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        # A client that is gone before it is accepted must not hold the loop.
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        _servers.add(self)
        self._thread = threading.Thread(target=self._run, name="beam-agents-prometheus", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def stop(self, timeout_s: float) -> None:
        """Free the port and cut off who is connected, within a bound. A second call does nothing."""
        if os.getpid() != self._pid:
            return
        self._stopping.set()
        self._thread.join(timeout_s)
        self._listener.close()
        for connection in self._snapshot():
            connection.cut_off()

    def abandon(self) -> None:
        """Let go of what a forked process inherited: the port is its parent's."""
        self._listener.close()
        for connection in list(self._open):
            connection.socket.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._stopping.is_set():
                self._cut_off_overdue()
                if len(self._open) >= 2 * MAX_CONNECTIONS:
                    # Not even those that were cut off have ended yet: the system lets the others wait.
                    self._stopping.wait(_FULL_S)
                elif selector.select(_POLL_S):
                    self._accept()

    def _accept(self) -> None:
        """Give a connection a thread; if there is no room, the oldest one goes."""
        try:
            accepted, client = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of file descriptors, say: it still waits, so that the loop must.
            _logger.warning("a connection could not be accepted: %s", type(error).__name__)
            self._stopping.wait(_POLL_S)
            return
        connection = _Connection(accepted, self.respond, time.monotonic() + self._deadline_s)
        with self._lock:
            served = [each for each in self._open if not each.cut]
            self._open[connection] = None
        if len(served) >= MAX_CONNECTIONS:
            self._cut_off(served[0], "scrape_pushed_out")
        thread = threading.Thread(
            target=self._serve, args=(connection, client), name="beam-agents-scrape", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The system has no more threads, or the interpreter ends.
            self._on_lost("scrape_refused")
            self._end(connection)

    def _cut_off_overdue(self) -> None:
        now_s = time.monotonic()
        for connection in self._snapshot():
            if connection.ends_s <= now_s:
                self._cut_off(connection, "scrape_deadline")

    def _cut_off(self, connection: _Connection, reason: str) -> None:
        if connection.asked and not connection.cut:
            self._on_lost(reason)
        connection.cut_off()

    def _serve(self, connection: _Connection, client: object) -> None:
        try:
            connection.socket.settimeout(self._deadline_s)
            if self._tls is not None:
                # Here and not where connections are accepted: a client may never say its part.
                secured = self._tls().wrap_socket(
                    connection.socket, server_side=True, do_handshake_on_connect=False
                )
                connection.socket = secured
                secured.do_handshake()
            _Handler(connection.socket, client, connection)  # type: ignore[arg-type]  # it only keeps the two
            if not connection.answered:
                # The handler itself ends what takes too long to read.
                self._cut_off(connection, "scrape_deadline")
        except OSError as error:
            # The client went away, or was cut off, or does not speak TLS.
            _logger.debug("a connection ended early: %s", type(error).__name__)
        finally:
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        with suppress(OSError):
            socket.socket.shutdown(connection.socket, socket.SHUT_WR)
        connection.socket.close()
        with self._lock:
            self._open.pop(connection, None)

    def _snapshot(self) -> list[_Connection]:
        with self._lock:
            return list(self._open)


class _Handler(BaseHTTPRequestHandler):
    """Reads one request and writes its answer."""

    server_version = "beam-agents"
    sys_version = ""
    # The headers and the body are two packets: the second is not to wait until the first is acknowledged.
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        connection = cast("_Connection", self.server)
        connection.asked = True
        # A HEAD is answered as a GET would be, without the body.
        method = "GET" if self.command == "HEAD" else self.command
        response = connection.respond(Request(method, path, query, headers))
        self.send_response(response.status)
        for name, value in response.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)
        connection.answered = True

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815 - its names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Log nothing: a request's line may hold anything."""


_servers: weakref.WeakSet[BoundedServer] = weakref.WeakSet()


def _abandon_all() -> None:
    for server in list(_servers):
        server.abandon()
    _servers.clear()


os.register_at_fork(after_in_child=_abandon_all)

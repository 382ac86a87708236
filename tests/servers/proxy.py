"""A TCP proxy on loopback that fails on command: what lies between a client and its server."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar

from tests.servers.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")
DELAY_S = 0.4


class Fault(Enum):
    """What the proxy does with a connection."""

    NONE = auto()
    """Pass bytes both ways."""
    CUT_REQUEST = auto()
    """Cut the connection at the next request, of which nothing reaches the server."""
    CUT_REPLY = auto()
    """Pass requests on, and cut the connection when a reply comes, of which nothing reaches the client."""
    DELAY = auto()
    """Pass bytes both ways, each reply DELAY_S late."""
    FREEZE = auto()
    """Keep and accept connections, read, pass nothing on and answer nothing."""
    STALL = auto()
    """Take nothing more from clients: what they send waits in their systems, and comes once this is over."""
    REFUSE = auto()
    """Cut all connections and listen no more."""


class Proxy:
    """Passes bytes between its port and a server's, or fails as it was told.

    Attributes:
        port: Where it listens.
        cuts: How many connections it has cut at a request or a reply.
        round_trips: How many requests have come in, each after the reply to the one before it.
    """

    def __init__(self, upstream_port: int, receive_bytes: int = 0) -> None:
        """Listen. ``receive_bytes`` is what the system keeps of what was not read yet; 0 for its default."""
        self._receive_bytes = receive_bytes
        self.port = free_port()
        self.cuts = 0
        self.round_trips = 0
        self._upstream_port = upstream_port
        self._fault = Fault.NONE
        self._passing = 0
        self._on_cut: Callable[[], None] | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._from_clients: set[asyncio.StreamWriter] = set()
        self._asked: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())

    def fail(self, fault: Fault, *, passing: int = 0, on_cut: Callable[[], None] | None = None) -> None:
        """Do from now on as ``fault`` says, on open connections too; ``Fault.NONE`` mends it all.

        Args:
            fault: What to do.
            passing: How many requests or replies come through before the first cut.
            on_cut: Called at the first cut, on the proxy's thread; nothing passes meanwhile.
        """
        self._run(self._switch(fault, passing, on_cut))

    def close(self) -> None:
        """Cut everything and end the thread."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        if self._receive_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_bytes)
        self._listener = await asyncio.start_server(self._serve, sock=listener)

    async def _switch(self, fault: Fault, passing: int, on_cut: Callable[[], None] | None) -> None:
        if self._fault is Fault.FREEZE:
            # What was swallowed meanwhile cannot be passed on later.
            self._cut_all()
        self._fault, self._passing, self._on_cut = fault, passing, on_cut
        for writer in self._from_clients:
            (_stop_reading if fault is Fault.STALL else _go_on_reading)(writer.transport)
        if fault is Fault.REFUSE and self._listener is not None:
            self._listener.close()
            self._listener = None
            self._cut_all()
        elif fault is not Fault.REFUSE and self._listener is None:
            await self._listen()

    async def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._cut_all()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _cut_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._writers.add(to_client)
        self._from_clients.add(to_client)
        if self._fault is Fault.STALL:
            _stop_reading(to_client.transport)
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            to_client.transport.abort()
            self._writers.discard(to_client)
            self._from_clients.discard(to_client)
            return
        self._writers.add(to_server)
        try:
            await asyncio.gather(
                self._pass_requests(client, to_server, to_client), self._pass_replies(server, to_client)
            )
        finally:
            for writer in (to_client, to_server):
                writer.transport.abort()
                self._writers.discard(writer)
            self._asked.discard(to_client)
            self._from_clients.discard(to_client)

    @property
    def connections(self) -> int:
        """How many connections of clients it serves."""
        return len(self._from_clients)

    def _cuts_now(self) -> bool:
        if self._passing > 0:
            self._passing -= 1
            return False
        self.cuts += 1
        on_cut, self._on_cut = self._on_cut, None
        if on_cut is not None:
            on_cut()
        return True

    async def _pass_requests(
        self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, to_client: asyncio.StreamWriter
    ) -> None:
        # An end that is gone is the test's doing. A client that went in good order may have left a request.
        with suppress(OSError):
            while True:
                data = await client.read(65_536)
                if not data:
                    to_server.write_eof()
                    return
                if to_client not in self._asked:
                    self._asked.add(to_client)
                    self.round_trips += 1
                if self._fault is Fault.CUT_REQUEST and self._cuts_now():
                    break
                if self._fault is not Fault.FREEZE:
                    to_server.write(data)
                    await to_server.drain()
        to_server.transport.abort()
        to_client.transport.abort()

    async def _pass_replies(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await server.read(65_536):
                self._asked.discard(to_client)
                if self._fault is Fault.CUT_REPLY and self._cuts_now():
                    break
                if self._fault is Fault.DELAY:
                    await asyncio.sleep(DELAY_S)
                if self._fault is not Fault.FREEZE:
                    to_client.write(data)
                    await to_client.drain()
        to_client.transport.abort()


def _stop_reading(transport: asyncio.Transport) -> None:
    if transport.is_reading():
        transport.pause_reading()


def _go_on_reading(transport: asyncio.Transport) -> None:
    if not transport.is_reading() and not transport.is_closing():
        transport.resume_reading()


@contextmanager
def proxied(upstream_port: int, receive_bytes: int = 0) -> Iterator[Proxy]:
    """Yield a proxy to a port of this machine."""
    proxy = Proxy(upstream_port, receive_bytes)
    try:
        yield proxy
    finally:
        proxy.close()

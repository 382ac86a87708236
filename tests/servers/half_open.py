"""A proxy whose connections can be left half open: they stay, and nothing comes through any more."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class HalfOpenProxy:
    """Relays to a port of this machine.

    Attributes:
        port: Where it listens.
        connections: How many were made so far.
        open: How many there are.
    """

    def __init__(self, upstream_port: int) -> None:
        self.port = 0
        self.connections = 0
        self.open = 0
        self._upstream_port = upstream_port
        self._silenced_up_to = 0
        # The event loop itself does not keep a task that waits for a dead connection.
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="half-open-proxy", daemon=True)

    def silence(self) -> None:
        """Let nothing through on the connections that there are; later ones work."""
        self._silenced_up_to = self.connections

    def start(self) -> None:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result(10)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._connect(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.close()
            return
        self.open += 1
        try:
            await asyncio.gather(
                self._relay(number, reader, up_writer), self._relay(number, up_reader, writer)
            )
        finally:
            self.open -= 1
            writer.close()
            up_writer.close()

    async def _relay(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if number > self._silenced_up_to:
                    writer.write(data)
                    await writer.drain()
        if number > self._silenced_up_to:
            writer.close()


@contextmanager
def half_open_proxy(upstream_port: int) -> Iterator[HalfOpenProxy]:
    """Run a proxy while the block runs."""
    proxy = HalfOpenProxy(upstream_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

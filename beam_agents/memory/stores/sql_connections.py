"""The connections of a SQL store: a pool that belongs to one event loop, and calls that have a deadline.

Connections are in autocommit mode, so that a call that is one statement is one round trip. A connection that
anything went wrong on is thrown away: so no call comes upon another's open transaction, or its late answer.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final, TypeVar

from beam_agents.memory.stores.sql_errors import is_read_only, translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from beam_agents.memory.stores.sql_drivers import Driver, Value
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["Connections", "Session"]

T = TypeVar("T")

CLOSE_S: Final = 3.0
"""How long connections may take to say goodbye before they are cut off."""


class Session:
    """A connection for the time of one call."""

    def __init__(self, driver: Driver, connection: Any) -> None:
        self._driver = driver
        self._connection = connection

    async def fetch(self, statement: str, values: Sequence[Value]) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""
        return await self._driver.fetch(self._connection, statement, values)

    async def execute(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return await self._driver.execute(self._connection, statement, values)


class _Pool:
    """The connections of one process and loop.

    Attributes:
        pid: The process.
        loop: The loop.
        slots: One per connection that may be open.
        idle: Connections that nobody uses; the last one was used last.
        open: All connections.
    """

    def __init__(self, size: int) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self.slots = asyncio.Semaphore(size)
        self.idle: list[Any] = []
        self.open: list[Any] = []


class Connections:
    """A pool of connections, made at the first call, on the event loop that then owns it.

    A forked child makes its own and leaves its parent's alone; so does a process whose loop was closed.
    """

    def __init__(self, uri: StoreUri, driver: Driver) -> None:
        self._uri = uri
        self._driver = driver
        self._pool: _Pool | None = None
        # Of a parent process or of a closed loop. Kept: to collect a connection is to close it, and a forked
        # child that closes its parent's SQLite file drops the parent's locks.
        self._disowned: list[_Pool] = []

    async def call(self, operation: str, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run ``work`` on a connection, within the time that one call may take.

        Args:
            operation: What errors call it.
            work: What to do.

        Raises:
            StoreUnavailable: The store could not be reached, or broke off.
            StoreTimeout: Waiting for a connection, connecting and the work took too long together.
            StoreRejected: The store refused the call.
            RuntimeError: The store is in use on another event loop of this process.
        """
        return await self.bounded(operation, self._on_connection(self._own_pool(), work))

    async def bounded(self, operation: str, work: Awaitable[T]) -> T:
        """Await what talks to the store, within the time that one call may take; raise as :meth:`call`."""
        try:
            async with asyncio.timeout(self._uri.options.operation_timeout_s):
                return await work
        except Exception as error:
            translated = translate(error, self._uri, operation)
            if translated is None:
                raise
            # Without the original, whose text may quote a row.
            raise translated from None

    async def _on_connection(self, pool: _Pool, work: Callable[[Session], Awaitable[T]]) -> T:
        async with pool.slots:
            connection = self._idle_connection(pool)
            if connection is not None:
                try:
                    return await self._on(pool, connection, work)
                except Exception as error:
                    if not is_read_only(error):
                        raise
                # It may be of another time: to a file that could not be written then, or to a server that is
                # the primary no more. So may all others that wait; a new one tells how things are now.
                while stale := self._idle_connection(pool):
                    self._discard(pool, stale)
            async with asyncio.timeout(self._uri.options.connect_timeout_s):
                connection = await self._driver.connect(self._uri)
            pool.open.append(connection)
            return await self._on(pool, connection, work)

    async def _on(self, pool: _Pool, connection: Any, work: Callable[[Session], Awaitable[T]]) -> T:
        try:
            result = await work(Session(self._driver, connection))
        except BaseException:
            self._discard(pool, connection)
            raise
        if pool is self._pool:
            pool.idle.append(connection)
        else:
            # The store was closed meanwhile.
            self._discard(pool, connection)
        return result

    def _idle_connection(self, pool: _Pool) -> Any | None:
        # What the server closed is known without asking it, and a ping would cost each call a round trip.
        while pool.idle:
            connection = pool.idle.pop()
            if not self._driver.closed(connection):
                return connection
            self._discard(pool, connection)
        return None

    def _discard(self, pool: _Pool, connection: Any) -> None:
        if connection in pool.open:
            pool.open.remove(connection)
            self._driver.cut(connection)

    async def close(self) -> None:
        """Close all connections: with a goodbye, or, where none is possible in time, without."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if (pool.pid, pool.loop) != (os.getpid(), asyncio.get_running_loop()):
            self._disowned.append(pool)
            return
        idle, pool.idle = pool.idle, []
        closing = [asyncio.ensure_future(self._driver.close(connection)) for connection in idle]
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)
        for connection, task in zip(idle, closing, strict=True):
            if task.done() and not task.cancelled() and task.exception() is None:
                pool.open.remove(connection)
        for connection in list(pool.open):
            self._discard(pool, connection)
        for task in closing:
            task.cancel()
        # Their outcome is known; gathered so that no task outlives the store.
        await asyncio.gather(*closing, return_exceptions=True)

    def _own_pool(self) -> _Pool:
        pool = self._pool
        if pool is not None:
            loop = asyncio.get_running_loop()
            if pool.loop is loop and pool.pid == os.getpid():
                return pool
            if pool.pid == os.getpid() and not pool.loop.is_closed():
                raise RuntimeError(
                    f"this {self._uri.backend} store belongs to another event loop; open one for this loop"
                )
            self._disowned.append(pool)
        self._pool = _Pool(self._uri.options.pool_size)
        return self._pool

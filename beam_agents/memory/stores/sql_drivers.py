"""The drivers of SQL databases, as the store uses them: connect, run a statement, hang up.

SQLAlchemy writes the statements, and the drivers run them, without SQLAlchemy's engine. Its execution costs
three times what the statement itself does on SQLite and PostgreSQL; and its async layer runs in greenlets,
which cannot change threads, whereas the runtime takes a coroutine's first step on the caller's thread.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import os
import pathlib
import select
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

from beam_agents.memory.stores.cutting import SERVER_SHARE, cut_off, forget_unsent
from beam_agents.memory.stores.tls import roots_file, tls_context

if TYPE_CHECKING:
    import ssl
    import threading
    from collections.abc import Coroutine, Mapping, Sequence

    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["Driver", "Value", "create_sqlite_file", "driver_of"]

T = TypeVar("T")

Value: TypeAlias = bytes | int | list[bytes] | list[int]
"""What a parameter holds: a value, or a column of a batch."""


class Driver(ABC):
    """One driver. A connection is the driver's own object, in autocommit mode.

    The modules and connections are typed Any: a driver is imported only where a URI names it.

    Attributes:
        module: The driver.
    """

    paramstyle: str | None = None
    """What SQLAlchemy is told to write for a parameter, where that is not its default for the driver."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._tls: ssl.SSLContext | None = None

    def _tls_of(self, uri: StoreUri) -> ssl.SSLContext | None:
        """Return the URI's TLS context, made once: to read the system's authorities takes a while."""
        if self._tls is None:
            self._tls = tls_context(uri)
        return self._tls

    @abstractmethod
    async def connect(self, uri: StoreUri) -> Any:
        """Make a connection. The caller bounds the time."""

    @abstractmethod
    async def fetch(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""

    @abstractmethod
    async def execute(self, connection: Any, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed."""

    @abstractmethod
    def closed(self, connection: Any) -> bool:
        """Tell, without asking the server, whether a connection is known to be dead."""

    async def close(self, connection: Any) -> None:
        """Close a connection in good order. The caller bounds the time."""
        await connection.close()

    async def _prepared(self, connection: Any, statement: str) -> Any:
        """Run a connection's first statement; without it the connection is not to be used."""
        try:
            await self.execute(connection, statement)
        except BaseException:
            self.cut(connection)
            raise
        return connection

    @abstractmethod
    def cut(self, connection: Any) -> None:
        """Close a connection now, without waiting for a server that may not answer.

        What was not sent yet is dropped: the server must not come upon it later.
        """


class Asyncpg(Driver):
    """PostgreSQL. It keeps prepared statements by their text, and prepares one anew if its table was."""

    async def connect(self, uri: StoreUri) -> Any:
        """Make a connection."""
        connection = await self.module.connect(
            host=uri.host,
            port=uri.port,
            user=uri.username or None,
            password=uri.password or None,
            database=uri.database,
            timeout=uri.options.connect_timeout_s,
            # None has it look into the environment, and then prefer TLS without insisting on it.
            ssl=False if uri.options.sslmode == "disable" else self._tls_of(uri),
        )
        return await self._prepared(connection, _postgresql_limits(uri))

    async def fetch(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""
        rows: Sequence[Sequence[Any]] = await connection.fetch(statement, *values)
        return rows

    async def execute(self, connection: Any, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        # A status such as DELETE 3; one without a number changed none.
        status: str = await connection.execute(statement, *values)
        count = status.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    def closed(self, connection: Any) -> bool:
        """Tell whether the server closed the connection."""
        return bool(connection.is_closed())

    def cut(self, connection: Any) -> None:
        """Abort the connection."""
        # asyncpg itself cannot drop what is unsent.
        cut_off(connection._transport)  # noqa: SLF001 - as above
        connection.terminate()


class Psycopg(Driver):
    """PostgreSQL. A login that is refused looks like a server that is away: libpq gives it no SQLSTATE."""

    paramstyle = "format"

    async def connect(self, uri: StoreUri) -> Any:
        """Make a connection."""
        options = uri.options
        tls = {"sslmode": options.sslmode} if options.sslmode else {}
        if options.sslmode.startswith("verify-"):
            # For the error that libpq gives no code.
            self._tls_of(uri)
            tls["sslrootcert"] = roots_file(uri)
        connection = await self.module.AsyncConnection.connect(
            host=uri.host,
            port=uri.port,
            user=uri.username or None,
            password=uri.password or None,
            dbname=uri.database,
            connect_timeout=math.ceil(uri.options.connect_timeout_s),
            autocommit=True,
            **tls,
        )
        return await self._prepared(connection, _postgresql_limits(uri))

    async def fetch(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""

        async def run() -> Sequence[Sequence[Any]]:
            cursor = await connection.execute(statement, values)
            rows: Sequence[Sequence[Any]] = await cursor.fetchall()
            return rows

        return await _abandonable(connection, run())

    async def execute(self, connection: Any, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed."""

        async def run() -> int:
            cursor = await connection.execute(statement, values or None)
            return max(0, int(cursor.rowcount))

        return await _abandonable(connection, run())

    def closed(self, connection: Any) -> bool:
        """Tell whether the connection is closed, or has something to say though nobody asked: goodbye."""
        if connection.closed:
            return True
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def cut(self, connection: Any) -> None:
        """Close the connection."""
        if not connection.closed:
            with _stream_of(connection) as stream:
                forget_unsent(stream)
        connection.pgconn.finish()


async def _abandonable(connection: Any, running: Coroutine[object, object, T]) -> T:
    """Await what runs on a psycopg connection so that a cancelled caller gets away at once.

    Cancelled itself, psycopg waits for the server to confirm, which a frozen one never does.
    """
    task = asyncio.ensure_future(running)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # The task sees the end of the stream, and ends.
        with _stream_of(connection) as stream:
            forget_unsent(stream)
            stream.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(task, return_exceptions=True)
        raise


def _stream_of(connection: Any) -> socket.socket:
    """Return a second handle to a psycopg connection's socket."""
    return socket.socket(fileno=os.dup(connection.fileno()))


class Aiosqlite(Driver):
    """SQLite, on a thread per connection."""

    async def connect(self, uri: StoreUri) -> Any:
        """Open the file, which must be there: the runtime creates nothing, not even an empty file."""
        connection = await _open_sqlite(self.module, uri, "rw")
        try:
            busy_ms = int(uri.options.operation_timeout_s * SERVER_SHARE * 1000)
            await connection.execute_fetchall(f"PRAGMA busy_timeout = {busy_ms}")
            mode = await connection.execute_fetchall("PRAGMA journal_mode")
            # With another journal than the write-ahead log NORMAL could damage the file in a power cut.
            if [tuple(row) for row in mode] == [("wal",)]:
                await connection.execute_fetchall("PRAGMA synchronous = NORMAL")
        except BaseException:
            self.cut(connection)
            raise
        return connection

    async def fetch(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""
        rows: Sequence[Sequence[Any]] = await connection.execute_fetchall(statement, values)
        return rows

    async def execute(self, connection: Any, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        async with connection.execute(statement, values) as cursor:
            return max(0, int(cursor.rowcount))

    def closed(self, connection: Any) -> bool:  # noqa: ARG002 - there is no server
        """Return False: a file does not hang up."""
        return False

    def cut(self, connection: Any) -> None:
        """Have the thread close the connection when it has done what it does."""
        connection.stop()


class Asyncmy(Driver):
    """MySQL and MariaDB."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        # A connection whose call was cancelled has forgotten its transport, and goes on sending.
        self._transports: WeakKeyDictionary[Any, asyncio.WriteTransport] = WeakKeyDictionary()

    async def connect(self, uri: StoreUri) -> Any:
        """Make a connection."""
        options = uri.options
        connection = await self.module.connect(
            host=uri.host,
            port=uri.port,
            user=uri.username or None,
            password=uri.password.encode(),
            database=uri.database,
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.operation_timeout_s,
            autocommit=True,
            # asyncmy escapes with backslashes, whatever the server's default mode makes of them; and a value
            # that does not fit is an error, never cut.
            sql_mode="STRICT_ALL_TABLES",
            # An update counts the rows that it found, changed or not.
            client_flag=_FOUND_ROWS,
            # Says that a literal is bytes and no text, which the server would check.
            binary_prefix=True,
            init_command=_mysql_limits(uri),
            ssl=self._tls_of(uri),
        )
        self._transports[connection] = connection._transport  # noqa: SLF001 - see cut
        return connection

    async def fetch(
        self, connection: Any, statement: str, values: Sequence[Value]
    ) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""
        async with connection.cursor() as cursor:
            await cursor.execute(statement, values)
            rows: Sequence[Sequence[Any]] = await cursor.fetchall()
            return rows

    async def execute(self, connection: Any, statement: str, values: Sequence[Value] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        async with connection.cursor() as cursor:
            await cursor.execute(statement, values or None)
            return int(cursor.rowcount)

    def closed(self, connection: Any) -> bool:
        """Tell whether the connection is closed."""
        return not connection.connected

    async def close(self, connection: Any) -> None:
        """Close a connection in good order."""
        await connection.ensure_closed()

    def cut(self, connection: Any) -> None:
        """Abort the connection, which asyncmy itself cannot."""
        connection.close()
        cut_off(self._transports[connection])


def _postgresql_limits(uri: StoreUri) -> str:
    """Return what bounds a statement on the server, and a transaction whose client has vanished."""
    seconds = uri.options.operation_timeout_s
    return (
        f"SELECT set_config('statement_timeout', '{max(1, int(seconds * SERVER_SHARE * 1000))}', false), "
        f"set_config('idle_in_transaction_session_timeout', '{math.ceil(seconds * 1000)}', false)"
    )


def _mysql_limits(uri: StoreUri) -> str:
    """Return what bounds a statement on MariaDB, and on MySQL, which knows less, its wait for a lock."""
    seconds = uri.options.operation_timeout_s
    lock_wait = max(1, int(seconds * SERVER_SHARE))
    return (
        f"SET SESSION innodb_lock_wait_timeout = {lock_wait} "
        f"/*M!100300 , max_statement_time = {seconds * SERVER_SHARE:.3f}, "
        f"idle_transaction_timeout = {math.ceil(seconds)} */"
    )


_FOUND_ROWS: Final = 2
"""A flag of MySQL's protocol."""

_DRIVERS: Final[Mapping[str, type[Driver]]] = {
    "asyncpg": Asyncpg,
    "psycopg": Psycopg,
    "aiosqlite": Aiosqlite,
    "asyncmy": Asyncmy,
}


def driver_of(uri: StoreUri) -> Driver:
    """Return the driver that a URI names.

    Raises:
        ImportError: It is not installed; the message says what to install.
    """
    name = uri.scheme.partition("+")[2]
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        what = "psycopg[binary]" if name == "psycopg" else "beam-agents[sql]"
        raise ImportError(
            f"the backend {uri.backend!r} needs {name}, which cannot be imported: pip install '{what}'",
            name=name,
        ) from error
    return _DRIVERS[name](module)


async def create_sqlite_file(uri: StoreUri) -> None:
    """Create SQLite's file, empty, unless it is there."""
    connection = await _open_sqlite(importlib.import_module("aiosqlite"), uri, "rwc")
    try:
        # To open a file is not to make it; to read it is.
        await connection.execute_fetchall("PRAGMA schema_version")
    finally:
        await connection.close()


async def _open_sqlite(module: Any, uri: StoreUri, mode: str) -> Any:
    connection = module.connect(_sqlite_address(uri, mode), uri=True, isolation_level=None)
    # Its thread must not keep the process from its end; aiosqlite has no option for that.
    thread: threading.Thread = connection._thread  # noqa: SLF001 - as above
    thread.daemon = True
    return await connection


def _sqlite_address(uri: StoreUri, mode: str) -> str:
    path = pathlib.Path(uri.database).absolute()
    return f"file:{quote(str(path))}?mode={mode}"

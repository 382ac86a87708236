"""The SQL store: PostgreSQL, SQLite, MySQL and MariaDB, through SQLAlchemy Core.

One table, see :data:`DDL`; its ``key`` column holds the key's UTF-8 bytes. What each module does:
``sql_schema`` has the table, ``sql_statements`` the guard, ``sql_connections`` the pool and the deadlines,
``sql_drivers`` what the drivers do differently, ``sql_errors`` what failed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from beam_agents.errors import StoreRejected
from beam_agents.memory.stores.contract import MemoryStore, StoreAdmin, StoreLimits, StoreRow
from beam_agents.memory.stores.sql_connections import Connections
from beam_agents.memory.stores.sql_drivers import create_sqlite_file, driver_of
from beam_agents.memory.stores.sql_errors import is_missing_table
from beam_agents.memory.stores.sql_schema import DDL, ddl_statements, dialect_of, longterm_table, successor
from beam_agents.memory.stores.sql_statements import Statements, chunks
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from beam_agents.memory.stores.contract import RowId
    from beam_agents.memory.stores.sql_connections import Session
    from beam_agents.memory.stores.sql_drivers import Value
    from beam_agents.memory.stores.sql_statements import Query, StoredSeqs
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["DDL", "SqlAdmin", "SqlStore"]

MIB: Final = 1024 * 1024

MAX_ROWS: Final = 1000
"""Rows of one statement. Five parameters each: SQLite takes 32,766."""

MAX_DELETED_ROWS: Final = 200
"""Rows that one statement deletes."""

# MySQL's clients send a statement as text in which a byte may take two, and the server refuses one above
# max_allowed_packet: 16 MiB on MariaDB by default, 64 on MySQL.
LIMITS: Final = {
    "sqlite": StoreLimits(max_value_bytes=16 * MIB),
    "postgresql": StoreLimits(max_value_bytes=16 * MIB),
    "mysql": StoreLimits(max_value_bytes=4 * MIB),
    "mariadb": StoreLimits(max_value_bytes=4 * MIB),
}

MAX_STATEMENT_BYTES: Final = {
    "sqlite": 64 * MIB,
    "postgresql": 64 * MIB,
    "mysql": 6 * MIB,
    "mariadb": 6 * MIB,
}
"""Bytes of the rows of one statement."""


class SqlStore(MemoryStore):
    """Rows in a table. A batch is atomic: one statement, or, where it is too large for one, one transaction.

    Attributes:
        connections: The pool.
        statements: The statements on the table.

    Raises:
        ImportError: The driver that the URI names is not installed.
    """

    def __init__(self, uri: StoreUri) -> None:
        super().__init__(uri)
        self.limits = LIMITS[uri.backend]
        driver = driver_of(uri)
        self.connections = Connections(uri, driver)
        self.statements = Statements(
            longterm_table(uri.options.table), uri.backend, dialect_of(uri, driver.paramstyle)
        )

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        found = await self._select(
            "load", self.statements.load, {"entity": entity_key, "row_key": key.encode()}
        )
        return found[0] if found else None

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first ``limit`` rows whose key begins with ``prefix``, by the key's bytes."""
        low = prefix.encode()
        values: dict[str, Value] = {"entity": entity_key, "low": low, "row_limit": limit}
        if not low:
            return await self._select("search", self.statements.search, values)
        values["high"] = successor(low)
        return await self._select("search", self.statements.search_below, values)

    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        """Upsert rows under the guard, all or none, and tell each one's result in their order."""
        if not rows:
            return []
        # All writers lock rows in the same order, so that overlapping batches wait and don't deadlock.
        ordered = sorted(rows, key=lambda row: row.sort_key)
        parts = chunks(ordered, MAX_ROWS, MAX_STATEMENT_BYTES[self.backend])

        async def save(session: Session) -> StoredSeqs:
            # MySQL needs two statements to tell what the guard did.
            in_transaction = len(parts) > 1 or self.backend == "mysql"
            seqs: StoredSeqs = {}
            if in_transaction:
                await session.execute("BEGIN")
            for part in parts:
                seqs |= await self.statements.upsert(session, part)
            if in_transaction:
                await session.execute("COMMIT")
            return seqs

        seqs = await self.connections.call("flush", save)
        return [
            UpsertResult.APPLIED if seqs.get(row.sort_key) == row.seq else UpsertResult.STALE for row in rows
        ]

    async def ping(self) -> None:
        """Ask the database for the number one."""
        await self.connections.call("ping", lambda session: session.fetch("SELECT 1", ()))

    async def close(self) -> None:
        """Close the connections. A second call does nothing."""
        await self.connections.close()

    async def _select(self, operation: str, query: Query, values: Mapping[str, Value]) -> list[StoreRow]:
        found = await self.connections.call(operation, lambda session: query.fetch(session, values))
        return _store_rows(found)


def _store_rows(found: Iterable[Sequence[Any]]) -> list[StoreRow]:
    """Return rows of the table as the contract has them."""
    return [
        StoreRow(entity_key, key.decode(), seq, rec, updated_at_ms)
        for entity_key, key, seq, rec, updated_at_ms in found
    ]


class SqlAdmin(StoreAdmin):
    """The operator's side of the SQL store."""

    def __init__(self, store: MemoryStore) -> None:
        if not isinstance(store, SqlStore):
            raise TypeError(f"SqlAdmin needs a SqlStore, not {type(store).__name__}")
        super().__init__(store)
        self._connections = store.connections
        self._statements = store.statements

    def provision_plan(self) -> str:
        """Return the DDL."""
        uri = self.store.uri
        return "".join(f"{each};\n" for each in ddl_statements(uri.backend, uri.options.table))

    async def provision(self) -> bool:
        """Create the table, and SQLite's file, where they are missing; return whether the table was.

        Raises:
            StoreError: As the store's own calls. StoreRejected for a table that is there with other columns.
        """
        uri = self.store.uri
        if uri.backend == "sqlite":
            await self._connections.bounded("provision", create_sqlite_file(uri))
        if await self._table_is_there():
            return False
        try:
            await self._connections.call("provision", self._create_table)
        except StoreRejected:
            # Another process may have been faster.
            if await self._table_is_there():
                return False
            raise
        return True

    async def _create_table(self, session: Session) -> None:
        uri = self.store.uri
        for statement in ddl_statements(uri.backend, uri.options.table):
            await session.execute(statement)
        if uri.backend == "sqlite":
            # This connection was opened before the file had its write-ahead log.
            await session.execute("PRAGMA synchronous = NORMAL")

    async def _table_is_there(self) -> bool:
        async def probe(session: Session) -> bool:
            try:
                await self._statements.probe.fetch(session, {})
            except Exception as error:
                if is_missing_table(error):
                    return False
                raise
            return True

        return await self._connections.call("provision", probe)

    async def scan(
        self, after: RowId | None, limit: int, *, entity_key: bytes | None = None
    ) -> list[StoreRow]:
        """Return the next rows after a place, in the order of RowId, of one entity or of all."""
        place = None if after is None else after.sort_key
        found = await self._connections.call(
            "scan", lambda session: self._statements.scan(session, place, limit, entity_key)
        )
        return _store_rows(found)

    async def delete(self, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have the seq that is given; return how many were deleted."""
        deleted = 0
        for part in _parts(rows, MAX_DELETED_ROWS):
            deleted += await self._connections.call(
                "delete", functools.partial(self._statements.delete, rows=part)
            )
        return deleted

    async def replace_seq(self, row: StoreRow, replacement: StoreRow) -> bool:
        """Put a row in the place of one that still has the seq that is given, whatever the guard says."""
        values: dict[str, Value] = {
            "entity": row.entity_key,
            "row_key": row.key.encode(),
            "old_seq": row.seq,
            "new_seq": replacement.seq,
            "new_rec": replacement.rec,
            "new_at": replacement.updated_at_ms,
        }
        changed = await self._connections.call(
            "replace_seq", lambda session: self._statements.replace_seq.execute(session, values)
        )
        return changed == 1


def _parts(rows: Sequence[StoreRow], size: int) -> Iterable[Sequence[StoreRow]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))

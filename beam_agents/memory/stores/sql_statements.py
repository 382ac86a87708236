"""The statements of a SQL store. The guard is inside the upsert, and one statement takes a whole batch.

How a batch is told which of its rows were applied, in one read of what the statement left behind: a row is
applied if, and only if, the seq that the table has after the statement is the row's own.

- PostgreSQL and SQLite: ``RETURNING`` names the rows that the guard let through, and leaves the others out.
- MariaDB: ``ON DUPLICATE KEY UPDATE`` touches each row, and ``RETURNING`` gives each one's seq afterwards.
- MySQL has no ``RETURNING``: the upsert and a ``SELECT … FOR UPDATE`` of the same rows are one transaction.
  The upsert has locked them, so that no other writer comes between the two, and a locking read sees the
  newest version of a row, not the transaction's snapshot.

PostgreSQL gets the batch as five arrays: one text, and one prepared statement, for batches of any size, and
no limit of parameters. The other dialects have one text per number of rows.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Integer,
    LargeBinary,
    and_,
    bindparam,
    column,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import ColumnElement, Dialect, Table
    from sqlalchemy.sql.compiler import SQLCompiler
    from sqlalchemy.sql.elements import ClauseElement
    from sqlalchemy.sql.selectable import TableValuedAlias

    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.memory.stores.sql_connections import Session
    from beam_agents.memory.stores.sql_drivers import Value
    from beam_agents.memory.stores.uri import Backend

__all__ = ["Query", "Statements", "StoredSeqs", "chunks"]

COLUMNS: Final = ("entity_key", "key", "seq", "rec", "updated_at_ms")
"""The table's columns, in the order of a StoreRow's fields."""

KEPT_SIZES: Final = 64
"""Sizes of batches whose statements are kept."""

StoredSeqs: TypeAlias = dict[tuple[bytes, bytes], int]
"""By entity key and key: the seq that a row has after an upsert. What the guard refused may be missing."""


def chunks(rows: Sequence[StoreRow], max_rows: int, max_bytes: int) -> list[list[StoreRow]]:
    """Split a batch, in its order, into parts of at most so many rows and bytes, none empty."""
    parts: list[list[StoreRow]] = []
    size = 0
    for row in rows:
        row_size = len(row.entity_key) + len(row.key.encode()) + len(row.rec)
        if not parts or len(parts[-1]) >= max_rows or size + row_size > max_bytes:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += row_size
    return parts


class Query:
    """A statement with named parameters, as text for one driver."""

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled: SQLCompiler = statement.compile(dialect=dialect)  # type: ignore[assignment]  # all but DDL
        # What has a value already is the dialect's own, such as SQLite's OFFSET.
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._text = compiled.string
        self._names: tuple[str, ...] = tuple(compiled.positiontup or ())

    async def fetch(self, session: Session, values: Mapping[str, Value]) -> Sequence[Sequence[Any]]:
        """Run it and return its rows."""
        return await session.fetch(self._text, self._ordered(values))

    async def fetch_in_order(self, session: Session, values: Sequence[Value]) -> Sequence[Sequence[Any]]:
        """Run it with values that are in the text's order already, and return its rows."""
        return await session.fetch(self._text, values)

    async def execute(self, session: Session, values: Mapping[str, Value]) -> int:
        """Run it and return how many rows it changed."""
        return await session.execute(self._text, self._ordered(values))

    def _ordered(self, values: Mapping[str, Value]) -> list[Value]:
        if self._constants:
            values = {**self._constants, **values}
        return [values[name] for name in self._names]


class Statements:
    """The statements on one table.

    Attributes:
        load: One row, of ``entity`` and ``row_key``.
        search: The first ``row_limit`` rows of ``entity``, from key ``low`` on.
        search_below: The same, below key ``high``.
        probe: No row: it fails where the table, or a column, is missing.
        replace_seq: Puts ``new_seq``, ``new_rec`` and ``new_at`` into the row of ``entity`` and ``row_key``
            that has the seq ``old_seq``.
    """

    def __init__(self, table: Table, backend: Backend, dialect: Dialect) -> None:
        self._table = table
        self._backend = backend
        self._dialect = dialect
        columns = table.c
        entity = columns.entity_key == bindparam("entity")
        row = and_(entity, columns.key == bindparam("row_key"))
        ordered = (
            select(table)
            .where(entity, columns.key >= bindparam("low"))
            .order_by(columns.key)
            .limit(bindparam("row_limit", type_=Integer))
        )
        self.load = self._query(select(table).where(row))
        self.search = self._query(ordered)
        self.search_below = self._query(ordered.where(columns.key < bindparam("high")))
        self.probe = self._query(select(table).where(columns.seq < columns.seq))
        self.replace_seq = self._query(
            update(table)
            .where(row, columns.seq == bindparam("old_seq"))
            .values(seq=bindparam("new_seq"), rec=bindparam("new_rec"), updated_at_ms=bindparam("new_at"))
        )
        self._upsert = functools.lru_cache(KEPT_SIZES)(self._make_upsert)
        self._locked_seqs = functools.lru_cache(KEPT_SIZES)(self._make_locked_seqs)
        self._delete = functools.lru_cache(KEPT_SIZES)(self._make_delete)
        self._scan = functools.lru_cache(4)(self._make_scan)

    async def upsert(self, session: Session, rows: Sequence[StoreRow]) -> StoredSeqs:
        """Upsert rows under the guard and return the seqs that the table has for them afterwards."""
        if self._backend == "postgresql":
            found = await self._upsert(0).fetch(session, _arrays(rows))
        else:
            found = await self._upsert(len(rows)).fetch_in_order(session, _row_by_row(rows))
            if self._backend == "mysql":
                found = await self._locked_seqs(len(rows)).fetch(session, _numbered(rows))
        return {(entity_key, key): seq for entity_key, key, seq in found}

    async def scan(
        self, session: Session, after: tuple[bytes, bytes] | None, limit: int, entity_key: bytes | None
    ) -> Sequence[Sequence[Any]]:
        """Return the next rows after a place, in the order of the primary key."""
        values: dict[str, Value] = {"row_limit": limit}
        if after is not None:
            values |= {"after_entity": after[0], "after_key": after[1]}
        if entity_key is not None:
            values["entity"] = entity_key
        return await self._scan(after is not None, entity_key is not None).fetch(session, values)

    async def delete(self, session: Session, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have their seq; return how many there were."""
        return await self._delete(len(rows)).execute(session, _numbered(rows))

    def _query(self, statement: ClauseElement) -> Query:
        return Query(statement, self._dialect)

    def _make_upsert(self, size: int) -> Query:
        """Return the upsert of so many rows; PostgreSQL's takes any number."""
        table, columns = self._table, self._table.c
        if self._backend == "postgresql":
            return self._query(_array_upsert(table))
        rows = [
            {name: bindparam(f"{name}_{index}", type_=columns[name].type) for name in COLUMNS}
            for index in range(size)
        ]
        returned = (columns.entity_key, columns.key, columns.seq)
        if self._backend == "sqlite":
            insert = sqlite.insert(table).values(rows)
            return self._query(
                insert.on_conflict_do_update(
                    index_elements=["entity_key", "key"],
                    set_={name: insert.excluded[name] for name in COLUMNS[2:]},
                    where=insert.excluded.seq >= columns.seq,
                ).returning(*returned)
            )
        guarded = _on_duplicate_key(table, mysql.insert(table).values(rows))
        return self._query(guarded if self._backend == "mysql" else guarded.returning(*returned))

    def _make_locked_seqs(self, size: int) -> Query:
        columns = self._table.c
        place = tuple_(columns.entity_key, columns.key)
        return self._query(
            select(columns.entity_key, columns.key, columns.seq)
            .where(or_(*(place == tuple_(*_binds(index, "entity_key", "key")) for index in range(size))))
            .with_for_update()
        )

    def _make_delete(self, size: int) -> Query:
        columns = self._table.c
        found = tuple_(columns.entity_key, columns.key, columns.seq)
        wanted = (found == tuple_(*_binds(index, "entity_key", "key", "seq")) for index in range(size))
        return self._query(delete(self._table).where(or_(*wanted)))

    def _make_scan(self, goes_on: bool, of_one_entity: bool) -> Query:  # noqa: FBT001 - lru_cache's keys
        columns = self._table.c
        statement = select(self._table).order_by(columns.entity_key, columns.key)
        if of_one_entity:
            statement = statement.where(columns.entity_key == bindparam("entity"))
        if goes_on:
            entity, key = (
                bindparam("after_entity", type_=LargeBinary),
                bindparam("after_key", type_=LargeBinary),
            )
            # MySQL's planner takes the first condition for a range of the index, the others the second.
            statement = statement.where(
                columns.entity_key >= entity, tuple_(columns.entity_key, columns.key) > tuple_(entity, key)
            )
        return self._query(statement.limit(bindparam("row_limit", type_=Integer)))


def _arrays(rows: Sequence[StoreRow]) -> dict[str, Value]:
    return {
        "all_entity_key": [row.entity_key for row in rows],
        "all_key": [row.key.encode() for row in rows],
        "all_seq": [row.seq for row in rows],
        "all_rec": [row.rec for row in rows],
        "all_updated_at_ms": [row.updated_at_ms for row in rows],
    }


def _row_by_row(rows: Iterable[StoreRow]) -> list[Value]:
    values: list[Value] = []
    for row in rows:
        values += (row.entity_key, row.key.encode(), row.seq, row.rec, row.updated_at_ms)
    return values


def _numbered(rows: Iterable[StoreRow]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for index, row in enumerate(rows):
        values[f"entity_key_{index}"] = row.entity_key
        values[f"key_{index}"] = row.key.encode()
        values[f"seq_{index}"] = row.seq
    return values


def _binds(index: int, *names: str) -> list[ColumnElement[Any]]:
    return [
        bindparam(f"{name}_{index}", type_=BigInteger() if name == "seq" else LargeBinary()) for name in names
    ]


def _array_upsert(table: Table) -> ClauseElement:
    upsert = postgresql.insert(table).from_select(COLUMNS, select(_batch_of_arrays()))
    return upsert.on_conflict_do_update(
        index_elements=["entity_key", "key"],
        set_={name: upsert.excluded[name] for name in COLUMNS[2:]},
        where=upsert.excluded.seq >= table.c.seq,
    ).returning(table.c.entity_key, table.c.key, table.c.seq)


def _batch_of_arrays() -> TableValuedAlias:
    """Return the rows of a batch that comes as one array per column."""
    types: tuple[LargeBinary | BigInteger, ...] = (
        LargeBinary(),
        LargeBinary(),
        BigInteger(),
        LargeBinary(),
        BigInteger(),
    )
    named = list(zip(COLUMNS, types, strict=True))
    arrays: list[ColumnElement[Any]] = [bindparam(f"all_{name}", type_=ARRAY(each)) for name, each in named]
    columns: list[ColumnElement[Any]] = [column(name, each) for name, each in named]
    return func.unnest(*arrays).table_valued(*columns, name="incoming").render_derived()


def _on_duplicate_key(table: Table, insert: mysql.Insert) -> mysql.Insert:
    columns, incoming = table.c, insert.inserted

    def guarded(name: str) -> tuple[str, ColumnElement[Any]]:
        return name, func.IF(incoming.seq >= columns.seq, incoming[name], columns[name])

    # In this order: the assignments happen one after the other, and the guard reads the old seq.
    return insert.on_duplicate_key_update(
        [guarded("rec"), guarded("updated_at_ms"), ("seq", func.GREATEST(columns.seq, incoming.seq))]
    )

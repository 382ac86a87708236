"""The table of long-term rows: its columns, its DDL per dialect, and how a prefix becomes a range.

The key is stored as its UTF-8 bytes in a binary column, on every dialect. A text column would not do:
PostgreSQL's TEXT refuses the character NUL, and text compares by the database's collation, which may ignore
case, take two spellings for one, or sort in an order that no other backend has. Bytes compare as bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import URL, BigInteger, Column, LargeBinary, MetaData, Table
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY

from beam_agents.memory.stores.contract import MAX_ENTITY_KEY_BYTES, MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Dialect

    from beam_agents.memory.stores.uri import Backend, StoreUri

__all__ = ["DDL", "ddl_statements", "dialect_of", "longterm_table", "successor"]

DEFAULT_TABLE: Final = "beam_agents_longterm"

DDL: Final = f"""\
CREATE TABLE {DEFAULT_TABLE} (
  entity_key BYTEA NOT NULL,
  key BYTEA NOT NULL,
  seq BIGINT NOT NULL,
  rec BYTEA NOT NULL,
  updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY (entity_key, key)
)"""
"""The table on PostgreSQL. ``beam-agents store provision URI --print`` shows it for any dialect and name."""

_SQLITE_DDL: Final = DDL.replace("BYTEA", "BLOB")

# InnoDB by name: another engine has no transactions, and the server's default may be another. The two keys
# take 1,024 of the 3,072 bytes that an index may have.
_MYSQL_DDL: Final = f"""\
CREATE TABLE {DEFAULT_TABLE} (
  entity_key VARBINARY({MAX_ENTITY_KEY_BYTES}) NOT NULL,
  `key` VARBINARY({MAX_KEY_BYTES}) NOT NULL,
  seq BIGINT NOT NULL,
  rec LONGBLOB NOT NULL,
  updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY (entity_key, `key`)
) ENGINE=InnoDB"""


def ddl_statements(backend: Backend, table: str) -> tuple[str, ...]:
    """Return what creates the table in an empty database, statement by statement."""
    match backend:
        case "sqlite":
            # The journal's mode stays in the file; with a write-ahead log readers and a writer don't wait.
            statements: tuple[str, ...] = ("PRAGMA journal_mode = WAL", _SQLITE_DDL)
            quoted = f'"{table}"'
        case "mysql" | "mariadb":
            statements, quoted = (_MYSQL_DDL,), f"`{table}`"
        case _:
            statements, quoted = (DDL,), f'"{table}"'
    if table == DEFAULT_TABLE:
        return statements
    return tuple(statement.replace(DEFAULT_TABLE, quoted) for statement in statements)


def dialect_of(uri: StoreUri, paramstyle: str | None) -> Dialect:
    """Return what statements are compiled for."""
    dialect_class: Callable[..., Dialect] = URL.create(uri.scheme).get_dialect()
    return dialect_class() if paramstyle is None else dialect_class(paramstyle=paramstyle)


def longterm_table(name: str) -> Table:
    """Return the table as SQLAlchemy knows it."""
    return Table(
        name,
        MetaData(),
        Column(
            "entity_key",
            LargeBinary().with_variant(VARBINARY(MAX_ENTITY_KEY_BYTES), "mysql", "mariadb"),
            primary_key=True,
        ),
        Column(
            "key",
            LargeBinary().with_variant(VARBINARY(MAX_KEY_BYTES), "mysql", "mariadb"),
            primary_key=True,
        ),
        Column("seq", BigInteger, nullable=False),
        Column("rec", LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb"), nullable=False),
        Column("updated_at_ms", BigInteger, nullable=False),
    )


def successor(prefix: bytes) -> bytes:
    """Return the lowest bytes that are above all that begin with ``prefix``, which is UTF-8 and not empty."""
    # No byte of UTF-8 is 0xff, so the last one can always be raised.
    return prefix[:-1] + bytes([prefix[-1] + 1])

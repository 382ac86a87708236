"""What the drivers raise, as the project's own errors.

The drivers agree on no classes, so the databases' own codes decide: PostgreSQL's SQLSTATE, MySQL's error
number, SQLite's result code. The text of an error is never shown: it may quote a row.
"""

from __future__ import annotations

import sqlite3
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from beam_agents.errors import StoreError, StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.tls import RootsUnreadable, is_untrusted, speaks_no_tls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["is_missing_table", "is_read_only", "translate"]


class _Fault(Enum):
    """What is wrong."""

    UNAVAILABLE = auto()
    TIMEOUT = auto()
    NO_TABLE = auto()
    NO_DATABASE = auto()
    NO_FILE = auto()
    LOGIN = auto()
    CERTIFICATE = auto()
    NO_ROOTS = auto()
    NO_TLS = auto()
    NEEDS_TLS = auto()
    PERMISSION = auto()
    READ_ONLY = auto()
    TOO_LARGE = auto()
    SHAPE = auto()
    BROKEN_FILE = auto()
    OTHER = auto()


# By SQLSTATE, or by its first two characters, the class.
_POSTGRESQL: Final[Mapping[str, _Fault]] = {
    "08": _Fault.UNAVAILABLE,  # the connection broke
    "0A000": _Fault.UNAVAILABLE,  # a prepared statement whose table was made anew; the next try prepares it
    "22001": _Fault.TOO_LARGE,
    "25006": _Fault.READ_ONLY,
    "28": _Fault.LOGIN,
    "3D000": _Fault.NO_DATABASE,
    "3F000": _Fault.NO_TABLE,
    "40": _Fault.UNAVAILABLE,  # deadlocks, serialization failures
    "42501": _Fault.PERMISSION,
    "42P01": _Fault.NO_TABLE,
    "42": _Fault.SHAPE,
    "53": _Fault.UNAVAILABLE,  # disk full, out of memory, too many connections
    "54": _Fault.TOO_LARGE,
    "55": _Fault.UNAVAILABLE,  # a lock that is not to be had
    "57014": _Fault.TIMEOUT,
    "57": _Fault.UNAVAILABLE,  # the server stops or starts
    "58": _Fault.UNAVAILABLE,  # an I/O error on the server
}

_MYSQL: Final[Mapping[int, _Fault]] = {
    1021: _Fault.UNAVAILABLE,  # disk full
    1037: _Fault.UNAVAILABLE,  # out of memory
    1040: _Fault.UNAVAILABLE,  # too many connections
    1041: _Fault.UNAVAILABLE,  # out of memory
    1044: _Fault.PERMISSION,
    1045: _Fault.LOGIN,
    1049: _Fault.NO_DATABASE,
    1053: _Fault.UNAVAILABLE,  # shutting down
    1054: _Fault.SHAPE,  # no such column
    1114: _Fault.UNAVAILABLE,  # the table is full
    1129: _Fault.UNAVAILABLE,  # the host is blocked after too many failed connections
    1130: _Fault.LOGIN,  # the host may not connect
    1136: _Fault.SHAPE,
    1142: _Fault.PERMISSION,
    1143: _Fault.PERMISSION,
    1146: _Fault.NO_TABLE,
    1153: _Fault.TOO_LARGE,  # max_allowed_packet
    1203: _Fault.UNAVAILABLE,  # too many connections of this user
    1205: _Fault.UNAVAILABLE,  # waited too long for a lock
    1213: _Fault.UNAVAILABLE,  # deadlock
    1226: _Fault.UNAVAILABLE,  # the user's quota
    1227: _Fault.PERMISSION,
    1290: _Fault.READ_ONLY,
    1317: _Fault.TIMEOUT,  # interrupted
    1364: _Fault.SHAPE,
    1366: _Fault.SHAPE,
    1406: _Fault.TOO_LARGE,
    1698: _Fault.LOGIN,
    1792: _Fault.READ_ONLY,
    1836: _Fault.READ_ONLY,
    1927: _Fault.UNAVAILABLE,  # killed
    1969: _Fault.TIMEOUT,
    2020: _Fault.TOO_LARGE,
    3024: _Fault.TIMEOUT,
    3159: _Fault.NEEDS_TLS,
}

_MYSQL_CLIENT: Final = range(2000, 3000)
"""What the driver raises, most of all where it lost the connection."""

_SQLITE: Final[Mapping[int, _Fault]] = {
    sqlite3.SQLITE_PERM: _Fault.PERMISSION,
    sqlite3.SQLITE_BUSY: _Fault.UNAVAILABLE,
    sqlite3.SQLITE_LOCKED: _Fault.UNAVAILABLE,
    sqlite3.SQLITE_NOMEM: _Fault.UNAVAILABLE,
    sqlite3.SQLITE_READONLY: _Fault.READ_ONLY,
    sqlite3.SQLITE_INTERRUPT: _Fault.TIMEOUT,
    sqlite3.SQLITE_IOERR: _Fault.UNAVAILABLE,
    sqlite3.SQLITE_CORRUPT: _Fault.BROKEN_FILE,
    sqlite3.SQLITE_FULL: _Fault.UNAVAILABLE,
    sqlite3.SQLITE_CANTOPEN: _Fault.NO_FILE,
    sqlite3.SQLITE_PROTOCOL: _Fault.UNAVAILABLE,
    sqlite3.SQLITE_SCHEMA: _Fault.UNAVAILABLE,
    sqlite3.SQLITE_TOOBIG: _Fault.TOO_LARGE,
    sqlite3.SQLITE_MISMATCH: _Fault.SHAPE,
    sqlite3.SQLITE_AUTH: _Fault.PERMISSION,
    sqlite3.SQLITE_NOTADB: _Fault.BROKEN_FILE,
}


def translate(error: Exception, uri: StoreUri, operation: str) -> StoreError | None:
    """Return what to raise instead of a driver's error; None if it is no driver's.

    Args:
        error: What was raised.
        uri: The store.
        operation: What was asked of it.
    """
    fault = _fault(error, uri)
    if fault is None:
        return None
    cause = type(error).__name__
    if fault is _Fault.TIMEOUT:
        return StoreTimeout(uri.backend, operation, cause)
    if fault is _Fault.UNAVAILABLE:
        return StoreUnavailable(uri.backend, operation, cause)
    return StoreRejected(uri.backend, operation, cause, problem=_problem(fault, uri, error))


def is_missing_table(error: Exception) -> bool:
    """Tell whether a driver's error says that the table is not there."""
    return _code_fault(error) is _Fault.NO_TABLE


def is_read_only(error: Exception) -> bool:
    """Tell whether a driver's error says that this connection may not write."""
    return _code_fault(error) is _Fault.READ_ONLY


def _fault(error: Exception, uri: StoreUri) -> _Fault | None:
    # asyncmy hides a timeout in an error of its own.
    if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
        return _Fault.TIMEOUT
    fault = _tls_fault(error) or _code_fault(error)
    if fault is not None:
        return fault
    if isinstance(error, OSError):
        return _Fault.UNAVAILABLE
    if type(error).__module__.partition(".")[0] == uri.scheme.partition("+")[2]:
        return _Fault.UNAVAILABLE if _lost(error) else _Fault.OTHER
    # What aiosqlite raises on a connection that was closed.
    return _Fault.UNAVAILABLE if isinstance(error, ValueError) and uri.backend == "sqlite" else None


def _tls_fault(error: Exception) -> _Fault | None:
    if isinstance(error, RootsUnreadable):
        return _Fault.NO_ROOTS
    if is_untrusted(error):
        return _Fault.CERTIFICATE
    # asyncpg's own, whereas the system's errors are of classes below this one.
    rejected = type(error) is ConnectionError and "rejected SSL upgrade" in str(error)
    return _Fault.NO_TLS if rejected or speaks_no_tls(error) else None


def _lost(error: Exception) -> bool:
    """Tell whether the connection is what failed."""
    # Drivers raise these, without a code, where they, not the server, noticed.
    return type(error).__name__ in {"InterfaceError", "OperationalError", "InternalClientError"}


def _code_fault(error: Exception) -> _Fault | None:
    if isinstance(error, sqlite3.Error):
        return _sqlite_fault(error)
    number = error.args[0] if error.args else None
    if isinstance(number, int) and type(error).__module__.startswith("asyncmy"):
        return _MYSQL.get(number, _Fault.UNAVAILABLE if number in _MYSQL_CLIENT else _Fault.OTHER)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return _POSTGRESQL.get(state) or _POSTGRESQL.get(state[:2], _Fault.OTHER)
    return None


def _sqlite_fault(error: sqlite3.Error) -> _Fault | None:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # Raised by the driver: the connection was closed.
        return _Fault.UNAVAILABLE
    # The low byte is the primary result code.
    if code & 0xFF == sqlite3.SQLITE_ERROR:
        # One code for all mistakes in a statement.
        return _Fault.NO_TABLE if "no such table" in str(error) else _Fault.SHAPE
    return _SQLITE.get(code & 0xFF)


_PROBLEMS: Final[Mapping[_Fault, str]] = {
    _Fault.NO_TABLE: "there is no table {table}; create it with: {provision}",
    _Fault.NO_DATABASE: "there is no database {database}; create it on the server, then: {provision}",
    _Fault.NO_FILE: (
        "the database file, or its folder, is missing or may not be opened; create the folder, let the "
        "workers read and write it, then: {provision}"
    ),
    _Fault.LOGIN: (
        "the server refused the user or the password, or lets nobody in from here, or without TLS (sslmode); "
        "mend the URI, or the user on the server"
    ),
    _Fault.CERTIFICATE: (
        "the server's TLS certificate does not verify; name the host as the certificate does, and name the "
        "authority that signed it in the option sslrootcert"
    ),
    _Fault.NO_ROOTS: (
        "the file that the option sslrootcert names is missing, may not be read, or holds no certificate"
    ),
    _Fault.NO_TLS: "the server offers no TLS; turn it on there, or set the option sslmode=disable",
    _Fault.NEEDS_TLS: "the server takes TLS connections alone; set the option sslmode=verify-full",
    _Fault.PERMISSION: (
        "the user lacks a permission; workers need SELECT, INSERT and UPDATE on {table}, beam-agents store "
        "trim needs DELETE, and store provision needs CREATE"
    ),
    _Fault.READ_ONLY: "the database is read-only; let the workers write, or name the primary in the URI",
    _Fault.TOO_LARGE: (
        "a row or batch is larger than the database takes; save smaller values, or on MySQL and MariaDB set "
        "max_allowed_packet to 16 MiB or more"
    ),
    _Fault.SHAPE: (
        "table {table} has not the columns that the store needs; compare it with: {provision} --print"
    ),
    _Fault.BROKEN_FILE: "the file is no SQLite database, or is damaged; restore it from a backup",
    _Fault.OTHER: "the database refused the call ({code})",
}


def _problem(fault: _Fault, uri: StoreUri, error: Exception) -> str:
    return _PROBLEMS[fault].format(
        table=uri.options.table,
        database=uri.database,
        provision=f"beam-agents store provision {uri.redacted}",
        code=_code(error),
    )


def _code(error: Exception) -> str:
    """Return a code to look up in the database's manual."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", "no code")
    number = error.args[0] if error.args else None
    if isinstance(number, int):
        return f"error {number}"
    return f"SQLSTATE {getattr(error, 'sqlstate', None) or 'unknown'}"

"""The URI that names a long-term store: its grammar, and how it is shown without its password.

No client library is imported here: a URI is checked where the pipeline is built, which may be a machine
that has none of them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["GRAMMAR", "Backend", "StoreOptions", "StoreUri", "parse_store_uri", "redact"]

Backend: TypeAlias = Literal[
    "inprocess", "redis", "bigtable", "firestore", "postgresql", "sqlite", "mysql", "mariadb"
]
"""The values of the ``backend`` label."""

GRAMMAR: Final = """\
memory://
redis://[[user]:password@]host[:port][/db]
rediss://[[user]:password@]host[:port][/db]  (TLS)
bigtable://project/instance/table
firestore://project/collection
postgresql+asyncpg://[user[:password]@]host[:port]/database
postgresql+psycopg://[user[:password]@]host[:port]/database
mysql+asyncmy://[user[:password]@]host[:port]/database
mariadb+asyncmy://[user[:password]@]host[:port]/database
sqlite+aiosqlite:///relative/file or sqlite+aiosqlite:////absolute/file"""

MAX_SHOWN: Final = 200
"""Characters of a URI that are shown."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What a URI's query sets, with its defaults. Each backend takes some of them.

    Attributes:
        connect_timeout_s: Seconds that making a connection may take.
        operation_timeout_s: Seconds that one call may take.
        pool_size: Connections of one worker process.
        probe_period_s: Seconds between two health probes of one worker process.
        table: The SQL table.
        sslmode: How a SQL server is reached, in libpq's words: ``disable``, ``require`` (encrypted, and
            whoever answers is trusted), ``verify-ca``, ``verify-full``; empty for the driver's own default.
        sslrootcert: The PEM file of the authorities that are trusted; empty for the system's.
        key_prefix: What Redis keys begin with.
        app_profile: The Bigtable application profile; empty for the instance's default.
        database: The Firestore database.
    """

    connect_timeout_s: float = 2.0
    operation_timeout_s: float = 5.0
    pool_size: int = 8
    probe_period_s: float = 10.0
    table: str = "beam_agents_longterm"
    sslmode: str = ""
    sslrootcert: str = ""
    key_prefix: str = "beam-agents:"
    app_profile: str = ""
    database: str = "(default)"


@dataclass(frozen=True, slots=True)
class StoreUri:
    """A checked URI, in parts, percent-decoded. Equal URIs name the same store, and may share a client.

    Attributes:
        backend: The backend, as metrics are labelled with it.
        scheme: The URI's scheme; for SQL, SQLAlchemy's driver name.
        host: The server; empty where there is none to name. An IPv6 address has no brackets.
        port: The server's port, the backend's usual one where the URI has none; 0 where there is none.
        username: The user; empty for none.
        password: The password; empty for none. Not shown.
        database: The SQL database, SQLite's file, or the number of a Redis database.
        project: The Google Cloud project.
        instance: The Bigtable instance.
        table: The Bigtable table.
        collection: The Firestore collection.
        options: What the query sets.
        redacted: The URI as it may be shown.
    """

    backend: Backend
    scheme: str
    host: str = ""
    port: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    project: str = ""
    instance: str = ""
    table: str = ""
    collection: str = ""
    options: StoreOptions = field(default_factory=StoreOptions)
    redacted: str = field(default="", compare=False)

    @property
    def tls(self) -> bool:
        """Whether the scheme asks for TLS."""
        return self.scheme == "rediss"

    def __str__(self) -> str:
        return self.redacted


def parse_store_uri(uri: str) -> StoreUri:
    """Check a store's URI and take it apart.

    Raises:
        TypeError: It is no str.
        ValueError: It does not follow the grammar. The text names ``AgentConfig.longterm_memory``, shows the
            URI without its password, and says what is wrong and what would be right.
    """
    if not isinstance(uri, str):
        raise TypeError(f"AgentConfig.longterm_memory must be a URI as a str, not {type(uri).__name__}")
    try:
        return _parse(uri)
    except _Malformed as problem:
        # Without its cause, whose frames hold the URI as it was given.
        raise ValueError(
            f"AgentConfig.longterm_memory {redact(uri)!r}: {problem}. It must be one of:\n{GRAMMAR}"
        ) from None


class _Malformed(Exception):
    """What is wrong with a URI; holds nothing of it that could be secret."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """A URI, split and not yet decoded."""

    scheme: str
    userinfo: str | None
    host: str
    port: str | None
    path: str
    query: str | None


_UNSPLITTABLE: Final = re.compile(r"[^\x21-\x7e]")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def _parse(uri: str) -> StoreUri:
    if _UNSPLITTABLE.search(uri):
        raise _Malformed(
            "a URI has no white space, control or non-ASCII characters; percent-encode what belongs to a name"
        )
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise _Malformed("it has no ://")
    parser = _PARSERS.get(scheme)
    if parser is None:
        _refuse_scheme(scheme)
    parts = _split(scheme, rest)
    blank = StoreUri(parser.backend, scheme, redacted=redact(uri))
    return replace(parser.parse(parts, blank), options=_options(parts.query, parser.options))


def _refuse_scheme(scheme: str) -> NoReturn:
    dialect = scheme.partition("+")[0]
    instead = _ASYNC_DRIVERS.get(dialect)
    if instead is None:
        raise _Malformed("its scheme is unknown")
    written = " or ".join(f"{each}://…" for each in instead)
    raise _Malformed(f"the store needs an async driver for {dialect}: write {written}")


def _split(scheme: str, rest: str) -> _Parts:
    if "#" in rest:
        raise _Malformed("it has a #; write it as %23 where it belongs to a name or password")
    before_query, question, query = rest.partition("?")
    authority, slash, path = before_query.partition("/")
    userinfo, at, server = authority.rpartition("@")
    if "@" in userinfo or "@" in path or "@" in query:
        raise _Malformed("it has an @ too many; write it as %40 where it belongs to a name or password")
    if _BAD_PERCENT.search(rest):
        raise _Malformed("it has a % that two hexadecimal digits do not follow; a percent sign itself is %25")
    if server.startswith("["):
        host, bracket, after = server[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise _Malformed("its host begins with [ and is no IPv6 address in brackets")
        host, port = f"[{host}]", after[1:] if after else None
    else:
        host, colon, digits = server.partition(":")
        port = digits if colon else None
    return _Parts(scheme, userinfo if at else None, host, port, slash + path, query if question else None)


def _decode(part: str, what: str) -> str:
    try:
        decoded = unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError:
        raise _Malformed(f"the percent-encoding of its {what} is no UTF-8") from None
    if _CONTROL.search(decoded):
        raise _Malformed(f"its {what} has a percent-encoded control character")
    return decoded


_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_MAX_PORT: Final = 65_535


def _server(parts: _Parts, uri: StoreUri, default_port: int) -> StoreUri:
    """Read host, port, user and password."""
    if not parts.host:
        raise _Malformed("its host is missing")
    host = parts.host
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise _Malformed("its host begins with [ and is no IPv6 address in brackets") from None
    elif not _HOST.fullmatch(host):
        raise _Malformed("its host is no host's name (letters, digits, dots, hyphens) and no address")
    port = default_port
    if parts.port is not None:
        if not _PORT.fullmatch(parts.port) or not 1 <= int(parts.port) <= _MAX_PORT:
            raise _Malformed(
                f"its port must be a number from 1 to {_MAX_PORT}; a password goes before an @, as in "
                "user:password@host"
            )
        port = int(parts.port)
    username, _, password = (parts.userinfo or "").partition(":")
    return replace(
        uri,
        host=host,
        port=port,
        username=_decode(username, "user"),
        password=_decode(password, "password"),
    )


def _no_server(parts: _Parts, what: str) -> None:
    """Refuse a user, password or port where what follows :// is no server."""
    if parts.userinfo is not None:
        raise _Malformed(f"{what} takes no user and no password")
    if parts.port is not None:
        raise _Malformed(f"{what} takes no port")


def _parse_memory(parts: _Parts, uri: StoreUri) -> StoreUri:
    _no_server(parts, "memory://")
    if parts.host or parts.path:
        raise _Malformed("memory:// takes no host and no path")
    return uri


_REDIS_DB: Final = re.compile(r"[0-9]{1,5}")


def _parse_redis(parts: _Parts, uri: StoreUri) -> StoreUri:
    uri = _server(parts, uri, 6379)
    database = parts.path[1:] or "0"
    if not _REDIS_DB.fullmatch(database):
        raise _Malformed("the path of a Redis URI is the database's number, such as /0")
    return replace(uri, database=str(int(database)))


_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
_BIGTABLE_NAME: Final = re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}")
_RESERVED_ID: Final = re.compile(r"\.\.?|__.*__")
_MAX_COLLECTION_BYTES: Final = 1500


def _google_names(parts: _Parts, names: tuple[str, ...]) -> list[str]:
    """Return the project and the path's segments, as many as there are names."""
    _no_server(parts, f"{parts.scheme}://")
    given = [parts.host, *parts.path.split("/")[1:]]
    missing = [name for index, name in enumerate(names) if not "".join(given[index : index + 1])]
    if missing:
        raise _Malformed(f"its {' and '.join(missing)} is missing")
    if len(given) > len(names):
        raise _Malformed(f"it has more than {', '.join(names[:-1])} and {names[-1]}")
    if not _PROJECT.fullmatch(given[0]):
        raise _Malformed("its project is no project's id (letters, digits, hyphens)")
    return given


def _parse_bigtable(parts: _Parts, uri: StoreUri) -> StoreUri:
    project, instance, table = _google_names(parts, ("project", "instance", "table"))
    if not _INSTANCE.fullmatch(instance):
        raise _Malformed("its instance is no instance's id (letters, digits, hyphens; at most 50)")
    if not _BIGTABLE_NAME.fullmatch(table):
        raise _Malformed("its table is no table's id (letters, digits, _ - . ; at most 50)")
    return replace(uri, project=project, instance=instance, table=table)


def _parse_firestore(parts: _Parts, uri: StoreUri) -> StoreUri:
    project, collection = _google_names(parts, ("project", "collection"))
    collection = _decode(collection, "collection")
    if (
        "/" in collection
        or _RESERVED_ID.fullmatch(collection)
        or len(collection.encode()) > _MAX_COLLECTION_BYTES
    ):
        raise _Malformed(
            "its collection must be the id of a top-level collection: no /, not . or .., not __…__, at most "
            f"{_MAX_COLLECTION_BYTES} bytes"
        )
    return replace(uri, project=project, collection=collection)


def _parse_postgresql(parts: _Parts, uri: StoreUri) -> StoreUri:
    return replace(_server(parts, uri, 5432), database=_database(parts))


def _parse_mysql(parts: _Parts, uri: StoreUri) -> StoreUri:
    return replace(_server(parts, uri, 3306), database=_database(parts))


def _database(parts: _Parts) -> str:
    database = parts.path[1:]
    if not database:
        raise _Malformed("its database is missing")
    if "/" in database:
        raise _Malformed("its database has a /; write it as %2F where it belongs to the name")
    return _decode(database, "database")


def _parse_sqlite(parts: _Parts, uri: StoreUri) -> StoreUri:
    _no_server(parts, "sqlite+aiosqlite://")
    if parts.host:
        raise _Malformed(
            "its file needs three slashes before a relative path and four before an absolute one"
        )
    path = _decode(parts.path[1:], "file")
    if not path or path.endswith("/"):
        raise _Malformed("its file is missing")
    if path == ":memory:" or path.startswith("file:"):
        raise _Malformed("its file must be a plain path; for a store in the process's memory write memory://")
    return replace(uri, database=path)


@dataclass(frozen=True, slots=True)
class _Option:
    """One query option: what its value looks like, and how it is set. A range where it is a number."""

    form: str
    pattern: re.Pattern[str]
    put: Callable[[StoreOptions, str], StoreOptions]
    range: tuple[float, float] | None = None


_SECONDS: Final = "a number of seconds from 0.001 to 3600"
_SECONDS_RANGE: Final = (0.001, 3600)
_NUMBER: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,6})?")
_OPTIONS: Final[Mapping[str, _Option]] = {
    "connect_timeout_s": _Option(
        _SECONDS,
        _NUMBER,
        lambda options, text: replace(options, connect_timeout_s=float(text)),
        _SECONDS_RANGE,
    ),
    "operation_timeout_s": _Option(
        _SECONDS,
        _NUMBER,
        lambda options, text: replace(options, operation_timeout_s=float(text)),
        _SECONDS_RANGE,
    ),
    "pool_size": _Option(
        "a number of connections from 1 to 1000",
        re.compile(r"[0-9]{1,4}"),
        lambda options, text: replace(options, pool_size=int(text)),
        (1, 1000),
    ),
    "probe_period_s": _Option(
        _SECONDS,
        _NUMBER,
        lambda options, text: replace(options, probe_period_s=float(text)),
        _SECONDS_RANGE,
    ),
    "table": _Option(
        "a table's name (letters, digits, _; at most 63)",
        re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}"),
        lambda options, text: replace(options, table=text),
    ),
    "sslmode": _Option(
        "disable, require, verify-ca or verify-full",
        re.compile(r"disable|require|verify-ca|verify-full"),
        lambda options, text: replace(options, sslmode=text),
    ),
    "sslrootcert": _Option(
        "a file's path",
        re.compile(r".{1,4096}"),
        lambda options, text: replace(options, sslrootcert=text),
    ),
    "key_prefix": _Option(
        "a prefix of at most 100 letters, digits and _ - . : /",
        re.compile(r"[A-Za-z0-9_.:/-]{1,100}"),
        lambda options, text: replace(options, key_prefix=text),
    ),
    "app_profile": _Option(
        "an application profile's id (letters, digits, _ - . ; at most 50)",
        _BIGTABLE_NAME,
        lambda options, text: replace(options, app_profile=text),
    ),
    "database": _Option(
        "a database's id (lower-case letters, digits, hyphens; at most 63) or (default)",
        re.compile(r"\(default\)|[a-z0-9-]{1,63}"),
        lambda options, text: replace(options, database=text),
    ),
}
_OPTION_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")


def _options(query: str | None, allowed: tuple[str, ...]) -> StoreOptions:
    options = StoreOptions()
    if query is None:
        return options
    seen: set[str] = set()
    for item in query.split("&"):
        name, equals, raw = item.partition("=")
        if name not in allowed:
            # What does not look like an option may be a piece of a password.
            shown = f"option {name}" if equals and _OPTION_NAME.fullmatch(name) else "an option"
            takes = f"it takes: {', '.join(allowed)}" if allowed else "it takes none"
            raise _Malformed(f"it has {shown} that this backend does not take; {takes}")
        if name in seen:
            raise _Malformed(f"option {name} is there twice")
        seen.add(name)
        option = _OPTIONS[name]
        text = _decode(raw, f"option {name}")
        if not option.pattern.fullmatch(text) or not _in_range(text, option.range):
            raise _Malformed(f"option {name} must be {option.form}")
        options = option.put(options, text)
    if options.sslrootcert and not options.sslmode.startswith("verify-"):
        raise _Malformed("option sslrootcert needs sslmode=verify-full, or verify-ca")
    return options


def _in_range(text: str, bounds: tuple[float, float] | None) -> bool:
    return bounds is None or bounds[0] <= float(text) <= bounds[1]


@dataclass(frozen=True, slots=True)
class _Parser:
    """One scheme: its label, its options, and how the rest is read."""

    backend: Backend
    options: tuple[str, ...]
    parse: Callable[[_Parts, StoreUri], StoreUri]


_SERVER_OPTIONS: Final = ("connect_timeout_s", "operation_timeout_s", "pool_size", "probe_period_s")
_REDIS: Final = _Parser("redis", (*_SERVER_OPTIONS, "key_prefix"), _parse_redis)
_SQL_OPTIONS: Final = (*_SERVER_OPTIONS, "table", "sslmode", "sslrootcert")
_POSTGRESQL: Final = _Parser("postgresql", _SQL_OPTIONS, _parse_postgresql)
_PARSERS: Final[Mapping[str, _Parser]] = {
    "memory": _Parser("inprocess", (), _parse_memory),
    "redis": _REDIS,
    "rediss": _REDIS,
    "bigtable": _Parser(
        "bigtable", ("operation_timeout_s", "probe_period_s", "app_profile"), _parse_bigtable
    ),
    "firestore": _Parser(
        "firestore", ("operation_timeout_s", "probe_period_s", "database"), _parse_firestore
    ),
    "postgresql+asyncpg": _POSTGRESQL,
    "postgresql+psycopg": _POSTGRESQL,
    "mysql+asyncmy": _Parser("mysql", _SQL_OPTIONS, _parse_mysql),
    "mariadb+asyncmy": _Parser("mariadb", _SQL_OPTIONS, _parse_mysql),
    "sqlite+aiosqlite": _Parser(
        "sqlite", ("operation_timeout_s", "pool_size", "probe_period_s", "table"), _parse_sqlite
    ),
}
_ASYNC_DRIVERS: Final[Mapping[str, tuple[str, ...]]] = {
    "postgresql": ("postgresql+asyncpg", "postgresql+psycopg"),
    "postgres": ("postgresql+asyncpg", "postgresql+psycopg"),
    "sqlite": ("sqlite+aiosqlite",),
    "mysql": ("mysql+asyncmy",),
    "mariadb": ("mariadb+asyncmy",),
}


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PLAIN_USER: Final = re.compile(r"[^:/?#@]+")
_PLAIN_VALUE: Final = re.compile(r"[A-Za-z0-9_.:/()-]*")
_BRACKETED: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]")
_CUT: Final = "***"


def redact(uri: object) -> str:
    """Return a URI as it may be shown: without its password, also where it is malformed.

    Whatever could be a piece of a password is cut, so of a malformed URI less is left. What no rule can tell
    from a host's port (a password of up to five digits, with the host forgotten) stays. Never raises.
    """
    if not isinstance(uri, str):
        return f"<{type(uri).__name__}>"
    match = _SCHEME.match(uri)
    scheme = match.group() if match else ""
    shown = scheme + _redact_rest(uri[len(scheme) :])
    printable = shown.encode("unicode_escape").decode("ascii")
    return printable if len(printable) <= MAX_SHOWN else f"{printable[:MAX_SHOWN]}..."


def _redact_rest(rest: str) -> str:
    # The last @ of all, not of the authority: a password may hold a / or ? that was not encoded.
    userinfo, at, rest = rest.rpartition("@")
    user, colon, password = userinfo.partition(":")
    shown_user = ""
    if colon and not password:
        # No password before the @: the @ may be its first character, and the host forgotten.
        return _CUT
    if at:
        plain = colon and _PLAIN_USER.fullmatch(user)
        shown_user = f"{user}:{_CUT}@" if plain else f"{_CUT}@"
    rest, fragment, _ = rest.partition("#")
    before_query, question, query = rest.partition("?")
    authority, slash, path = before_query.partition("/")
    # An IPv6 address in brackets has colons of its own.
    match = _BRACKETED.match(authority)
    address = match.group() if match else ""
    name, port_colon, digits = authority[len(address) :].partition(":")
    if port_colon and not (_PORT.fullmatch(digits) and int(digits) <= _MAX_PORT):
        # No port, so it may be a password whose @host was forgotten, with all that follows.
        return f"{shown_user}{address}{name}:{_CUT}"
    shown = f"{shown_user}{authority}{slash}{path}"
    if question:
        shown += f"?{_redact_query(query)}"
    return f"{shown}#{_CUT}" if fragment else shown


def _redact_query(query: str) -> str:
    """Keep options that are known, up to the first that is not."""
    shown: list[str] = []
    for item in query.split("&"):
        name, _, value = item.partition("=")
        if name not in _OPTIONS or not _PLAIN_VALUE.fullmatch(value):
            shown.append(_CUT)
            break
        shown.append(item)
    return "&".join(shown)

"""The grammar of store URIs, and that no password is ever shown."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from beam_agents.memory.stores.uri import GRAMMAR, StoreOptions, StoreUri, parse_store_uri, redact

DEFAULTS = StoreOptions()

GOOD = {
    "memory://": StoreUri("inprocess", "memory"),
    "redis://cache": StoreUri("redis", "redis", host="cache", port=6379, database="0"),
    "redis://cache/": StoreUri("redis", "redis", host="cache", port=6379, database="0"),
    "redis://:p%40ss@cache:7000/3?key_prefix=app:&pool_size=2": StoreUri(
        "redis",
        "redis",
        host="cache",
        port=7000,
        password="p@ss",  # noqa: S106 - made up
        database="3",
        options=replace(DEFAULTS, key_prefix="app:", pool_size=2),
    ),
    "rediss://u:a:b@[::1]:6380/0?connect_timeout_s=0.5&operation_timeout_s=3": StoreUri(
        "redis",
        "rediss",
        host="::1",
        port=6380,
        username="u",
        password="a:b",  # noqa: S106 - made up
        database="0",
        options=replace(DEFAULTS, connect_timeout_s=0.5, operation_timeout_s=3.0),
    ),
    "bigtable://my-project/my-instance/agent-memory?app_profile=batch": StoreUri(
        "bigtable",
        "bigtable",
        project="my-project",
        instance="my-instance",
        table="agent-memory",
        options=replace(DEFAULTS, app_profile="batch"),
    ),
    "firestore://my-project/agent_memory": StoreUri(
        "firestore", "firestore", project="my-project", collection="agent_memory"
    ),
    "firestore://p/caf%C3%A9?database=(default)": StoreUri(
        "firestore", "firestore", project="p", collection="café"
    ),
    "firestore://p/c?database=eu-1": StoreUri(
        "firestore", "firestore", project="p", collection="c", options=replace(DEFAULTS, database="eu-1")
    ),
    "postgresql+asyncpg://app:s3cret@db.example:5433/agents?table=memory": StoreUri(
        "postgresql",
        "postgresql+asyncpg",
        host="db.example",
        port=5433,
        username="app",
        password="s3cret",  # noqa: S106 - made up
        database="agents",
        options=replace(DEFAULTS, table="memory"),
    ),
    "mariadb+asyncmy://db/agents?sslmode=verify-full&sslrootcert=/etc/my%20ca.pem": StoreUri(
        "mariadb",
        "mariadb+asyncmy",
        host="db",
        port=3306,
        database="agents",
        options=replace(DEFAULTS, sslmode="verify-full", sslrootcert="/etc/my ca.pem"),
    ),
    "postgresql+psycopg://app@db/agents": StoreUri(
        "postgresql", "postgresql+psycopg", host="db", port=5432, username="app", database="agents"
    ),
    "mysql+asyncmy://db/agents": StoreUri("mysql", "mysql+asyncmy", host="db", port=3306, database="agents"),
    "mariadb+asyncmy://10.0.0.7/a%2Fb": StoreUri(
        "mariadb", "mariadb+asyncmy", host="10.0.0.7", port=3306, database="a/b"
    ),
    "sqlite+aiosqlite:///run/memory.db": StoreUri("sqlite", "sqlite+aiosqlite", database="run/memory.db"),
    "sqlite+aiosqlite:////var/my%20memory.db": StoreUri(
        "sqlite", "sqlite+aiosqlite", database="/var/my memory.db"
    ),
}

BAD = {
    "": "no ://",
    "redis": "no ://",
    "redis:/cache": "no ://",
    "://cache": "scheme is unknown",
    "http://cache": "scheme is unknown",
    "REDIS://cache": "scheme is unknown",
    "oracle+oracledb://db/x": "scheme is unknown",
    "postgresql://db/x": "write postgresql+asyncpg://… or postgresql+psycopg://…",
    "postgres://db/x": "write postgresql+asyncpg://…",
    "postgresql+psycopg2://db/x": "async driver for postgresql",
    "sqlite:///x.db": "write sqlite+aiosqlite://…",
    "mysql+pymysql://db/x": "write mysql+asyncmy://…",
    "mariadb://db/x": "write mariadb+asyncmy://…",
    "redis://ca che": "white space",
    " redis://cache": "white space",
    "redis://cache\n": "white space",
    "redis://cache\x00": "white space, control",
    "redis://cäche": "non-ASCII",
    "redis://cache#x": "write it as %23",
    "redis://u:p@ss@cache": "write it as %40",
    "redis://u:p/q@cache": "write it as %40",
    "redis://u:p%zz@cache": "%25",
    "redis://u:p%ff@cache": "password is no UTF-8",
    "redis://u:p%00@cache": "percent-encoded control character",
    "redis://": "host is missing",
    "redis:///0": "host is missing",
    "redis://:6379/0": "host is missing",
    "redis://-cache": "no host's name",
    "redis://ca%63he": "no host's name",
    "redis://cache:": "port must be",
    "redis://cache:0": "port must be",
    "redis://cache:65536": "port must be",
    "redis://cache:six": "port must be",
    "redis://cache:+1": "port must be",
    "redis://user:hunter2": "user:password@host",
    "redis://::1/0": "host is missing",
    "redis://[::1/0": "IPv6",
    "redis://[::1]x/0": "IPv6",
    "redis://[zz]/0": "IPv6",
    "redis://cache/zero": "database's number",
    "redis://cache/0/1": "database's number",
    "redis://cache/-1": "database's number",
    "postgresql+asyncpg://db/x?sslmode=prefer": "sslmode must be disable, require",
    "postgresql+asyncpg://db/x?sslmode=": "sslmode must be disable, require",
    "postgresql+asyncpg://db/x?sslmode=require&sslrootcert=/ca.pem": "needs sslmode=verify-full",
    "mysql+asyncmy://db/x?sslrootcert=/ca.pem": "needs sslmode=verify-full",
    "mysql+asyncmy://db/x?sslmode=verify-ca&sslrootcert=": "sslrootcert must be a file's path",
    "redis://cache/0?sslmode=require": "does not take",
    "redis://cache/0?": "does not take",
    "redis://cache/0?pool_size": "pool_size must be a number",
    "redis://cache/0?pool_size=": "pool_size must be a number",
    "redis://cache/0?pool_size=0": "pool_size must be a number",
    "redis://cache/0?pool_size=2.5": "pool_size must be a number",
    "redis://cache/0?pool_size=1e3": "pool_size must be a number",
    "redis://cache/0?pool_size=2&pool_size=2": "there twice",
    "redis://cache/0?connect_timeout_s=0": "seconds from 0.001",
    "redis://cache/0?connect_timeout_s=nan": "seconds from 0.001",
    "redis://cache/0?connect_timeout_s=5000": "seconds from 0.001",
    "redis://cache/0?key_prefix=a%20b": "key_prefix must be",
    "redis://cache/0?table=x": "option table that this backend does not take; it takes: connect_timeout_s",
    "redis://cache/0?pool_sise=3": "option pool_sise",
    "redis://cache/0?password=hunter2": "option password",
    "memory://host": "no host",
    "memory:///x": "no host and no path",
    "memory://u:p@": "no user",
    "memory://?pool_size=2": "it takes none",
    "bigtable://": "project and instance and table is missing",
    "bigtable://p": "instance and table is missing",
    "bigtable://p/i": "table is missing",
    "bigtable://p//t": "instance is missing",
    "bigtable:///i/t": "project is missing",
    "bigtable://p/i/t/x": "more than",
    "bigtable://p/i/t/": "more than",
    "bigtable://u@p/i/t": "no user",
    "bigtable://p:80/i/t": "no port",
    "bigtable://p$/i/t": "no project's id",
    "bigtable://p/i$/t": "no instance's id",
    "bigtable://p/i/t$": "no table's id",
    "bigtable://p/i/t?app_profile=a/b": "app_profile must be",
    "firestore://p": "collection is missing",
    "firestore://p/a/b": "more than",
    "firestore://p/a%2Fb": "top-level collection",
    "firestore://p/..": "top-level collection",
    "firestore://p/__x__": "top-level collection",
    "firestore://p/" + "c" * 1501: "1500 bytes",
    "firestore://p/c?database=Big": "database must be",
    "postgresql+asyncpg://db": "database is missing",
    "postgresql+asyncpg://db/": "database is missing",
    "postgresql+asyncpg:///agents": "host is missing",
    "postgresql+asyncpg://db/a/b": "%2F",
    "postgresql+asyncpg://db/a?table=drop table": "white space",
    "postgresql+asyncpg://db/a?table=a-b": "table must be",
    "sqlite+aiosqlite://": "file is missing",
    "sqlite+aiosqlite:///": "file is missing",
    "sqlite+aiosqlite:///run/": "file is missing",
    "sqlite+aiosqlite://run/x.db": "three slashes",
    "sqlite+aiosqlite:///:memory:": "write memory://",
    "sqlite+aiosqlite:///file:x?mode=memory": "plain path",
}


@pytest.mark.parametrize("uri", GOOD)
def test_good_uri_is_taken_apart(uri: str) -> None:
    parsed = parse_store_uri(uri)
    assert parsed == GOOD[uri]
    assert parsed.redacted == redact(uri)
    assert pickle.loads(pickle.dumps(parsed)) == parsed  # noqa: S301 - our own bytes


@pytest.mark.parametrize("uri", BAD)
def test_bad_uri_is_refused_with_what_would_be_right(uri: str) -> None:
    with pytest.raises(ValueError, match=r"AgentConfig\.longterm_memory") as caught:
        parse_store_uri(uri)
    text = str(caught.value)
    assert BAD[uri] in text
    assert GRAMMAR in text
    assert "hunter2" not in text
    assert caught.value.__cause__ is None


def test_every_scheme_of_the_grammar_is_known() -> None:
    for line in GRAMMAR.splitlines():
        scheme = line.partition("://")[0]
        assert any(uri.startswith(f"{scheme}://") for uri in GOOD), scheme


@pytest.mark.parametrize("uri", [None, b"redis://cache", 7])
def test_what_is_no_str_is_a_type_error(uri: object) -> None:
    with pytest.raises(TypeError, match=r"AgentConfig\.longterm_memory"):
        parse_store_uri(uri)  # type: ignore[arg-type]


def test_no_form_of_a_parsed_uri_shows_the_password() -> None:
    parsed = parse_store_uri("postgresql+asyncpg://app:hunter2@db/agents")
    assert parsed.password == "hunter2"  # noqa: S105 - made up
    assert "hunter2" not in f"{parsed} {parsed!r} {parsed.redacted}"
    assert str(parsed) == "postgresql+asyncpg://app:***@db/agents"


def test_equal_stores_are_equal_and_other_passwords_are_not() -> None:
    one = parse_store_uri("redis://:a@cache")
    assert one == parse_store_uri("redis://:a@cache:6379/0")
    assert hash(one) == hash(parse_store_uri("redis://:a@cache:6379/0"))
    assert one != parse_store_uri("redis://:b@cache")
    assert not one.tls
    assert parse_store_uri("rediss://cache").tls


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("redis://u:pw@h:1/0?table=x", "redis://u:***@h:1/0?table=x"),
        ("redis://:pw@h", "redis://***@h"),
        ("redis://token@h", "redis://***@h"),
        ("redis://u:@h", "redis://***"),
        ("redis://u:p/w@h", "redis://u:***@h"),
        ("redis://u:p?w=1&x@h", "redis://u:***@h"),
        ("redis://u:p#w@h", "redis://u:***@h"),
        ("redis://u:p@w@h", "redis://u:***@h"),
        ("redis://u/x:p@h", "redis://***@h"),
        ("redis://u:pw", "redis://u:***"),
        ("redis://u:pw/0?table=x", "redis://u:***"),
        ("redis://u:p]w", "redis://u:***"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://[::1]:pw", "redis://[::1]:***"),
        ("redis://h?password=pw&table=x", "redis://h?***"),
        ("redis://h?table=x&password=pw", "redis://h?table=x&***"),
        ("redis://h?table=p%20w", "redis://h?***"),
        ("redis://h/0#pw", "redis://h/0#***"),
        ("u:pw@h", "u:***@h"),
        ("redis:/u:pw@h", "redis:***@h"),
        ("redis://h\x00\n", "redis://h\\x00\\n"),
        ("redis://h\ud800", "redis://h\\ud800"),
        ("", ""),
    ],
)
def test_redact(uri: str, shown: str) -> None:
    assert redact(uri) == shown


def test_what_is_shown_is_bounded() -> None:
    assert len(redact("redis://" + "h" * 100_000)) < 300


def test_redact_shows_only_the_type_of_what_is_no_str() -> None:
    assert redact(b"redis://u:pw@h") == "<bytes>"
    assert redact(None) == "<NoneType>"


SCHEMES = st.sampled_from(
    ["redis", "rediss", "postgresql+asyncpg", "postgresql", "mysql+asyncmy", "bigtable", "x"]
)
PASSWORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=20)


def shows(text: str, password: str) -> bool:
    forms = (password, password.encode("unicode_escape").decode("ascii"), quote(password, safe=""))
    return any(form in text for form in forms)


def error_text(uri: str) -> str:
    try:
        return repr(parse_store_uri(uri))
    except ValueError as error:
        return str(error)


@given(
    SCHEMES, PASSWORDS, st.booleans(), st.sampled_from(["", ":1", "/0", ":x/0", "/0?table=t", "?", "#", "]"])
)
def test_a_password_is_never_shown(scheme: str, password: str, encoded: bool, tail: str) -> None:  # noqa: FBT001 - hypothesis gives it
    written = quote(password, safe="") if encoded else password
    around = f"{scheme}://U:***@H{tail}{GRAMMAR}" + error_text(f"{scheme}://H{tail}")
    assume(not shows(around, password))
    uri = f"{scheme}://U:{written}@H{tail}"
    assert not shows(redact(uri), password)
    assert not shows(error_text(uri), password)


@given(SCHEMES, PASSWORDS, st.sampled_from(["", "/0", "?table=t", "#x"]))
def test_a_password_whose_host_was_forgotten_is_not_shown(scheme: str, password: str, tail: str) -> None:
    # After one to five digits it is a host, a port and what follows, by every rule.
    assume(not password[0].isdigit())
    around = f"{scheme}://U:***{tail}{GRAMMAR}" + error_text(f"{scheme}://U:x{tail}")
    assume(not shows(around, password))
    uri = f"{scheme}://U:{password}{tail}"
    assert not shows(redact(uri), password)
    assert not shows(error_text(uri), password)


@given(SCHEMES, PASSWORDS, st.sampled_from(["password", "sslpassword", "PASSWORD", "token"]), st.booleans())
def test_a_password_in_the_query_is_not_shown(scheme: str, password: str, name: str, last: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    assume("@" not in password)  # what follows an @ is taken for the host
    tail = "" if last else "&table=t"
    around = f"{scheme}://H/0?{name}=***{tail}{GRAMMAR}" + error_text(f"{scheme}://H/0?{name}=x{tail}")
    assume(not shows(around, password))
    uri = f"{scheme}://H/0?{name}={password}{tail}"
    assert not shows(redact(uri), password)
    assert not shows(error_text(uri), password)


@given(st.text(max_size=60))
def test_any_text_is_refused_or_taken_and_never_breaks(text: str) -> None:
    assert redact(text).isascii()
    try:
        parsed = parse_store_uri(text)
    except ValueError as error:
        assert "AgentConfig.longterm_memory" in str(error)  # noqa: PT017 - most texts are refused, not all
    else:
        assert parsed.scheme in GRAMMAR


def test_no_client_library_is_imported() -> None:
    program = (
        "import sys\n"
        "from beam_agents.memory.stores.uri import parse_store_uri\n"
        f"for uri in {list(GOOD)!r}: parse_store_uri(uri)\n"
        "clients = {'redis', 'sqlalchemy', 'asyncpg', 'google.cloud.firestore', 'google.cloud.bigtable'}\n"
        "print(*sorted(clients & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""

"""What is special about SQL stores: schemas, permissions, files, and servers that go away."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import asyncpg
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.errors import StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores import sql
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.sql_connections import Session
from beam_agents.memory.stores.sql_schema import ddl_statements, successor
from beam_agents.memory.stores.sql_statements import chunks
from beam_agents.runtime.bridge import AsyncBridge
from beam_agents.signals.types import UpsertResult
from tests.servers.disks import mounted
from tests.servers.postgresql import GUARDED_USER, Cluster, running_cluster
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from beam_agents.memory.stores.contract import MemoryStore

    Run = Callable[[Coroutine[Any, Any, Any]], Any]

APPLIED = [UpsertResult.APPLIED]
RIGHT, WRONG = "r1ght", "wr0ng"


def row(key: str, seq: int = 1, value: bytes = b"value", entity: bytes = b"entity") -> StoreRow:
    return StoreRow(entity, key, seq, encode_record(value, seq, seq), seq)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


@pytest.fixture
def execute(cluster: Cluster, run: Run) -> Callable[[str], Any]:
    """Run statements as the server's superuser."""

    async def on_server(statements: str) -> None:
        connection = await asyncpg.connect(cluster.uri().replace("+asyncpg", ""))
        await connection.execute(statements)
        await connection.close()

    return lambda statements: run(on_server(statements))


@pytest.fixture
def opened(run: Run) -> Iterator[Callable[..., MemoryStore]]:
    """Open stores, and provision them unless told otherwise; they are closed when the test ends."""
    stores: list[MemoryStore] = []

    def open_one(uri: str, *, provision: bool = True) -> MemoryStore:
        store = open_store(uri)
        stores.append(store)
        if provision:
            run(open_admin(store).provision())
        return store

    yield open_one
    for store in stores:
        run(store.close())


@pytest.fixture
def file_uri(tmp_path: pathlib.Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/odd%20%23name%3F.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_uri(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """A database without the table."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/longterm.db"
    cluster: Cluster = request.getfixturevalue("cluster")
    return f"{cluster.uri()}?table=t_{os.urandom(4).hex()}"


# Schemas


def test_a_missing_table_names_the_command_that_creates_it(
    opened: Callable[..., MemoryStore], empty_uri: str, run: Run
) -> None:
    store = opened(empty_uri, provision=False)
    for call in (store.load(b"e", "k"), store.search(b"e", "", 5), store.save_many([row("k")])):
        with pytest.raises(StoreRejected, match="beam-agents store provision") as raised:
            run(call)
        assert store.uri.redacted in str(raised.value)
        assert raised.value.cause_type
    assert run(open_admin(store).provision()) is True
    assert run(store.save_many([row("k")])) == APPLIED


def test_the_runtime_creates_no_file(opened: Callable[..., MemoryStore], file_uri: str, run: Run) -> None:
    store = opened(file_uri, provision=False)
    with pytest.raises(StoreRejected, match="store provision"):
        run(store.save_many([row("k")]))
    assert not pathlib.Path(store.uri.database).exists()


def test_a_table_that_is_dropped_and_made_again(
    opened: Callable[..., MemoryStore], empty_uri: str, run: Run
) -> None:
    store = opened(empty_uri)
    assert run(store.save_many([row("k", 5)])) == APPLIED

    async def drop(session: Session) -> None:
        await session.execute(f"DROP TABLE {store.uri.options.table}")

    assert isinstance(store, sql.SqlStore)
    run(store.connections.call("drop", drop))
    with pytest.raises(StoreRejected, match="there is no table"):
        run(store.save_many([row("k", 6)]))
    assert run(open_admin(store).provision()) is True
    assert run(store.save_many([row("k", 4)])) == APPLIED


def test_a_table_of_another_shape(
    opened: Callable[..., MemoryStore], cluster: Cluster, execute: Callable[[str], Any], run: Run
) -> None:
    execute("DROP TABLE IF EXISTS other; CREATE TABLE other (entity_key BYTEA, key TEXT, seq BIGINT)")
    store = opened(f"{cluster.uri()}?table=other", provision=False)
    with pytest.raises(StoreRejected, match="table other has not the columns"):
        run(store.save_many([row("k")]))
    with pytest.raises(StoreRejected, match="table other has not the columns"):
        run(open_admin(store).provision())


def test_the_printed_ddl_is_what_is_run(tmp_path: pathlib.Path) -> None:
    store = open_store(f"sqlite+aiosqlite:///{tmp_path}/x.db?table=order")
    with sqlite3.connect(tmp_path / "by-hand.db") as connection:
        connection.executescript(open_admin(store).provision_plan())
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute('SELECT count(*) FROM "order"').fetchone() == (0,)
    connection.close()
    assert sql.DDL in ddl_statements("postgresql", "beam_agents_longterm")


def test_a_table_whose_name_is_a_word_of_sql(
    opened: Callable[..., MemoryStore], file_uri: str, run: Run
) -> None:
    store = opened(f"{file_uri}?table=order")
    assert run(store.save_many([row("k")])) == APPLIED
    assert run(store.load(b"entity", "k")) == row("k")


# One round trip, all or nothing


@pytest.mark.parametrize("size", [1, 20, 300])
def test_a_batch_is_one_statement(
    opened: Callable[..., MemoryStore],
    empty_uri: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    store = opened(empty_uri)
    run(store.ping())
    statements: list[str] = []
    fetch, execute = Session.fetch, Session.execute

    async def counting_fetch(session: Session, statement: str, values: Any) -> Any:
        statements.append(statement)
        return await fetch(session, statement, values)

    async def counting_execute(session: Session, statement: str, values: Any = ()) -> int:
        statements.append(statement)
        return await execute(session, statement, values)

    monkeypatch.setattr(Session, "fetch", counting_fetch)
    monkeypatch.setattr(Session, "execute", counting_execute)
    run(store.save_many([row(f"k{index}") for index in range(size)]))
    assert len(statements) == 1


def test_a_batch_of_several_statements_is_atomic(
    opened: Callable[..., MemoryStore], cluster: Cluster, execute: Callable[[str], Any], run: Run
) -> None:
    store = opened(f"{cluster.uri()}?table=atomic")
    execute("ALTER TABLE atomic ADD CHECK (seq <> 13)")
    batch = [row(f"k{index:05}") for index in range(sql.MAX_ROWS)]
    with pytest.raises(StoreRejected, match="SQLSTATE 23514"):
        run(store.save_many([*batch, row("z", 13)]))
    assert run(store.search(b"entity", "", 5)) == []
    assert run(store.save_many([*batch, row("z", 14)])) == APPLIED * (sql.MAX_ROWS + 1)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 10), st.integers(1, 100))
def test_chunks_keep_order_and_bounds(sizes: list[int], max_rows: int, max_bytes: int) -> None:
    rows = [StoreRow(b"", "k", index, b"x" * size, 0) for index, size in enumerate(sizes)]
    parts = chunks(rows, max_rows, max_bytes)
    assert [each for part in parts for each in part] == rows
    for part in parts:
        assert 1 <= len(part) <= max_rows
        assert len(part) == 1 or sum(len(each.rec) + 1 for each in part) <= max_bytes


@given(st.text(min_size=1), st.text())
def test_a_prefix_is_a_range_of_bytes(prefix: str, key: str) -> None:
    try:
        low, key_bytes = prefix.encode(), key.encode()
    except UnicodeEncodeError:
        return
    assert (low <= key_bytes < successor(low)) == key_bytes.startswith(low)
    assert low <= low + key_bytes < successor(low)


# SQLite's files


def test_the_journal_is_a_write_ahead_log(
    opened: Callable[..., MemoryStore], file_uri: str, run: Run
) -> None:
    store = opened(file_uri)
    assert isinstance(store, sql.SqlStore)

    async def pragmas(session: Session) -> list[object]:
        names = ("journal_mode", "synchronous", "busy_timeout")
        return [(await session.fetch(f"PRAGMA {name}", ()))[0][0] for name in names]

    assert run(store.connections.call("pragma", pragmas)) == ["wal", 1, 4000]


def test_another_process_that_writes_makes_it_unavailable(
    opened: Callable[..., MemoryStore], file_uri: str, run: Run
) -> None:
    store = opened(f"{file_uri}?operation_timeout_s=0.5")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _HOLDER,
            store.uri.database,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        with pytest.raises(StoreUnavailable):
            run(store.save_many([row("k")]))
        assert run(store.load(b"entity", "k")) is None
    finally:
        holder.communicate(b"\n")
    assert run(store.save_many([row("k")])) == APPLIED


def test_two_processes_write_one_file(opened: Callable[..., MemoryStore], file_uri: str, run: Run) -> None:
    store = opened(file_uri)
    other = subprocess.Popen([sys.executable, "-c", _WRITER, str(store.uri.database)])
    for seq in range(200):
        run(store.save_many([row("shared", seq), row(f"mine{seq}", seq)]))
    assert other.wait() == 0
    assert len(run(store.search(b"entity", "mine", 1_000))) == 200
    assert len(run(store.search(b"entity", "theirs", 1_000))) == 200
    assert run(store.load(b"entity", "shared")).seq == 199


_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print(flush=True)
input()
"""

_WRITER = """
import asyncio, sys
from beam_agents.memory.stores.contract import StoreRow
from beam_agents.memory.stores.registry import open_store
from urllib.parse import quote
async def main():
    store = open_store(f"sqlite+aiosqlite:///{quote(sys.argv[1])}")
    for seq in range(200):
        await store.save_many([StoreRow(b"entity", k, seq, b"r", seq) for k in ("shared", f"theirs{seq}")])
    await store.close()
asyncio.run(main())
"""


def test_a_full_disk_is_unavailable_and_keeps_what_is_there(
    opened: Callable[..., MemoryStore], tmp_path: pathlib.Path, run: Run
) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "size=2m"):
        store = opened(f"sqlite+aiosqlite:///{disk}/longterm.db")
        run(store.save_many([row("small", 1)]))
        filler = disk / "filler"
        with pytest.raises(OSError, match="space"):
            filler.write_bytes(bytes(4 * 1024 * 1024))
        with pytest.raises(StoreUnavailable):
            run(store.save_many([row("small", 2), row("large", 2, bytes(1_500_000))]))
        assert run(store.load(b"entity", "small")) == row("small", 1)
        assert run(store.load(b"entity", "large")) is None
        filler.unlink()
        assert run(store.save_many([row("small", 3)])) == APPLIED
        run(store.close())


def test_a_read_only_file_is_read_and_refuses_writes(
    opened: Callable[..., MemoryStore], tmp_path: pathlib.Path, run: Run
) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "size=2m"):
        # Without a write-ahead log, whose files would have to be made for reading too.
        with sqlite3.connect(disk / "longterm.db") as connection:
            connection.executescript(ddl_statements("sqlite", "beam_agents_longterm")[1])
        connection.close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        store = opened(f"sqlite+aiosqlite:///{disk}/longterm.db", provision=False)
        assert run(store.load(b"entity", "k")) is None
        with pytest.raises(StoreRejected, match="read-only"):
            run(store.save_many([row("k")]))
        # A connection that was opened now stays read-only, whatever becomes of the disk.
        assert run(store.load(b"entity", "k")) is None
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert run(store.save_many([row("k")])) == APPLIED
        run(store.close())


def test_what_is_no_database(opened: Callable[..., MemoryStore], tmp_path: pathlib.Path, run: Run) -> None:
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    store = opened(f"sqlite+aiosqlite:///{tmp_path}/text.db", provision=False)
    with pytest.raises(StoreRejected, match="no SQLite database"):
        run(store.save_many([row("k")]))


# PostgreSQL that goes away


def test_a_server_that_was_killed_and_came_back(
    opened: Callable[..., MemoryStore], cluster: Cluster, run: Run
) -> None:
    store = opened(cluster.uri())
    run(store.save_many([row("killed", 1)]))
    cluster.kill()
    with pytest.raises(StoreUnavailable):
        run(store.save_many([row("killed", 2)]))
    cluster.start()
    # The first call after the restart: no connection of before is used.
    assert run(store.save_many([row("killed", 3)])) == APPLIED
    assert run(store.load(b"entity", "killed")) == row("killed", 3)


def test_a_server_that_restarts_between_two_calls(
    opened: Callable[..., MemoryStore], cluster: Cluster, run: Run
) -> None:
    store = opened(cluster.uri())

    async def at_once() -> None:
        await asyncio.gather(*(store.ping() for _ in range(8)))

    run(at_once())
    cluster.kill()
    cluster.start()
    run(at_once())


def test_a_connection_that_is_ended_in_mid_call(
    opened: Callable[..., MemoryStore], cluster: Cluster, run: Run
) -> None:
    store = opened(cluster.uri())
    assert isinstance(store, sql.SqlStore)

    async def wait(session: Session) -> None:
        await session.fetch("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(60)", ())

    with pytest.raises(StoreUnavailable):
        run(store.connections.call("load", wait))
    assert run(store.save_many([row("ended")])) in (APPLIED, [UpsertResult.STALE])


def test_a_frozen_server_is_a_timeout_and_close_returns(
    opened: Callable[..., MemoryStore], cluster: Cluster, run: Run
) -> None:
    options = "operation_timeout_s=0.5&connect_timeout_s=0.3&pool_size=2"
    store = opened(f"{cluster.uri()}?{options}")
    idle = opened(f"{cluster.uri()}?{options}")
    run(store.save_many([row("frozen", 1)]))
    cluster.signal(signal.SIGSTOP)
    try:
        # The first on a connection that is open, the others on new ones.
        for _ in range(4):
            with pytest.raises(StoreTimeout):
                run(store.load(b"entity", "frozen"))
        run(idle.close())
    finally:
        cluster.signal(signal.SIGCONT)
    wait_until(lambda: run(_answers(store)))
    assert run(store.load(b"entity", "frozen")) == row("frozen", 1)


async def _answers(store: MemoryStore) -> bool:
    try:
        await store.ping()
    except (StoreTimeout, StoreUnavailable):
        return False
    return True


def test_a_row_that_another_transaction_holds(
    opened: Callable[..., MemoryStore], cluster: Cluster, run: Run
) -> None:
    store = opened(f"{cluster.uri()}?operation_timeout_s=0.5")
    run(store.save_many([row("held", 1)]))

    async def hold() -> None:
        holder = await asyncpg.connect(cluster.uri().replace("+asyncpg", ""))
        async with holder.transaction():
            await holder.execute("SELECT * FROM beam_agents_longterm FOR UPDATE")
            with pytest.raises(StoreTimeout):
                await store.save_many([row("held", 2)])
        await holder.close()

    run(hold())
    assert run(store.save_many([row("held", 3)])) == APPLIED


# Users and passwords


def test_a_wrong_password_is_refused_and_not_shown(
    opened: Callable[..., MemoryStore], cluster: Cluster, execute: Callable[[str], Any], run: Run
) -> None:
    execute(f"DROP ROLE IF EXISTS {GUARDED_USER}; CREATE ROLE {GUARDED_USER} LOGIN PASSWORD '{RIGHT}'")
    run(opened(cluster.uri(user=GUARDED_USER, password=RIGHT), provision=False).ping())
    store = opened(cluster.uri(user=GUARDED_USER, password=WRONG), provision=False)
    with pytest.raises(StoreRejected, match="user or the password") as raised:
        run(store.ping())
    assert WRONG not in repr(raised.value) + str(raised.value) + repr(store.uri) + str(store.uri)
    assert raised.value.__cause__ is None


def test_a_missing_permission_is_named(
    opened: Callable[..., MemoryStore], cluster: Cluster, execute: Callable[[str], Any], run: Run
) -> None:
    opened(cluster.uri())
    execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    execute("GRANT SELECT ON beam_agents_longterm TO reader")
    store = opened(cluster.uri(user="reader"), provision=False)
    assert run(store.load(b"entity", "no such")) is None
    with pytest.raises(StoreRejected, match="SELECT, INSERT and UPDATE on beam_agents_longterm"):
        run(store.save_many([row("k")]))
    execute("GRANT INSERT, UPDATE ON beam_agents_longterm TO reader")
    assert run(store.save_many([row("permitted")])) == APPLIED
    execute("DROP OWNED BY reader; DROP ROLE reader")


def test_connections_of_when_a_server_was_read_only_are_in_nobodys_way(
    opened: Callable[..., MemoryStore], cluster: Cluster, execute: Callable[[str], Any], run: Run
) -> None:
    opened(cluster.uri())
    execute("DROP ROLE IF EXISTS standby; CREATE ROLE standby LOGIN")
    execute("GRANT SELECT, INSERT, UPDATE ON beam_agents_longterm TO standby")
    execute("ALTER ROLE standby SET default_transaction_read_only = on")
    store = opened(cluster.uri(user="standby"), provision=False)

    async def load_at_once() -> None:
        await asyncio.gather(*(store.load(b"entity", str(each)) for each in range(6)))

    run(load_at_once())
    with pytest.raises(StoreRejected, match="read-only"):
        run(store.save_many([row("promoted", 1)]))
    run(load_at_once())
    execute("ALTER ROLE standby RESET default_transaction_read_only")
    assert run(store.save_many([row("promoted", 2)])) == APPLIED
    execute("DROP OWNED BY standby; DROP ROLE standby")


def test_a_missing_database_is_named(opened: Callable[..., MemoryStore], cluster: Cluster, run: Run) -> None:
    store = opened(cluster.uri().removesuffix("/postgres") + "/nowhere", provision=False)
    with pytest.raises(StoreRejected, match="there is no database nowhere"):
        run(store.ping())


def test_nothing_listens(opened: Callable[..., MemoryStore], run: Run) -> None:
    for uri in ("postgresql+asyncpg://u@127.0.0.1:1/d", "mariadb+asyncmy://u@127.0.0.1:1/d"):
        with pytest.raises(StoreUnavailable):
            run(opened(uri, provision=False).ping())


# Processes, loops, and what is left


def test_nothing_is_left_after_close(empty_uri: str) -> None:
    def workers() -> set[threading.Thread]:
        # Threads, not their number: those that earlier tests left behind may end meanwhile.
        return {each for each in threading.enumerate() if "_connection_worker_thread" in each.name}

    def sockets() -> set[object]:
        return {each.laddr for each in psutil.Process().net_connections() if each.raddr}

    threads_before, sockets_before = workers(), sockets()
    loop = AsyncBridge()
    store = open_store(empty_uri)
    loop.run(open_admin(store).provision(), 60)

    async def use() -> None:
        await asyncio.gather(*(store.save_many([row("k", seq)]) for seq in range(16)))

    loop.run(use(), 60)
    assert workers() - threads_before or sockets() - sockets_before
    loop.run(store.close(), 60)
    wait_until(lambda: not workers() - threads_before)
    assert sockets() <= sockets_before

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    assert loop.run(others(), 60) == 0
    loop.close()


def test_it_works_again_after_close_and_on_a_new_loop(empty_uri: str) -> None:
    store = open_store(empty_uri)
    for _ in range(2):
        asyncio.run(open_admin(store).provision())
        assert asyncio.run(store.save_many([row("k", 3)])) == APPLIED
    asyncio.run(store.close())


def test_a_second_loop_is_refused_while_the_first_lives(
    opened: Callable[..., MemoryStore], empty_uri: str
) -> None:
    store = opened(empty_uri)
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(store.ping())


def test_a_forked_child_makes_its_own_connections(
    opened: Callable[..., MemoryStore], empty_uri: str, run: Run
) -> None:
    store = opened(empty_uri)
    run(store.save_many([row("parent", 1)]))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if asyncio.run(store.save_many([row("child", 1)])) == APPLIED else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert run(store.load(b"entity", "child")) == row("child", 1)
    assert run(store.save_many([row("parent", 2)])) == APPLIED


def test_a_missing_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncmy", None)
    with pytest.raises(ImportError, match=r"pip install 'beam-agents\[sql\]'"):
        open_store("mariadb+asyncmy://h/d")

"""A write that was given up does not come later: not from the system's buffers, nor from behind a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from beam_agents.errors import StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.sql import SqlStore
from beam_agents.memory.stores.sql_drivers import driver_of
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.signals.types import UpsertResult
from tests.servers import mariadb, postgresql, redis
from tests.servers.process import wait_until
from tests.servers.proxy import Fault, proxied

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from beam_agents.memory.stores.contract import MemoryStore
    from beam_agents.memory.stores.sql_connections import Session

    Run = Callable[[Coroutine[Any, Any, Any]], Any]

LARGE = b"v" * 1_000_000
"""More than the proxy's system takes, less than the client's does."""


def row(value: bytes, seq: int) -> StoreRow:
    return StoreRow(b"entity", "k", seq, encode_record(value, seq, seq), seq)


SERVERS = {
    "redis": redis.running,
    "asyncpg": postgresql.running_postgresql,
    "psycopg": postgresql.running_psycopg,
    "asyncmy": mariadb.running_mariadb,
    "asyncmy as MySQL": mariadb.running_mysql,
}


@pytest.fixture(scope="module", params=SERVERS)
def server_uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with SERVERS[request.param](tmp_path_factory.mktemp("server")) as uri:
        yield uri


@pytest.fixture
def opened(run: Run) -> Iterator[Callable[[str], MemoryStore]]:
    stores: list[MemoryStore] = []

    def open_one(uri: str) -> MemoryStore:
        stores.append(open_store(uri))
        admin = open_admin(stores[-1])
        run(admin.provision())
        # The servers are every test's.
        run(admin.delete(run(admin.scan(None, 10))))
        return stores[-1]

    yield open_one
    for store in stores:
        run(store.close())


def test_what_the_network_held_up_is_not_delivered_after_all(
    server_uri: str, opened: Callable[[str], MemoryStore], run: Run
) -> None:
    port = urlsplit(server_uri).port
    assert port is not None
    direct = opened(server_uri)
    with proxied(port, receive_bytes=4096) as proxy:
        store = opened(f"{server_uri.replace(str(port), str(proxy.port))}?pool_size=1&operation_timeout_s=1")
        run(store.save_many([row(b"first", 1)]))
        proxy.fail(Fault.STALL)
        with pytest.raises(StoreTimeout):
            run(store.save_many([row(LARGE, 2)]))
        proxy.fail(Fault.NONE)
        wait_until(lambda: proxy.connections == 0)
        assert run(direct.load(b"entity", "k")) == row(b"first", 1)
        # Another write of the same seq, of the event after the one that failed.
        assert run(store.save_many([row(b"second", 2)])) == [UpsertResult.APPLIED]
        assert run(direct.load(b"entity", "k")) == row(b"second", 2)


def test_what_waited_for_a_lock_is_not_run_after_all(
    server_uri: str, opened: Callable[[str], MemoryStore], run: Run
) -> None:
    if server_uri.startswith("redis"):
        # It has no locks that outlast a call.
        return
    store, holder = opened(f"{server_uri}?operation_timeout_s=2"), opened(server_uri)
    assert isinstance(holder, SqlStore)
    run(store.save_many([row(b"first", 1)]))

    async def hold(session: Session) -> None:
        await session.execute("BEGIN")
        await session.fetch("SELECT seq FROM beam_agents_longterm FOR UPDATE", ())
        with pytest.raises((StoreTimeout, StoreUnavailable)):
            await store.save_many([row(b"given up", 2)])
        await session.execute("COMMIT")

    run(holder.connections.call("load", hold))
    # Behind whatever still waits for the row.
    assert run(holder.save_many([row(b"after", 1)])) == [UpsertResult.APPLIED]
    assert run(holder.load(b"entity", "k")) == row(b"after", 1)


def test_a_transaction_whose_client_vanished_does_not_hold_its_rows(
    server_uri: str, opened: Callable[[str], MemoryStore], run: Run
) -> None:
    if server_uri.startswith(("redis", "mysql")):
        # Redis has no transactions that wait; MySQL has no such bound.
        return
    other = opened(server_uri)
    run(other.save_many([row(b"first", 1)]))
    uri = parse_store_uri(f"{server_uri}?operation_timeout_s=1")

    async def vanish() -> None:
        driver = driver_of(uri)
        connection = await driver.connect(uri)
        try:
            await driver.execute(connection, "BEGIN")
            await driver.fetch(connection, "SELECT seq FROM beam_agents_longterm FOR UPDATE", ())
            # The connection stays open, as a worker's does whose network is away.
            assert await other.save_many([row(b"other", 2)]) == [UpsertResult.APPLIED]
        finally:
            driver.cut(connection)

    run(vanish())

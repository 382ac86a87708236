"""One store per backend for the conformance suite: a server of each kind runs once per test process."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import AsyncBridge
from tests.servers import bigtable, embedded, firestore, mariadb, postgresql, redis

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractContextManager

    from beam_agents.memory.stores.contract import MemoryStore, StoreAdmin

T = TypeVar("T")

SERVERS: dict[str, Callable[..., AbstractContextManager[str]]] = {
    "inprocess": embedded.running_inprocess,
    "redis": redis.running,
    "mariadb": mariadb.running_mariadb,
    "mysql": mariadb.running_mysql,
    "postgresql": postgresql.running_postgresql,
    "postgresql with psycopg": postgresql.running_psycopg,
    "sqlite": embedded.running_sqlite,
    "bigtable": bigtable.running_bigtable,
    "firestore": firestore.running_firestore,
}
"""By backend: what yields the URI of a store that is up."""


@pytest.fixture(scope="session")
def bridge() -> Iterator[AsyncBridge]:
    made = AsyncBridge()
    yield made
    made.close()


@pytest.fixture(scope="session", params=SERVERS)
def uri(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A provisioned store's URI."""
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def store(uri: str, bridge: AsyncBridge) -> Iterator[MemoryStore]:
    """An open, provisioned store. Rows of other tests may be in it: use :func:`entity`."""
    opened = open_store(uri)
    bridge.run(open_admin(opened).provision(), 60, inline=False)
    yield opened
    bridge.run(opened.close(), 60, inline=False)


@pytest.fixture
def admin(store: MemoryStore) -> StoreAdmin:
    return open_admin(store)


@pytest.fixture
def entity() -> bytes:
    """An entity key of this test alone, with bytes that no text has."""
    return b"\x00\xff/" + uuid.uuid4().bytes


@pytest.fixture
def run(bridge: AsyncBridge) -> Callable[[Coroutine[Any, Any, T]], T]:
    """Run a coroutine on the event loop that the stores belong to."""

    def run_on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
        return bridge.run(coroutine, 120, inline=False)

    return run_on_loop

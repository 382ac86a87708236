"""The stores that jobs on a portable runner write to: servers, which their workers reach too."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from beam_agents.demo.store import provision_store
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import shared_bridge
from tests.servers import postgresql, redis

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from beam_agents.memory.stores.contract import StoreRow

__all__ = ["SERVERS", "rows_of", "running_store"]

SERVERS: dict[str, Callable[[pathlib.Path], AbstractContextManager[str]]] = {
    "redis": redis.running,
    "postgresql": postgresql.running_postgresql,
}


@contextmanager
def running_store(kind: str, folder: pathlib.Path) -> Iterator[str]:
    """Yield the URI of an empty store on a server of its own, which may be slow: so may the machine."""
    with SERVERS[kind](folder) as server:
        uri = f"{server}?operation_timeout_s=60&connect_timeout_s=60"
        provision_store(uri)
        yield uri


def rows_of(uri: str) -> list[StoreRow]:
    """Return all rows of a store, in the order of entity and key."""

    async def read() -> list[StoreRow]:
        store = open_store(uri)
        try:
            return await open_admin(store).scan(None, 1_000_000)
        finally:
            await store.close()

    return sorted(shared_bridge().run(read(), 120, inline=False), key=lambda row: (row.entity_key, row.key))

"""The flights job on a portable runner: its workers are other processes, its store a server."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from beam_agents.cli.job import run_job
from beam_agents.demo.app import flights_job
from beam_agents.demo.data import write_flights
from beam_agents.demo.store import provision_store
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import shared_bridge
from tests.servers import postgresql, redis

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from beam_agents.memory.stores.contract import StoreRow
    from tests.servers.prism import Prism

ROWS = 800
SERVERS: dict[str, Callable[[pathlib.Path], AbstractContextManager[str]]] = {
    "redis": redis.running,
    "postgresql": postgresql.running_postgresql,
}


def rows_of(uri: str) -> list[StoreRow]:
    """Return all rows of a store, in the order of entity and key."""

    async def read() -> list[StoreRow]:
        store = open_store(uri)
        found = await open_admin(store).scan(None, 1_000_000)
        await store.close()
        return sorted(found, key=lambda row: (row.entity_key, row.key))

    return shared_bridge().run(read(), 120, inline=False)


def flights(folder: pathlib.Path, uri: str, options: tuple[str, ...] = ()) -> list[dict[str, object]]:
    """Run the job, on Prism where there are options for it; return its outputs in some order of their own."""
    folder.mkdir()
    write_flights(folder / "flights.csv", ROWS)
    job = flights_job(folder, uri)
    if options:
        job = replace(job, runner="prism", options=options)
    run_job(job, lambda _tally: nullcontext())
    return [json.loads(line) for line in sorted(job.out.read_bytes().splitlines())]


@pytest.mark.parametrize("server", SERVERS)
def test_outputs_and_rows_are_those_of_the_embedded_runner(
    server: str, prism: Prism, tmp_path: pathlib.Path
) -> None:
    with SERVERS[server](tmp_path) as uri:
        provision_store(uri)
        outputs = flights(tmp_path / "prism", uri, tuple(prism.options))
        rows = rows_of(uri)
    here = f"sqlite+aiosqlite:///{tmp_path}/here.sqlite"
    provision_store(here)
    assert outputs == flights(tmp_path / "embedded", here)
    assert [(row.entity_key, row.key, row.seq, row.rec) for row in rows] == [
        (row.entity_key, row.key, row.seq, row.rec) for row in rows_of(here)
    ]
    assert len(rows) > 1_500

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
from tests.runners.stores import SERVERS, rows_of, running_store

if TYPE_CHECKING:
    import pathlib

    from tests.servers.prism import Prism

ROWS = 800


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
    with running_store(server, tmp_path) as uri:
        outputs = flights(tmp_path / "prism", uri, tuple(prism.options))
        rows = rows_of(uri)
    here = f"sqlite+aiosqlite:///{tmp_path}/here.sqlite"
    provision_store(here)
    assert outputs == flights(tmp_path / "embedded", here)
    assert [(row.entity_key, row.key, row.seq, row.rec) for row in rows] == [
        (row.entity_key, row.key, row.seq, row.rec) for row in rows_of(here)
    ]
    assert len(rows) > 1_500

"""The flights job on a portable runner: its workers are other processes, its store a server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from beam_agents.demo.store import provision_store
from tests.runners.flights_job import OUTPUTS, run_flights
from tests.runners.stores import SERVERS, rows_of, running_store

if TYPE_CHECKING:
    import pathlib

    from tests.servers.flink import Flink
    from tests.servers.prism import Prism


def outputs_of(folder: pathlib.Path) -> list[dict[str, object]]:
    """Return the outputs of a run in some order of their own."""
    return [json.loads(line) for line in sorted((folder / OUTPUTS).read_bytes().splitlines())]


def compare(folder: pathlib.Path, uri: str) -> None:
    """Hold a run's outputs and its store's rows against those of the embedded runner."""
    rows, embedded = rows_of(uri), folder.with_name("embedded")
    here = f"sqlite+aiosqlite:///{embedded}.sqlite"
    provision_store(here)
    run_flights(embedded, here)
    assert outputs_of(folder) == outputs_of(embedded)
    assert [(row.entity_key, row.key, row.seq, row.rec) for row in rows] == [
        (row.entity_key, row.key, row.seq, row.rec) for row in rows_of(here)
    ]
    assert len(rows) > 1_500


@pytest.mark.parametrize("server", SERVERS)
def test_prism(server: str, prism: Prism, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "prism"
    with running_store(server, tmp_path) as uri:
        run_flights(folder, uri, "prism", prism.options)
        compare(folder, uri)


@pytest.mark.xdist_group("flink")
@pytest.mark.parametrize("server", SERVERS)
def test_flink(server: str, flink: Flink, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "flink"
    with running_store(server, tmp_path) as uri:
        job = ("tests.runners.flights_job", str(folder), uri, *flink.options())
        flink.done(*job, log=tmp_path / "submit.log")
        compare(folder, uri)

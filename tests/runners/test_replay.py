"""Flights replayed on Prism: aircraft expire between the flights of others, and nothing else differs."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from beam_agents.cli.job import run_job
from beam_agents.demo import replay
from beam_agents.demo.app import flights_job
from beam_agents.demo.data import write_flights
from beam_agents.demo.flights import WORKING_MEMORY
from beam_agents.demo.replay import replayed
from beam_agents.demo.store import provision_store
from beam_agents.signals import catalogue
from beam_agents.signals.observer import Observer
from tests.runners.stores import rows_of

if TYPE_CHECKING:
    import pathlib

    import pytest

    from beam_agents.cli.job import Job
    from beam_agents.signals.observer import Record
    from tests.servers.prism import Prism

ROWS = 400
HOUR_MS = 3_600_000
WALL_S = 12
"""How long the flights come in, at least."""


class Seen(Observer):
    """What happened, in its order: activations, and expired aircraft whose memory the store has taken."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.first_at_s: float | None = None

    def record(self, record: Record) -> None:
        if self.first_at_s is None:
            self.first_at_s = time.time()
        for metric, _, labels in record.measurements:
            if metric is catalogue.ACTIVATIONS:
                self.order.append("activation")
            elif metric is catalogue.TTL_WIPES and "true" in labels:
                self.order.append("expired")


SEEN = Seen()


@dataclass(frozen=True)
class SeenPlugin:
    """Takes what it sees to this process's ``SEEN``."""

    name: str = field(default="seen")

    def build(self) -> Observer:
        return SEEN


class LateClock:
    """Stands still until the first activation, however long the worker takes to come up."""

    def __init__(self) -> None:
        self._began_s = time.time()

    def time(self) -> float:
        return self._began_s + (0.0 if SEEN.first_at_s is None else time.time() - SEEN.first_at_s)


def job_in(folder: pathlib.Path) -> tuple[Job, str]:
    """Return the demo's job with a short life of its keys, and its store."""
    folder.mkdir()
    write_flights(folder / "flights.csv", ROWS, in_order=True)
    uri = f"sqlite+aiosqlite:///{folder}/memory.sqlite"
    provision_store(uri)
    job = flights_job(folder, uri)
    return replace(job, config=replace(job.config, ttl_ms=HOUR_MS)), uri


def outputs_of(job: Job) -> list[dict[str, object]]:
    run_job(job, lambda _tally: nullcontext())
    return [json.loads(line) for line in sorted(job.out.read_bytes().splitlines())]


def test_aircraft_expire_while_others_fly_and_outputs_and_totals_are_those_of_a_bounded_run(
    prism: Prism, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "time", LateClock())
    monkeypatch.setattr(replay, "ROWS_PER_BUNDLE", 10)
    bounded, bounded_store = job_in(tmp_path / "bounded")
    job, store = job_in(tmp_path / "replayed")
    job = replace(
        job,
        config=replace(job.config, telemetry=(SeenPlugin(),)),
        runner="prism",
        options=(f"--job_endpoint={prism.endpoint}", "--environment_type=LOOPBACK"),
    )
    # The flights are of some sixteen hours.
    outputs = outputs_of(replayed(job, speed=16 * 3_600 / WALL_S))
    expected = outputs_of(bounded)
    assert outputs == expected
    assert len(outputs) == SEEN.order.count("activation") > ROWS - 5
    last = len(SEEN.order) - SEEN.order[::-1].index("activation")
    assert SEEN.order[:last].count("expired") >= 20
    # Some flew again later, on the memory that the store had kept.
    aircraft = len({output["aircraft"] for output in outputs})
    assert SEEN.order.count("expired") > aircraft
    assert job.errors.read_bytes() == bounded.errors.read_bytes()
    assert totals_in(store) == totals_in(bounded_store)


def totals_in(store: str) -> list[tuple[bytes, str, int, bytes]]:
    """Return its rows, without the bytes of working memories: these tell in which order keys were touched."""
    return [
        (row.entity_key, row.key, row.seq, b"" if row.key == WORKING_MEMORY else row.rec)
        for row in rows_of(store)
    ]

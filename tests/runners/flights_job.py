"""Runs the flights job on a runner: ``python -m tests.runners.flights_job FOLDER STORE OPTION…``."""

from __future__ import annotations

import pathlib
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from beam_agents.cli.job import run_job
from beam_agents.demo.app import flights_job
from beam_agents.demo.data import write_flights

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OUTPUTS", "run_flights"]

OUTPUTS = "statistics.jsonl"
"""The file of a run's outputs."""
ROWS = 800


def run_flights(
    folder: pathlib.Path, uri: str, runner: str = "FnApiRunner", options: Sequence[str] = ()
) -> None:
    """Run the job.

    Args:
        folder: A new folder for its files, of which ``OUTPUTS`` is one.
        uri: A provisioned store.
        runner: Beam's name of the runner.
        options: Its options.
    """
    folder.mkdir()
    write_flights(folder / "flights.csv", ROWS)
    job = replace(flights_job(folder, uri), runner=runner, options=tuple(options))
    assert job.out.name == OUTPUTS
    run_job(job, lambda _tally: nullcontext())


if __name__ == "__main__":
    run_flights(pathlib.Path(sys.argv[1]), sys.argv[2], "portable", sys.argv[3:])

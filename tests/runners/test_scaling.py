"""The scaling benchmark in short: two jobs at work at once, and a measure of each part of their time."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import scaling
from tests.benchmarks.scaling import KEYS, Measured, measure
from tests.servers.flink import sdk_of_flink

if TYPE_CHECKING:
    import pathlib


def check(run: Measured) -> None:
    assert run.events_per_s > 0
    assert run.activation_ms > run.overhead_ms > 0
    assert run.activation_ms > run.flush_ms > 0
    assert min(run.worker_cpu_ms, run.runner_cpu_ms, run.store_cpu_ms) > 0
    assert set(run.shares) == {"agent", "runtime", "store", "state back end", "Beam and its runner"}
    assert sum(run.shares.values()) == pytest.approx(1)
    assert min(run.shares.values()) > 0


def test_two_workers_are_measured_while_both_are_at_work() -> None:
    run = measure("redis", parallelism=2, events=2 * KEYS)
    check(run)
    assert run.events_per_bundle == pytest.approx(KEYS, abs=1)


@pytest.mark.xdist_group("flink")
def test_two_workers_on_flink(tmp_path: pathlib.Path) -> None:
    python, variables = sdk_of_flink()
    path = tmp_path / "scaling.json"
    options = ["--runner", "flink", "--stores", "redis", "--parallelism", "2", "--runs", "1"]
    done = subprocess.run(
        [python, scaling.__file__, *options, "--events", str(2 * KEYS), "--json", str(path)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    (found,) = json.loads(path.read_text())["runs"]
    check(Measured(**found))

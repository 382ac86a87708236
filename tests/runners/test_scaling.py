"""The scaling benchmark in short: two jobs at work at once, and a measure of each part of their time."""

from __future__ import annotations

import pytest

from tests.benchmarks.scaling import KEYS, measure


def test_two_workers_are_measured_while_both_are_at_work() -> None:
    run = measure("redis", parallelism=2, events=2 * KEYS)
    assert run.events_per_bundle == pytest.approx(KEYS, abs=1)
    assert run.activation_ms > run.overhead_ms > 0
    assert run.activation_ms > run.flush_ms > 0
    assert run.worker_cpu_ms > run.runner_cpu_ms > 0
    assert run.store_cpu_ms > 0
    assert set(run.shares) == {"agent", "runtime", "store", "state back end", "Beam and its runner"}
    assert sum(run.shares.values()) == pytest.approx(1)
    assert min(run.shares.values()) > 0

"""SIGKILL of a Flink cluster's processes: the store and the outputs are those of an undisturbed job.

The short form of ``make kills-flink``.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.runners.flink_kills import CLUSTER, FlinkKillRun, FlinkVictim
from tests.runners.stores import running_store
from tests.servers.flink import running_flink

if TYPE_CHECKING:
    import pathlib


# One cluster at a time.
@pytest.mark.xdist_group("flink")
def test_a_job_whose_cluster_is_killed_goes_on_from_its_checkpoints(tmp_path: pathlib.Path) -> None:
    victims = [FlinkVictim.WORKER, FlinkVictim.TASK_MANAGER, FlinkVictim.JOB_MANAGER]
    with (
        running_store("redis", tmp_path) as uri,
        running_flink(tmp_path / "flink", settings=CLUSTER) as flink,
    ):
        run = FlinkKillRun(tmp_path, flink, uri, random.Random(1), events=150, rate=5)
        run.run(victims)
    for victim in victims:
        assert run.counts[victim.value] == 1
    assert run.counts["outputs in all"] >= run.counts["events"] == 150

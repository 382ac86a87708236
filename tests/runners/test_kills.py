"""SIGKILL of what runs a job: the store and the outputs of the jobs after it are those of an undisturbed one.

The short form of ``make kills``.
"""

from __future__ import annotations

import os
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.runners.kills import KillRun, Victim
from tests.runners.stores import running_store
from tests.servers.process import parent_of

if TYPE_CHECKING:
    import pathlib


@pytest.mark.parametrize(
    ("store", "victims"),
    [("redis", [Victim.WORKER, Victim.RUNNER]), ("postgresql", [Victim.SUBMITTER, Victim.RUNNER])],
)
def test_a_job_that_is_killed_and_submitted_again(
    store: str, victims: list[Victim], tmp_path: pathlib.Path
) -> None:
    # A worker that is killed before it has taken up work may leave its job hanging.
    with (
        running_store(store, tmp_path) as uri,
        KillRun(tmp_path, uri, random.Random(1), events=150, rate=100, earliest=1) as run,
    ):
        run.run(victims)
    for victim in victims:
        assert run.counts[victim.value] == 1
    assert run.counts["stale in the last job"] > 0


def test_what_has_ended_has_no_parent_to_be_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert parent_of(process.pid) == os.getpid()
        process.kill()
    with pytest.raises(OSError, match="No such"):
        parent_of(process.pid)

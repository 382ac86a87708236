"""A job on Flink is stopped with a savepoint, and another version of it goes on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.runners.kill_model import KillModel
from tests.runners.killed_job import MEMORY_KEY, REMEMBER, UPGRADED, lines_of
from tests.runners.stores import rows_of, running_store
from tests.servers.process import wait_until

if TYPE_CHECKING:
    import pathlib
    import subprocess

    from tests.servers.flink import Flink

pytestmark = pytest.mark.xdist_group("flink")

EVENTS = 100
RATE = 5.0
"""Events in a second."""
STOP_AT = EVENTS // 3
WITHIN_S = 300.0
CHECKPOINTS = "--checkpointing_interval=1000"


def test_a_changed_agent_goes_on_with_the_memory_of_the_old_one(flink: Flink, tmp_path: pathlib.Path) -> None:
    with running_store("redis", tmp_path) as uri:
        old, new = tmp_path / "old", tmp_path / "new"

        def submit(agent: str, folder: pathlib.Path, *options: str) -> subprocess.Popen[bytes]:
            folder.mkdir()
            job = (str(folder), uri, str(EVENTS), str(RATE), agent)
            return flink.start(
                "tests.runners.submit_killed_job", *job, *flink.options(), *options, log=folder / "submit.log"
            )

        first = submit(REMEMBER, old, CHECKPOINTS, "--shutdown_sources_after_idle_ms=-1")
        wait_until(
            lambda: len(lines_of(old, "outputs")) >= STOP_AT or first.poll() is not None,
            "it is on its way",
            WITHIN_S,
        )
        (job,) = flink.jobs()
        savepoint = flink.stop(job)
        first.wait(WITHIN_S)

        # Without checkpoints a job of a bounded source comes to its end.
        second = submit(UPGRADED, new, f"--savepoint_path={savepoint}")
        assert second.wait(WITHIN_S) == 0, (new / "submit.log").read_text()[-3_000:] + flink.log()

        outputs = {
            folder: [line.split(maxsplit=3) for line in lines_of(folder, "outputs")] for folder in (old, new)
        }
        assert STOP_AT <= len(outputs[old]) < EVENTS
        assert [line[3:] for line in outputs[old]] == [[]] * len(outputs[old])
        assert [line[3:] for line in outputs[new]] == [["version 2"]] * len(outputs[new])
        # Each event once, and each entity's count goes on: the new agent has what the old one left.
        model = KillModel(uri, EVENTS)
        both = [*outputs[old], *outputs[new]]
        assert sorted(int(number) for number, *_ in both) == list(range(EVENTS))
        rows = {row.row_id: row for row in rows_of(uri)}
        memories = {row.entity_key: row for row in rows.values() if row.key == MEMORY_KEY}
        last = {row.row_id: row for saved in model.written.values() for row in saved}
        assert {name: row for name, row in rows.items() if row.key != MEMORY_KEY} == last
        # The timers that the old job set were the new one's to fire.
        assert memories.keys() == {row.entity_key for row in last.values()}
        assert all(b"version" in row.rec for row in memories.values())
        assert not lines_of(old, "errors") + lines_of(new, "errors")

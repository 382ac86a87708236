"""``beam-agents run`` on a real Flink: a JobManager, a TaskManager and SDK workers, each a process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from tests.servers.flink import Flink

pytestmark = pytest.mark.xdist_group("flink")

EVENTS = 200
KEYS = 7
AGENT = """\
from beam_agents import Complete

async def count(ctx):
    n = int(ctx.memory.get("n") or b"0") + 1
    ctx.memory.set("n", b"%d" % n)
    return Complete(b"%s %d" % (ctx.event, n))
"""


def through_a_job_server_that_runs(flink: Flink) -> list[str]:
    return [f"--job_endpoint={flink.job_endpoint}"]


def through_a_job_server_of_its_own(flink: Flink) -> list[str]:
    return [f"--flink_master={flink.rest}", f"--flink_job_server_jar={flink.job_server_jar}"]


def without_a_cluster(flink: Flink) -> list[str]:
    return ["--flink_master=[local]", f"--flink_job_server_jar={flink.job_server_jar}"]


@pytest.mark.parametrize(
    "to", [through_a_job_server_that_runs, through_a_job_server_of_its_own, without_a_cluster]
)
def test_a_file_of_events(to: Callable[[Flink], list[str]], flink: Flink, tmp_path: pathlib.Path) -> None:
    agent = tmp_path / "their_agents.py"
    agent.write_text(AGENT)
    rows = [{"id": f"k{number % KEYS}", "at": number, "payload": str(number)} for number in range(EVENTS)]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = tmp_path / "out.jsonl"
    flink.done(
        "beam_agents.cli",
        *("run", "--agent", f"{agent}:count", "--events", str(tmp_path / "events.jsonl")),
        *("--key", "id", "--time", "at", "--payload", "payload", "--out", str(out), "--runner", "flink"),
        *("--", *to(flink), *flink.environment(PYTHONPATH=str(tmp_path))),
        log=tmp_path / "run.log",
    )
    # Each key's events are in the order of the file: the count is the event's place among them.
    assert sorted(json.loads(line)["output"] for line in out.read_text().splitlines()) == sorted(
        f"{number} {number // KEYS + 1}" for number in range(EVENTS)
    )

"""Two SDK workers of one TaskManager: each has keys, an endpoint and a file of scrape targets of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers.process import wait_until

if TYPE_CHECKING:
    import pathlib

    from tests.servers.flink import Flink

pytestmark = pytest.mark.xdist_group("flink")

EVENTS = 400
KEYS = 40
WITHIN_S = 300.0
AGENT = """\
import asyncio
import os
from pathlib import Path

from beam_agents import AgentConfig, Complete

HERE = Path(__file__).parent
config = AgentConfig(telemetry=("beam", f"prometheus?port=0&sd_dir={HERE}/targets"))

async def count(ctx):
    n = int(ctx.memory.get("n") or b"0") + 1
    ctx.memory.set("n", b"%d" % n)
    (HERE / f"works.{os.getpid()}").touch()
    while n == 5 and not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    return Complete(b"%s %d" % (ctx.event, n))
"""


def activations(target: str) -> float:
    """Return how many one process has counted by now."""
    page = httpx.get(f"http://{target}/metrics", headers={"Accept": "text/plain"}, timeout=30).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "beam_agents_activations_total"
    )


def test_two_workers_of_one_task_manager(flink: Flink, tmp_path: pathlib.Path) -> None:
    agent = tmp_path / "their_agents.py"
    agent.write_text(AGENT)
    targets = tmp_path / "targets"
    targets.mkdir()
    rows = [{"id": f"k{number % KEYS}", "at": number, "payload": str(number)} for number in range(EVENTS)]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = tmp_path / "out.jsonl"
    job = flink.start(
        "beam_agents.cli",
        *("run", "--agent", f"{agent}:count", "--config", f"{agent}:config"),
        *("--events", str(tmp_path / "events.jsonl"), "--key", "id", "--time", "at", "--payload", "payload"),
        *("--out", str(out), "--runner", "flink", "--", f"--job_endpoint={flink.job_endpoint}"),
        *(*flink.environment(PYTHONPATH=str(tmp_path)), "--parallelism=2", "--sdk_worker_parallelism=2"),
        log=tmp_path / "run.log",
    )

    # Both are at work, until they may go on.
    def at_work() -> set[int]:
        assert job.poll() is None, (tmp_path / "run.log").read_text()[-3_000:] + flink.log()
        return {int(path.suffix[1:]) for path in tmp_path.glob("works.*")}

    wait_until(lambda: len(at_work()) == 2, "both workers are at work", WITHIN_S)
    assert at_work() == set(flink.workers())
    endpoints = {
        target
        for path in targets.glob("*.json")
        for group in json.loads(path.read_text())
        for target in group["targets"]
    }
    assert len(endpoints) == 2
    wait_until(lambda: all(map(activations, endpoints)), "both have counted", WITHIN_S)
    (tmp_path / "go").touch()
    assert job.wait(WITHIN_S) == 0, (tmp_path / "run.log").read_text()[-3_000:]
    assert sorted(json.loads(line)["output"] for line in out.read_text().splitlines()) == sorted(
        f"{number} {number // KEYS + 1}" for number in range(EVENTS)
    )
    wait_until(lambda: not flink.workers(), "the workers have ended", WITHIN_S)
    assert not list(targets.glob("*.json"))

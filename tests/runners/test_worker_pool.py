"""Workers in a container beside the runner's: Beam's worker pool, as the image for Flink starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.prism import WORKER
from tests.servers.process import accepts, free_port, server, wait_until

if TYPE_CHECKING:
    from tests.servers.prism import Prism

DOCKERFILE = Path(__file__).parents[2] / "docs" / "deploy" / "flink" / "Dockerfile"
AGENT = """\
from beam_agents import AgentConfig, Complete

config = AgentConfig(telemetry=("prometheus?port=0&sd_dir=TARGETS",))

async def count(ctx):
    n = int(ctx.memory.get("n") or b"0") + 1
    ctx.memory.set("n", b"%d" % n)
    return Complete(b"%d" % n)
"""


def test_a_job_whose_workers_come_from_the_pool(prism: Prism, tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()
    (tmp_path / "their_agents.py").write_text(AGENT.replace("TARGETS", str(targets)))
    (tmp_path / "events.jsonl").write_text(
        "".join(f'{{"id": "{key}", "at": {1_000 + number}}}\n' for number, key in enumerate("abcab"))
    )
    port = free_port()
    text = DOCKERFILE.read_text().replace("\\\n", "")
    (entry,) = (
        json.loads(each) for each in re.findall(r"^ENTRYPOINT (\[.+worker_pool.+\])$", text, re.MULTILINE)
    )
    pool = [
        word.replace("50000", str(port)).replace("/opt/agents/bin/beam-agents-worker", str(WORKER))
        for word in entry[1:]
    ]
    assert pool != entry[1:]
    # Workers import the agent; the pool is not where they do.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    job = [
        *(
            "run",
            "--agent",
            f"{tmp_path}/their_agents.py:count",
            "--config",
            f"{tmp_path}/their_agents.py:config",
        ),
        *(
            "--events",
            f"{tmp_path}/events.jsonl",
            "--key",
            "id",
            "--time",
            "at",
            "--out",
            f"{tmp_path}/out.jsonl",
        ),
        *("--runner", "prism", "--", f"--job_endpoint={prism.endpoint}"),
        *("--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"),
    ]
    with server(
        [sys.executable, *pool], lambda: accepts(port), tmp_path / "pool.log", environment=environment
    ):
        done = subprocess.run(
            [sys.executable, "-m", "beam_agents.cli", *job], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "pool.log").read_text()
        counts = [json.loads(line)["output"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert sorted(counts) == ["1", "1", "1", "2", "2"]
        # The pool ends a job's worker by SIGTERM, and it takes its target away.
        wait_until(lambda: not list(targets.iterdir()), "the worker has ended")

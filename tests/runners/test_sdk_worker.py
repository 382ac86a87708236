"""SDK workers as processes of their own: under Prism, and under a runner that is gone or never there."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_agents.cli.sdk_worker import provided
from tests.servers.prism import WORKER, Prism, running_prism
from tests.servers.process import free_port, parent_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENT = '''
import asyncio
import os
from pathlib import Path

from beam_agents import AgentConfig, Complete

config = AgentConfig(telemetry=("prometheus?port=0&sd_dir=targets",))

async def count(ctx):
    """Count; wait while a file says so, and tell which process waits."""
    n = int(ctx.memory.get("n") or b"0") + 1
    ctx.memory.set("n", b"%d" % n)
    while Path("wait").exists():
        Path(f"waits.{os.getpid()}").touch()
        await asyncio.sleep(0.02)
    return Complete(b"%d" % n)
'''


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "their_agents.py").write_text(AGENT)
    (tmp_path / "targets").mkdir()
    rows = (f'{{"id": "{key}", "at": {1_000 + number}}}\n' for number, key in enumerate("abcab"))
    (tmp_path / "events.jsonl").write_text("".join(rows))
    return tmp_path


@contextmanager
def job(prism: Prism, folder: pathlib.Path, out: str = "out.jsonl") -> Iterator[subprocess.Popen[str]]:
    """Run ``beam-agents run`` on a runner; its workers are where the runner is, so all paths are whole."""
    command = [
        sys.executable, "-m", "beam_agents.cli", "run", "--agent", f"{folder}/their_agents.py:count",
        "--config", f"{folder}/their_agents.py:config", "--events", f"{folder}/events.jsonl",
        "--key", "id", "--time", "at", "--out", out, "--runner", "prism", "--", *prism.options,
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def own_prism(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prism]:
    """A runner in the folder, for its workers to be there too."""
    monkeypatch.chdir(folder)
    with running_prism(folder) as runner:
        yield runner


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_two_jobs_at_once_have_a_worker_and_a_target_each_and_leave_nothing(
    own_prism: Prism, folder: pathlib.Path
) -> None:
    (folder / "wait").touch()
    with job(own_prism, folder) as first, job(own_prism, folder, "second.jsonl") as second:
        wait_until(lambda: len(list(folder.glob("waits.*"))) == 2, "both jobs are at work", 120)
        workers = set(own_prism.workers())
        assert {int(path.suffix[1:]) for path in folder.glob("waits.*")} == workers
        assert len(workers) == 2
        # An address of its own in each process's file of scrape targets.
        assert len({path.read_text() for path in (folder / "targets").glob("*.json")}) == 2
        (folder / "wait").unlink()
        for process in (first, second):
            status, output = end_of(process)
            assert status == 0, output + own_prism.log.read_text()[-2_000:]
            assert "not counted: the runner used other processes" in " ".join(output.split())
    for name in ("out.jsonl", "second.jsonl"):
        # Prism would split so slow a bundle, run a key's two activations at once, and lose one's state.
        assert sorted(re.findall(r"\d", (folder / name).read_text())) == ["1", "1", "1", "2", "2"]
    # Prism ends the process that it knows with SIGKILL; the worker itself ends in good order.
    wait_until(lambda: not own_prism.workers(), "the workers have ended")
    wait_until(lambda: not list((folder / "targets").glob("*.json")), "no target is left")


@pytest.mark.parametrize("who", ["watcher", "worker"])
def test_sigterm_ends_a_worker_and_its_target_is_gone(
    who: str, own_prism: Prism, folder: pathlib.Path
) -> None:
    (folder / "wait").touch()
    with job(own_prism, folder) as process:
        wait_until(lambda: bool(list(folder.glob("waits.*"))), "the job is at work", 120)
        (worker,) = own_prism.workers()
        watcher = parent_of(worker)
        assert len(list((folder / "targets").glob("*.json"))) == 1
        os.kill(watcher if who == "watcher" else worker, signal.SIGTERM)
        wait_until(lambda: not pathlib.Path(f"/proc/{watcher}").exists(), "the process has ended")
        # By then the runner may have ended the watcher with SIGKILL, as it does where a job has failed.
        wait_until(lambda: not pathlib.Path(f"/proc/{worker}").exists(), "the worker has ended")
        assert not list((folder / "targets").glob("*.json"))
        # The runner starts no other worker: the job has failed, and says so.
        status_code, output = end_of(process)
        assert status_code == 1, output
        assert "the pipeline failed; no output was written" in output
    assert not (folder / "out.jsonl").exists()


def test_a_worker_ends_with_its_runner(own_prism: Prism, folder: pathlib.Path) -> None:
    (folder / "wait").touch()
    with job(own_prism, folder):
        wait_until(lambda: bool(list(folder.glob("waits.*"))), "the job is at work", 120)
        (worker,) = own_prism.workers()
        own_prism.process.kill()
        own_prism.process.wait()
        (folder / "wait").unlink()
        wait_until(lambda: not pathlib.Path(f"/proc/{worker}").exists(), "the worker has ended")
        wait_until(lambda: not list((folder / "targets").glob("*.json")), "no target is left")


def test_a_job_that_stages_packages_is_told_why_it_fails(prism: Prism, tmp_path: pathlib.Path) -> None:
    package = tmp_path / "theirs-1.0.tar.gz"
    package.touch()
    options = PipelineOptions([*prism.options, f"--extra_package={package}"])
    pipeline = beam.Pipeline(runner="PortableRunner", options=options)
    _ = pipeline | beam.Create([1]) | beam.Map(str)
    with pytest.raises(
        RuntimeError, match=rf"the job stages .*{package.name}, which a worker that is a process"
    ):
        pipeline.run().wait_until_finish()


def test_an_argument_is_missing() -> None:
    done = subprocess.run([WORKER, "--id=1"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, "--provision_endpoint" in done.stderr) == (2, True)


def test_a_runner_that_is_not_there() -> None:
    where = f"127.0.0.1:{free_port()}"
    said = f"the runner's provision service at '{where}' does not answer \\(DEADLINE_EXCEEDED\\)"
    with pytest.raises(SystemExit, match=said):
        provided("1", where, within_s=0.5)

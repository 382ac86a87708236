"""Kills the processes of a Flink cluster with SIGKILL at random moments, while one job runs on it.

    python -m tests.runners.flink_kills --store redis --kills 24 --seed 1

Flink goes back to the last checkpoint, again and again, and the job goes on; whatever was a process of the
cluster is started again, as Kubernetes or systemd would. The job is submitted once.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from beam_agents.demo.store import provision_store
from tests.runners.kill_model import KillModel
from tests.runners.kill_program import kill_program
from tests.runners.killed_job import REMEMBER
from tests.servers.flink import running_flink
from tests.servers.process import parent_of, wait_until

if TYPE_CHECKING:
    import pathlib
    import random
    import subprocess
    from collections.abc import Iterator, Sequence

    from tests.servers.flink import Flink

__all__ = ["CLUSTER", "FlinkKillRun", "FlinkVictim"]

LOOK_EVERY_S = 1.0
WITHIN_S = 900.0
CHECKPOINT_EVERY_MS = 1_000
UNDISTURBED_FASTER = 10.0
"""How much faster the undisturbed job's events come in: what they come to does not depend on it."""
CLUSTER = {
    "heartbeat.interval": 2_000,
    "heartbeat.timeout": 20_000,
    # How long a new JobManager waits for one that was killed, at most.
    "high-availability.zookeeper.client.session-timeout": 10_000,
}
"""Flink's settings, for what is killed to be missed soon."""


class FlinkVictim(Enum):
    """Whom SIGKILL hits."""

    WORKER = "SDK worker"
    WATCHER = "the worker's parent"
    TASK_MANAGER = "TaskManager"
    JOB_MANAGER = "JobManager"


class FlinkKillRun:
    """One job on a cluster whose processes are killed.

    Args:
        folder: For files.
        flink: The cluster, of one TaskManager.
        uri: The store.
        rng: What chooses the moments.
        events: Of the job.
        rate: Events in a second.

    Attributes:
        counts: What happened, how often.
    """

    def __init__(
        self, folder: pathlib.Path, flink: Flink, uri: str, rng: random.Random, *, events: int, rate: float
    ) -> None:
        self._model = KillModel(uri, events)
        self.counts = self._model.counts
        self._folder = folder
        self._flink = flink
        self._rng = rng
        self._rate = rate
        self._job = ""

    def run(self, victims: Sequence[FlinkVictim]) -> None:
        """Run the job undisturbed and then with these kills, and compare.

        Args:
            victims: Whom, one after the other, at moments that are spread over the time of the events.
        """
        self._undisturbed()
        folder = self._folder / "disturbed"
        options = (
            f"--checkpointing_interval={CHECKPOINT_EVERY_MS}",
            "--shutdown_sources_after_idle_ms=-1",
        )
        submitter = self._submit(folder, self._model.uri, self._rate, options)
        try:
            wait_until(lambda: bool(self._flink.jobs()) or submitter.poll() is not None, "it runs", WITHIN_S)
            (self._job,) = self._flink.jobs()
            wait_until(lambda: self._checkpoints() > 0, "there is a checkpoint", WITHIN_S)
            with ThreadPoolExecutor(1) as killer:
                self._watch(folder, killer.submit(self._kill_all, victims))
            self.counts["checkpoints since the last JobManager's start"] = self._checkpoints()
            self._flink.cancel(self._job)
            wait_until(lambda: not self._flink.workers(), "the workers have ended", WITHIN_S)
        finally:
            submitter.kill()
            submitter.wait()
        self._model.compare([folder])

    def _undisturbed(self) -> None:
        """Run the job with a store of its own, and tell the model."""
        uri = f"sqlite+aiosqlite:///{self._folder}/undisturbed.sqlite"
        provision_store(uri)
        folder = self._folder / "undisturbed"
        process = self._submit(folder, uri, self._rate * UNDISTURBED_FASTER)
        assert process.wait(WITHIN_S) == 0, self._said()
        self._model.undisturbed(folder, uri)

    def _submit(
        self, folder: pathlib.Path, uri: str, rate: float, options: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        folder.mkdir()
        job = (str(folder), uri, str(len(self._model.written)), str(rate), REMEMBER)
        return self._flink.start(
            "tests.runners.submit_killed_job",
            *(*job, *self._flink.options(), *options),
            log=folder.with_suffix(".log"),
        )

    def _watch(self, folder: pathlib.Path, kills: Future[None]) -> None:
        """Look at the store until all has been done and written, and all have been killed."""
        deadline = time.monotonic() + WITHIN_S + len(self._model.written) / self._rate
        while not (kills.done() and self._is_over(folder)):
            if kills.done():
                kills.result()
            assert time.monotonic() < deadline, f"{dict(self.counts)}\n{self._said()}"
            self._model.check_store([folder])
            time.sleep(LOOK_EVERY_S)
        kills.result()

    def _is_over(self, folder: pathlib.Path) -> bool:
        return len(self._model.done([folder])) == len(self._model.written) and self._model.is_whole()

    def _kill_all(self, victims: Sequence[FlinkVictim]) -> None:
        """Kill each at its moment, or as soon as it is there again."""
        lasts_s = len(self._model.written) / self._rate
        moments = sorted(self._rng.uniform(0, lasts_s) for _ in victims)
        started = time.monotonic()
        for moment, victim in zip(moments, victims, strict=True):
            time.sleep(max(0.0, started + moment - time.monotonic()))
            self._kill(victim)
            self.counts[victim.value] += 1

    def _kill(self, victim: FlinkVictim) -> None:
        flink = self._flink
        if victim is FlinkVictim.TASK_MANAGER:
            killed = flink.task_managers.pop()
            killed.kill()
            killed.wait()
            flink.start_task_manager()
        elif victim is FlinkVictim.JOB_MANAGER:
            flink.job_manager.kill()
            flink.job_manager.wait()
            flink.restart_job_manager()
        else:
            wait_until(lambda: self._hit_worker(victim), "there is a worker", WITHIN_S)

    def _hit_worker(self, victim: FlinkVictim) -> bool:
        """Kill a worker or its parent; tell whether there was one."""
        for worker in self._flink.workers():
            try:
                os.kill(worker if victim is FlinkVictim.WORKER else parent_of(worker), 9)
            except (ProcessLookupError, FileNotFoundError):
                continue  # it has ended meanwhile
            return True
        return False

    def _checkpoints(self) -> int:
        counts = self._flink.ask(f"/jobs/{self._job}/checkpoints").get("counts", {})
        assert isinstance(counts, dict)
        completed = counts.get("completed", 0)
        assert isinstance(completed, int)
        return completed

    def _said(self) -> str:
        logs = [log.read_text(errors="replace")[-4_000:] for log in self._folder.glob("*.log")]
        return "\n".join([*logs, self._flink.log()])


@contextmanager
def _over_a_cluster(
    folder: pathlib.Path, uri: str, rng: random.Random, events: int, rate: float
) -> Iterator[FlinkKillRun]:
    with running_flink(folder / "flink", settings=CLUSTER) as flink:
        yield FlinkKillRun(folder, flink, uri, rng, events=events, rate=rate)


if __name__ == "__main__":
    kill_program(__spec__.name, __doc__, FlinkVictim, _over_a_cluster, kills=24, events=3_000, rate=5.0)

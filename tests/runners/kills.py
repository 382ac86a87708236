"""Kills a job's processes with SIGKILL at random moments, and submits it again, until it has had enough.

    python -m tests.runners.kills --store redis --kills 20 --seed 1

Prism keeps no checkpoint: whatever is killed, the job is over. What recovers it is the same job once more,
over the same events from the first, with empty state, on the store that the earlier jobs have left ahead of
it. Then its rows are refused as long as they are older than the store's, and whatever it puts out again is
what was out.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING

from beam_agents.demo.store import provision_store
from tests.runners.kill_model import KillModel
from tests.runners.kill_program import kill_program
from tests.runners.killed_job import COUNTERS, REMEMBER, lines_of
from tests.runners.stores import rows_of
from tests.servers.prism import process_options, running_prism
from tests.servers.process import parent_of, wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from typing import Self

    from beam_agents.memory.stores.contract import StoreRow
    from tests.servers.prism import Prism

__all__ = ["KillRun", "Victim"]

ROOT = pathlib.Path(__file__).parents[2]
STILL_FOR_S = 30.0
"""After so long without an event done, whoever has seen the kill ends the job."""
LOOK_EVERY_S = 0.5
JOB_WITHIN_S = 600.0


class Victim(Enum):
    """Whom SIGKILL hits."""

    WORKER = "SDK worker"
    WATCHER = "the worker's parent"
    RUNNER = "Prism"
    SUBMITTER = "the program that submits"
    """Its job goes on, beside the one that is submitted next."""


class KillRun:
    """One store, and the jobs that are killed over it.

    Args:
        folder: For files.
        uri: The store.
        rng: What chooses the moments.
        events: Of each job.
        rate: Events in a second.
        earliest: How many events a job has done at least when it is hit.

    Attributes:
        counts: What happened, how often.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        uri: str,
        rng: random.Random,
        *,
        events: int,
        rate: float,
        earliest: int = 0,
    ) -> None:
        self._model = KillModel(uri, events)
        self.counts = self._model.counts
        self._folder = folder
        self._uri = uri
        self._rng = rng
        self._events = events
        self._rate = rate
        self._earliest = earliest
        self._attempts: list[pathlib.Path] = []
        self._stack = ExitStack()
        self._prism: Prism | None = None
        self._prisms = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, victims: Sequence[Victim]) -> None:
        """Kill one after the other, let the job come to its end, and compare.

        Args:
            victims: Whom, each of a job of its own.
        """
        self._undisturbed()
        for victim in victims:
            while not self._attempt(victim):
                self.counts["ends before the kill"] += 1
        self._restart()
        before = rows_of(self._uri)
        assert self._attempt(None)
        self._compare(before)

    def _undisturbed(self) -> None:
        """Run the job with a store of its own, and tell the model."""
        uri = f"sqlite+aiosqlite:///{self._folder}/undisturbed.sqlite"
        provision_store(uri)
        folder = self._folder / "undisturbed"
        process = self._submit(folder, uri)
        assert process.wait(JOB_WITHIN_S) == 0, self._log(folder)
        self._model.undisturbed(folder, uri)

    def _runner(self) -> Prism:
        if self._prism is None or self._prism.process.poll() is not None:
            self._prisms += 1
            folder = self._folder / f"prism-{self._prisms}"
            folder.mkdir()
            self._prism = self._stack.enter_context(running_prism(folder))
        return self._prism

    def _restart(self) -> None:
        """End the runner with all that still runs on it."""
        prism = self._runner()
        workers = prism.workers()
        prism.process.kill()
        prism.process.wait()
        wait_until(lambda: not any(_runs(worker) for worker in workers), "the workers have ended")

    def _submit(self, folder: pathlib.Path, uri: str) -> subprocess.Popen[bytes]:
        folder.mkdir()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        prism = self._runner()
        command = [
            *(sys.executable, "-m", "tests.runners.submit_killed_job", str(folder), uri),
            *(str(self._events), str(self._rate), REMEMBER, f"--job_endpoint={prism.endpoint}"),
            *process_options(PYTHONPATH=path),
        ]
        with (folder / "submit.log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}
            )

    def _attempt(self, victim: Victim | None) -> bool:
        """Submit the job, kill at a random moment, wait for its end; tell whether all that was to be."""
        folder = self._folder / f"job-{len(self._attempts)}"
        process = self._submit(folder, self._uri)
        self._attempts.append(folder)
        self.counts["submissions"] += 1
        try:
            if victim is not None:
                moment = self._rng.randint(self._earliest, self._events)
                self._watch(process, folder, until=moment)
                if process.poll() is not None:
                    return False
                time.sleep(self._rng.uniform(0, 0.1))
                if not self._kill(victim, process):
                    return False
                self.counts[victim.value] += 1
            self._watch(process, folder, hit=victim)
        finally:
            process.kill()
            status = process.wait()
            self._model.check_store(self._attempts)
        return victim is not None or status == 0

    def _kill(self, victim: Victim, submitter: subprocess.Popen[bytes]) -> bool:
        prism = self._runner()
        if victim is Victim.RUNNER:
            prism.process.kill()
            prism.process.wait()
            return True
        if victim is Victim.SUBMITTER:
            submitter.kill()
            return True
        wait_until(lambda: bool(prism.workers()) or submitter.poll() is not None, "there is a worker")
        for worker in self._rng.sample(workers := prism.workers(), len(workers)):
            try:
                os.kill(worker if victim is Victim.WORKER else parent_of(worker), 9)
            except (ProcessLookupError, FileNotFoundError):
                continue  # its job has ended meanwhile
            return True
        return False

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        folder: pathlib.Path,
        *,
        until: int | None = None,
        hit: Victim | None = None,
    ) -> None:
        """Look at the store until the job has done so many events, or is over; end one that stands still."""
        done, since = -1, time.monotonic()
        while process.poll() is None:
            self._model.check_store(self._attempts)
            now = len(lines_of(folder, "outputs"))
            if until is not None and now >= until:
                return
            if now > done:
                done, since = now, time.monotonic()
            elif time.monotonic() - since > (JOB_WITHIN_S if hit is None else STILL_FOR_S):
                self.counts["left hanging" if hit is None else f"left hanging by {hit.value}"] += 1
                self._restart()
                process.wait(JOB_WITHIN_S)
            time.sleep(LOOK_EVERY_S)

    def _compare(self, before: list[StoreRow]) -> None:
        """Hold all that was put out, and the store, against the undisturbed run."""
        last = self._attempts[-1]
        self._model.compare(self._attempts)
        for name in ("outputs", "intents"):
            assert sorted(lines_of(last, name)) == sorted(lines_of(self._folder / "undisturbed", name))
        # What the last job was refused is what the store had newer, and it is told.
        stored = {row.row_id: row.seq for row in before}
        written = self._model.written.values()
        stale = sum(row.seq < stored.get(row.row_id, 0) for rows in written for row in rows)
        counters = json.loads((last / COUNTERS).read_text())
        assert counters.get("longterm_stale_upserts", 0) == stale
        self.counts |= {
            "stale in the last job": stale,
            "applied in the last job": counters["longterm_upserts"],
        }

    def _log(self, folder: pathlib.Path) -> str:
        return (folder / "submit.log").read_text()[-4_000:]


def _runs(pid: int) -> bool:
    return pathlib.Path(f"/proc/{pid}").exists()


if __name__ == "__main__":
    kill_program(
        __spec__.name,
        __doc__,
        Victim,
        lambda folder, uri, rng, events, rate: KillRun(folder, uri, rng, events=events, rate=rate),
        kills=20,
        events=1_000,
        rate=40.0,
    )

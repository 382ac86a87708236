"""What runs in the SDK workers of ``make bench-scaling``: the agent, and the meter of what it takes.

A job's activations begin when those of all jobs can, and its worker does nothing after the last one until the
last of all has ended: what is measured is the time in which all of them are at work.
"""

from __future__ import annotations

import json
import pathlib
import resource
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from apache_beam.runners.worker import bundle_processor

from beam_agents.signals import Observer, catalogue
from tests.benchmarks.workloads import remember, remember_and_save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from beam_agents import AgentContext, Complete
    from beam_agents.signals import Record, Worker

__all__ = ["AGENT", "STATE_COMMIT", "STATE_READ", "Meeting", "Metered", "Work"]

WAIT_AT_MOST_S = 600

AGENT = "agent"
STATE_READ = "state read"
STATE_COMMIT = "state commit"
"""What the meter times itself, beside the runtime's own signals."""


@dataclass(frozen=True)
class Meeting:
    """Where the workers of one measurement meet: files in a folder.

    Attributes:
        folder: The folder.
        job: This job's number.
        jobs: How many there are.
    """

    folder: str
    job: int
    jobs: int

    def together(self, what: str) -> None:
        """Wait until all jobs have come here."""
        folder = pathlib.Path(self.folder)
        (folder / f"{what}.{self.job}").touch()
        deadline = time.monotonic() + WAIT_AT_MOST_S
        while len(list(folder.glob(f"{what}.*"))) < self.jobs:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {self.jobs} jobs came to {what!r}")
            time.sleep(0.002)

    def report(self, found: dict[str, object]) -> None:
        """Leave what this job's worker measured."""
        pathlib.Path(self.folder, f"meter.{self.job}").write_text(json.dumps(found))


@dataclass(frozen=True)
class Work:
    """The agent of one job.

    Attributes:
        meeting: Where the jobs meet.
        events: How many activations the job has.
        saves: Whether there is a store.
    """

    meeting: Meeting
    events: int
    saves: bool

    async def __call__(self, ctx: AgentContext) -> Complete:
        """Do the work of one event."""
        METER.begin(self)
        with METER.timed(AGENT):
            outcome = await (remember_and_save if self.saves else remember)(ctx)
        METER.end(self)
        return outcome


@dataclass(frozen=True)
class Metered:
    """The plugin that hands the runtime's own signals to the meter."""

    name: str = "metered"

    def build(self) -> Observer:
        """Return the observer."""
        return _Signals()


class _Signals(Observer):
    """Adds up the runtime's own measurements while the meter runs."""

    def bundle_started(self, worker: Worker) -> None:  # noqa: ARG002 - there is one
        """Count a bundle."""
        METER.bundles += 1

    def record(self, record: Record) -> None:
        """Add one activation's; the first has waited for the other jobs."""
        if METER.running and METER.activations > 1 and record.span is catalogue.SPAN_INVOKE_AGENT:
            for metric, value, _ in record.measurements:
                if metric in _SUMMED:
                    METER.seconds[metric.name] += value


_SUMMED = (
    catalogue.ACTIVATION_DURATION_SECONDS,
    catalogue.RUNTIME_OVERHEAD_SECONDS,
    catalogue.LONGTERM_FLUSH_DURATION_SECONDS,
)


class _Meter:
    """Adds up what one job takes, in this process."""

    def __init__(self) -> None:
        self.activations = 0
        self.bundles = 0
        self.running = False
        self.seconds: Counter[str] = Counter()

    def begin(self, work: Work) -> None:
        """Count an activation; before the first, wait for the other jobs."""
        if self.activations == 0:
            # Beam tells nothing of the time that its state takes: all of it goes through these two.
            self._watch(bundle_processor.ReadModifyWriteRuntimeState, "read", STATE_READ)
            self._watch(bundle_processor.FnApiUserStateContext, "commit", STATE_COMMIT)
            work.meeting.together("ready")
            self.running = True
            self._cpu_s, self._wall_s = time.process_time(), time.monotonic()
        self.activations += 1

    def end(self, work: Work) -> None:
        """After the last activation's work, tell what all took, and wait for the other jobs."""
        if self.activations < work.events:
            return
        cpu_s, wall_s = time.process_time(), time.monotonic()
        self.running = False
        found = {
            "activations": self.activations - 1,
            "bundles": self.bundles,
            "wall_s": wall_s - self._wall_s,
            "cpu_s": cpu_s - self._cpu_s,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "seconds": dict(self.seconds),
        }
        work.meeting.together("ended")
        work.meeting.report(found)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add what a block takes."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            if self.running:
                self.seconds[what] += time.perf_counter() - started_s

    def _watch(self, kind: type, method: str, what: str) -> None:
        original: Callable[..., object] = getattr(kind, method)

        def watched(*arguments: object) -> object:
            with self.timed(what):
                return original(*arguments)

        setattr(kind, method, watched)


METER = _Meter()

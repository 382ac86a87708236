"""``make outages``: what becomes of a job whose store is away while keys expire, by runner and setting.

Flights come in at an even pace, and an aircraft expires soon after its last one. Its memory goes to Redis
then, and nothing else does: so whatever happens to the others is the doing of expiry alone. Redis is stopped
for a while and started again.

Each case is a process of its own. The program prints a table, and writes all of it as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, cast

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.executor import TransformExecutor
from apache_beam.runners.runner import PipelineState
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from rich import box
from rich.console import Console
from rich.table import Table

from beam_agents.cli.job import EVENTS
from beam_agents.cli.rows import Fields
from beam_agents.config import AgentConfig
from beam_agents.demo.data import flight_rows
from beam_agents.demo.outage.worker import kept_up
from beam_agents.demo.replay import Replay, ReplayRows
from beam_agents.demo.store import count_rows
from beam_agents.errors import ExpireFlushFailed
from beam_agents.memory.expiry import FlushToLongterm, OnFailure
from beam_agents.runtime.outcomes import Complete
from beam_agents.signals import catalogue
from beam_agents.signals.observer import Observer
from beam_agents.signals.types import CallOutcome
from beam_agents.transform import RunAgent, keyed_envelopes
from beam_agents.wire.beam_agents_pb2 import AgentEnvelope
from tests.servers.flink import running_flink, sdk_of_flink
from tests.servers.prism import running_prism
from tests.servers.redis import DurableServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from apache_beam.pvalue import PCollection

    from beam_agents.runtime.context import AgentContext
    from beam_agents.signals.observer import Record, Worker

PRISM: Final = "Prism"
FLINK: Final = "Flink"
REPLAYING: Final = (PRISM, FLINK)
"""Runners to which the flights come from an unbounded source."""
RETRYING: Final = "BundleBasedDirectRunner"
BOUNDED: Final = "FnApiRunner"
STOPPED: Final = "stopped"
FROZEN: Final = "frozen"
NAME: Final = "flights"
TICK_S: Final = 0.5
CHECKPOINT_EVERY_MS: Final = 5_000
"""On Flink."""
PER_SECOND: Final = 20
"""Flights in a second."""
FIELDS: Final = Fields("id", "at")
_BY_NAME: Final = f"from {__spec__.name} import main; main()"
"""Runs a case in the module, not in ``__main__``, of which Beam would pickle copies."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long what lasts, in seconds.

    Attributes:
        before: Until Redis is stopped.
        outage: From the first flush that fails for it until it is started again.
        after: Until the last flight.
    """

    before: float
    outage: float
    after: float

    @property
    def ttl(self) -> float:
        """From an aircraft's last flight until it expires."""
        return self.before / 2

    @property
    def flights(self) -> int:
        """How many there are."""
        return round((self.before + self.outage + self.after) * PER_SECOND)


FULL: Final = Plan(before=30, outage=60, after=90)


@dataclass(frozen=True, slots=True)
class Case:
    """One run.

    Attributes:
        runner: PRISM, FLINK, RETRYING or BOUNDED.
        on_failure: What the hook does where it fails.
        fault: STOPPED, so that Redis refuses connections, or FROZEN, so that it never answers.
    """

    runner: str
    on_failure: str
    fault: str = STOPPED


CASES: Final = {
    f"{runner}/{on_failure}/{fault}": Case(runner, on_failure.value, fault)
    for runner, on_failure, fault in (
        *itertools.product((PRISM, FLINK, RETRYING, BOUNDED), OnFailure, (STOPPED,)),
        *itertools.product((PRISM,), OnFailure, (FROZEN,)),
    )
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What was seen of one run.

    Attributes:
        case: Which.
        failed_after_s: Seconds from the outage's beginning to the job's failure; None if it came to its end.
        restarts: How often Flink went back to a checkpoint; None on other runners.
        failed_flushes: Attempts to write an expiring key that failed.
        failed_keys: Keys of which one did.
        failed_bundles: Bundles that were given up with one.
        activations_per_s: Before, during and after the outage; None where there was no such time.
        expired_per_s: Keys that were written and wiped, likewise.
        watermark_lag_s: By how much the watermark of the agent's output was behind the flights, at most:
            before, during and after the outage; None where nothing was seen of it.
        recovered_after_s: Seconds from the outage's end until the last key that had failed was written.
        keys: Aircraft that flew.
        rows: Aircraft of which the store has the memory in the end.
    """

    case: Case
    failed_after_s: float | None
    restarts: int | None
    failed_flushes: int
    failed_keys: int
    failed_bundles: int
    activations_per_s: tuple[float | None, ...]
    expired_per_s: tuple[float | None, ...]
    watermark_lag_s: tuple[float | None, ...]
    recovered_after_s: float | None
    keys: int
    rows: int


class Seen(Observer):
    """What happened when, by the wall clock."""

    def __init__(self) -> None:
        self.activations: list[float] = []
        self.keys: set[bytes] = set()
        self.expired: list[tuple[float, bytes]] = []
        self.failed: list[tuple[float, bytes]] = []
        self.failed_bundles = 0
        self.watermarks: list[tuple[float, float]] = []
        self.begun = threading.Event()
        self.failing = threading.Event()

    def record(self, record: Record) -> None:
        now_s = time.time()
        for metric, _, labels in record.measurements:
            if metric is catalogue.ACTIVATIONS:
                self.activations.append(now_s)
                self.keys.add(record.entity_key)
                self.begun.set()
            elif metric is catalogue.EXPIRE_FLUSHES:
                written = CallOutcome.OK.value in labels
                (self.expired if written else self.failed).append((now_s, record.entity_key))
                if not written:
                    self.failing.set()

    def bundle_failed(self, _worker: Worker, _phase: str, error_type: str) -> None:
        # Another that runs while a runner gives the job up fails too, for want of its state.
        if error_type == ExpireFlushFailed.__name__:
            self.failed_bundles += 1


SEEN: Final = Seen()


@dataclass(frozen=True, slots=True)
class SeenPlugin:
    """Tells this process's ``SEEN``."""

    name: str = "seen"

    def build(self) -> Observer:
        return SEEN


async def count_flights(ctx: AgentContext) -> Complete:
    """Count the aircraft's flights, in working memory alone."""
    ctx.memory.set("flights", b"%d" % (int(ctx.memory.get("flights", b"0")) + 1))
    return Complete(b"counted")


def by_second(
    element: bytes,
    timestamp: Timestamp = cast("Timestamp", beam.DoFn.TimestampParam),
) -> tuple[bytes, bytes]:
    return b"%d" % (timestamp.micros // 1_000_000), element


class WatermarkProbe(beam.DoFn):
    """Notes when the watermark passes each second of event time in which something came."""

    PASSED: Final = TimerSpec("passed", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[bytes, bytes],
        passed: object = beam.DoFn.TimerParam(PASSED),
    ) -> None:
        passed.set(Timestamp(int(element[0]) + 1))  # type: ignore[attr-defined]  # Beam's timer

    @on_timer(PASSED)
    def noted(self, timestamp: Timestamp = cast("Timestamp", beam.DoFn.TimestampParam)) -> None:
        SEEN.watermarks.append((time.time(), timestamp.micros / 1e6))


def flights_of(plan: Plan, started_s: float) -> list[dict[str, str | int]]:
    """Return an aircraft and a time in milliseconds for each flight, at an even pace."""
    named = (row["tailnum"] for row in flight_rows() if row["tailnum"])
    # Whole seconds: a tick of the second kind of source has whole milliseconds.
    start_ms = int(started_s) * 1_000
    return [
        {"id": aircraft, "at": start_ms + number * 1_000 // PER_SECOND}
        for number, aircraft in enumerate(itertools.islice(named, plan.flights))
    ]


def source(
    pipeline: beam.Pipeline, case: Case, plan: Plan, folder: pathlib.Path
) -> PCollection[tuple[bytes, AgentEnvelope]]:
    """Let the flights come in by the clock; all at once where the runner is one for bounded input."""
    flights = flights_of(plan, time.time())
    if case.runner in REPLAYING:
        path = folder / "flights.csv"
        path.write_text("id,at\n" + "".join(f"{flight['id']},{flight['at']}\n" for flight in flights))
        rows = pipeline | ReplayRows(Replay(str(path), path.name, FIELDS, 1.0), "outages")
        events: PCollection[tuple[bytes, AgentEnvelope]] = rows[EVENTS]
        events.element_type = tuple[bytes, AgentEnvelope]
        return events
    if case.runner == BOUNDED:
        return pipeline | beam.Create(flights) | keyed_envelopes(key="id", time="at")
    stream = TestStream()
    size = round(TICK_S * PER_SECOND)
    for first in range(0, len(flights), size):
        tick = flights[first : first + size]
        stream = stream.add_elements([TimestampedValue(flight, flight["at"] / 1_000) for flight in tick])
        stream = stream.advance_watermark_to(tick[-1]["at"] / 1_000)
    return (
        pipeline
        | stream.advance_watermark_to_infinity()
        | beam.Map(wait_for)
        | keyed_envelopes(key="id", time="at")
    )


def wait_for(flight: dict[str, str | int]) -> dict[str, str | int]:
    time.sleep(max(0.0, int(flight["at"]) / 1_000 - time.time()))
    return flight


def play(case: Case, plan: Plan, redis: DurableServer, ended: threading.Event) -> tuple[float, float]:
    """Stop Redis and start it again; return when. It is running in the end, whatever the job did."""

    def wait_for_one(happened: threading.Event) -> None:
        while not (happened.is_set() or ended.wait(0.02)):
            pass

    if case.runner != BOUNDED:
        wait_for_one(SEEN.begun)
        ended.wait(plan.before)
    if case.fault == FROZEN:
        redis.signal(signal.SIGSTOP)
    else:
        redis.close()
    stopped_s = time.time()
    wait_for_one(SEEN.failing)
    if case.runner == BOUNDED:
        # What comes before its end does not need the store.
        stopped_s = time.time()
    ended.wait(plan.outage)
    if case.fault == FROZEN:
        redis.signal(signal.SIGCONT)
    else:
        redis.start()
    return stopped_s, time.time()


def run(case: Case, plan: Plan, folder: pathlib.Path) -> Figures:
    """Run one case in this process."""
    redis = DurableServer(folder)
    redis.start()
    uri = f"redis://127.0.0.1:{redis.port}/0"
    config = AgentConfig(
        longterm_memory=uri,
        on_expire=FlushToLongterm(on_failure=case.on_failure),
        ttl_ms=round(plan.ttl * 1_000),
        telemetry=(SeenPlugin(),),
    )
    ended, times = threading.Event(), []
    player = threading.Thread(target=lambda: times.append(play(case, plan, redis, ended)), daemon=True)
    player.start()
    failed_s: float | None = None
    with _runner(case, config, plan, folder) as runner:
        try:
            pipeline = beam.Pipeline(options=PipelineOptions(runner.options))
            outputs = source(pipeline, case, plan, folder) | RunAgent(
                count_flights, config=config, name=NAME, pipeline=NAME
            )
            if case.runner != BOUNDED:
                (
                    outputs.output
                    | beam.Map(by_second).with_output_types(tuple[bytes, bytes])
                    | beam.ParDo(WatermarkProbe())
                )
            if pipeline.run().wait_until_finish() != PipelineState.DONE:
                failed_s = time.time()
        except Exception:  # noqa: BLE001 - that it fails is what is looked at
            failed_s = time.time()
        ended.set()
        player.join()
        restarts = runner.restarts()
    ((stopped_s, back_s),) = times
    rows = count_rows(uri).working_memories
    redis.close()
    return figures(case, (stopped_s, back_s), failed_s, restarts, rows)


@dataclass(frozen=True, slots=True)
class Running:
    """A runner that takes a job.

    Attributes:
        options: Of Beam.
        restarts: Returns how often the job was begun again so far.
    """

    options: list[str]
    restarts: Callable[[], int | None] = lambda: None


@contextmanager
def _runner(case: Case, config: AgentConfig, plan: Plan, folder: pathlib.Path) -> Iterator[Running]:
    loopback = ["--runner=PortableRunner", "--environment_type=LOOPBACK"]
    if case.runner == PRISM:
        with running_prism(folder) as prism:
            yield Running([*loopback, f"--job_endpoint={prism.endpoint}"])
        return
    if case.runner == FLINK:
        # With checkpoints a job lasts as long as its sources, and they for ever if they are not told.
        idle_ms = round((plan.before + plan.outage + plan.after + 60) * 1_000)
        with running_flink(folder / "flink") as flink:
            yield Running(
                [
                    *(*loopback, f"--job_endpoint={flink.job_endpoint}", "--streaming"),
                    f"--checkpointing_interval={CHECKPOINT_EVERY_MS}",
                    f"--shutdown_sources_after_idle_ms={idle_ms}",
                ],
                flink.restarts,
            )
        return
    # As Dataflow does; by itself this runner gives up at the fourth attempt, and has no option for it.
    TransformExecutor._MAX_RETRY_PER_BUNDLE = sys.maxsize
    with kept_up(config, NAME, NAME) if case.runner == RETRYING else nullcontext():
        yield Running([f"--runner={case.runner}"])


def figures(
    case: Case, outage: tuple[float, float], failed_s: float | None, restarts: int | None, rows: int
) -> Figures:
    """Put what was seen into figures."""
    stopped_s, back_s = outage
    end_s = failed_s if failed_s is not None else max(SEEN.activations)
    spans = [
        (low, high)
        for low, high in (
            (min(SEEN.activations), stopped_s),
            (stopped_s, min(back_s, end_s)),
            (back_s, end_s),
        )
    ]

    def rates(times: Sequence[float]) -> tuple[float | None, ...]:
        return tuple(
            sum(low <= at_s < high for at_s in times) / (high - low) if high > low else None
            for low, high in spans
        )

    failed = {key: at_s for at_s, key in SEEN.failed}
    # The first success after the last failure: a key may expire again later.
    written = {key: at_s for at_s, key in reversed(SEEN.expired) if at_s > failed.get(key, at_s)}
    return Figures(
        case=case,
        failed_after_s=None if failed_s is None else failed_s - stopped_s,
        restarts=restarts,
        failed_flushes=len(SEEN.failed),
        failed_keys=len(failed),
        failed_bundles=SEEN.failed_bundles,
        activations_per_s=rates(SEEN.activations),
        expired_per_s=rates([at_s for at_s, _ in SEEN.expired]),
        watermark_lag_s=tuple(_lag(low, high) for low, high in spans),
        recovered_after_s=max(written.values()) - back_s if written else None,
        keys=len(SEEN.keys),
        rows=rows,
    )


def _lag(low_s: float, high_s: float) -> float | None:
    """Return how far the watermark was behind at most, between two times."""
    if not SEEN.watermarks or high_s <= low_s:
        return None
    # The flights' clock is this one, but for what passed until the first of them was out.
    offset_s = min(at_s - event_s for at_s, event_s in SEEN.watermarks)
    known = [each for each in SEEN.watermarks if each[0] <= high_s]
    lags = [
        min(until_s, high_s) - offset_s - event_s
        for (at_s, event_s), until_s in zip(known, [*(at_s for at_s, _ in known[1:]), high_s], strict=True)
        if until_s > low_s
    ]
    return max(lags, default=None)


def main() -> None:
    """Run the cases, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path, help="where the results go")
    parser.add_argument(
        "--here", action="store_true", help="run one case in this process, and print its figures"
    )
    parser.add_argument(
        "--seconds",
        nargs=3,
        type=float,
        metavar=("BEFORE", "OUTAGE", "AFTER"),
        default=asdict(FULL).values(),
        help="how long Redis is there, away, and back; an aircraft expires after half of the first",
    )
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="by default all")
    arguments = parser.parse_args()
    plan = Plan(*arguments.seconds)
    if arguments.here:
        logging.disable(logging.CRITICAL)
        with tempfile.TemporaryDirectory(prefix="beam-agents-outage-") as folder:
            try:
                seen = run(CASES[arguments.cases[0]], plan, pathlib.Path(folder))
            except pytest.skip.Exception as absent:
                sys.exit(str(absent))
        print(json.dumps(asdict(seen)))  # noqa: T201 - for the process that asked
        return
    console = Console()
    results = []
    for case in arguments.cases or CASES:
        python, variables = (
            sdk_of_flink() if CASES[case].runner == FLINK else (sys.executable, dict(os.environ))
        )
        command = [python, "-c", _BY_NAME, case, "--here", "--seconds"]
        with console.status(case):
            done = subprocess.run(
                [*command, *map(str, asdict(plan).values())],
                capture_output=True,
                text=True,
                check=False,
                env=variables,
            )
        if done.returncode:
            console.print(f"left out {case}: {done.stderr.splitlines()[-1]}")
            continue
        results.append(json.loads(done.stdout.splitlines()[-1]))
    console.print(table(results))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"plan": asdict(plan), "cases": results}, indent=2) + "\n")
        console.print(f"written to {arguments.json}")


def table(results: Sequence[dict[str, object]]) -> Table:
    """Return a table with a column for each case."""
    made = Table("before / during / after an outage of Redis", box=box.SIMPLE)
    for each in results:
        case = cast("dict[str, str]", each["case"])
        made.add_column("\n".join(case.values()), justify="right")
    for name in results[0] if results else ():
        if name != "case":
            made.add_row(name, *(_shown(each[name]) for each in results))
    return made


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " / ".join(map(_shown, value))
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else f"{value}"


if __name__ == "__main__":
    main()

"""``make bench-scaling``: one, two and four SDK workers on Prism or on Flink, with Redis and without a store.

Parallelism N is N jobs on one runner, over keys of their own, each with a worker process of its own. On Flink
one TaskManager has a slot for each, and the runner's CPU is that process's. Each measurement counts from the
moment in which all jobs are at work to each one's last event. Events come in bundles in which each key has
one: each activation reads its key's state from the runner. The program prints throughput, time and CPU per
activation, and what the workers' bundle threads did. It writes all of it as JSON, and as the tables of
docs/planning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import apache_beam as beam
import psutil
from apache_beam.coders import BytesCoder, ProtoCoder, TupleCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState
from apache_beam.testing.test_stream import TestStream
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from beam_agents import AgentConfig, AgentEnvelope, RunAgent
from beam_agents.testing import event
from tests.benchmarks.scaling_worker import AGENT, STATE_COMMIT, STATE_READ, Meeting, Metered, Work
from tests.benchmarks.workloads import START_MS
from tests.servers import redis
from tests.servers.flink import running_flink, sdk_of_flink
from tests.servers.prism import process_options, running_prism
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from apache_beam.runners.pipeline_context import PipelineContext

ROOT = pathlib.Path(__file__).parents[2]
KEYS = 200
"""Keys of one job."""

PARALLELISM = (1, 2, 4)
STORES = ("none", "redis")
PRISM, FLINK = RUNNERS = ("prism", "flink")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run.

    Attributes:
        store: The long-term store, or ``"none"``.
        parallelism: How many workers.
        events_per_s: All workers' activations a second.
        events_per_bundle: Activations per bundle.
        activation_ms: The mean activation.
        overhead_ms: Of it, what is neither model nor tool nor store; what it waits for state is in it.
        flush_ms: Of it, the write to the store.
        worker_cpu_ms: CPU of the worker process per activation.
        runner_cpu_ms: CPU of the runner (which holds the state) per activation.
        store_cpu_ms: CPU of the store's server per activation.
        worker_mib: The largest worker's memory.
        shares: What the workers' bundle threads did, as parts of 1.
    """

    store: str
    parallelism: int
    events_per_s: float
    events_per_bundle: float
    activation_ms: float
    overhead_ms: float
    flush_ms: float
    worker_cpu_ms: float
    runner_cpu_ms: float
    store_cpu_ms: float
    worker_mib: float
    shares: dict[str, float]


def make(index: int, job: int) -> tuple[bytes, AgentEnvelope]:
    """Return a job's event; they go round the job's keys."""
    key = b"job%d/key%03d" % (job, index % KEYS)
    return key, event(key, b"", time_ms=START_MS + index)


class _AsBytes(ProtoCoder):
    """Writes an envelope as ever, and tells a runner that what is written are bytes.

    Flink's own TestStream decodes its elements, in Java, which knows no envelopes.
    """

    def to_runner_api_parameter(self, context: PipelineContext) -> object:
        """Return what is told of bytes."""
        return BytesCoder().to_runner_api_parameter(context)


@dataclass(frozen=True, slots=True)
class Running:
    """A runner that takes jobs.

    Attributes:
        options: Beam's, for a job on it.
        pid: The process that holds the state.
        flink: Whether it is Flink.
    """

    options: list[str]
    pid: int
    flink: bool = False


@contextmanager
def running(runner: str, folder: pathlib.Path, jobs: int, bundle: int) -> Iterator[Running]:
    """Have a runner while the block runs.

    Args:
        runner: Its name.
        folder: For its files.
        jobs: How many it must have room for.
        bundle: How many events of one come at once: on Flink the most of a bundle.
    """
    if runner == PRISM:
        path = os.pathsep.join(map(str, (ROOT, ROOT / "telemetry", ROOT / "dashboards")))
        with running_prism(folder) as prism:
            options = [f"--job_endpoint={prism.endpoint}", *process_options(PYTHONPATH=path)]
            yield Running(options, prism.process.pid)
        return
    # A job that fails is to fail, not to begin anew.
    settings = {"taskmanager.numberOfTaskSlots": jobs, "restart-strategy.type": "none"}
    with running_flink(folder / "flink", settings=settings) as flink:
        (task_manager,) = flink.task_managers
        yield Running([*flink.options(), f"--max_bundle_size={bundle}"], task_manager.pid, flink=True)


def submitted(
    runner: Running, work: Work, uri: str | None, per_key: int
) -> beam.runners.runner.PipelineResult:
    """Submit one job and return without waiting for it."""
    options = ["--runner=PortableRunner", *runner.options]
    config = AgentConfig(
        longterm_memory=uri, telemetry=("beam", "prometheus?port=0", Metered()), activation_timeout_s=3_600
    )
    pipeline = beam.Pipeline(options=PipelineOptions(options))
    envelopes = _AsBytes if runner.flink else ProtoCoder
    source = TestStream(coder=TupleCoder((BytesCoder(), envelopes(AgentEnvelope))))
    bundle = KEYS * per_key
    for first in range(0, work.events, bundle):
        # The runner takes what comes after a move of the watermark when it has done all before: a bundle.
        source = source.add_elements([make(first + number, work.meeting.job) for number in range(bundle)])
        source = source.advance_watermark_to((START_MS + first) / 1_000)
    events = pipeline | source.advance_watermark_to_infinity().with_output_types(tuple[bytes, AgentEnvelope])
    _ = events | RunAgent(work, config=config, name="bench")
    return pipeline.run()


def cpu_s(process: psutil.Process | None) -> float:
    """Return what a process, without its children, has taken of the CPU until now."""
    if process is None:
        return 0.0
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(
    store: str, parallelism: int, events: int, per_key: int = 1, runner_name: str = PRISM
) -> Measured:
    """Run so many jobs at once.

    Args:
        store: The long-term store, or ``"none"``.
        parallelism: How many jobs.
        events: How many events each has: a multiple of those of a bundle.
        per_key: How many of them a bundle has for each key.
        runner_name: One of RUNNERS.
    """
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="beam-agents-bench-")))
        runner = stack.enter_context(running(runner_name, folder, parallelism, KEYS * per_key))
        uri, server = None, None
        if store == "redis":
            uri = stack.enter_context(redis.running(folder))
            port = int(uri.rpartition(":")[2].partition("/")[0])
            server = psutil.Process(_listening(port))
        works = [
            Work(Meeting(str(folder), job, parallelism), events, saves=uri is not None)
            for job in range(parallelism)
        ]
        jobs = [submitted(runner, work, uri, per_key) for work in works]
        watched = (psutil.Process(runner.pid), server)

        def come(what: str) -> bool:
            assert PipelineState.FAILED not in {job.state for job in jobs}, "a job has failed"
            return len(list(folder.glob(f"{what}.*"))) == parallelism

        wait_until(lambda: come("ready"), "all workers are at work", 600)
        before = [cpu_s(each) for each in watched]
        wait_until(lambda: come("ended"), "all workers have done their work", 3_600)
        runner_s, store_s = (cpu_s(each) - was for each, was in zip(watched, before, strict=True))
        for job in jobs:
            job.wait_until_finish()
        meters = [json.loads((folder / f"meter.{job}").read_text()) for job in range(parallelism)]
    done = sum(meter["activations"] for meter in meters)

    def per_activation_ms(seconds: float) -> float:
        return seconds / done * 1e3

    def summed_ms(metric: str) -> float:
        return per_activation_ms(sum(meter["seconds"].get(metric, 0.0) for meter in meters))

    wall_ms = per_activation_ms(sum(meter["wall_s"] for meter in meters))
    activation_ms = summed_ms("activation_duration_seconds")
    flush_ms = summed_ms("longterm_flush_duration_seconds")
    read_ms, commit_ms, agent_ms = summed_ms(STATE_READ), summed_ms(STATE_COMMIT), summed_ms(AGENT)
    parts_ms = {
        "agent": agent_ms,
        "runtime": activation_ms - flush_ms - read_ms - agent_ms,
        "store": flush_ms,
        "state back end": read_ms + commit_ms,
        "Beam and its runner": wall_ms - activation_ms - commit_ms,
    }
    return Measured(
        store,
        parallelism,
        sum(meter["activations"] / meter["wall_s"] for meter in meters),
        done / sum(meter["bundles"] for meter in meters),
        activation_ms,
        summed_ms("runtime_overhead_seconds"),
        flush_ms,
        per_activation_ms(sum(meter["cpu_s"] for meter in meters)),
        per_activation_ms(runner_s),
        per_activation_ms(store_s),
        max(meter["peak_mib"] for meter in meters),
        {part: part_ms / wall_ms for part, part_ms in parts_ms.items()},
    )


def _listening(port: int) -> int:
    """Return the process that listens on a port."""
    return next(
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid
    )


def report(console: Console, runs: Sequence[Measured]) -> None:
    """Print the figures."""
    table = Table(*FIGURES, title="milliseconds per activation", box=box.SIMPLE)
    places = Table("store", "workers", *runs[0].shares, title="what bundle threads did", box=box.SIMPLE)
    for run in runs:
        table.add_row(*figures(run, runs))
        places.add_row(*shares(run))
    console.print(table)
    console.print(places)


FIGURES: Final = (
    "store",
    "workers",
    "throughput",
    "events/s",
    "activation",
    "overhead",
    "flush",
    "CPU worker",
    "CPU runner",
    "CPU store",
    "MiB",
)


def figures(run: Measured, runs: Sequence[Measured]) -> list[str]:
    """Return a run's row: throughput by that of one worker, and what :data:`FIGURES` says."""
    alone = next(each for each in runs if each.store == run.store)
    times = (
        run.activation_ms,
        run.overhead_ms,
        run.flush_ms,
        run.worker_cpu_ms,
        run.runner_cpu_ms,
        run.store_cpu_ms,
    )
    return [
        run.store,
        str(run.parallelism),
        f"{run.events_per_s / alone.events_per_s:.2f}",
        f"{run.events_per_s:,.0f}",
        *(f"{each:.2f}" for each in times),
        f"{run.worker_mib:.0f}",
    ]


def shares(run: Measured) -> list[str]:
    """Return a run's row of shares."""
    return [run.store, str(run.parallelism), *(f"{share:.0%}" for share in run.shares.values())]


def markdown(runs: Sequence[Measured]) -> str:
    """Return both tables as docs/planning.md has them."""
    heads = (FIGURES, ("store", "workers", *runs[0].shares))
    bodies = ([figures(run, runs) for run in runs], [shares(run) for run in runs])
    tables = []
    for head, body in zip(heads, bodies, strict=True):
        rule = ["---"] * len(head)
        tables.append("\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body)))
    return "\n\n".join(tables) + "\n"


def middle(runs: Sequence[Measured]) -> Measured:
    """Return the run of the median throughput."""
    return sorted(runs, key=lambda run: run.events_per_s)[len(runs) // 2]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path, help="where the results go")
    parser.add_argument("--runner", choices=RUNNERS, default=PRISM)
    parser.add_argument("--events", type=int, default=6_000, help="events of one job")
    parser.add_argument("--per-key", type=int, default=1, help="events of a key in one bundle")
    parser.add_argument("--runs", type=int, default=3, help="how often each is run; the median is reported")
    parser.add_argument("--parallelism", type=int, nargs="*", default=PARALLELISM)
    parser.add_argument("--stores", nargs="*", default=STORES, choices=STORES)
    arguments = parser.parse_args()
    if arguments.events % (KEYS * arguments.per_key):
        parser.error(f"--events must be a multiple of {KEYS} × --per-key, so that all bundles are alike")
    if arguments.runner == FLINK:
        python, variables = sdk_of_flink()
        if sys.executable != python:  # another Beam than the job server's
            sys.exit(subprocess.run([python, *sys.argv], env=variables, check=False).returncode)
    console = Console(width=150)
    cases = [(store, parallelism) for store in arguments.stores for parallelism in arguments.parallelism]
    middles, swings = [], {}
    for store, parallelism in track(cases, "measuring", console=console):
        runs = [
            measure(store, parallelism, arguments.events, arguments.per_key, arguments.runner)
            for _ in range(arguments.runs)
        ]
        rates = [run.events_per_s for run in runs]
        console.print(f"{store}, {parallelism}: {', '.join(f'{rate:,.0f}' for rate in rates)} events/s")
        swings[f"{store}, {parallelism}"] = (max(rates) - min(rates)) / statistics.median(rates)
        middles.append(middle(runs))
    report(console, middles)
    swung = ", ".join(f"{case}: {swing:.0%}" for case, swing in swings.items())
    console.print(f"throughput, most less least, of its median ({arguments.runs} runs): {swung}")
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        results = {
            "runner": arguments.runner,
            "machine": {
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cores": os.cpu_count(),
            },
            "runs": [asdict(each) for each in middles],
            "swings": swings,
        }
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
        arguments.json.with_suffix(".md").write_text(markdown(middles))
        console.print(f"written to {arguments.json}, and as tables beside it")


if __name__ == "__main__":
    # Found again under its own name by what the pipelines pickle.
    from tests.benchmarks import scaling

    sys.exit(scaling.main())

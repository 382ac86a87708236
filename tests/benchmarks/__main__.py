"""``make bench``: what the runtime costs, as ratios measured side by side in one run.

What telemetry costs is timed in turn, a few hundred activations with each set of plugins at a time: each
round has ratios of its own, and their medians count. pyperf runs each of the other workloads in processes of
its own. All of it becomes ratios, each next to its goal, as JSON and as a table.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyperf
import pytest
from rich.console import Console
from rich.table import Table

# pyperf starts this file by its path.
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.benchmarks import telemetry, workloads
from tests.benchmarks.ratios import Ratio, compare
from tests.servers import hostile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from tests.benchmarks.interleaved import Load


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to time.

    Attributes:
        name: What it is called.
        run: Runs it ``loops`` times and returns the seconds.
        per_loop: How many operations one loop has.
    """

    name: str
    run: Callable[[int], float]
    per_loop: int = 1


@dataclass(frozen=True, slots=True)
class LoadOf:
    """The machine's load around a comparison.

    Attributes:
        what: The comparison.
        before: The load averages over 1, 5 and 15 minutes at its start.
        after: The same at its end.
    """

    what: str
    before: Load
    after: Load


MIN_ROUNDS = 2

KIB = (1, 64, 512, 1_000)

PIPELINES = {
    "pipeline, hand-written": workloads.hand_written,
    "pipeline, RunAgent": workloads.run_agent(()),
    "pipeline, RunAgent, Beam metrics": workloads.run_agent(("beam",)),
}


def workloads_with(elements: int) -> tuple[Workload, ...]:
    """Return what pyperf times, pipelines with so many elements."""
    return (
        Workload("cross-thread round trip", workloads.cross_thread_round_trip),
        Workload("activation, no-op", workloads.activation(workloads.do_nothing)),
        *(
            Workload(
                f"activation, memory {kib} KiB",
                workloads.activation(workloads.count, workloads.memory_of(kib)),
            )
            for kib in (*KIB[:1], 100, *KIB[1:])
        ),
        Workload(
            "activation, ring of 64", workloads.activation(workloads.append_short, workloads.ring_of(64))
        ),
        Workload(
            "activation, ring of 4096", workloads.activation(workloads.append_long, workloads.ring_of(4_096))
        ),
        Workload("append, ring of 64", workloads.facade_append(64)),
        Workload("append, ring of 4096", workloads.facade_append(4_096)),
        *(Workload(name, workloads.pipeline(step, elements), elements) for name, step in PIPELINES.items()),
    )


RATIOS = (
    Ratio("no-op activation", "activation, no-op", "cross-thread round trip", 0.65),
    *(
        Ratio(what, telemetry.no_op(plugins), telemetry.no_op(telemetry.OFF), goal)
        for what, plugins, goal in (
            ("no-op with Beam metrics", telemetry.BEAM, None),
            ("no-op with Beam and Prometheus", telemetry.BEAM_PROMETHEUS, 1.1),
            ("no-op with everything", telemetry.SOME_TRACES, 1.15),
            ("no-op with every trace", telemetry.EVERY_TRACE, None),
        )
    ),
    Ratio(
        "… what kept traces add, to the SDK's own price",
        telemetry.no_op(telemetry.EVERY_TRACE),
        telemetry.SDK,
        1.0,
        less=telemetry.no_op(telemetry.SOME_TRACES),
    ),
    # By one that answers at once, telemetry costs what it costs by itself.
    *(
        Ratio(
            f"every trace, a collector that is {kind}",
            telemetry.harmed_by(kind),
            telemetry.beside(kind),
            1.05,
        )
        for kind in hostile.KINDS
    ),
    *(
        Ratio(
            f"3 rows to {store}",
            telemetry.saving(store, plugins),
            telemetry.saving(store, telemetry.OFF),
            goal,
        )
        for store, goal in (("sqlite", None), ("redis", 1.4))
        for plugins in list(telemetry.PLUGINS)[1:]
    ),
    Ratio("memory of 100 KiB", "activation, memory 100 KiB", "activation, memory 1 KiB", 1.2),
    *(
        Ratio(f"memory of {kib} KiB", f"activation, memory {kib} KiB", "activation, memory 1 KiB")
        for kib in KIB[1:]
    ),
    Ratio("append to a ring of 4096", "activation, ring of 4096", "activation, ring of 64", 1.2),
    Ratio("… without the activation", "append, ring of 4096", "append, ring of 64"),
    Ratio("end to end", "pipeline, RunAgent", "pipeline, hand-written", 2.0),
    Ratio("… with Beam metrics", "pipeline, RunAgent, Beam metrics", "pipeline, hand-written"),
)


def main() -> None:
    """Time everything, or, in pyperf's worker processes, one thing."""
    runner = pyperf.Runner(values=3, processes=3, add_cmdline_args=_pass_on)
    add = runner.argparser.add_argument
    add("--json", type=pathlib.Path, help="where the results go")
    add("--elements", type=int, default=20_000, help="elements of a pipeline")
    add(
        "--rounds",
        type=int,
        help="rounds of what is timed in turn; else each comparison has its own number",
    )
    add("--per-round", type=int, help="activations of a round, likewise")
    arguments = runner.parse_args()
    if arguments.rounds is not None and arguments.rounds < MIN_ROUNDS:
        runner.argparser.error(f"--rounds must be at least {MIN_ROUNDS}: quartiles need as many")
    console = Console()
    before = os.getloadavg()
    apart: dict[str, Sequence[float]] = {}
    for workload in workloads_with(arguments.elements):
        timed = runner.bench_time_func(workload.name, workload.run, inner_loops=workload.per_loop)
        if timed is not None and not arguments.worker:
            apart[workload.name] = timed.get_values()
    if arguments.worker:
        return
    loads = [LoadOf("what pyperf times", before, os.getloadavg())]
    in_turn: dict[str, Sequence[float]] = {}
    for comparison in telemetry.COMPARISONS:
        try:
            sides = comparison.time(arguments.rounds, arguments.per_round)
        except pytest.skip.Exception as absent:
            console.print(f"{comparison.name}: skipped, {absent}")
            continue
        in_turn.update(sides.seconds)
        loads.append(LoadOf(comparison.name, sides.load_before, sides.load_after))
        console.print(f"{comparison.name}: timed in turn")
    _report(console, in_turn, apart, loads, arguments.json)


def _pass_on(command: list[str], arguments: argparse.Namespace) -> None:
    """Give the workers what only this program understands."""
    command.extend(("--elements", str(arguments.elements)))


def _report(
    console: Console,
    in_turn: Mapping[str, Sequence[float]],
    apart: Mapping[str, Sequence[float]],
    loads: Sequence[LoadOf],
    path: pathlib.Path | None,
) -> None:
    seconds = {
        name: {
            "median_s": statistics.median(values),
            "stdev_s": statistics.stdev(values) if len(values) > 1 else 0.0,
        }
        for name, values in {**apart, **in_turn}.items()
    }
    figures = Table("workload", "median µs", "± µs", title="one element")
    for name, times in seconds.items():
        figures.add_row(name, *(f"{each * 1e6:.1f}" for each in times.values()))
    console.print(figures)
    around = Table("comparison", "before", "after", title="the machine's load, over a minute")
    for load in loads:
        around.add_row(load.what, f"{load.before[0]:.2f}", f"{load.after[0]:.2f}")
    console.print(around)
    table = Table("comparison", "ratio", "quartiles", "goal", "", title="side by side")
    ratios = []
    for ratio in RATIOS:
        if not ratio.names <= seconds.keys():
            continue
        compared = compare(ratio, in_turn, apart)
        table.add_row(
            f"{ratio.what}: {ratio.formula}",
            f"{compared.ratio:.2f}",
            " to ".join(f"{each:.2f}" for each in compared.quartiles or ()),
            "" if ratio.goal is None else f"≤ {ratio.goal:g}",
            compared.verdict,
        )
        ratios.append({**asdict(ratio), **asdict(compared)})
    console.print(table)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        results = {
            "machine": {"python": platform.python_version(), "platform": platform.platform()},
            "loads": [asdict(each) for each in loads],
            "workloads": seconds,
            "ratios": ratios,
        }
        path.write_text(json.dumps(results, indent=2) + "\n")
        console.print(f"written to {path}")


if __name__ == "__main__":
    main()

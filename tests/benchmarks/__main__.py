"""``make bench``: what the runtime costs, as ratios measured side by side in one run.

pyperf runs each workload in processes of its own; this program then puts the medians into ratios, each next
to its goal, writes all of it as JSON and prints it as a table.
"""

from __future__ import annotations

import json
import pathlib
import platform
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyperf
from rich.console import Console
from rich.table import Table

# pyperf starts this file by its path.
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.benchmarks import telemetry, workloads

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


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
class Ratio:
    """Two workloads compared.

    Attributes:
        what: What the comparison shows.
        numerator: A workload.
        denominator: Another.
        goal: The ratio should not be above it; None for no goal.
        less: What is taken off the numerator; empty for nothing.
    """

    what: str
    numerator: str
    denominator: str
    goal: float | None = None
    less: str = ""


KIB = (1, 64, 512, 1_000)

WORKLOADS = (
    Workload("cross-thread round trip", workloads.cross_thread_round_trip),
    Workload("activation, no-op", workloads.activation(workloads.do_nothing, ())),
    *(
        Workload(f"no-op, {plugins}", telemetry.activation(workloads.do_nothing, plugins))
        for plugins in telemetry.PLUGINS
    ),
    *(
        Workload(
            f"3 rows to {store}, {plugins}",
            telemetry.activation(workloads.remember_and_save, plugins, store),
        )
        for store in ("sqlite", "redis")
        for plugins in telemetry.PLUGINS
    ),
    *(
        Workload(
            f"no-op, every trace, collector {kind}",
            telemetry.activation(workloads.do_nothing, "all, traces at 100 %", collector=kind),
        )
        for kind in telemetry.COLLECTORS
    ),
    Workload("the SDK's own spans", telemetry.bare_sdk),
    *(
        Workload(
            f"activation, memory {kib} KiB",
            workloads.activation(workloads.count, (), workloads.memory_of(kib)),
        )
        for kib in (*KIB[:1], 100, *KIB[1:])
    ),
    Workload(
        "activation, ring of 64", workloads.activation(workloads.append_short, (), workloads.ring_of(64))
    ),
    Workload(
        "activation, ring of 4096", workloads.activation(workloads.append_long, (), workloads.ring_of(4_096))
    ),
    Workload("append, ring of 64", workloads.facade_append(64)),
    Workload("append, ring of 4096", workloads.facade_append(4_096)),
    Workload(
        "pipeline, hand-written", workloads.pipeline(workloads.hand_written), workloads.PIPELINE_ELEMENTS
    ),
    Workload("pipeline, RunAgent", workloads.pipeline(workloads.run_agent(())), workloads.PIPELINE_ELEMENTS),
    Workload(
        "pipeline, RunAgent, Beam metrics",
        workloads.pipeline(workloads.run_agent(("beam",))),
        workloads.PIPELINE_ELEMENTS,
    ),
)

RATIOS = (
    Ratio("no-op activation", "activation, no-op", "cross-thread round trip", 0.65),
    Ratio("no-op with Beam metrics", "no-op, Beam", "no-op, off"),
    Ratio("no-op with Beam and Prometheus", "no-op, Beam, Prometheus", "no-op, off", 1.1),
    Ratio("no-op with everything", "no-op, all, traces at 1 %", "no-op, off", 1.15),
    Ratio("no-op with every trace", "no-op, all, traces at 100 %", "no-op, off"),
    Ratio(
        "… what kept traces add, to the SDK's own price",
        "no-op, all, traces at 100 %",
        "the SDK's own spans",
        1.0,
        less="no-op, all, traces at 1 %",
    ),
    # By one that answers at once, telemetry costs what it costs by itself.
    *(
        Ratio(
            f"every trace, a collector that is {kind}",
            f"no-op, every trace, collector {kind}",
            "no-op, all, traces at 100 %",
            1.05,
        )
        for kind in telemetry.COLLECTORS
    ),
    *(
        Ratio(f"3 rows to {store}", f"3 rows to {store}, {plugins}", f"3 rows to {store}, off", goal)
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
    runner.argparser.add_argument("--json", type=pathlib.Path, help="where the results go")
    arguments = runner.parse_args()
    medians: dict[str, float] = {}
    spreads: dict[str, float] = {}
    for workload in WORKLOADS:
        timed = runner.bench_time_func(workload.name, workload.run, inner_loops=workload.per_loop)
        if timed is not None and not arguments.worker:
            medians[workload.name] = timed.median()
            spreads[workload.name] = timed.stdev() if timed.get_nvalue() > 1 else 0.0
    if arguments.worker:
        return
    _report(medians, spreads, arguments.json)


def _pass_on(command: list[str], arguments: argparse.Namespace) -> None:
    """Give the workers what only this program understands."""
    if arguments.json is not None:
        command.extend(("--json", str(arguments.json)))


def _formula(ratio: Ratio) -> str:
    numerator = f"({ratio.numerator} - {ratio.less})" if ratio.less else ratio.numerator
    return f"{numerator} ÷ {ratio.denominator}"


def _report(medians: dict[str, float], spreads: dict[str, float], path: pathlib.Path | None) -> None:
    console = Console()
    figures = Table("workload", "median µs", "± µs", title="one element")
    for name, median in medians.items():
        figures.add_row(name, f"{median * 1e6:.1f}", f"{spreads[name] * 1e6:.1f}")
    console.print(figures)
    compared = Table("comparison", "ratio", "goal", "", title="side by side")
    ratios = []
    for ratio in RATIOS:
        value = (medians[ratio.numerator] - medians.get(ratio.less, 0.0)) / medians[ratio.denominator]
        verdict = "" if ratio.goal is None else "met" if value <= ratio.goal else "missed"
        goal = "" if ratio.goal is None else f"≤ {ratio.goal:g}"
        compared.add_row(f"{ratio.what}: {_formula(ratio)}", f"{value:.2f}", goal, verdict)
        ratios.append({**asdict(ratio), "ratio": value, "verdict": verdict})
    console.print(compared)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        machine = {"python": platform.python_version(), "platform": platform.platform()}
        seconds = {name: {"median_s": medians[name], "stdev_s": spreads[name]} for name in medians}
        path.write_text(
            json.dumps({"machine": machine, "workloads": seconds, "ratios": ratios}, indent=2) + "\n"
        )
        console.print(f"written to {path}")


if __name__ == "__main__":
    main()

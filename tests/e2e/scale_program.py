"""Run many events through one step, in a process of its own, and print what that took.

Arguments: ``hand-written`` or ``agent``, the number of keys, the number of events per key, Beam's options.
"""

from __future__ import annotations

import json
import pathlib
import resource
import sys
from dataclasses import dataclass

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from beam_agents import AgentConfig, AgentContext, AgentEnvelope, Complete, RunAgent
from beam_agents.signals import Observer, Record, catalogue
from beam_agents.testing import event
from tests.benchmarks.workloads import START_MS, HandWritten


@dataclass(frozen=True)
class Counting:
    """A plugin that counts in this process: no runner loses that."""

    name: str = "counting"

    def build(self) -> Observer:
        """Return the observer."""
        return CountingObserver()


class CountingObserver(Observer):
    """Counts activations and wipes."""

    activations = 0
    wipes = 0

    def record(self, record: Record) -> None:
        """Count one."""
        for metric, value, _ in record.measurements:
            if metric is catalogue.ACTIVATIONS:
                CountingObserver.activations += int(value)
            elif metric is catalogue.TTL_WIPES:
                CountingObserver.wipes += int(value)


async def count(ctx: AgentContext) -> Complete:
    """Count the key's events and keep the last ones."""
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    ctx.memory.append("recent", b"%020d" % ctx.now_ms)
    return Complete(b"%d" % seen)


def make(index: int, keys: int) -> tuple[bytes, AgentEnvelope]:
    """Return the event of an index; they go round the keys."""
    key = b"key%d" % (index % keys)
    return key, event(key, time_ms=START_MS + index)


def main() -> None:
    """Run and report."""
    kind, keys, per_key = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with beam.Pipeline(options=PipelineOptions(sys.argv[4:])) as p:
        events = (
            p
            | beam.Create(range(keys * per_key))
            | beam.Map(make, keys).with_output_types(tuple[bytes, AgentEnvelope])
        )
        if kind == "agent":
            _ = events | RunAgent(count, config=AgentConfig(telemetry=("beam", Counting())))
        else:
            _ = events | beam.ParDo(HandWritten())
    reported = {
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "activations": CountingObserver.activations,
        "wipes": CountingObserver.wipes,
    }
    sys.stdout.write(json.dumps(reported))


if __name__ == "__main__":
    # Found again under its own name by what the pipeline pickles.
    from tests.e2e import scale_program

    scale_program.main()

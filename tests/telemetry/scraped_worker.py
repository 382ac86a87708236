"""A worker process that a test's Prometheus scrapes: it runs activations until its input ends."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.signals import Observer, Record
from beam_agents.testing import AgentHarness, event
from beam_agents_telemetry.prometheus import PrometheusMetrics


class Sampling(Observer):
    """Keeps every trace, as a tracing plugin might."""

    def activation_started(self, record: Record) -> None:
        record.sampled = True


@dataclass(frozen=True)
class Sampler:
    name: str = "sampler"

    def build(self) -> Observer:
        return Sampling()


async def agent(ctx: AgentContext) -> Complete:
    ctx.memory.set("seen", b"1")
    ctx.memory.longterm.save("row", ctx.entity_key)
    return Complete(b"done")


def main(port: str, folder: str, events: str) -> None:
    plugins = (Sampler(), PrometheusMetrics(port=int(port), sd_dir=folder))
    with AgentHarness(agent, AgentConfig(longterm_memory="memory://", telemetry=plugins)) as harness:
        for number in range(int(events)):
            harness.send(event(b"%d" % (number % 7), time_ms=number + 1))
        print("ran", flush=True)  # noqa: T201 - tells the test
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])

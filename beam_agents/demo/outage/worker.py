"""One worker process of the demonstration: the year of flights again, at a walking pace.

Flights come in by the clock, some each tick, in the order of their scheduled departures; an event's time is
when it comes in, and the watermark follows. An aircraft that has not flown for TTL_MS expires, and its
working memory goes to Redis. An airport never rests for so long.

A runner of production tries a bundle that failed again for as long as it takes, or restarts the job and goes
on from its last checkpoint. Beam's direct runner gives up at the fourth attempt. Here it is told not to.
"""

from __future__ import annotations

import itertools
import logging
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.executor import TransformExecutor
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue

from beam_agents.demo.data import flight_rows
from beam_agents.demo.flights import flights_config, watch_aircraft
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.runtime.worker import AgentWorker
from beam_agents.signals import Worker
from beam_agents.transform import RunAgent, keyed_envelopes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.config import AgentConfig

__all__ = [
    "AGENTS",
    "FLIGHTS_PER_TICK",
    "PIPELINE",
    "TICK_S",
    "TTL_MS",
    "Shift",
    "kept_up",
    "main",
    "run_shift",
]

PIPELINE: Final = "flights"
AGENTS: Final = {"aircraft": "tailnum", "airport": "origin"}
"""By the agent's name: the field of a flight that tells the entity."""

TICK_S: Final = 0.5
FLIGHTS_PER_TICK: Final = 12
TTL_MS: Final = 40_000
HEAD_START_S: Final = 60.0
"""The flights of so long before the start come in at once: some aircraft are to expire soon."""

_AT: Final = "at_ms"

Flight: TypeAlias = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Shift:
    """What one worker process does.

    Attributes:
        agent: One of AGENTS.
        store: The URI of the long-term store.
        targets: The folder in which it tells Prometheus where it is.
        seconds: How long flights come in.
    """

    agent: str
    store: str
    targets: str
    seconds: float


def run_shift(shift: Shift) -> None:
    """Run the pipeline until the last flight has gone through."""
    config = replace(
        flights_config(shift.store),
        ttl_ms=TTL_MS,
        telemetry=(f"prometheus?port=0&sd_dir={shift.targets}",),
    )
    # All attempts fail alike while the store is down: a traceback of each would say nothing new.
    logging.getLogger("apache_beam.runners").setLevel(logging.CRITICAL)
    TransformExecutor._MAX_RETRY_PER_BUNDLE = sys.maxsize  # noqa: SLF001 - see the module's text
    options = PipelineOptions(["--runner=BundleBasedDirectRunner"])
    with kept_up(config, PIPELINE, shift.agent), beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | _source(shift.seconds)
            | "AsTheClockSays" >> beam.Map(_wait)
            | keyed_envelopes(key=AGENTS[shift.agent], time=_AT)
            | RunAgent(watch_aircraft, config=config, name=shift.agent, pipeline=PIPELINE)
        )


@contextmanager
def kept_up(config: AgentConfig, pipeline: str, agent: str) -> Iterator[None]:
    """Keep store and endpoint open: Beam's direct runner sets DoFns up anew for each bundle."""
    backend = parse_store_uri(config.longterm_memory or "").backend
    worker = AgentWorker(config, Worker(pipeline, agent, backend))
    try:
        yield
    finally:
        worker.close()


def _source(seconds: float) -> TestStream:
    stream = TestStream()
    # Whole milliseconds, in which Beam tells times.
    start_s = int(time.time()) - HEAD_START_S
    for number, flights in enumerate(_ticks(round((seconds + HEAD_START_S) / TICK_S))):
        at_s = start_s + number * TICK_S
        at: Flight = {_AT: round(at_s * 1_000)}
        stream = stream.add_elements([TimestampedValue({**flight, **at}, at_s) for flight in flights])
        stream = stream.advance_watermark_to(at_s)
    ended: TestStream = stream.advance_watermark_to_infinity()
    return ended


def _ticks(count: int) -> Iterator[list[dict[str, str]]]:
    named = (row for row in flight_rows() if row["tailnum"])
    # A day's cancelled flights come last in the file.
    rows = sorted(itertools.islice(named, count * FLIGHTS_PER_TICK), key=lambda row: row["scheduled"])
    for first in range(0, len(rows), FLIGHTS_PER_TICK):
        yield rows[first : first + FLIGHTS_PER_TICK]


def _wait(flight: Flight) -> Flight:
    """Let a flight through when its time has come."""
    time.sleep(max(0.0, int(flight[_AT]) / 1_000 - time.time()))
    return flight


def main(agent: str, store: str, targets: str, seconds: str) -> None:
    """Run a shift from the command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run_shift(Shift(agent, store, targets, float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])

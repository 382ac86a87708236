"""A job that is killed and submitted again: an agent that writes to a store, over events that come in slowly.

Events are numbered. Each entity has its time: it gets events for a while and none afterwards, so that it
expires while others go on.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, cast

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm, RunAgent
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.signals.catalogue import BEAM_NAMESPACE
from beam_agents.testing import event

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Sequence

    from apache_beam.runners.sdf_utils import RestrictionTrackerView

    from beam_agents.wire.beam_agents_pb2 import ActivationError, AgentEnvelope, ToolIntent

__all__ = ["COUNTERS", "MEMORY_KEY", "entity_of", "lines_of", "rows_written", "submit"]

COUNTERS = "counters.json"
"""The file of what the job's Beam metrics came to."""
MEMORY_KEY = "working_memory"
ENTITIES = 10
"""How many have their time at once."""
EVENTS_OF_A_TIME = 100
STEP_MS = 1_000
TTL_MS = 60 * STEP_MS
"""More than between two events of an entity, less than until all is over."""
FIRST_MS = 1_700_000_000_000
PER_BUNDLE = 10

_TRACKER = cast("RestrictionTrackerView", beam.DoFn.RestrictionParam())
_WATERMARK = cast(
    "ManualWatermarkEstimator",
    beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
)


def entity_of(number: int) -> bytes:
    """Return which entity an event is of."""
    return b"%d/%d" % (number // EVENTS_OF_A_TIME, number * 7 % ENTITIES)


def time_of(number: int) -> int:
    """Return an event's time, which is its activation's seq as well."""
    return FIRST_MS + number * STEP_MS


def rows_written(number: int, seen: int) -> list[StoreRow]:
    """Return what the activation of an event saves, the entity's ``seen``-th."""
    values = {"last": b"%d" % number, "seen": b"%d" % seen, f"case/{number % 7}": b"%d" % number}
    at = time_of(number)
    return [
        StoreRow(entity_of(number), key, at, encode_record(value, at, at), at)
        for key, value in values.items()
    ]


async def remember(ctx: AgentContext) -> Complete:
    """Save what follows from the event and from memory, and read on the way what may be there."""
    assert ctx.event is not None
    number = int(ctx.event)
    longterm = ctx.memory.longterm
    await longterm.search("case/", limit=3)
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    ctx.memory.append("log", ctx.event, max_items=5)
    longterm.save("last", ctx.event)
    longterm.save("seen", b"%d" % seen)
    longterm.save(f"case/{number % 7}", ctx.event)
    ctx.act("notify", ctx.event)
    return Complete(b"%d %s %d" % (number, ctx.entity_key, seen))


class _Paced(beam.DoFn, RestrictionProvider):
    """Puts events out, some in a bundle, with a pause after it; the watermark is the next event's time."""

    def __init__(self, rate: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Beam's own
        self._pause = PER_BUNDLE / rate

    def initial_restriction(self, events: int) -> OffsetRange:
        return OffsetRange(0, events)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, _events: int, restriction: OffsetRange) -> int:
        size: int = restriction.size()
        return size

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]  # Beam's own
    def process(
        self,
        events: int,
        tracker: RestrictionTrackerView = _TRACKER,
        watermark: ManualWatermarkEstimator = _WATERMARK,
    ) -> Iterator[TimestampedValue[tuple[bytes, AgentEnvelope]]]:
        first = tracker.current_restriction().start
        for number in range(first, events):
            at_ms = time_of(number)
            if number == first + PER_BUNDLE:
                watermark.set_watermark(Timestamp(micros=at_ms * 1_000))
                tracker.defer_remainder(Duration(self._pause))
                return
            if not tracker.try_claim(number):
                return
            envelope = event(entity_of(number), b"%d" % number, time_ms=at_ms)
            yield TimestampedValue((envelope.entity_key, envelope), Timestamp(micros=at_ms * 1_000))
        tracker.try_claim(events)


class _Append(beam.DoFn):
    """Appends lines to a file of the process's own, as soon as they are there: what is out is out."""

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Beam's own
        self._prefix = folder / name

    def process(self, line: bytes) -> None:
        file = os.open(f"{self._prefix}.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line + b"\n")
        os.close(file)


def lines_of(folder: pathlib.Path, name: str) -> list[str]:
    """Return what a job has put out so far; a line that is being written is not among it."""
    return [
        line
        for path in sorted(folder.glob(f"{name}.*"))
        for line in path.read_text().rpartition("\n")[0].splitlines()
    ]


def _intent_line(intent: ToolIntent) -> bytes:
    return b"%s %s %d" % (intent.arguments, intent.intent_id.encode(), intent.seq)


def _error_line(error: ActivationError) -> bytes:
    return b"%s %s" % (error.entity_key, error.reason.encode())


def submit(folder: pathlib.Path, uri: str, events: int, rate: float, options: Sequence[str]) -> None:
    """Run the job to its end.

    Args:
        folder: Where it puts out ``outputs``, ``intents`` and ``errors``, a file of each for each process.
        uri: The store.
        events: How many.
        rate: Events in a second.
        options: Beam's.

    Raises:
        RuntimeError: It failed.
    """
    config = AgentConfig(
        longterm_memory=uri, ttl_ms=TTL_MS, on_expire=FlushToLongterm(key=MEMORY_KEY), telemetry=("beam",)
    )
    pipeline = beam.Pipeline(runner="PortableRunner", options=PipelineOptions(list(options)))
    paced = pipeline | beam.Create([events]) | "Paced" >> beam.ParDo(_Paced(rate))
    agent = paced | RunAgent(remember, config=config)
    agent.output | "Outputs" >> beam.ParDo(_Append(folder, "outputs"))
    (
        agent.intents
        | "IntentLines" >> beam.Map(_intent_line)
        | "Intents" >> beam.ParDo(_Append(folder, "intents"))
    )
    agent.errors | "ErrorLines" >> beam.Map(_error_line) | "Errors" >> beam.ParDo(_Append(folder, "errors"))
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace(BEAM_NAMESPACE))["counters"]
    told = {each.key.metric.name: each.committed for each in counters}
    (folder / COUNTERS).write_text(json.dumps(told))

"""A job that is killed, or stopped, and goes on: an agent that writes to a store, over events that come in.

Events are numbered. Each entity has its time: it gets events for a while and none afterwards, so that it
expires while others go on.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm, RunAgent
from beam_agents.cli.job import EVENTS
from beam_agents.cli.rows import Fields
from beam_agents.demo.replay import Replay, ReplayRows
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.signals.catalogue import BEAM_NAMESPACE

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

    from beam_agents.wire.beam_agents_pb2 import ActivationError, ToolIntent

__all__ = [
    "COUNTERS",
    "MEMORY_KEY",
    "REMEMBER",
    "UPGRADED",
    "entity_of",
    "lines_of",
    "rows_written",
    "submit",
]

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


async def remember_with_version(ctx: AgentContext) -> Complete:
    """Do as before, and put its version into memory and outputs."""
    done = await remember(ctx)
    ctx.memory.set("version", b"2")
    return Complete(b"%s version 2" % done.output)


REMEMBER: Final = "remember"
UPGRADED: Final = "remember_with_version"
AGENTS: Final = {REMEMBER: remember, UPGRADED: remember_with_version}
"""The agent, and the one that takes its place in a new version of the job."""


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


def _replayed(file: pathlib.Path, events: int, rate: float) -> ReplayRows:
    rows = (f"{entity_of(number).decode()},{time_of(number)},{number}\n" for number in range(events))
    file.write_text("entity,at,number\n" + "".join(rows))
    fields = Fields(key="entity", time="at", payload="number")
    return ReplayRows(Replay(str(file), file.name, fields, rate * STEP_MS / 1_000), file.name)


def submit(
    folder: pathlib.Path, uri: str, events: int, rate: float, agent: str, options: Sequence[str]
) -> None:
    """Run the job to its end.

    Args:
        folder: Where it puts out ``outputs``, ``intents`` and ``errors``, a file of each for each process.
        uri: The store.
        events: How many.
        rate: Events in a second.
        agent: One of AGENTS.
        options: Beam's.

    Raises:
        RuntimeError: It failed.
    """
    config = AgentConfig(
        longterm_memory=uri, ttl_ms=TTL_MS, on_expire=FlushToLongterm(key=MEMORY_KEY), telemetry=("beam",)
    )
    pipeline = beam.Pipeline(runner="PortableRunner", options=PipelineOptions(list(options)))
    outputs = (pipeline | _replayed(folder / "events.csv", events, rate))[EVENTS] | RunAgent(
        AGENTS[agent], config=config
    )
    outputs.output | "Outputs" >> beam.ParDo(_Append(folder, "outputs"))
    (
        outputs.intents
        | "IntentLines" >> beam.Map(_intent_line)
        | "Intents" >> beam.ParDo(_Append(folder, "intents"))
    )
    outputs.errors | "ErrorLines" >> beam.Map(_error_line) | "Errors" >> beam.ParDo(_Append(folder, "errors"))
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace(BEAM_NAMESPACE))["counters"]
    told = {each.key.metric.name: each.committed for each in counters}
    (folder / COUNTERS).write_text(json.dumps(told))

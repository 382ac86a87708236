"""What is timed: each function runs something ``loops`` times and returns the seconds that it took."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.metrics.execution import MetricsContainer
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.counters import CounterFactory
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from beam_agents import AgentConfig, AgentContext, AgentEnvelope, Complete, RunAgent, WorkingMemory
from beam_agents.runtime.dofn import AgentDoFn, make_dofn
from beam_agents.testing import event
from beam_agents.testing.harness import DictCell, DictTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_MS = 1_700_000_000_000
KEY = b"key"
PIPELINE_KEYS = 1_000
ROWS = 3
ROW_BYTES = 256
"""What an activation saves: rows, and bytes of each one's value."""

ENTRY_BYTES = 100
ITEM_BYTES = 16


async def do_nothing(ctx: AgentContext) -> Complete:  # noqa: ARG001 - an agent's signature
    return Complete()


async def count(ctx: AgentContext) -> Complete:
    seen = int(ctx.memory.get("count", b"0"))
    ctx.memory.set("count", b"%08d" % (seen + 1))
    return Complete()


async def append_long(ctx: AgentContext) -> Complete:
    ctx.memory.append("ring", b"%016d" % ctx.seq, max_items=4_096)
    return Complete()


async def append_short(ctx: AgentContext) -> Complete:
    ctx.memory.append("ring", b"%016d" % ctx.seq, max_items=64)
    return Complete()


async def remember(ctx: AgentContext) -> Complete:
    """Work on memory five times."""
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%08d" % seen)
    ctx.memory.append("recent", b"%016d" % ctx.seq, max_items=16)
    ctx.memory.set("last", b"x" * 100)
    ctx.memory.get("last")
    return Complete()


async def remember_and_save(ctx: AgentContext) -> Complete:
    """Work on memory five times and save three rows."""
    for number in range(ROWS):
        ctx.memory.longterm.save(f"row/{number}", b"v" * ROW_BYTES)
    return await remember(ctx)


def memory_of(kib: int) -> bytes:
    """Return a working memory of about so many KiB, in entries of 100 bytes."""
    memory = WorkingMemory(compactor=None)
    index = 0
    while memory.size_bytes < kib * 1024 - 2 * ENTRY_BYTES:
        memory.set(f"entry/{index:06d}", b"x" * (ENTRY_BYTES - 40))
        index += 1
    memory.set("count", b"%08d" % 0)
    encoded = memory.encode()
    assert encoded is not None
    return encoded


def ring_of(items: int) -> bytes:
    """Return a working memory that holds one full ring."""
    memory = WorkingMemory(compactor=None)
    for index in range(items):
        memory.append("ring", b"%016d" % index, max_items=items)
    encoded = memory.encode()
    assert encoded is not None
    return encoded


def cross_thread_round_trip(loops: int) -> float:
    """Hand an empty coroutine to another thread's event loop and wait for it."""

    async def nothing() -> None:
        pass

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    started = time.perf_counter()
    for _ in range(loops):
        asyncio.run_coroutine_threadsafe(nothing(), loop).result()
    elapsed = time.perf_counter() - started
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    return elapsed


@contextmanager
def tracked_by_beam() -> Iterator[None]:
    """Have a container for Beam metrics, as a worker has; without one each update takes longer."""
    sampler = statesampler.StateSampler("bench", CounterFactory())
    statesampler.set_current_tracker(sampler)
    try:
        with sampler.scoped_state("bench", "process", metrics_container=MetricsContainer("bench")):
            yield
    finally:
        statesampler.set_current_tracker(None)


class Driven:
    """An agent's DoFn that is driven directly, one element of one key after the other.

    Attributes:
        dofn: The DoFn.
    """

    def __init__(self, dofn: AgentDoFn, memory: bytes | None) -> None:
        self.dofn = dofn
        self._cells = (DictCell(), DictCell(memory), DictCell(), DictTimer())
        # The first activation writes the control cell, which says that there is a memory.
        if memory is not None:
            self._cells[0].value = _control_for(memory)
        self._last_ms = START_MS

    def run(self, loops: int) -> float:
        """Run a bundle of so many activations and return the seconds."""
        first_ms, self._last_ms = self._last_ms + 1, self._last_ms + loops
        elements = [(KEY, event(KEY, b"", time_ms=each)) for each in range(first_ms, self._last_ms + 1)]
        process, cells = self.dofn.process, self._cells
        started = time.perf_counter()
        self.dofn.start_bundle()
        for element in elements:
            process(element, MIN_TIMESTAMP, *cells)
        self.dofn.finish_bundle()
        return time.perf_counter() - started


@contextmanager
def driven(
    agent: object,
    telemetry: tuple[str, ...],
    memory: bytes | None = None,
    longterm_memory: str | None = None,
) -> Iterator[Driven]:
    """Have an agent's DoFn while the block runs."""
    config = AgentConfig(telemetry=telemetry, compactor=None, longterm_memory=longterm_memory)
    dofn = make_dofn(agent, config, name="bench", pipeline="bench", run_id=uuid.uuid4().hex)  # type: ignore[arg-type]  # any of the agents above
    assert isinstance(dofn, AgentDoFn)
    dofn.setup()
    try:
        yield Driven(dofn, memory)
    finally:
        dofn.teardown()


def activation(agent: object, memory: bytes | None = None) -> Callable[[int], float]:
    """Return what drives an agent's DoFn, without telemetry."""

    def run(loops: int) -> float:
        with tracked_by_beam(), driven(agent, (), memory) as driver:
            return driver.run(loops)

    return run


def _control_for(memory: bytes) -> bytes:
    from beam_agents.wire.beam_agents_pb2 import ControlState  # noqa: PLC0415 - of this one use

    decoded = WorkingMemory(memory)
    control = ControlState(
        state_schema_version=1,
        seq=START_MS,
        clock_ms=START_MS,
        expires_at_ms=START_MS,
        memory_bytes=decoded.size_bytes,
        memory_entries=len(decoded),
    )
    return control.SerializeToString(deterministic=True)


def facade_append(items: int) -> Callable[[int], float]:
    """Return what decodes a memory, appends to its full ring and encodes it."""
    encoded = ring_of(items)

    def run(loops: int) -> float:
        blob: bytes | None = encoded
        started = time.perf_counter()
        for index in range(loops):
            memory = WorkingMemory(blob, compactor=None)
            memory.append("ring", b"%016d" % index, max_items=items)
            blob = memory.encode()
        return time.perf_counter() - started

    return run


class HandWritten(beam.DoFn):
    """What one would write without beam-agents: one cell read and written, one timer set."""

    CELL = ReadModifyWriteStateSpec("cell", BytesCoder())
    TTL = TimerSpec("ttl", TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[bytes, AgentEnvelope],
        cell: object = beam.DoFn.StateParam(CELL),
        ttl: object = beam.DoFn.TimerParam(TTL),
    ) -> Iterator[bytes]:
        _, envelope = element
        stored = cell.read() or b""  # type: ignore[attr-defined]  # Beam's own
        cell.write((stored + b"x" * 32)[:32])  # type: ignore[attr-defined]  # as above
        ttl.set(Timestamp(micros=(envelope.event_time_ms + 3_600_000) * 1000))  # type: ignore[attr-defined]  # as above
        return iter(())

    @on_timer(TTL)
    def on_ttl(self, cell: object = beam.DoFn.StateParam(CELL)) -> Iterator[bytes]:
        cell.clear()  # type: ignore[attr-defined]  # as above
        return iter(())


def pipeline(step: Callable[[], beam.PTransform[object, object]], elements: int) -> Callable[[int], float]:
    """Return what runs so many elements of 1,000 keys through a step on the FnApiRunner."""

    def run(loops: int) -> float:
        total = 0.0
        for _ in range(loops):
            events = [
                (key, event(key, b"", time_ms=START_MS + index))
                for index in range(elements)
                for key in (b"key%d" % (index % PIPELINE_KEYS),)
            ]
            started = time.perf_counter()
            with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as p:
                _ = p | beam.Create(events).with_output_types(tuple[bytes, AgentEnvelope]) | step()
            total += time.perf_counter() - started
        return total

    return run


def hand_written() -> beam.PTransform[object, object]:
    return beam.ParDo(HandWritten())


def run_agent(telemetry: tuple[str, ...]) -> Callable[[], beam.PTransform[object, object]]:
    return lambda: RunAgent(do_nothing, config=AgentConfig(telemetry=telemetry))

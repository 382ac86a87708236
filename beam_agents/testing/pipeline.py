"""Runs events through a real pipeline and returns what came of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import apache_beam as beam
from apache_beam.coders import BytesCoder, ProtoCoder, TupleCoder
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from beam_agents.config import AgentConfig
from beam_agents.runtime.probe import ProbedStep
from beam_agents.testing.registry import Shared
from beam_agents.testing.state import KeyState, WatchedCell
from beam_agents.testing.telemetry import RecordingTelemetry
from beam_agents.transform import RunAgent
from beam_agents.wire.beam_agents_pb2 import ActivationError, AgentEnvelope, ToolIntent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from beam_agents.runtime.activation import AgentFunction
    from beam_agents.runtime.cells import Cells
    from beam_agents.testing.faults import FailOnce

__all__ = ["AdvanceProcessingTime", "AdvanceWatermark", "AgentRun", "run_events"]


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """Moves the watermark, between the events of :func:`run_events`.

    Attributes:
        to_ms: Where to, milliseconds since the Unix epoch.
    """

    to_ms: int


@dataclass(frozen=True, slots=True)
class AdvanceProcessingTime:
    """Lets processing time pass, between the events of :func:`run_events`.

    The clock of such a run starts at 0 and stands still otherwise.

    Attributes:
        by_ms: How much, milliseconds.
    """

    by_ms: int


Scripted: TypeAlias = "AgentEnvelope | AdvanceWatermark | AdvanceProcessingTime"


@dataclass(frozen=True, slots=True)
class AgentRun:
    """What a run gave.

    Attributes:
        outputs: The main output, in order of arrival.
        intents: The intents, likewise.
        errors: The errors, likewise.
        states: Each key's cells as its last activation left them (the roll-back of a bundle that is not run
            again is not seen).
        expired: The keys that were wiped at expiry, in that order. Bounded input ends with the expiry of all
            of them.
        signals: Everything that was told to telemetry.
    """

    outputs: list[bytes]
    intents: list[ToolIntent]
    errors: list[ActivationError]
    states: dict[bytes, KeyState]
    expired: list[bytes]
    signals: RecordingTelemetry


def run_events(
    agent: AgentFunction,
    events: Iterable[Scripted],
    *,
    config: AgentConfig | None = None,
    name: str | None = None,
    runner: str | None = None,
    faults: Sequence[FailOnce] = (),
    options: Sequence[str] = (),
) -> AgentRun:
    """Run events through ``RunAgent`` on an in-process runner and return all that came of it.

    Args:
        agent: The agent.
        events: Envelopes, in order; between them, moves of the watermark and of processing time.
        config: The agent's configuration; a :class:`RecordingTelemetry` is added to its plugins.
        name: The agent's name.
        runner: ``"FnApiRunner"`` (the default), which stops at the first failing bundle and fires timers at
            the end; or ``"BundleBasedDirectRunner"`` (the default where ``events`` moves a clock, or where
            there are faults), which rolls a failing bundle back and runs it again.
        faults: What fails once.
        options: More of Beam's pipeline options.

    Raises:
        ValueError: Clocks are moved on a runner that has no such clocks.
        Exception: Whatever fails the pipeline.
    """
    script = list(events)
    moves = any(not isinstance(each, AgentEnvelope) for each in script)
    chosen = runner or ("BundleBasedDirectRunner" if moves or faults else "FnApiRunner")
    if moves and chosen != "BundleBasedDirectRunner":
        raise ValueError(f"only the BundleBasedDirectRunner moves clocks as told; {chosen} does not")
    signals = RecordingTelemetry()
    configured = config if config is not None else AgentConfig()
    configured = replace(configured, telemetry=(*configured.telemetry, signals))
    results = _Results()
    probe = _TestProbe(faults)
    transform = RunAgent(agent, config=configured, name=name).with_probe(probe)
    with beam.Pipeline(options=PipelineOptions([f"--runner={chosen}", *options])) as pipeline:
        outputs = pipeline | _source(script, streaming=moves) | transform
        _ = outputs.output | "Outputs" >> beam.Map(results.add_output)
        _ = outputs.intents | "Intents" >> beam.Map(results.add_intent)
        _ = outputs.errors | "Errors" >> beam.Map(results.add_error)
    return AgentRun(results.outputs, results.intents, results.errors, probe.states, probe.expired, signals)


def _source(script: list[Scripted], *, streaming: bool) -> beam.PTransform[object, object]:
    keyed = tuple[bytes, AgentEnvelope]
    if not streaming:
        pairs = [(each.entity_key, each) for each in script if isinstance(each, AgentEnvelope)]
        created: beam.PTransform[object, object] = beam.Create(pairs).with_output_types(keyed)
        return created
    stream = TestStream(coder=TupleCoder((BytesCoder(), ProtoCoder(AgentEnvelope))))
    for each in script:
        if isinstance(each, AdvanceWatermark):
            stream = stream.advance_watermark_to(each.to_ms / 1000)
        elif isinstance(each, AdvanceProcessingTime):
            stream = stream.advance_processing_time(each.by_ms / 1000)
        else:
            at = (
                Timestamp(micros=each.event_time_ms * 1000)
                if each.HasField("event_time_ms")
                else MIN_TIMESTAMP
            )
            stream = stream.add_elements([TimestampedValue((each.entity_key, each), at)])
    streamed: beam.PTransform[object, object] = stream.advance_watermark_to_infinity().with_output_types(
        keyed
    )
    return streamed


class _Results(Shared):
    """Where the pipeline's ends put what reaches them."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[bytes] = []
        self.intents: list[ToolIntent] = []
        self.errors: list[ActivationError] = []

    def add_output(self, output: bytes) -> None:
        self.outputs.append(output)

    def add_intent(self, intent: ToolIntent) -> None:
        self.intents.append(intent)

    def add_error(self, error: ActivationError) -> None:
        self.errors.append(error)


@dataclass(eq=False)
class _TestProbe(Shared):
    """Watches the state and passes the steps on to the faults."""

    faults: Sequence[FailOnce]
    states: dict[bytes, KeyState] = field(default_factory=dict)
    expired: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._now: dict[bytes, KeyState] = {}

    def cells(self, key: bytes, cells: Cells) -> Cells:
        def watched(name: str) -> WatchedCell:
            return WatchedCell(getattr(cells, name), lambda value: self._note(key, name, value))

        return replace(cells, control=watched("control"), memory=watched("memory"), replay=watched("replay"))

    def _note(self, key: bytes, name: str, value: bytes | None) -> None:
        with self._lock:
            self._now[key] = self._now.get(key, KeyState()).with_cell(name, value)

    def after(self, step: ProbedStep, key: bytes) -> None:
        for fault in self.faults:
            fault.after(step, key)
        with self._lock:
            now = self._now.get(key, KeyState())
            if step is ProbedStep.COMMIT:
                self.states[key] = now
            elif step is ProbedStep.EXPIRE and now == KeyState():
                self.expired.append(key)

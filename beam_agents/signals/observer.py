"""The seam between the runtime and its plugins: what happened, as light records, and who is told.

The runtime builds one :class:`Record` per activation and per timer callback, with everything that was
measured in it, and hands it to each :class:`Observer` on the thread that runs the bundle.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from beam_agents.errors import hash_entity_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from beam_agents.signals.types import LogEvent, Metric, SpanName

__all__ = ["AttributeValue", "Happening", "Observer", "Record", "Step", "TelemetryPlugin", "Worker"]

AttributeValue: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Worker:
    """Where an observer runs.

    Attributes:
        pipeline: The pipeline's name, as given to RunAgent.
        agent: The agent's name; several agents of one process share an observer, so a record's own counts.
    """

    pipeline: str
    agent: str


@dataclass(slots=True)
class Step:
    """One step of an activation: a span, if a plugin makes spans.

    Attributes:
        span: Which step, from the catalogue.
        target: What fills ``{target}`` in the span's name (a model, a tool, a store).
        start_ns: Start, nanoseconds since the Unix epoch.
        end_ns: End, likewise; 0 while it runs.
        attributes: Values of the span's attributes. Never content.
        error_type: What failed it; empty on success.
    """

    span: SpanName
    target: str
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]
    error_type: str = ""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something worth a log line.

    Attributes:
        event: Which, from the catalogue.
        attributes: Values of the event's attributes. Never content.
        at_ns: When, nanoseconds since the Unix epoch.
    """

    event: LogEvent
    attributes: Mapping[str, AttributeValue]
    at_ns: int


class Record:
    """What one activation, timer callback or refused element did.

    Attributes:
        span: The root step's kind: an activation or an expiry.
        pipeline: The pipeline's name.
        agent: The agent's name.
        entity_key: The entity's key. Show :attr:`entity` instead, unless the operator opted in.
        seq: The activation's seq; 0 where none was given.
        attempt: 1 for the first time that this process sees this activation, 2 for its first retry, …
        traceparent: The W3C traceparent that the event carried; empty for none.
        link: The traceparent of what this one continues (a suspended activation); empty for none.
        outcome: How it ended.
        reason: Why it failed, from the closed vocabulary; empty otherwise.
        error_type: The class of what failed it; empty otherwise.
        start_ns: Start, nanoseconds since the Unix epoch.
        end_ns: End, likewise.
        external_ns: Nanoseconds spent waiting for models, tools and stores; overlapping waits count once.
        measurements: (metric, value, values of the metric's own labels), in order.
        steps: The steps, in the order in which they were noted.
        happenings: What is worth a log line, in order.
    """

    __slots__ = (
        "_start_perf_ns",
        "agent",
        "attempt",
        "end_ns",
        "entity_key",
        "error_type",
        "external_ns",
        "happenings",
        "link",
        "measurements",
        "outcome",
        "pipeline",
        "reason",
        "seq",
        "span",
        "start_ns",
        "steps",
        "traceparent",
    )

    def __init__(self, span: SpanName, pipeline: str, agent: str, entity_key: bytes) -> None:
        self.span = span
        self.pipeline = pipeline
        self.agent = agent
        self.entity_key = entity_key
        self.seq = 0
        self.attempt = 1
        self.traceparent = ""
        self.link = ""
        self.outcome = ""
        self.reason = ""
        self.error_type = ""
        self.start_ns = time.time_ns()
        self._start_perf_ns = time.perf_counter_ns()
        self.end_ns = 0
        self.external_ns = 0
        self.measurements: list[tuple[Metric, float, tuple[str, ...]]] = []
        self.steps: list[Step] = []
        self.happenings: list[Happening] = []

    @property
    def entity(self) -> str:
        """The entity key's hash, which may be shown."""
        return hash_entity_key(self.entity_key)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, by the monotonic clock."""
        return (time.perf_counter_ns() - self._start_perf_ns) / 1e9

    def now_ns(self) -> int:
        """Return now, in nanoseconds since the Unix epoch, never before an earlier answer."""
        return self.start_ns + time.perf_counter_ns() - self._start_perf_ns

    def measure(self, metric: Metric, value: float, *labels: str) -> None:
        """Note a value of a metric, with the values of the metric's own labels in its order."""
        self.measurements.append((metric, value, labels))

    def begin(self, span: SpanName, target: str = "") -> Step:
        """Start a step; :meth:`finish` ends it."""
        step = Step(span, target, self.now_ns(), 0, {})
        self.steps.append(step)
        return step

    def add(self, span: SpanName, started_perf_ns: int, ended_perf_ns: int, target: str = "") -> Step:
        """Note a step that was measured elsewhere, by ``time.perf_counter_ns``."""
        offset_ns = self.start_ns - self._start_perf_ns
        step = Step(span, target, started_perf_ns + offset_ns, ended_perf_ns + offset_ns, {})
        self.steps.append(step)
        return step

    def finish(self, step: Step, error_type: str = "") -> None:
        """End a step."""
        step.end_ns = self.now_ns()
        step.error_type = error_type

    def happened(self, event: LogEvent, **attributes: AttributeValue) -> None:
        """Note something worth a log line."""
        self.happenings.append(Happening(event, attributes, self.now_ns()))


class Observer:
    """What a plugin runs on a worker. Every method does nothing here: override what is of interest.

    All methods but ``flush`` and ``close`` are called on threads that run bundles, several at a time; those
    two come on a thread of their own, and what overruns its bound is left behind. What a method raises is
    counted and goes no further; what it does, bundles wait for. A process that was forked gets an observer
    of its own, and ``start`` for every agent that it inherited.
    """

    def start(self, worker: Worker) -> None:
        """An agent's DoFn came up in this process."""

    def bundle_started(self, worker: Worker) -> None:
        """A bundle began."""

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:
        """Something raised out of the DoFn in a phase, ``"process"`` or ``"timer"``: the bundle fails."""

    def activation_started(self, record: Record) -> None:
        """An activation began: it is in flight until its record comes."""

    def record(self, record: Record) -> None:
        """Something ended; ``record`` has all of it, and nothing of it changes any more."""

    def flush(self, timeout_s: float) -> None:
        """Send what is buffered, within the bound."""

    def close(self, timeout_s: float) -> None:
        """Send what is buffered and release everything, within the bound."""


@runtime_checkable
class TelemetryPlugin(Protocol):
    """A plugin as configuration: frozen, hashable, pickled with the pipeline."""

    @property
    def name(self) -> str:
        """The plugin's name, as its entry point has it."""
        ...

    def build(self) -> Observer:
        """Make the live object. Called once per worker process."""
        ...

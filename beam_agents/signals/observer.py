"""The seam between the runtime and its plugins: what happened, as light records, and who is told.

The runtime builds one :class:`Record` per activation and per timer callback, with everything that was
measured in it, and hands it to each :class:`Observer` on the thread that runs the bundle.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, runtime_checkable

from beam_agents.errors import hash_entity_key
from beam_agents.signals.catalogue import SPAN_INVOKE_AGENT
from beam_agents.signals.trace import (
    Traceparent,
    parse_traceparent,
    sampling_bits_of,
    span_id_of,
    trace_id_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from beam_agents.signals.types import Content, Group, LogEvent, Metric, SpanName

__all__ = [
    "AttributeValue",
    "Happening",
    "Measured",
    "Moment",
    "Observer",
    "Record",
    "Step",
    "TelemetryPlugin",
    "Worker",
]

MAX_CONTENT_BYTES: Final = 8_192
"""How much of one event, prompt, answer or result is kept where content is captured."""

AttributeValue: TypeAlias = str | int | float | bool

Measured: TypeAlias = "tuple[Metric, tuple[str, ...], Sequence[float]]"
"""A metric, the values of its own labels, and what records measured of it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Where an observer runs.

    Attributes:
        pipeline: The pipeline's name, as given to RunAgent.
        agent: The agent's name; several agents of one process share an observer, so a record's own counts.
        backend: The label of its long-term store; empty for none.
    """

    pipeline: str
    agent: str
    backend: str = ""


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
        parent: The step that it is a part of; None for the activation or expiry itself.
    """

    span: SpanName
    target: str
    start_ns: int
    end_ns: int
    attributes: dict[str, AttributeValue]
    error_type: str = ""
    parent: Step | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """Something on an activation's span that took no time: a span event.

    Attributes:
        name: Which: ``"longterm.stage"``.
        attributes: What is told of it. Never content.
        at_ns: When, nanoseconds since the Unix epoch.
    """

    name: str
    attributes: Mapping[str, AttributeValue]
    at_ns: int


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
        continues: The seq and the event's traceparent of the activation that this one goes on with (one that
            was suspended) or ends (the key's last, at expiry); None for none. :attr:`link` is its span.
        sampled: Whether a plugin keeps this activation's trace; a plugin that does sets it in
            ``activation_started``, or in ``record`` for one that turned out to be worth keeping.
        outcome: How it ended.
        reason: Why it failed, from the closed vocabulary; empty otherwise.
        error_type: The class of what failed it; empty otherwise.
        start_ns: Start, nanoseconds since the Unix epoch.
        end_ns: End, likewise.
        external_ns: Nanoseconds spent waiting for models, tools and stores; overlapping waits count once.
        groups: Measurements that came together: (which, their values in its order).
        singles: The others: (metric, value, values of the metric's own labels).
        steps: The steps, in the order in which they were noted.
        happenings: What is worth a log line, in order.
        moments: What is worth an event on the activation's span, in order.
        part_of: The step that steps begun now are a part of; None for none.
        captures: Whether a plugin of this process captures content.
        contents: (step, what it is to the step, the first bytes of it): an author's data, for plugins that
            capture content and for no others. Empty unless one does. The step is None for the activation.
    """

    __slots__ = (
        "_span",
        "_start_perf_ns",
        "_trace",
        "agent",
        "attempt",
        "captures",
        "contents",
        "continues",
        "end_ns",
        "entity_key",
        "error_type",
        "external_ns",
        "groups",
        "happenings",
        "moments",
        "outcome",
        "part_of",
        "pipeline",
        "reason",
        "sampled",
        "seq",
        "singles",
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
        self.continues: tuple[int, str] | None = None
        self.sampled = False
        self.outcome = ""
        self.reason = ""
        self.error_type = ""
        self.start_ns = time.time_ns()
        self._start_perf_ns = time.perf_counter_ns()
        self.end_ns = 0
        self.external_ns = 0
        self.groups: list[tuple[Group, tuple[float, ...]]] = []
        self.singles: list[tuple[Metric, float, tuple[str, ...]]] = []
        self.steps: list[Step] = []
        self.happenings: list[Happening] = []
        self.moments: list[Moment] = []
        self.part_of: Step | None = None
        self.captures = False
        self.contents: list[tuple[Step | None, Content, bytes]] = []
        # With what they are made of: they are worked out once, and only if somebody asks.
        self._trace: tuple[int, str] | None = None
        self._span: tuple[int, int, str] | None = None

    @property
    def measurements(self) -> list[tuple[Metric, float, tuple[str, ...]]]:
        """All that was measured: (metric, value, values of the metric's own labels). A new list."""
        return [
            *(
                (metric, value, labels)
                for group, values in self.groups
                for (metric, labels), value in zip(group.series, values, strict=True)
            ),
            *self.singles,
        ]

    @property
    def entity(self) -> str:
        """The entity key's hash, which may be shown."""
        return hash_entity_key(self.entity_key)

    @property
    def parent(self) -> Traceparent | None:
        """The span that the event came from; None where it told none, or none that is valid."""
        return parse_traceparent(self.traceparent) if self.traceparent else None

    @property
    def trace_id(self) -> str:
        """The trace of this, 32 hex digits: the event's own, else one that all attempts share."""
        known = self._trace
        if known is None or known[0] != self.seq:
            parent = self.parent
            trace_id = parent.trace_id if parent else trace_id_of(self.pipeline, self.entity_key, self._turn)
            known = self._trace = self.seq, trace_id
        return known[1]

    @property
    def sampling_bits(self) -> int:
        """The second half of that id as a number: samplers decide by it. Quick to ask for, unlike the id."""
        if self.traceparent and (parent := self.parent) is not None:
            return int(parent.trace_id[16:], 16)
        return sampling_bits_of(self.pipeline, self.entity_key, self.seq or self._turn)

    @property
    def span_id(self) -> str:
        """The id of its span, 16 hex digits; each attempt has one of its own."""
        known = self._span
        if known is None or known[:2] != (self.seq, self.attempt):
            span_id = span_id_of(self.pipeline, self._kind, self.entity_key, self._turn, self.attempt)
            known = self._span = self.seq, self.attempt, span_id
        return known[2]

    @property
    def link(self) -> Traceparent | None:
        """The span of the activation that this one continues or ends; None for none."""
        if self.continues is None:
            return None
        seq, text = self.continues
        theirs = parse_traceparent(text)
        trace_id = theirs.trace_id if theirs else trace_id_of(self.pipeline, self.entity_key, seq)
        span_id = span_id_of(self.pipeline, self.agent, self.entity_key, seq, 1)
        return Traceparent(trace_id, span_id, theirs.sampled if theirs else True)

    @property
    def first_attempt(self) -> Traceparent | None:
        """The span of the first attempt at this; None for the first attempt itself."""
        if self.attempt <= 1:
            return None
        span_id = span_id_of(self.pipeline, self._kind, self.entity_key, self.seq, 1)
        return Traceparent(self.trace_id, span_id, sampled=True)

    @property
    def _kind(self) -> str:
        """What tells its span from others of the same seq."""
        return self.agent if self.span is SPAN_INVOKE_AGENT else f"{self.agent} {self.span.name}"

    @property
    def _turn(self) -> int:
        """What tells it from others of its key: what was refused before it had a seq is never tried again."""
        return self.seq or -self.start_ns

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, by the monotonic clock."""
        return (time.perf_counter_ns() - self._start_perf_ns) / 1e9

    def now_ns(self) -> int:
        """Return now, in nanoseconds since the Unix epoch, never before an earlier answer."""
        return self.start_ns + time.perf_counter_ns() - self._start_perf_ns

    def measure(self, metric: Metric, value: float, *labels: str) -> None:
        """Note a value of a metric, with the values of the metric's own labels in its order."""
        self.singles.append((metric, value, labels))

    def measure_all(self, group: Group, *values: float) -> None:
        """Note values of a group's metrics, in its order: an int where whole things are counted."""
        self.groups.append((group, values))

    def begin(self, span: SpanName, target: str = "") -> Step:
        """Start a step; :meth:`finish` ends it."""
        step = Step(span, target, self.now_ns(), 0, {}, parent=self.part_of)
        self.steps.append(step)
        return step

    def add(
        self,
        span: SpanName,
        started_perf_ns: int,
        ended_perf_ns: int,
        target: str = "",
        *,
        parent: Step | None = None,
    ) -> Step:
        """Note a step that was measured elsewhere, by ``time.perf_counter_ns``."""
        offset_ns = self.start_ns - self._start_perf_ns
        step = Step(
            span,
            target,
            started_perf_ns + offset_ns,
            ended_perf_ns + offset_ns,
            {},
            parent=parent or self.part_of,
        )
        self.steps.append(step)
        return step

    def finish(self, step: Step, error_type: str = "") -> None:
        """End a step."""
        step.end_ns = self.now_ns()
        step.error_type = error_type

    def moment(self, name: str, **attributes: AttributeValue) -> None:
        """Note something for an event on the activation's span."""
        self.moments.append(Moment(name, attributes, self.now_ns()))

    def capture(self, step: Step | None, content: Content, data: bytes) -> None:
        """Keep the first bytes of an author's data, if a plugin captures content; else do nothing."""
        if self.captures:
            self.contents.append((step, content, data[:MAX_CONTENT_BYTES]))

    def happened(self, event: LogEvent, **attributes: AttributeValue) -> None:
        """Note something worth a log line."""
        self.happenings.append(Happening(event, attributes, self.now_ns()))


class Observer:
    """What a plugin runs on a worker. Every method does nothing here: override what is of interest.

    All methods but ``flush`` and ``close`` are called on threads that run bundles, several at a time; those
    two come on a thread of their own, and what overruns its bound is left behind. What a method raises is
    counted and goes no further; what it does, bundles wait for. A process that was forked gets an observer
    of its own, and ``start`` for every agent that it inherited.

    Attributes:
        reads_aggregates: Whether it reads :func:`~beam_agents.signals.snapshot.take_snapshot`: only then does
            the process sum up what records measure.
        captures_content: Whether it wants the author's data, ``Record.contents``: only then are they kept.
            For development, and never without an operator's explicit option.
    """

    reads_aggregates: ClassVar[bool] = False
    captures_content: ClassVar[bool] = False

    def start(self, worker: Worker) -> None:
        """An agent's DoFn came up in this process."""

    def bundle_started(self, worker: Worker) -> None:
        """A bundle began."""

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:
        """Something raised out of the DoFn in a phase, ``"process"`` or ``"timer"``: the bundle fails."""

    def activation_started(self, record: Record) -> None:
        """An activation began: it is in flight until its record comes, on the same thread.

        Its seq and attempt are known, and so are its trace's id and its span's. An element that is refused
        before that, and a timer callback, have a record and no start.
        """

    def record(self, record: Record) -> None:
        """Something ended; ``record`` has all of it, and nothing of it changes any more."""

    def measured(self, pipeline: str, agent: str, measured: Sequence[Measured]) -> None:
        """Records of an agent measured this: the same as in the records, many at a time, which costs less.

        It comes in the bundle that it was measured in, by its end. Of one that fails it may not come: for
        counts that outlast failing bundles, read the process's own.
        """

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

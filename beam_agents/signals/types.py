"""The vocabulary in which the catalogue is written: kinds of metric, spans, log events, closed label sets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BeamKind",
    "BeamMetric",
    "CacheResult",
    "CallOutcome",
    "CompactionTrigger",
    "Content",
    "Direction",
    "DropReason",
    "Flushed",
    "Group",
    "Label",
    "LogEvent",
    "Metric",
    "MetricKind",
    "Outcome",
    "Phase",
    "Reason",
    "SpanKind",
    "SpanName",
    "StoreOperation",
    "SummaryOutcome",
    "UpsertResult",
]

PROMETHEUS_PREFIX = "beam_agents_"
OTEL_PREFIX = "beam_agents."

# A unit of "1" becomes an annotation: an OpenTelemetry collector would name a gauge of unit 1 a "_ratio".
_UCUM = {"seconds": "s", "bytes": "By", "1": "{item}"}


class MetricKind(Enum):
    """How a metric behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class BeamKind(Enum):
    """The kinds of Beam metric in use."""

    COUNTER = "counter"
    DISTRIBUTION = "distribution"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class BeamMetric:
    """The Beam form of a metric: no labels, integers only.

    Attributes:
        name: Its name in the namespace ``beam_agents.runtime``.
        kind: Counter, distribution or gauge. A histogram's counter counts its measurements.
        scale: What a value is multiplied by before it is rounded (1,000 for seconds to milliseconds).
        where: Which measurements count, as (label, values of it that do) pairs, all of which must hold;
            empty for all measurements.
    """

    name: str
    kind: BeamKind
    scale: int = 1
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. Compared by identity: each is defined once, in the catalogue, and pickled by its name.

    Attributes:
        name: Its Prometheus name without the prefix ``beam_agents_``.
        kind: Counter, gauge or histogram.
        unit: ``"seconds"``, ``"bytes"`` or ``"1"``.
        help: One sentence: what it counts.
        labels: Label names beside ``pipeline`` and ``agent``, which every measurement carries. A
            measurement gives their values in this order.
        beam: Its Beam forms; empty for none.
        buckets: Upper bounds of a histogram's buckets, without +Inf.
        values: For labels whose values are a closed set: (label, the set).
        per_agent: Whether its series carry ``pipeline`` and ``agent``; False for what a process has once.
        convention: The instrument of OpenTelemetry's semantic conventions that the same values feed.
    """

    name: str
    kind: MetricKind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    beam: tuple[BeamMetric, ...] = ()
    buckets: tuple[float, ...] = ()
    values: tuple[tuple[str, type[StrEnum]], ...] = ()
    per_agent: bool = True
    convention: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        return _catalogued, ("metric", self.name)

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus."""
        return PROMETHEUS_PREFIX + self.name

    @property
    def otel_name(self) -> str:
        """The OpenTelemetry instrument's name; a collector derives the Prometheus name from it."""
        stem = self.name.removesuffix("_total").removesuffix(f"_{self.unit}")
        return OTEL_PREFIX + stem.replace("_", ".")

    def combinations(self, backend: str) -> Iterator[tuple[str, ...]]:
        """Return all possible values of its own labels, if each has a closed set of them; else none.

        Args:
            backend: The agent's long-term store; empty where it has none.
        """
        closed: dict[str, list[str]] = {"backend": [backend]} if backend else {}
        closed |= {label: [each.value for each in values] for label, values in self.values}
        if closed.keys() >= set(self.labels):
            yield from product(*(closed[label] for label in self.labels))

    @property
    def ucum(self) -> str:
        """The unit as OpenTelemetry wants it, in the Unified Code for Units of Measure."""
        return _UCUM[self.unit]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Measurements that come together each time, so that they can be noted and summed up in one go.

    Compared by identity: one is made for each of a few places of the runtime, never for a record.

    Attributes:
        series: Each metric, with the values of its own labels.
    """

    series: tuple[tuple[Metric, tuple[str, ...]], ...]


class SpanKind(Enum):
    """OpenTelemetry's span kinds, as far as they are in use."""

    CONSUMER = "consumer"
    INTERNAL = "internal"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, eq=False)
class SpanName:
    """One kind of span.

    Attributes:
        name: Its name, with ``{target}`` where the target's name is filled in.
        kind: OpenTelemetry's span kind.
        help: One sentence: which step it covers.
        attributes: The keys that it may carry.
    """

    name: str
    kind: SpanKind
    help: str
    attributes: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return _catalogued, ("span", self.name)

    def filled(self, target: str) -> str:
        """Return the name with its target in place."""
        return self.name.replace("{target}", target).rstrip()


@dataclass(frozen=True, slots=True, eq=False)
class LogEvent:
    """One kind of log line.

    Attributes:
        name: Its snake_case name.
        help: One sentence: when it is written.
        attributes: The keys that it may carry beside trace_id, span_id, attempt, agent, pipeline and entity.
        severity: ``"info"``, ``"warning"`` or ``"error"``.
    """

    name: str
    help: str
    attributes: tuple[str, ...] = ()
    severity: str = "warning"

    def __reduce__(self) -> tuple[object, ...]:
        return _catalogued, ("event", self.name)


def _catalogued(kind: str, name: str) -> object:
    """Return the one definition of a name, for unpickling."""
    from beam_agents.signals import catalogue  # noqa: PLC0415 - the catalogue is written in these types

    return catalogue.lookup(kind, name)


@dataclass(frozen=True, slots=True)
class Label:
    """One label. Its values are few: a closed set, or the names that an operator configured.

    Attributes:
        name: The label's name.
        help: One sentence: what it tells.
    """

    name: str
    help: str


class Outcome(StrEnum):
    """How an activation ended."""

    COMPLETE = "complete"
    SUSPEND = "suspend"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a record is on the errors output."""

    ACTIVATION_ERROR = "activation_error"
    ACTIVATION_TIMEOUT = "activation_timeout"
    BUDGET_EXCEEDED = "budget_exceeded"
    INVALID_OUTCOME = "invalid_outcome"
    MEMORY_OVERFLOW = "memory_overflow"
    SUMMARY_FAILED = "summary_failed"
    EVENT_TIME_IN_FUTURE = "event_time_in_future"
    INVALID_ENVELOPE = "invalid_envelope"
    STATE_UNDECODABLE = "state_undecodable"
    STATE_VERSION_UNSUPPORTED = "state_version_unsupported"
    LONGTERM_READ_FAILED = "longterm_read_failed"
    LONGTERM_FLUSH_FAILED = "longterm_flush_failed"
    ORPHANED_RESULT = "orphaned_result"
    SUSPENSION_TIMEOUT = "suspension_timeout"
    TTL_WIPED_SUSPENSION = "ttl_wiped_suspension"


class CallOutcome(StrEnum):
    """How a call that left the activation ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


class SummaryOutcome(StrEnum):
    """How an attempt to summarize ended."""

    OK = "ok"
    ERROR = "error"
    NOT_SMALLER = "not_smaller"


class CacheResult(StrEnum):
    """What a look-up in the replay cache found."""

    HIT = "hit"
    MISS = "miss"


class Direction(StrEnum):
    """Which way tokens went."""

    PROMPT = "prompt"
    COMPLETION = "completion"


class CompactionTrigger(StrEnum):
    """Which cap set a compaction off."""

    SOFT_CAP = "soft_cap"
    HARD_CAP = "hard_cap"


class UpsertResult(StrEnum):
    """What the store's guard did with a row."""

    APPLIED = "applied"
    STALE = "stale"


class StoreOperation(StrEnum):
    """What was asked of a store."""

    LOAD = "load"
    SEARCH = "search"
    FLUSH = "flush"
    EXPIRE_FLUSH = "expire_flush"
    PING = "ping"


class Flushed(StrEnum):
    """Whether a key's memory reached the long-term tier before it was wiped."""

    TRUE = "true"
    FALSE = "false"
    EMPTY = "empty"


class Content(StrEnum):
    """What an author's data is to the step that it is kept for, where a plugin captures content."""

    INPUT = "input"
    OUTPUT = "output"


class Phase(StrEnum):
    """Which of the DoFn's callbacks ran."""

    PROCESS = "process"
    TIMER = "timer"


class DropReason(StrEnum):
    """Which call of a plugin lost signals, as the runtime sees it; a plugin may count reasons of its own."""

    BUILD = "build"
    START = "start"
    BUNDLE = "bundle"
    ACTIVATION = "activation"
    RECORD = "record"
    FLUSH = "flush"
    CLOSE = "close"
    TIMEOUT = "timeout"

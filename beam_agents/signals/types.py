"""The vocabulary in which the catalogue is written: kinds of metric, spans, log events, closed label sets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

__all__ = ["BeamMetric", "BeamKind", "LogEvent", "Metric", "MetricKind", "Outcome", "Reason", "SpanKind", "SpanName"]


class MetricKind(Enum):
    """How a metric behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class BeamKind(Enum):
    """The kinds of Beam metric in use."""

    COUNTER = "counter"
    DISTRIBUTION = "distribution"


@dataclass(frozen=True, slots=True)
class BeamMetric:
    """The Beam form of a metric: no labels, integers only.

    Attributes:
        name: Its name in the namespace ``beam_agents.runtime``.
        kind: Counter or distribution.
        scale: What a value is multiplied by before it is rounded (1,000 for seconds to milliseconds).
        where: Label values that a measurement must have to count, as (label, value) pairs; empty for all.
    """

    name: str
    kind: BeamKind
    scale: int = 1
    where: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. Compared by identity: each is defined once, in the catalogue.

    Attributes:
        name: Its Prometheus name without the prefix ``beam_agents_``.
        kind: Counter, gauge or histogram.
        unit: ``"seconds"``, ``"bytes"`` or ``"1"``.
        help: One sentence: what it counts.
        labels: Label names beside ``pipeline`` and ``agent``, which every measurement carries. A
            measurement gives their values in this order.
        beam: Its Beam forms; empty for none.
        buckets: Upper bounds of a histogram's buckets, without +Inf.
    """

    name: str
    kind: MetricKind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    beam: tuple[BeamMetric, ...] = ()
    buckets: tuple[float, ...] = ()


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


@dataclass(frozen=True, slots=True, eq=False)
class LogEvent:
    """One kind of log line.

    Attributes:
        name: Its snake_case name.
        help: One sentence: when it is written.
        attributes: The keys that it may carry beside trace_id, span_id, agent, pipeline and entity.
        severity: ``"info"``, ``"warning"`` or ``"error"``.
    """

    name: str
    help: str
    attributes: tuple[str, ...] = ()
    severity: str = "warning"


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
    ORPHANED_RESULT = "orphaned_result"
    SUSPENSION_TIMEOUT = "suspension_timeout"
    TTL_WIPED_SUSPENSION = "ttl_wiped_suspension"

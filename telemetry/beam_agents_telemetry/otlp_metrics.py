"""From the process's own counts to OpenTelemetry's data points, and the thread that sends them.

Nothing is recorded for it: the points are made of a snapshot, on the period.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.metrics import Exemplar as ExemplarData
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as MetricData
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from beam_agents.signals import Histogram, MetricKind, catalogue, take_snapshot
from beam_agents.signals import attributes as ours
from beam_agents.signals import conventions as otel
from beam_agents.signals.types import CallOutcome, Direction
from beam_agents_telemetry.otlp_spans import SCOPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource

    from beam_agents.signals import Metric, Series, Snapshot

__all__ = ["MetricsLoop", "metrics_data"]

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
# The class of an error that the process's counts do not tell apart: the convention's own word for it.
_OTHER_ERROR: Final = "_OTHER"


def metrics_data(snapshot: Snapshot, resource: Resource, *, exponential: bool) -> MetricsData:
    """Return a snapshot as OpenTelemetry's data model has it.

    Args:
        snapshot: Every metric of the process.
        resource: What the process is.
        exponential: Whether histograms are exponential ones.
    """
    by_schema: dict[str, list[MetricData]] = {"": []}
    by_metric: dict[Metric, list[Series]] = {}
    for series in snapshot.series:
        by_metric.setdefault(series.metric, []).append(series)
    for metric, several in by_metric.items():
        by_schema[""].append(
            _metric(
                metric.otel_name,
                metric.help,
                metric.ucum,
                metric.kind,
                [(dict(each.labels), each.value, metric.buckets) for each in several],
                snapshot,
                exponential=exponential,
            )
        )
    for schema_url, name, points in _conventional(by_metric):
        by_schema.setdefault(schema_url, []).append(
            _metric(
                name,
                "",
                otel.UNITS[name],
                MetricKind.HISTOGRAM,
                points,
                snapshot,
                # What has no buckets has none to be made exponential.
                exponential=exponential and name != otel.GEN_AI_CLIENT_TOKEN_USAGE,
            )
        )
    scopes = [
        ScopeMetrics(InstrumentationScope(SCOPE, "", schema_url or None), metrics, schema_url)
        for schema_url, metrics in by_schema.items()
    ]
    return MetricsData([ResourceMetrics(resource, scopes, resource.schema_url)])


# (attributes, value, bounds of its buckets)
_Point = tuple["dict[str, str]", "float | Histogram", "tuple[float, ...]"]


def _metric(
    name: str,
    help_text: str,
    unit: str,
    kind: MetricKind,
    points: Iterable[_Point],
    snapshot: Snapshot,
    *,
    exponential: bool,
) -> MetricData:
    started_ns, at_ns = int(snapshot.started_s * 1e9), int(snapshot.at_s * 1e9)
    data: Sum | Gauge | HistogramData | ExponentialHistogram
    if kind is MetricKind.HISTOGRAM:
        histograms = [
            (attributes, value, bounds)
            for attributes, value, bounds in points
            if isinstance(value, Histogram)
        ]
        if exponential:
            data = ExponentialHistogram(
                [_exponential(*each, started_ns, at_ns) for each in histograms], _CUMULATIVE
            )
        else:
            data = HistogramData([_explicit(*each, started_ns, at_ns) for each in histograms], _CUMULATIVE)
    else:
        numbers = [
            NumberDataPoint(attributes, started_ns if kind is MetricKind.COUNTER else 0, at_ns, value)
            for attributes, value, _ in points
            if not isinstance(value, Histogram)
        ]
        data = Sum(numbers, _CUMULATIVE, is_monotonic=True) if kind is MetricKind.COUNTER else Gauge(numbers)
    return MetricData(name, help_text, unit, data)


def _explicit(
    attributes: Mapping[str, str], value: Histogram, bounds: Sequence[float], started_ns: int, at_ns: int
) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=started_ns,
        time_unix_nano=at_ns,
        count=value.count,
        sum=value.sum,
        bucket_counts=value.counts,
        explicit_bounds=bounds,
        min=None,  # type: ignore[arg-type]  # the data model has them as optional: nobody kept them
        max=None,  # type: ignore[arg-type]  # as above
        exemplars=_exemplars(value),
    )


def _exponential(
    attributes: Mapping[str, str], value: Histogram, bounds: Sequence[float], started_ns: int, at_ns: int
) -> ExponentialHistogramDataPoint:
    """Put each bucket's measurements where the middle of that bucket is.

    The process's buckets are about as wide as those of scale 0 (powers of two), so that is the scale. What a
    measurement is taken for is off by no more than half of the bucket that it was counted in.
    """
    counts: dict[int, int] = {}
    for place, count in enumerate(value.counts):
        if count:
            index = _power_of_two(_middle(bounds, place))
            counts[index] = counts.get(index, 0) + count
    offset = min(counts, default=0)
    positive = [counts.get(index, 0) for index in range(offset, max(counts, default=-1) + 1)]
    return ExponentialHistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=started_ns,
        time_unix_nano=at_ns,
        count=value.count,
        sum=value.sum,
        scale=0,
        zero_count=0,
        positive=Buckets(offset, positive),
        negative=Buckets(0, []),
        flags=0,
        min=None,  # type: ignore[arg-type]  # as above
        max=None,  # type: ignore[arg-type]  # as above
        exemplars=_exemplars(value),
    )


def _middle(bounds: Sequence[float], place: int) -> float:
    """Return the geometric middle of a bucket; the two open ones are taken to be a factor of two wide."""
    if place == 0:
        return bounds[0] / math.sqrt(2)
    if place == len(bounds):
        return bounds[-1] * math.sqrt(2)
    return math.sqrt(bounds[place - 1] * bounds[place])


def _power_of_two(value: float) -> int:
    """Return the index of the bucket (2**index, 2**(index + 1)] that holds a value."""
    return math.ceil(math.log2(value)) - 1


def _exemplars(value: Histogram) -> list[ExemplarData]:
    return [
        ExemplarData({}, each.value, int(each.at_s * 1e9), int(each.span_id, 16), int(each.trace_id, 16))
        for _, each in value.exemplars
    ]


def _conventional(
    by_metric: Mapping[Metric, Sequence[Series]],
) -> Iterable[tuple[str, str, list[_Point]]]:
    """Return (schema, name, points) of what OpenTelemetry's conventions have a name for.

    The buckets are the process's own: those that the conventions advise cannot be made of them, and counts
    that were guessed would be worse than bounds that differ from the advice.
    """
    operations = by_metric.get(catalogue.STORE_OPERATION_DURATION_SECONDS, ())
    if operations:
        points = [(_database(dict(each.labels)), each.value, each.metric.buckets) for each in operations]
        yield otel.SCHEMA_URL, otel.DB_CLIENT_OPERATION_DURATION, points
    models = by_metric.get(catalogue.MODEL_CALL_DURATION_SECONDS, ())
    if models:
        points = [(_chat(dict(each.labels)), each.value, each.metric.buckets) for each in models]
        yield otel.GEN_AI_SCHEMA_URL, otel.GEN_AI_CLIENT_OPERATION_DURATION, points
    tokens = by_metric.get(catalogue.TOKENS, ())
    if tokens:
        points = list(_token_usage(tokens, by_metric.get(catalogue.MODEL_CALLS, ())))
        yield otel.GEN_AI_SCHEMA_URL, otel.GEN_AI_CLIENT_TOKEN_USAGE, points


_TOKEN_TYPES: Final = {
    Direction.PROMPT.value: otel.TOKEN_TYPE_INPUT,
    Direction.COMPLETION.value: otel.TOKEN_TYPE_OUTPUT,
}


def _token_usage(tokens: Iterable[Series], calls: Iterable[Series]) -> Iterator[_Point]:
    """Return sums of tokens with the calls that used them: histograms of one bucket.

    How the tokens of single calls were spread nobody kept; how many there were per call, this tells.
    """
    counts: dict[tuple[str, str, str], int] = {}
    for each in calls:
        labels = dict(each.labels)
        if labels["outcome"] == CallOutcome.OK and not isinstance(each.value, Histogram):
            counts[labels["pipeline"], labels["agent"], labels["model"]] = int(each.value)
    for each in tokens:
        labels = dict(each.labels)
        count = counts.get((labels["pipeline"], labels["agent"], labels["model"]))
        if count and not isinstance(each.value, Histogram):
            attributes = {**_chat(labels), otel.GEN_AI_TOKEN_TYPE: _TOKEN_TYPES[labels["direction"]]}
            yield attributes, Histogram((count,), each.value), ()


def _database(labels: Mapping[str, str]) -> dict[str, str]:
    found = {
        otel.DB_SYSTEM_NAME: otel.DB_SYSTEMS.get(labels["backend"], labels["backend"]),
        otel.DB_OPERATION_NAME: labels["operation"],
    }
    if labels["outcome"] != CallOutcome.OK:
        found[otel.ERROR_TYPE] = (
            labels["outcome"] if labels["outcome"] == CallOutcome.TIMEOUT else _OTHER_ERROR
        )
    return found


def _chat(labels: Mapping[str, str]) -> dict[str, str]:
    return {
        otel.GEN_AI_OPERATION_NAME: otel.CHAT,
        otel.GEN_AI_REQUEST_MODEL: labels["model"],
        otel.GEN_AI_AGENT_NAME: labels["agent"],
        ours.PIPELINE: labels["pipeline"],
    }


class MetricsLoop:
    """Sends a snapshot once every period, on a thread of its own.

    Args:
        send: Makes and sends one.
        failed: Told what ``send`` raised.
        release: Releases what ``send`` uses.
        period_s: The period.
        name: The thread's name.
        on_thread: Called on the thread before anything else.
    """

    def __init__(
        self,
        send: Callable[[Snapshot], None],
        failed: Callable[[BaseException], None],
        release: Callable[[], None],
        *,
        period_s: float,
        name: str,
        on_thread: Callable[[], None],
    ) -> None:
        self._send = send
        self._failed = failed
        self._release = release
        self._period_s = period_s
        self._on_thread = on_thread
        self._asked = 0
        self._sent = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Have a snapshot sent now."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was asked for is sent; tell whether it was within the bound."""
        with self._changed:
            target = self._asked
            return self._changed.wait_for(lambda: self._sent >= target, max(0.0, timeout_s))

    def begin_close(self) -> None:
        """Have a last snapshot sent and the thread end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Wait for that within the bound, and release everything; tell whether the thread has ended."""
        self.begin_close()
        self._thread.join(max(0.0, timeout_s))
        self._release()
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._on_thread()
        closed = False
        while not closed:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._asked > self._sent, self._period_s)
                closed, asked = self._closed, self._asked
            try:
                self._send(take_snapshot())
            except BaseException as error:  # noqa: BLE001 - the next period comes, whatever it was
                self._failed(error)
            with self._changed:
                self._sent = asked
                self._changed.notify_all()

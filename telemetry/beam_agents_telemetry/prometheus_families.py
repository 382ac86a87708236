"""The process's metrics as Prometheus's metric families, made at each scrape and kept nowhere."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from beam_agents.signals.aggregates import Histogram
from beam_agents.signals.catalogue import METRICS
from beam_agents.signals.snapshot import take_snapshot
from beam_agents.signals.types import MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from beam_agents.signals.snapshot import Series, Snapshot
    from beam_agents.signals.types import Metric

__all__ = ["SnapshotCollector", "families", "new_registry"]


class SnapshotCollector(Collector):
    """Turns the process's snapshot of the moment into families."""

    def collect(self) -> Iterator[Family]:
        """Return a family for each metric that has been measured."""
        return families(take_snapshot())

    def describe(self) -> Iterable[Family]:
        """Return the catalogue's names: a registry then takes the collector without a first scrape."""
        return [_family(metric, []) for metric in METRICS]


def new_registry() -> CollectorRegistry:
    """Return a registry of its own with this process's metrics, and with what Python and the OS tell of it.

    prometheus-client's global registry is left to the application.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector())
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def families(snapshot: Snapshot) -> Iterator[Family]:
    """Return a snapshot's metrics as families, in the catalogue's order.

    There are no ``_created`` samples: Prometheus would store one more series for each counter and histogram
    to tell what ``process_start_time_seconds`` tells once.
    """
    for metric, series in groupby(snapshot.series, key=lambda each: each.metric):
        yield _family(metric, list(series))


def _family(metric: Metric, series: list[Series]) -> Family:
    names = [name for name, _ in series[0].labels] if series else []
    name, unit = metric.prometheus_name, _unit(metric)
    if metric.kind is MetricKind.HISTOGRAM:
        histograms = HistogramMetricFamily(name, metric.help, labels=names, unit=unit)
        for each in series:
            if isinstance(each.value, Histogram):
                histograms.add_metric(_values(each), _buckets(metric, each.value), each.value.sum)
        return histograms
    numbers: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is MetricKind.COUNTER:
        numbers = CounterMetricFamily(name, metric.help, labels=names, unit=unit)
    else:
        numbers = GaugeMetricFamily(name, metric.help, labels=names, unit=unit)
    for each in series:
        if not isinstance(each.value, Histogram):
            numbers.add_metric(_values(each), each.value)
    return numbers


def _unit(metric: Metric) -> str:
    """Return the unit as OpenMetrics has it: only where the name ends in it, else the name would change."""
    return metric.unit if metric.name.removesuffix("_total").endswith(f"_{metric.unit}") else ""


def _values(series: Series) -> list[str]:
    return [value for _, value in series.labels]


_Bucket: TypeAlias = "tuple[str, float] | tuple[str, float, Exemplar]"


def _buckets(metric: Metric, histogram: Histogram) -> list[_Bucket]:
    """Return (upper bound, measurements up to it, exemplar if there is one) of each bucket."""
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    buckets: list[_Bucket] = list(zip(bounds, accumulate(histogram.counts), strict=True))
    for index, each in histogram.exemplars:
        exemplar = Exemplar({"trace_id": each.trace_id, "span_id": each.span_id}, each.value, each.at_s)
        bound, count, *_ = buckets[index]
        buckets[index] = (bound, count, exemplar)
    return buckets

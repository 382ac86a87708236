"""Every metric of this process at one moment: what plugins that export metrics read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from beam_agents.signals import catalogue, hub, losses
from beam_agents.signals.aggregates import Histogram, process_aggregates
from beam_agents.signals.in_flight import in_flight
from beam_agents.signals.stores import store_table
from beam_agents.signals.wedges import wedge_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from beam_agents.signals.in_flight import InFlight
    from beam_agents.signals.observer import Worker
    from beam_agents.signals.stores import StoreTable
    from beam_agents.signals.types import Metric
    from beam_agents.signals.wedges import WedgeTable

__all__ = ["Series", "Snapshot", "take_snapshot"]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric with one set of label values.

    Attributes:
        metric: Which, from the catalogue.
        labels: (name, value) pairs: ``pipeline`` and ``agent`` where the metric has them, then its own.
        value: A counter's or gauge's value, or a histogram.
    """

    metric: Metric
    labels: tuple[tuple[str, str], ...]
    value: float | Histogram


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of them.

    Attributes:
        series: In the order of the catalogue.
        started_s: Since when counters and histograms count, seconds since the Unix epoch.
        at_s: When it was taken, likewise.
    """

    series: tuple[Series, ...]
    started_s: float
    at_s: float


def take_snapshot() -> Snapshot:
    """Return every metric that this process has, gauges included.

    A metric that never was measured is not there, except for those whose absence would be taken for health:
    they are there, at 0, for every agent that runs here.
    """
    aggregates = process_aggregates()
    series = [
        _series(metric, pipeline, agent, labels, value)
        for metric, pipeline, agent, labels, value in aggregates.read()
    ]
    workers = hub.workers()
    series += _activations(in_flight(), workers)
    series += _wedges(wedge_table(), workers)
    series += _zeros(workers, {(each.metric, each.labels) for each in series})
    series += _stores(store_table())
    series += _telemetry()
    order = {metric: place for place, metric in enumerate(catalogue.METRICS)}
    series.sort(key=lambda each: (order[each.metric], each.labels))
    return Snapshot(tuple(series), aggregates.started_s, time.time())


def _series(
    metric: Metric, pipeline: str, agent: str, labels: tuple[str, ...], value: float | Histogram
) -> Series:
    own = tuple(zip(metric.labels, labels, strict=True))
    return Series(
        metric, (("pipeline", pipeline), ("agent", agent), *own) if metric.per_agent else own, value
    )


def _zeros(workers: Iterable[Worker], there: set[tuple[Metric, tuple[tuple[str, str], ...]]]) -> list[Series]:
    """Return counters at 0, so that their first increase is one: a rate needs two samples.

    Of every counter whose labels are closed sets, or the agent's own store, for every agent of the process.
    """
    found = []
    for worker in workers:
        for metric in catalogue.METRICS_FROM_ZERO:
            for labels in metric.combinations(worker.backend):
                zero = _series(metric, worker.pipeline, worker.agent, labels, 0)
                if (metric, zero.labels) not in there:
                    found.append(zero)
    return found


def _activations(running: InFlight, workers: Iterable[Worker]) -> list[Series]:
    found: dict[tuple[str, str], list[float]] = {(each.pipeline, each.agent): [] for each in workers}
    for record in running.running():
        found.setdefault((record.pipeline, record.agent), []).append(record.elapsed_s)
    series = []
    for (pipeline, agent), ages in found.items():
        series.append(_series(catalogue.ACTIVATIONS_IN_FLIGHT, pipeline, agent, (), len(ages)))
        oldest_s = max(ages, default=0.0)
        series.append(_series(catalogue.OLDEST_ACTIVATION_AGE_SECONDS, pipeline, agent, (), oldest_s))
    return series


def _wedges(table: WedgeTable, workers: Iterable[Worker]) -> list[Series]:
    found: dict[tuple[str, str, str], list[float]] = {
        (each.pipeline, each.agent, each.backend): [] for each in workers if each.backend
    }
    for wedge in table.wedged():
        found.setdefault((wedge.pipeline, wedge.agent, wedge.backend), []).append(wedge.age_s)
    series = []
    for (pipeline, agent, backend), ages in found.items():
        series.append(_series(catalogue.EXPIRE_WEDGED_TIMERS, pipeline, agent, (backend,), len(ages)))
        oldest_s = max(ages, default=0.0)
        series.append(_series(catalogue.EXPIRE_WEDGED_OLDEST_SECONDS, pipeline, agent, (backend,), oldest_s))
    lost = {**dict.fromkeys(found, 0), **table.lost_sight()}
    for (pipeline, agent, backend), count in lost.items():
        series.append(_series(catalogue.EXPIRE_WEDGES_LOST_SIGHT, pipeline, agent, (backend,), count))
    return series


def _stores(table: StoreTable) -> list[Series]:
    """Return a backend's health: that of the store of it that does worst."""
    up: dict[str, bool] = {}
    succeeded_s: dict[str, float] = {}
    for store in table.all():
        if store.up is not None:
            up[store.backend] = up.get(store.backend, True) and store.up
        last_s = store.last_success_s
        succeeded_s[store.backend] = min(succeeded_s.get(store.backend, last_s), last_s)
    metric = catalogue.STORE_LAST_SUCCESS_TIMESTAMP_SECONDS
    return [
        *(_series(catalogue.STORE_UP, "", "", (backend,), int(state)) for backend, state in up.items()),
        *(_series(metric, "", "", (backend,), last_s) for backend, last_s in succeeded_s.items()),
    ]


def _telemetry() -> list[Series]:
    states = hub.initialised()
    lost = losses.dropped()
    dropped, works = catalogue.TELEMETRY_DROPPED, catalogue.TELEMETRY_INITIALISED
    return [
        *(_series(dropped, "", "", labels, count) for labels, count in lost.items()),
        *(_series(works, "", "", (plugin,), int(state)) for plugin, state in states.items()),
        _series(catalogue.BUILD_INFO, "", "", _versions(), 1),
    ]


@cache
def _versions() -> tuple[str, str]:
    """Return the versions in use; to look them up takes longer than all else in a snapshot."""
    return version("beam-agents"), version("apache-beam")

"""Beam metrics: the runner's own ledger, which drops what a failed bundle counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from apache_beam.metrics.metric import Metrics

from beam_agents.signals.catalogue import BEAM_NAMESPACE
from beam_agents.signals.observer import Observer
from beam_agents.signals.types import BeamKind, MetricKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from beam_agents.signals.observer import Record
    from beam_agents.signals.types import BeamMetric, Metric

MAX_PLANS: Final = 1_000
"""Label values whose plan is remembered: beside the closed labels of a metric there may be open ones."""

__all__ = ["BeamMetrics", "BeamObserver"]

# What to do with a measurement: Beam's own updaters, each with its scale.
_Plan: TypeAlias = "tuple[tuple[Callable[[int], None], int], ...]"


@dataclass(frozen=True, slots=True)
class BeamMetrics:
    """The plugin ``beam``: the runner's own metrics, in the namespace ``beam_agents.runtime``."""

    @property
    def name(self) -> str:
        """``"beam"``."""
        return "beam"

    def build(self) -> BeamObserver:
        """Make the observer."""
        return BeamObserver()


class BeamObserver(Observer):
    """Updates Beam metrics with what records measured.

    It must be called on the thread that runs the bundle: Beam drops what any other thread counts.
    """

    def __init__(self) -> None:
        self._plans = _Plans()

    def record(self, record: Record) -> None:
        """Update the Beam forms of all that was measured."""
        plans = self._plans
        for metric, value, labels in record.measurements:
            plan = plans[metric]
            for update, scale in plan if isinstance(plan, tuple) else plan[labels]:
                # Beam takes integers only; half a unit is rounded up.
                update(int(value) if scale == 1 else int(value * scale + 0.5))


class _Plans(dict["Metric", "_Plan | _PlansByLabels"]):
    """What to do with each metric's measurements, worked out at the metric's first one."""

    def __missing__(self, metric: Metric) -> _Plan | _PlansByLabels:
        counts_all = all(not form.where for form in metric.beam)
        plan = self[metric] = (
            tuple((_updater(metric, form), form.scale) for form in metric.beam)
            if counts_all
            else _PlansByLabels(metric)
        )
        return plan


class _PlansByLabels(dict[tuple[str, ...], "_Plan"]):
    """The same for a metric of which some forms count some labels' values alone; those are closed sets."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._forms = tuple((form, _updater(metric, form)) for form in metric.beam)
        self._positions = {label: position for position, label in enumerate(metric.labels)}

    def __missing__(self, labels: tuple[str, ...]) -> _Plan:
        plan = tuple(
            (update, form.scale)
            for form, update in self._forms
            if all(labels[self._positions[label]] in counted for label, counted in form.where)
        )
        if len(self) < MAX_PLANS:
            self[labels] = plan
        return plan


def _updater(metric: Metric, form: BeamMetric) -> Callable[[int], None]:
    updater: Callable[[int], None]
    match form.kind:
        case BeamKind.COUNTER:
            count: Callable[[int], None] = Metrics.counter(BEAM_NAMESPACE, form.name).inc
            updater = (lambda _value: count(1)) if metric.kind is MetricKind.HISTOGRAM else count
        case BeamKind.DISTRIBUTION:
            updater = Metrics.distribution(BEAM_NAMESPACE, form.name).update
        case BeamKind.GAUGE:
            updater = Metrics.gauge(BEAM_NAMESPACE, form.name).set
    return updater

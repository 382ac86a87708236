"""Beam metrics: the runner's own ledger, which drops what a failed bundle counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from apache_beam.metrics.execution import MetricsEnvironment
from apache_beam.metrics.metricbase import MetricName

from beam_agents.signals.catalogue import BEAM_NAMESPACE
from beam_agents.signals.observer import Observer
from beam_agents.signals.types import BeamKind, MetricKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from apache_beam.metrics.execution import MetricsContainer

    from beam_agents.signals.observer import Record
    from beam_agents.signals.types import BeamMetric, Group, Metric

MAX_PLANS: Final = 1_000
"""Label values whose plan is remembered: beside the closed labels of a metric there may be open ones."""

MAX_CONTAINERS: Final = 64
"""Containers that are remembered: each thread that runs bundles has one for each step of its bundle."""

__all__ = ["BeamMetrics", "BeamObserver"]

# What to do with a measurement: update a cell of Beam's, each with its scale.
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
        # Beam's own updaters look up the thread's step and the metric's cell at each update, which takes
        # several times as long as the update.
        self._plans: dict[MetricsContainer, _Plans] = {}

    def record(self, record: Record) -> None:
        """Update the Beam forms of all that was measured."""
        container = MetricsEnvironment.current_container()
        plans = self._plans.get(container)
        if plans is None:
            if container is None:
                return
            plans = self._begin(container)
        # Beam takes integers only; half a unit is rounded up.
        for group, values in record.groups:
            whole, scaled = plans.groups[group]
            for place, count in whole:
                count(values[place])
            for place, update, scale in scaled:
                update(int(values[place] * scale + 0.5))
        for metric, value, labels in record.singles:
            for update, scale in plans.of(metric, labels):
                update(int(value) if scale == 1 else int(value * scale + 0.5))

    def _begin(self, container: MetricsContainer) -> _Plans:
        if len(self._plans) >= MAX_CONTAINERS:
            # Of bundles that are over, mostly.
            self._plans.clear()
        plans = self._plans[container] = _Plans(container)
        return plans


class _Plans(dict["Metric", "_Plan | _PlansByLabels"]):
    """What to do with each metric's measurements in one step, worked out at the metric's first one."""

    def __init__(self, container: MetricsContainer) -> None:
        super().__init__()
        self._container = container
        self.groups = _PlansOfGroups(self)

    def of(self, metric: Metric, labels: tuple[str, ...]) -> _Plan:
        """Return what to do with a measurement."""
        plan = self[metric]
        return plan if isinstance(plan, tuple) else plan[labels]

    def __missing__(self, metric: Metric) -> _Plan | _PlansByLabels:
        counts_all = all(not form.where for form in metric.beam)
        plan = self[metric] = (
            tuple((_updater(self._container, metric, form), form.scale) for form in metric.beam)
            if counts_all
            else _PlansByLabels(self._container, metric)
        )
        return plan


# The same for a group, with the place of each value among the group's: first what has no scale.
_Whole: TypeAlias = "tuple[tuple[int, Callable[[float], None]], ...]"
_Scaled: TypeAlias = "tuple[tuple[int, Callable[[int], None], float], ...]"
_GroupPlan: TypeAlias = "tuple[_Whole, _Scaled]"


class _PlansOfGroups(dict["Group", "_GroupPlan"]):
    """The same for groups."""

    def __init__(self, plans: _Plans) -> None:
        super().__init__()
        self._plans = plans

    def __missing__(self, group: Group) -> _GroupPlan:
        updates = [
            (place, update, scale)
            for place, (metric, labels) in enumerate(group.series)
            for update, scale in self._plans.of(metric, labels)
        ]
        plan = self[group] = (
            # The values of these are ints.
            tuple(
                (place, cast("Callable[[float], None]", update))
                for place, update, scale in updates
                if scale == 1
            ),
            tuple((place, update, float(scale)) for place, update, scale in updates if scale != 1),
        )
        return plan


class _PlansByLabels(dict[tuple[str, ...], "_Plan"]):
    """The same for a metric of which some forms count some labels' values alone; those are closed sets."""

    def __init__(self, container: MetricsContainer, metric: Metric) -> None:
        super().__init__()
        self._container = container
        self._metric = metric
        self._positions = {label: position for position, label in enumerate(metric.labels)}

    def __missing__(self, labels: tuple[str, ...]) -> _Plan:
        plan = tuple(
            (_updater(self._container, self._metric, form), form.scale)
            for form in self._metric.beam
            if all(labels[self._positions[label]] in counted for label, counted in form.where)
        )
        if len(self) < MAX_PLANS:
            self[labels] = plan
        return plan


def _updater(container: MetricsContainer, metric: Metric, form: BeamMetric) -> Callable[[int], None]:
    name = MetricName(BEAM_NAMESPACE, form.name)
    updater: Callable[[int], None]
    match form.kind:
        case BeamKind.COUNTER:
            count: Callable[[int], None] = container.get_counter(name).update
            updater = (lambda _value: count(1)) if metric.kind is MetricKind.HISTOGRAM else count
        case BeamKind.DISTRIBUTION:
            updater = container.get_distribution(name).update
        case BeamKind.GAUGE:
            updater = container.get_gauge(name).update
    return updater

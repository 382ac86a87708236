"""Beam metrics: the runner's own ledger, which drops what a failed bundle counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from apache_beam.metrics.execution import MetricsEnvironment
from apache_beam.metrics.metricbase import MetricName

from beam_agents.signals.catalogue import BEAM_NAMESPACE
from beam_agents.signals.observer import Observer
from beam_agents.signals.types import BeamKind, MetricKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from apache_beam.metrics.execution import MetricsContainer

    from beam_agents.signals.observer import Measured
    from beam_agents.signals.types import BeamMetric, Metric

MAX_LABELS: Final = 1_000
"""Label values whose updates are remembered: beside the closed labels of a metric there may be open ones."""

MAX_CONTAINERS: Final = 64
"""Containers that are remembered: each thread that runs bundles has one for each step of its bundle."""

__all__ = ["BeamMetrics", "BeamObserver"]

# What updates a cell of Beam's with measurements.
_Update: TypeAlias = "Callable[[Sequence[float]], None]"
_Updates: TypeAlias = "tuple[_Update, ...]"


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
        self._steps: dict[MetricsContainer, _Step] = {}

    def measured(self, pipeline: str, agent: str, measured: Sequence[Measured]) -> None:  # noqa: ARG002 - Beam knows its step
        """Update the Beam forms of all that was measured."""
        container = MetricsEnvironment.current_container()
        step = self._steps.get(container)
        if step is None:
            if container is None:
                return
            step = self._begin(container)
        for metric, labels, values in measured:
            for update in step.updates(metric, labels):
                update(values)

    def _begin(self, container: MetricsContainer) -> _Step:
        if len(self._steps) >= MAX_CONTAINERS:
            # Of bundles that are over, mostly.
            self._steps.clear()
        step = self._steps[container] = _Step(container)
        return step


class _Step(dict["Metric", "_Updates | _UpdatesByLabels"]):
    """What to do with each metric's measurements in one step, worked out at the metric's first one."""

    def __init__(self, container: MetricsContainer) -> None:
        super().__init__()
        self._container = container

    def updates(self, metric: Metric, labels: tuple[str, ...]) -> _Updates:
        """Return what to do with measurements."""
        updates = self[metric]
        return updates if isinstance(updates, tuple) else updates[labels]

    def __missing__(self, metric: Metric) -> _Updates | _UpdatesByLabels:
        counts_all = all(not form.where for form in metric.beam)
        updates = self[metric] = (
            tuple(_updater(self._container, metric, form) for form in metric.beam)
            if counts_all
            else _UpdatesByLabels(self._container, metric)
        )
        return updates


class _UpdatesByLabels(dict[tuple[str, ...], "_Updates"]):
    """The same for a metric of which some forms count some labels' values alone; those are closed sets."""

    def __init__(self, container: MetricsContainer, metric: Metric) -> None:
        super().__init__()
        self._container = container
        self._metric = metric
        self._positions = {label: position for position, label in enumerate(metric.labels)}

    def __missing__(self, labels: tuple[str, ...]) -> _Updates:
        updates = tuple(
            _updater(self._container, self._metric, form)
            for form in self._metric.beam
            if all(labels[self._positions[label]] in counted for label, counted in form.where)
        )
        if len(self) < MAX_LABELS:
            self[labels] = updates
        return updates


def _updater(container: MetricsContainer, metric: Metric, form: BeamMetric) -> _Update:
    """Return what updates one of Beam's cells, which take integers only: half a unit is rounded up."""
    name = MetricName(BEAM_NAMESPACE, form.name)
    scale = form.scale
    match form.kind:
        case BeamKind.COUNTER:
            count: Callable[[int], None] = container.get_counter(name).update
            if metric.kind is MetricKind.HISTOGRAM:
                return lambda values: count(len(values))
            return lambda values: count(int(sum(values)))
        case BeamKind.DISTRIBUTION:
            add: Callable[[int], None] = container.get_distribution(name).update

            def add_each(values: Sequence[float]) -> None:
                whole = map(int, values) if scale == 1 else [int(value * scale + 0.5) for value in values]
                for _ in map(add, whole):
                    pass

            return add_each
        case BeamKind.GAUGE:
            set_to: Callable[[int], None] = container.get_gauge(name).update
            return lambda values: set_to(int(values[-1]))

"""Beam metrics: the runner's own ledger, which drops what a failed bundle counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from apache_beam.metrics.metric import Metrics

from beam_agents.signals.catalogue import BEAM_NAMESPACE
from beam_agents.signals.observer import Observer
from beam_agents.signals.types import BeamKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from beam_agents.signals.observer import Record
    from beam_agents.signals.types import BeamMetric, Metric

__all__ = ["BeamMetrics", "BeamObserver"]

# What to do with a measurement: Beam's own updater, the scale, and (label's position, values that count).
_Update: TypeAlias = "tuple[Callable[[int], None], int, tuple[tuple[int, frozenset[str]], ...]]"


@dataclass(frozen=True, slots=True)
class BeamMetrics:
    """The plugin ``beam``: metrics in the namespace ``beam_agents.runtime``. It has no options."""

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
        self._updates = _Updates()

    def record(self, record: Record) -> None:
        """Update the Beam forms of all that was measured."""
        updates = self._updates
        for metric, value, labels in record.measurements:
            for update, scale, where in updates[metric]:
                for position, counted in where:
                    if labels[position] not in counted:
                        break
                else:
                    # Beam takes integers only; half a unit is rounded up.
                    update(value if type(value) is int and scale == 1 else math.floor(value * scale + 0.5))


class _Updates(dict["Metric", "tuple[_Update, ...]"]):
    """What to do with each metric's measurements, worked out at the metric's first one."""

    def __missing__(self, metric: Metric) -> tuple[_Update, ...]:
        updates = self[metric] = tuple(_update(metric, form) for form in metric.beam)
        return updates


def _update(metric: Metric, form: BeamMetric) -> _Update:
    where = tuple((metric.labels.index(label), frozenset(values)) for label, values in form.where)
    return _updater(form), form.scale, where


def _updater(form: BeamMetric) -> Callable[[int], None]:
    updater: Callable[[int], None]
    match form.kind:
        case BeamKind.COUNTER:
            updater = Metrics.counter(BEAM_NAMESPACE, form.name).inc
        case BeamKind.DISTRIBUTION:
            updater = Metrics.distribution(BEAM_NAMESPACE, form.name).update
        case BeamKind.GAUGE:
            updater = Metrics.gauge(BEAM_NAMESPACE, form.name).set
    return updater

"""Small pieces of PromQL: durations, selectors, sums. Metrics come from the catalogue, never by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue

if TYPE_CHECKING:
    from beam_agents.signals.types import Metric
    from beam_agents_dashboards.settings import Settings

__all__ = ["Selectors", "duration", "shown_duration"]

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Return whole seconds in the largest unit that divides them, as Prometheus does: 90 is ``90s``."""
    whole = round(seconds)
    for unit, size in _UNITS:
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return "0s"


def shown_duration(seconds: float) -> str:
    """Return seconds for people: whole ones as :func:`duration` does, others as they are."""
    return duration(seconds) if seconds == round(seconds) else f"{seconds:g}s"


@dataclass(frozen=True, slots=True)
class Selectors:
    """Selects series of the pipelines and jobs that the settings name.

    Attributes:
        settings: Whose ``pipeline``, ``job`` and scales count.
    """

    settings: Settings

    def of(self, metric: Metric, *matchers: str, suffix: str = "") -> str:
        """Return a selector of a metric.

        Args:
            metric: From the catalogue.
            matchers: More of its labels, such as ``'outcome!="ok"'``.
            suffix: ``_bucket``, ``_count`` or ``_sum`` of a histogram.
        """
        mine = [_matches("job", self.settings.job)]
        if metric.per_agent:
            mine.append(_matches("pipeline", self.settings.pipeline))
        inside = ", ".join(each for each in (*mine, *matchers) if each)
        return f"{metric.prometheus_name}{suffix}" + (f"{{{inside}}}" if inside else "")

    def rate(self, metric: Metric, *matchers: str, window: float, suffix: str = "") -> str:
        """Return the rate of a counter per second over a window in seconds."""
        return f"rate({self.of(metric, *matchers, suffix=suffix)}[{self.window(window)}])"

    def increase(self, metric: Metric, *matchers: str, window: float, suffix: str = "") -> str:
        """Return the increase of a counter over a window in seconds."""
        return f"increase({self.of(metric, *matchers, suffix=suffix)}[{self.window(window)}])"

    def window(self, seconds: float) -> str:
        """Return a window, scaled; never less than a second."""
        return duration(max(1.0, seconds * self.settings.window_scale))

    def watched(self, expression: str) -> str:
        """Return what is the process's own, such as a store's state, where it runs a watched pipeline."""
        if not self.settings.pipeline:
            return expression
        return f"({expression} and on (job, instance) {self.of(catalogue.ACTIVATIONS_IN_FLIGHT)})"

    def always_on(self) -> str:
        """Return a selector of what every worker of a pipeline that never ends has."""
        return self.of(catalogue.ACTIVATIONS_IN_FLIGHT, _matches("pipeline", self.settings.always_on))


def _matches(label: str, expression: str) -> str:
    if not expression:
        return ""
    quoted = expression.replace("\\", "\\\\").replace('"', '\\"')
    return f'{label}=~"{quoted}"'

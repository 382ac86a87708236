"""PromQL over the catalogue: a selector is made from a metric, so that no name or label can be misspelt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from beam_agents.signals.types import Metric

__all__ = [
    "FIRING",
    "buckets",
    "count_over_range",
    "foreign",
    "foreign_rate",
    "per_second",
    "percentile",
    "selector",
    "share",
    "sum_per_second",
]

_PROCESS: Final = ("job", "instance")
_RATE: Final = "$__rate_interval"

FIRING: Final = 'ALERTS{alertname=~"BeamAgents.+", alertstate="firing"}'
"""The alerts of the bundle that fire. They have no job and no instance: most sum over all workers."""


def selector(metric: Metric, **matchers: str) -> str:
    """Return a metric's series, as the dashboard's variables narrow them.

    Args:
        metric: Which, from the catalogue.
        **matchers: More of them, by label: ``outcome='="failed"'``.

    Raises:
        ValueError: The metric has no such label.
    """
    return _select(metric, "", matchers)


def per_second(metric: Metric, *, by: tuple[str, ...] = (), **matchers: str) -> str:
    """Return a counter's rate, added up over all but the labels ``by``."""
    return _sum(f"rate({_select(metric, _suffix(metric), matchers)}[{_RATE}])", metric, by)


def share(metric: Metric, *, by: tuple[str, ...] = (), **matchers: str) -> str:
    """Return the share of a counter's increase that the matchers select; nothing where there was none."""
    return f"{per_second(metric, by=by, **matchers)} / {per_second(metric, by=by)}"


def sum_per_second(metric: Metric, *, by: tuple[str, ...] = (), **matchers: str) -> str:
    """Return the rate of what a histogram adds up: bytes per second, of a histogram of bytes."""
    return _sum(f"rate({_select(metric, '_sum', matchers)}[{_RATE}])", metric, by)


def count_over_range(metric: Metric, *, by: tuple[str, ...] = (), **matchers: str) -> str:
    """Return how much a counter rose over the time that the dashboard shows; for instant queries."""
    return _sum(f"increase({_select(metric, _suffix(metric), matchers)}[$__range])", metric, by)


def percentile(quantile: float, metric: Metric, *, by: tuple[str, ...] = (), **matchers: str) -> str:
    """Return a percentile of a histogram, over all workers and all labels but ``by``."""
    _check(metric, by)
    groups = ", ".join((*by, "le"))
    series = _select(metric, "_bucket", matchers)
    return f"histogram_quantile({quantile:g}, sum by ({groups}) (rate({series}[{_RATE}])))"


def buckets(metric: Metric, **matchers: str) -> str:
    """Return how many measurements fell into each bucket of a histogram, for a heat map."""
    return f"sum by (le) (increase({_select(metric, '_bucket', matchers)}[{_RATE}]))"


def foreign(name: str) -> str:
    """Return the series of a metric that Prometheus or Python's client makes, not the catalogue."""
    return f"{name}{{{_filters(_PROCESS)}}}"


def foreign_rate(name: str) -> str:
    """Return the rate of such a counter."""
    return f"rate({foreign(name)}[{_RATE}])"


def _suffix(metric: Metric) -> str:
    # A histogram's count stands for its measurements.
    return "_count" if metric.buckets else ""


def _sum(series: str, metric: Metric, by: tuple[str, ...]) -> str:
    _check(metric, by)
    return f"sum by ({', '.join(by)}) ({series})" if by else f"sum({series})"


def _select(metric: Metric, suffix: str, matchers: dict[str, str]) -> str:
    _check(metric, tuple(matchers))
    filters = _filters(_variables(metric))
    own = "".join(f", {label}{matcher}" for label, matcher in matchers.items())
    return f"{metric.prometheus_name}{suffix}{{{filters}{own}}}"


def _filters(labels: tuple[str, ...]) -> str:
    return ", ".join(f'{label}=~"${label}"' for label in labels)


def _variables(metric: Metric) -> tuple[str, ...]:
    """Return the variables that a metric has a label for."""
    agent = ("pipeline", "agent") if metric.per_agent else ()
    backend = ("backend",) if "backend" in metric.labels else ()
    return (*_PROCESS, *agent, *backend)


def _check(metric: Metric, labels: tuple[str, ...]) -> None:
    unknown = set(labels) - set(metric.labels) - set(_variables(metric))
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(unknown))}")

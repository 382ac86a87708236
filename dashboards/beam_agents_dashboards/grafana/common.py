"""Queries that several dashboards draw alike, so that one thing looks the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue as c
from beam_agents_dashboards.grafana import queries as q
from beam_agents_dashboards.grafana.panels import AMBER, BLUE, GREEN, RED, Query

if TYPE_CHECKING:
    from beam_agents.signals.types import Metric

__all__ = ["NONE_IS_BETTER", "NONE_IS_GOOD", "call_outcomes", "outcomes", "percentiles"]

NONE_IS_GOOD: Final = ((None, GREEN), (1e-9, RED))
"""Thresholds of what should not happen."""

NONE_IS_BETTER: Final = ((None, GREEN), (1e-9, AMBER))
"""Thresholds of what may happen now and then."""


def outcomes() -> list[Query]:
    """Return the rate of activations, by how they ended: the bad first, so that it is stacked on nothing."""
    colors = {"failed": RED, "suspend": BLUE, "complete": GREEN}
    return [
        Query(q.per_second(c.ACTIVATIONS, outcome=f'="{outcome}"'), outcome, color=color)
        for outcome, color in colors.items()
    ]


def call_outcomes(metric: Metric, **matchers: str) -> list[Query]:
    """Return the rate of calls, by how they ended, likewise."""
    colors = {"error": RED, "timeout": AMBER, "ok": GREEN}
    return [
        Query(q.per_second(metric, outcome=f'="{outcome}"', by=(), **matchers), outcome, color=color)
        for outcome, color in colors.items()
    ]


def percentiles(metric: Metric, **matchers: str) -> list[Query]:
    """Return the median, the 95th and the 99th percentile of a histogram, with exemplars on the last."""
    return [
        Query(q.percentile(0.5, metric, by=(), **matchers), "p50", color=GREEN),
        Query(q.percentile(0.95, metric, by=(), **matchers), "p95", color=BLUE),
        Query(q.percentile(0.99, metric, by=(), **matchers), "p99", exemplars=True, color="purple"),
    ]

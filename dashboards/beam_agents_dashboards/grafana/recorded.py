"""What dashboards read of the recording rules: how fast the error budgets burn."""

from __future__ import annotations

from typing import Final

from beam_agents_dashboards.grafana.panels import Query
from beam_agents_dashboards.promql import duration
from beam_agents_dashboards.recording import ACTIVATIONS, FLUSHES

__all__ = ["RULES_LOADED", "burn_queries"]

_AGENT: Final = 'job=~"$job", pipeline=~"$pipeline", agent=~"$agent"'
_WINDOWS_S: Final = (300.0, 3_600.0)

RULES_LOADED: Final = f"0 * slo:{ACTIVATIONS.name}:objective"
"""0 where Prometheus has loaded the rules, nothing where it has not: else no alert would look like health."""


def burn_queries() -> list[Query]:
    """Return the worst burn rate of each objective, over the two windows that page first."""
    budgets = (
        (ACTIVATIONS, _AGENT, "activations"),
        (FLUSHES, f'{_AGENT}, backend=~"$backend"', "flushes"),
    )
    return [
        Query(
            f"max({budget.ratio(window_s)}{{{filters}}}) / (1 - scalar(slo:{budget.name}:objective))",
            f"{shown} {duration(window_s)}",
        )
        for budget, filters, shown in budgets
        for window_s in _WINDOWS_S
    ]

"""Recording rules: what alerts and dashboards share, and what would be dear to compute each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue
from beam_agents_dashboards.promql import Selectors, duration
from beam_agents_dashboards.rules import Group, Recording

if TYPE_CHECKING:
    from beam_agents.signals.types import Metric
    from beam_agents_dashboards.settings import Settings

__all__ = [
    "ACTIVATIONS",
    "BUDGETS",
    "EVICTED_BYTES",
    "FLUSHES",
    "FLUSH_P99",
    "RATE_WINDOW_S",
    "Budget",
    "recording_groups",
]

AGENT: Final = "job, pipeline, agent"
AGENT_BACKEND: Final = f"{AGENT}, backend"

FLUSH_P99: Final = "backend:beam_agents_store_flush_duration_seconds:p99_rate5m"
EVICTED_BYTES: Final = "pipeline_agent:beam_agents_compaction_evicted_bytes:rate30m"

RATE_WINDOW_S: Final = 300.0
"""The window of the rates that longer ones are summed up from."""
_LONGER_WINDOWS_S: Final = (1_800.0, 3_600.0, 7_200.0, 21_600.0, 86_400.0, 259_200.0)


@dataclass(frozen=True, slots=True)
class Budget:
    """What an objective is about.

    Attributes:
        level: The labels that are kept, as a rule's name tells them.
        by: The same, as PromQL does.
        name: The middle of its rules' names.
        metric: What counts tries.
        suffix: Of the metric's count, if it is a histogram.
        failed: The matcher of those that failed.
        objective: The setting with the objective.
    """

    level: str
    by: str
    name: str
    metric: Metric
    suffix: str
    failed: str
    objective: str

    @property
    def total(self) -> str:
        """The rule with the rate of tries."""
        return f"{self.level}:{self.name}:rate5m"

    @property
    def failures(self) -> str:
        """The rule with the rate of failures."""
        return f"{self.level}:{self.name}_failed:rate5m"

    def ratio(self, window_s: float) -> str:
        """The rule with the share of failures over a window; absent where nothing was tried."""
        return f"{self.level}:{self.name}_failed:ratio_rate{duration(window_s)}"


ACTIVATIONS: Final = Budget(
    "pipeline_agent",
    AGENT,
    "beam_agents_activations",
    catalogue.ACTIVATIONS,
    "",
    'outcome="failed"',
    "activation_slo",
)
FLUSHES: Final = Budget(
    "pipeline_agent_backend",
    AGENT_BACKEND,
    "beam_agents_longterm_flushes",
    catalogue.LONGTERM_FLUSH_DURATION_SECONDS,
    "_count",
    'outcome!="ok"',
    "flush_slo",
)
BUDGETS: Final = (ACTIVATIONS, FLUSHES)


def recording_groups(settings: Settings) -> tuple[Group, ...]:
    """Return all recording rules. A rule's name has its window as it is before ``window_scale``."""
    select = Selectors(settings)
    flush = select.rate(
        catalogue.STORE_OPERATION_DURATION_SECONDS,
        'operation=~"flush|expire_flush"',
        window=RATE_WINDOW_S,
        suffix="_bucket",
    )
    evicted = select.rate(catalogue.COMPACTION_EVICTED_BYTES, window=1_800)
    stores = Group(
        "beam-agents-recording-stores",
        (
            Recording(
                FLUSH_P99,
                f"histogram_quantile(0.99, sum by (job, backend, le) ({select.watched(flush)}))",
            ),
        ),
    )
    memory = Group(
        "beam-agents-recording-memory", (Recording(EVICTED_BYTES, f"sum by ({AGENT}) ({evicted})"),)
    )
    return (stores, memory, *(_budget_group(budget, select) for budget in BUDGETS))


def _budget_group(budget: Budget, select: Selectors) -> Group:
    rates = {
        name: f"sum by ({budget.by}) "
        f"({select.rate(budget.metric, *matchers, window=RATE_WINDOW_S, suffix=budget.suffix)})"
        for name, matchers in ((budget.total, ()), (budget.failures, (budget.failed,)))
    }
    objective = getattr(select.settings, budget.objective)
    rules = [
        Recording(f"slo:{budget.name}:objective", f"vector({objective:.15g})"),
        Recording(budget.total, rates[budget.total]),
        # Without failures there may be no series of them: that is 0, not unknown.
        Recording(budget.failures, f"{rates[budget.failures]}\nor\n0 * {budget.total}"),
        Recording(budget.ratio(RATE_WINDOW_S), f"{budget.failures} / ({budget.total} > 0)"),
    ]
    for window_s in _LONGER_WINDOWS_S:
        window = select.window(window_s)
        # From the recorded rates: cheap, and what workers that are gone did still counts.
        rules.append(
            Recording(
                budget.ratio(window_s),
                f"sum_over_time({budget.failures}[{window}])\n/\n"
                f"(sum_over_time({budget.total}[{window}]) > 0)",
            )
        )
    return Group(f"beam-agents-recording-{budget.name.removeprefix('beam_agents_')}", tuple(rules))

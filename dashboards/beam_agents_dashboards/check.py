"""Whether queries can be answered: they parse, and each metric and label in them is in the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import promql_parser

from beam_agents.signals.catalogue import METRICS
from beam_agents.signals.types import MetricKind
from beam_agents_dashboards.recording import recording_groups
from beam_agents_dashboards.rules import Recording
from beam_agents_dashboards.runners import FOREIGN_METRICS
from beam_agents_dashboards.settings import Settings

if TYPE_CHECKING:
    from beam_agents.signals.types import Metric

__all__ = ["Selected", "metric_of", "problems", "recorded_names", "selected"]

SCRAPED: Final = frozenset(
    {
        "up",
        "ALERTS",
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
    }
)
"""What Prometheus itself adds, and what its client for Python tells of the process."""

_SCRAPE_LABELS: Final = frozenset({"job", "instance"})
_SUFFIXES: Final = ("_bucket", "_count", "_sum")
_METRICS: Final[dict[str, Metric]] = {metric.prometheus_name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Selected:
    """What a query reads.

    Attributes:
        name: The metric's name, with a histogram's suffix.
        labels: The labels that are matched.
    """

    name: str
    labels: tuple[str, ...]


def recorded_names() -> frozenset[str]:
    """Return the names of all recording rules."""
    return frozenset(
        rule.name
        for group in recording_groups(Settings())
        for rule in group.rules
        if isinstance(rule, Recording)
    )


def selected(expression: str) -> list[Selected]:
    """Return what a query reads, in its order.

    Raises:
        ValueError: It is no PromQL.
    """
    found = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            matchers = tuple(each.name for each in node.matchers.matchers)
            found.append(Selected(node.name or "", matchers))

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def problems(expression: str) -> list[str]:
    """Return what is wrong with a query: that it does not parse, or what the catalogue does not have."""
    try:
        reads = selected(expression)
    except ValueError as error:
        return [f"it does not parse: {error}"]
    recorded = recorded_names()
    found = []
    for read in reads:
        if read.name in recorded or read.name in FOREIGN_METRICS or read.name in SCRAPED:
            continue
        metric = metric_of(read.name)
        if metric is None:
            found.append(f"{read.name or 'a selector without a name'} is not in the catalogue")
            continue
        found += [
            f"{read.name} has no label {label}"
            for label in read.labels
            if label not in _labels_of(metric, read.name)
        ]
    return found


def metric_of(name: str) -> Metric | None:
    """Return the metric whose series have a name in Prometheus, or None."""
    metric = _METRICS.get(name)
    if metric is not None:
        return None if metric.kind is MetricKind.HISTOGRAM else metric
    for suffix in _SUFFIXES:
        metric = _METRICS.get(name.removesuffix(suffix))
        if name.endswith(suffix) and metric is not None and metric.kind is MetricKind.HISTOGRAM:
            return metric
    return None


def _labels_of(metric: Metric, name: str) -> frozenset[str]:
    agent = {"pipeline", "agent"} if metric.per_agent else set()
    bucket = {"le"} if name.endswith("_bucket") else set()
    return _SCRAPE_LABELS | agent | bucket | set(metric.labels)

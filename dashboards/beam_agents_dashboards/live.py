"""What a running Prometheus has no data for, and why."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beam_agents.signals import catalogue
from beam_agents_dashboards.check import metric_of, recorded_names, selected
from beam_agents_dashboards.runners import FOREIGN_METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from beam_agents_dashboards.names import Query
    from beam_agents_dashboards.render import Prometheus

__all__ = ["Missing", "missing"]


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric without data.

    Attributes:
        metric: Its name.
        reason: Why that may be.
        places: Where it is asked for.
    """

    metric: str
    reason: str
    places: tuple[str, ...]


def missing(prometheus: Prometheus, queries: Iterable[Query]) -> list[Missing]:
    """Return what queries ask for that has no data now.

    Raises:
        PrometheusError: It can't be asked.
        ValueError: A query is no PromQL.
    """
    places: dict[str, dict[str, None]] = {}
    for query in queries:
        for read in selected(query.expression):
            places.setdefault(read.name, {})[query.place] = None
    now_s = time.time()
    scraped = bool(prometheus.at(f"count({catalogue.BUILD_INFO.prometheus_name})", now_s))
    return [
        Missing(name, _reason(name, scraped=scraped), tuple(asked))
        for name, asked in places.items()
        if not prometheus.at(f"count({name})", now_s)
    ]


def _reason(name: str, *, scraped: bool) -> str:
    if name in FOREIGN_METRICS:
        return "optional: this runner's metrics are not scraped here"
    metric = metric_of(name)
    if metric is None and name in recorded_names():
        return (
            "its recording rule is not loaded or not yet evaluated, or nothing that it sums up is there"
            if scraped
            else "no worker is scraped"
        )
    if not scraped:
        return "no worker is scraped: see the targets, and the plugin prometheus on the workers"
    return f"no worker has told it: {metric.help}" if metric is not None else "it is not scraped"

"""Whether dashboards can be answered: their queries, and which panels a Prometheus has no data for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beam_agents_dashboards.check import recorded_names, selected
from beam_agents_dashboards.names import Query
from beam_agents_dashboards.render.variables import filled, window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from beam_agents_dashboards.render.model import Board, Panel
    from beam_agents_dashboards.render.prometheus import Prometheus
    from beam_agents_dashboards.render.variables import Window

__all__ = ["Empty", "dashboard_queries", "panels_without_data"]


@dataclass(frozen=True, slots=True)
class Empty:
    """A panel without data.

    Attributes:
        place: The dashboard's title and the panel's.
        why: What is missing.
    """

    place: str
    why: str


def dashboard_queries(boards: Iterable[Board]) -> Iterator[Query]:
    """Return the query of every panel and annotation, with variables as the dashboard opens."""
    # Any time will do: it is only to have no variable left.
    shown = window(0.0, 10_800.0, 15.0)
    for board in boards:
        for panel in board.panels:
            for target in panel.targets:
                yield Query(_place(board, panel), filled(target.expr, board.variables, shown))
        for annotation in board.annotations:
            yield Query(
                f"{board.title}: annotation {annotation.name}",
                filled(annotation.expr, board.variables, shown),
            )


def panels_without_data(boards: Iterable[Board], prometheus: Prometheus, shown: Window) -> Iterator[Empty]:
    """Return the panels that would be empty over a time, and why.

    Raises:
        PrometheusError: It did not answer, or refused a query.
    """
    known: dict[str, bool] = {}
    for board in boards:
        for panel in board.panels:
            queries = [(filled(each.expr, board.variables, shown), each.instant) for each in panel.targets]
            if queries and not any(_has_data(*query, prometheus, shown) for query in queries):
                names = dict.fromkeys(each.name for query, _ in queries for each in selected(query))
                yield Empty(_place(board, panel), _why(list(names), prometheus, shown, known))


def _place(board: Board, panel: Panel) -> str:
    return f"{board.title}: {panel.title}"


def _has_data(query: str, instant: bool, prometheus: Prometheus, shown: Window) -> bool:  # noqa: FBT001 - a target's own
    found = (
        prometheus.at(query, shown.end_s)
        if instant
        else prometheus.over(query, shown.start_s, shown.end_s, shown.step_s)
    )
    return any(not math.isnan(value) for each in found for _, value in each.points)


def _why(names: list[str], prometheus: Prometheus, shown: Window, known: dict[str, bool]) -> str:
    """Return what is missing of the series that a panel reads."""
    seconds = math.ceil(shown.end_s - shown.start_s)
    for name in names:
        if name not in known:
            asked = f'count(last_over_time({{__name__="{name}"}}[{seconds}s]))'
            known[name] = bool(prometheus.at(asked, shown.end_s))
    missing = [name for name in names if not known[name]]
    rules = sorted(set(missing) & recorded_names())
    if rules:
        return (
            f"no recording rule has made {', '.join(rules)}: are the rules loaded, and was anything measured?"
        )
    if missing:
        return f"no scraped worker has told {', '.join(missing)} in this time"
    return f"{', '.join(names)}: there are series, but none with these labels, or nothing was counted"

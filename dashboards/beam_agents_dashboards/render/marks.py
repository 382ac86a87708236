"""Annotations: from when to when something was so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents_dashboards.render.variables import filled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from beam_agents_dashboards.render.model import Board
    from beam_agents_dashboards.render.prometheus import Prometheus
    from beam_agents_dashboards.render.variables import Window

__all__ = ["Mark", "labelled", "merged", "read_marks"]

_LABEL: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_GAP: Final = 1.5


@dataclass(frozen=True, slots=True)
class Mark:
    """A time to mark.

    Attributes:
        kind: The annotation's name.
        title: What was so.
        detail: What it was about.
        color: As Grafana names it.
        start_s: From when, seconds since the Unix epoch.
        end_s: Until when.
        open: Whether it still is so.
    """

    kind: str
    title: str
    detail: str
    color: str
    start_s: float
    end_s: float
    open: bool


def labelled(text: str, labels: Mapping[str, str]) -> str:
    """Return a legend with its ``{{label}}`` filled in."""
    return _LABEL.sub(lambda found: labels.get(found[1], ""), text).strip()


def merged(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the times from first to last in which at least one of some times is."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in sorted(times):
        if found and start_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_s))
        else:
            found.append((start_s, end_s))
    return found


def read_marks(board: Board, prometheus: Prometheus, window: Window) -> list[Mark]:
    """Return what a dashboard's annotations mark in a window, the earliest first.

    Raises:
        PrometheusError: It did not answer, or refused a query.
    """
    marks = [
        mark
        for annotation in board.annotations
        for series in prometheus.over(
            filled(annotation.expr, board.variables, window), window.start_s, window.end_s, window.step_s
        )
        for mark in (
            Mark(
                annotation.name,
                labelled(annotation.title, series.labels),
                " ".join(labelled(annotation.text, series.labels).split()),
                annotation.color,
                start_s,
                end_s,
                end_s + _GAP * window.step_s > window.end_s,
            )
            for start_s, end_s in _spans([at_s for at_s, _ in series.points], window.step_s)
        )
    ]
    return sorted(marks, key=lambda mark: (mark.start_s, mark.title, mark.detail))


def _spans(times: list[float], step_s: float) -> Iterator[tuple[float, float]]:
    """Return the times from first to last without a gap."""
    start_s = last_s = None
    for at_s in times:
        if start_s is None or last_s is None:
            start_s = at_s
        elif at_s - last_s > _GAP * step_s:
            yield start_s, last_s
            start_s = at_s
        last_s = at_s
    if start_s is not None and last_s is not None:
        yield start_s, last_s

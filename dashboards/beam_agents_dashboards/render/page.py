"""A dashboard as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from beam_agents_dashboards.render.body import Drawer, flow_rows
from beam_agents_dashboards.render.colors import color
from beam_agents_dashboards.render.marks import read_marks
from beam_agents_dashboards.render.prometheus import shown_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents_dashboards.render.marks import Mark
    from beam_agents_dashboards.render.model import Board, Panel
    from beam_agents_dashboards.render.prometheus import Prometheus
    from beam_agents_dashboards.render.variables import Window

__all__ = ["WIDTH_PX", "draw_page"]

WIDTH_PX: Final = 1920
_EDGE_PX: Final = 8
_GAP_PX: Final = 8
_ROW_PX: Final = 38
_COLUMNS: Final = 24
_HEADER_PX: Final = 40
_MARK_PX: Final = 20
_SWATCH_PX: Final = 40
"""A mark's swatch, and the gap to the next mark."""
_TOLD_MARKS: Final = 12


@dataclass(frozen=True, slots=True)
class _Placed:
    kind: str
    title: str
    description: str
    left: int
    top: int
    width: int
    height: int
    body: Markup


@dataclass(frozen=True, slots=True)
class _Told:
    title: str
    text: str
    paint: str

    @property
    def width_px(self) -> float:
        """At most how wide it is: a bold letter of the page's font is, on average, less than 9 pixels."""
        return _SWATCH_PX + 9 * len(self.title) + 8 * len(self.text)


def draw_page(board: Board, prometheus: Prometheus, window: Window, source: str) -> tuple[str, int]:
    """Return a dashboard's page, and its height in pixels.

    Args:
        board: The dashboard.
        prometheus: Where its data are.
        window: The time that is shown.
        source: The address of Prometheus; a password in it is left out.

    Raises:
        PrometheusError: Prometheus did not answer at all. A query that it refuses is told in its panel.
    """
    environment = Environment(
        loader=PackageLoader("beam_agents_dashboards.render", "."), autoescape=True, undefined=StrictUndefined
    )
    template = environment.get_template("page.html.jinja")
    marks = read_marks(board, prometheus, window)
    macros = template.make_module({"board": board, **dict.fromkeys(_LATER, "")})
    drawer = Drawer(
        prometheus,
        board.variables,
        window,
        marks,
        lambda name, **values: Markup(getattr(macros, name)(**values)),  # noqa: S704 - the template escapes
    )
    panels = [_place(panel, drawer) for panel in board.panels]
    told = _told(marks)
    marks_px = _MARK_PX * flow_rows((each.width_px for each in told), WIDTH_PX - 4 * _EDGE_PX)
    height_px = max((each.top + each.height for each in panels), default=0)
    page = template.render(
        board=board,
        width=WIDTH_PX,
        height=height_px,
        marks_height=marks_px,
        when=f"{_time(window.start_s)} to {_time(window.end_s)} UTC, every {window.step_s:g} s",
        source=shown_url(source),
        told=told,
        panels=panels,
    )
    return page, _HEADER_PX + marks_px + height_px + 2 * _EDGE_PX


_LATER: Final = ("width", "height", "marks_height", "when", "source", "told", "panels")
"""What the page needs and its macros do not."""


def _place(panel: Panel, drawer: Drawer) -> _Placed:
    x, y, columns, rows = panel.place
    column = (WIDTH_PX - 2 * _EDGE_PX + _GAP_PX) / _COLUMNS
    left, width = round(x * column), round((x + columns) * column) - round(x * column) - _GAP_PX
    height = rows * _ROW_PX - _GAP_PX
    body = Markup("") if panel.kind == "row" else drawer.draw(panel, (width, height))
    return _Placed(panel.kind, panel.title, panel.description, left, y * _ROW_PX, width, height, body)


def _told(marks: Sequence[Mark]) -> list[_Told]:
    """Return marks for reading: those of one name and subject in one line, the last ones."""
    groups: dict[tuple[str, str, str], list[Mark]] = defaultdict(list)
    for mark in marks:
        groups[mark.title, mark.detail, mark.color].append(mark)
    told = [
        _Told(title, _when(detail, group), color(paint)) for (title, detail, paint), group in groups.items()
    ]
    more = len(told) - _TOLD_MARKS
    return told if more <= 0 else [*told[:_TOLD_MARKS], _Told(f"and {more} more", "", "transparent")]


def _when(detail: str, group: Sequence[Mark]) -> str:
    times = ", ".join(
        f"since {_clock(mark.start_s)}" if mark.open else f"{_clock(mark.start_s)} to {_clock(mark.end_s)}"
        for mark in group[-3:]
    )
    return f"{times} ({detail})" if detail else times


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S")

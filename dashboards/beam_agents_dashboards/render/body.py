"""What stands in a panel: a chart, a number, bars, a table, a text, or why there is none of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

from markdown_it import MarkdownIt
from markupsafe import Markup

from beam_agents_dashboards.render.charts import Line, heat_svg, lines_svg, spark_svg
from beam_agents_dashboards.render.colors import color, palette, step_color
from beam_agents_dashboards.render.marks import labelled
from beam_agents_dashboards.render.prometheus import PrometheusError
from beam_agents_dashboards.render.tables import make_table
from beam_agents_dashboards.render.units import shown
from beam_agents_dashboards.render.variables import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from beam_agents_dashboards.render.marks import Mark
    from beam_agents_dashboards.render.model import Panel
    from beam_agents_dashboards.render.prometheus import Prometheus, Series
    from beam_agents_dashboards.render.variables import Window

__all__ = ["DRAWN", "Drawer", "flow_rows"]

_HEAD_PX: Final = 30
"""What a panel's title takes of its height."""

_LEGEND_LINE_PX: Final = 19
_LETTER_PX: Final = 6.3
_SWATCH_PX: Final = 34
_PADDING_PX: Final = 16
_LEGEND_LINES: Final = 3
_MAX_SERIES: Final = 24
_SPARK_MIN_PX: Final = 110

_Answers: TypeAlias = "Mapping[str, Sequence[Series]]"


class Drawer:
    """Draws the panels of one dashboard.

    Args:
        prometheus: Whom to ask.
        variables: The values of the dashboard's variables.
        window: The time that is shown.
        marks: What to mark in it.
        template: Renders a fragment of HTML by its name.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        variables: Mapping[str, str],
        window: Window,
        marks: Sequence[Mark],
        template: Callable[..., Markup],
    ) -> None:
        self._prometheus = prometheus
        self._variables = variables
        self._window = window
        self._marks = marks
        self._template = template

    def draw(self, panel: Panel, size: tuple[int, int]) -> Markup:
        """Return what stands in a panel of a width and a height in pixels, its frame included."""
        if panel.kind == "text":
            content = str(panel.options.get("content", ""))
            # Raw HTML in it is shown as text.
            return Markup(MarkdownIt("commonmark", {"html": False}).render(content))  # noqa: S704 - escaped there
        draw = DRAWN.get(panel.kind)
        if draw is None:
            return self._template("note", text=f"Panels of type {panel.kind} are not drawn here.", kind="gap")
        try:
            answers = {target.ref: self._ask(panel, target.ref) for target in panel.targets}
        except PrometheusError as error:
            return self._template("note", text=error.problem, kind="error")
        # 0/0 is no value.
        if all(
            math.isnan(value) for answer in answers.values() for each in answer for _, value in each.points
        ):
            return self._template("note", text=panel.field.no_value, kind="none")
        return draw(self, panel, answers, (size[0] - _PADDING_PX, size[1] - _HEAD_PX))

    def _ask(self, panel: Panel, ref: str) -> Sequence[Series]:
        target = next(each for each in panel.targets if each.ref == ref)
        expr = filled(target.expr, self._variables, self._window)
        if target.instant:
            return self._prometheus.at(expr, self._window.end_s)
        return self._prometheus.over(expr, self._window.start_s, self._window.end_s, self._window.step_s)

    def _lines(self, panel: Panel, answers: _Answers, size: tuple[int, int]) -> Markup:
        lines, more = _lines(panel, answers)
        legend = [
            (line.name, line.paint, shown(line.last, panel.field.unit, panel.field.decimals))
            for line in lines
        ]
        rows = flow_rows(
            [_SWATCH_PX + _LETTER_PX * len(f"{name} {last}") for name, _, last in legend], size[0]
        )
        height = size[1] - min(rows, _LEGEND_LINES) * _LEGEND_LINE_PX - 6
        svg = lines_svg(
            lines,
            panel.field,
            self._window,
            self._marks,
            (size[0], height),
            stacked=panel.custom.get("stacking", {}).get("mode") == "normal",
            thresholds=panel.custom.get("thresholdsStyle", {}).get("mode", "off") != "off",
        )
        return self._template("chart", svg=Markup(svg), legend=legend, more=more)  # noqa: S704 - matplotlib's

    def _heat(self, panel: Panel, answers: _Answers, size: tuple[int, int]) -> Markup:
        rows = [
            (float(each.labels["le"]), each.points)
            for answer in answers.values()
            for each in answer
            if "le" in each.labels
        ]
        if not any(value > 0 for _, points in rows for _, value in points):
            return self._template("note", text=panel.field.no_value, kind="none")
        unit = str(panel.options.get("yAxis", {}).get("unit", "short"))
        scheme = str(panel.options.get("color", {}).get("scheme", ""))
        svg = heat_svg(rows, unit, scheme, self._window, self._marks, (size[0], size[1] - 4))
        return self._template("chart", svg=Markup(svg), legend=[], more=0)  # noqa: S704 - matplotlib's

    def _stat(self, panel: Panel, answers: _Answers, size: tuple[int, int]) -> Markup:
        points = next(
            kept for answer in answers.values() for each in answer if (kept := _numbers(each.points))
        )
        value = points[-1][1]
        text = panel.field.texts.get(f"{value:g}") or shown(value, panel.field.unit, panel.field.decimals)
        solid = panel.options.get("colorMode") == "background_solid"
        paint = color(step_color(value, panel.field.steps))
        spark = ""
        wants = panel.options.get("graphMode") == "area" and solid and size[1] >= _SPARK_MIN_PX
        if wants and len(points) > 1:
            spark = spark_svg(points, self._window, (size[0] + _PADDING_PX, size[1] // 3))
        return self._template("stat", text=text, paint=paint, solid=solid, spark=Markup(spark))  # noqa: S704 - our own SVG

    def _bars(self, panel: Panel, answers: _Answers, size: tuple[int, int]) -> Markup:
        del size
        bars = [
            (_name(panel, ref, each.labels), each.points[-1][1])
            for ref, answer in answers.items()
            for each in answer
            if not math.isnan(each.points[-1][1])
        ]
        greatest = max((value for _, value in bars), default=0.0) or 1.0
        return self._template(
            "bars",
            bars=[
                (
                    name,
                    shown(value, panel.field.unit, panel.field.decimals),
                    round(100 * value / greatest, 1),
                    color(step_color(value, panel.field.steps)),
                )
                for name, value in sorted(bars, key=lambda bar: (-bar[1], bar[0]))[:_MAX_SERIES]
            ],
            more=max(0, len(bars) - _MAX_SERIES),
        )

    def _table(self, panel: Panel, answers: _Answers, size: tuple[int, int]) -> Markup:
        del size
        return self._template("table", table=make_table(panel, answers))


DRAWN: Final[Mapping[str, Callable[[Drawer, Panel, _Answers, tuple[int, int]], Markup]]] = {
    "timeseries": Drawer._lines,  # noqa: SLF001 - the class's own
    "heatmap": Drawer._heat,  # noqa: SLF001 - as above
    "stat": Drawer._stat,  # noqa: SLF001 - as above
    "bargauge": Drawer._bars,  # noqa: SLF001 - as above
    "table": Drawer._table,  # noqa: SLF001 - as above
}
"""The types of panel that are drawn from data."""


def _lines(panel: Panel, answers: _Answers) -> tuple[list[Line], int]:
    """Return the lines of a panel, and how many more there are than fit."""
    lines: list[Line] = []
    for ref, answer in answers.items():
        fixed = panel.overrides.get(f"query:{ref}", panel.field).color
        for each in answer:
            if _numbers(each.points):
                paint = color(fixed) if fixed else palette(len(lines))
                lines.append(Line(_name(panel, ref, each.labels), each.points, paint))
    return lines[:_MAX_SERIES], max(0, len(lines) - _MAX_SERIES)


def _numbers(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(at_s, value) for at_s, value in points if not math.isnan(value)]


def _name(panel: Panel, ref: str, labels: Mapping[str, str]) -> str:
    legend = next(target.legend for target in panel.targets if target.ref == ref)
    return (
        labelled(legend, labels) if legend else ", ".join(f"{key}={value}" for key, value in labels.items())
    )


def flow_rows(widths: Iterable[float], width: float) -> int:
    """Return into how many lines boxes break that stand one after the other, all in pixels."""
    rows, left = 0, 0.0
    for needed in widths:
        if needed > left:
            rows, left = rows + 1, width
        left -= needed
    return rows

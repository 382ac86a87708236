"""Charts as SVG: lines over time, heat maps, sparklines."""

from __future__ import annotations

import io
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import PowerNorm
from matplotlib.dates import AutoDateLocator, DateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from beam_agents_dashboards.render.colors import GRID, INK, MUTED, color
from beam_agents_dashboards.render.marks import merged
from beam_agents_dashboards.render.units import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.typing import RcKeyType

    from beam_agents_dashboards.render.marks import Mark
    from beam_agents_dashboards.render.model import Field
    from beam_agents_dashboards.render.variables import Window

__all__ = ["Line", "heat_svg", "lines_svg", "spark_svg"]

_Numbers: TypeAlias = npt.NDArray[np.float64]

_DPI: Final = 100
_STYLE: Final[dict[RcKeyType, object]] = {
    "svg.fonttype": "none",
    # The same picture for the same data.
    "svg.hashsalt": "beam-agents",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "path.simplify": True,
}
_MARGIN: Final = 1.08
_TICKS: Final = 5
_TIME_SHAPES: Final = ((900, "%H:%M:%S"), (86_400, "%H:%M"), (5 * 86_400, "%d %b %H:%M"))
_TIME_STEPS_S: Final = (2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)


class Line:
    """One line of a chart.

    Args:
        name: What its legend says.
        points: (seconds since the Unix epoch, value) pairs.
        paint: Its colour, as CSS has it.
    """

    def __init__(self, name: str, points: Sequence[tuple[float, float]], paint: str) -> None:
        self.name = name
        self.points = [(at_s, value) for at_s, value in points if not math.isnan(value)]
        self.paint = paint

    @property
    def last(self) -> float:
        """Its last value; NaN if it has none."""
        return self.points[-1][1] if self.points else math.nan


def lines_svg(
    lines: Sequence[Line],
    field: Field,
    window: Window,
    marks: Sequence[Mark],
    size: tuple[int, int],
    *,
    stacked: bool,
    thresholds: bool,
) -> str:
    """Return lines over time.

    Args:
        lines: What to draw.
        field: How values are shown.
        window: The time that is shown.
        marks: What to mark in it.
        size: Width and height in pixels.
        stacked: Whether lines are put on each other.
        thresholds: Whether thresholds are drawn.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(size)
        times = np.arange(window.start_s, window.end_s + window.step_s / 2, window.step_s)
        base = np.zeros(len(times))
        whole_of = np.nansum([_on_grid(line, times, window.step_s) for line in lines], axis=0)
        top = 0.0
        low = 0.0
        for line in lines:
            values = _on_grid(line, times, window.step_s)
            if stacked:
                filled = np.nan_to_num(values)
                axes.fill_between(
                    _dates(times), base, base + filled, color=line.paint, alpha=0.3, linewidth=0
                )
                base = base + filled
                # A line of nothing on top of others would hide theirs, and take their area for its own.
                hidden = np.isnan(values) | ((filled == 0) & ((line is not lines[-1]) | (whole_of > 0)))
                drawn = np.where(hidden, np.nan, base)
            else:
                drawn = values
            axes.plot(_dates(times), drawn, color=line.paint, linewidth=1.6, solid_capstyle="round")
            alone = _alone(drawn)
            axes.plot(_dates(times[alone]), drawn[alone], ".", color=line.paint, markersize=4)
            if np.isfinite(drawn).any():
                top = max(top, float(np.nanmax(drawn[np.isfinite(drawn)])))
                low = min(low, float(np.nanmin(drawn[np.isfinite(drawn)])))
        if not top and not low:
            # Else nobody knows whether a line on the ground is one.
            axes.text(0.5, 0.5, "0 all the time", transform=axes.transAxes, ha="center", color=MUTED)
        top = _top(top, field)
        if thresholds:
            _draw_thresholds(axes, field, top)
        _mark(axes, marks)
        _time_axis(axes, window)
        axes.set_ylim(low, top)
        whole = field.unit == "none"
        axes.yaxis.set_major_locator(_locator(field.unit, top - low, whole=whole))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, field.unit)))
        axes.grid(visible=True, axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        return _svg(figure)


def heat_svg(
    rows: Sequence[tuple[float, Sequence[tuple[float, float]]]],
    unit: str,
    scheme: str,
    window: Window,
    marks: Sequence[Mark],
    size: tuple[int, int],
) -> str:
    """Return a heat map.

    Args:
        rows: (a bucket's upper bound, how many were in it and those below over time) pairs.
        unit: Of the bounds.
        scheme: Its colours, as Grafana and ColorBrewer name them.
        window: The time that is shown.
        marks: What to mark in it.
        size: Width and height in pixels.
    """
    times = np.arange(window.start_s, window.end_s + window.step_s / 2, window.step_s)
    ordered = sorted(rows, key=lambda row: row[0])
    bounds = [bound for bound, _ in ordered]
    grid = np.nan_to_num(
        np.array([_on_grid(Line("", points, ""), times, window.step_s) for _, points in ordered])
    )
    # Buckets hold all that is below them, too. What rounding leaves below 0 is nothing.
    counts = np.maximum(np.diff(grid, axis=0, prepend=0.0), 0.0)
    counts[counts < 1e-6] = 0.0  # noqa: PLR2004 - what rounding leaves
    filled = np.flatnonzero(counts.sum(axis=1))
    first, last = max(int(filled[0]) - 1, 0), min(int(filled[-1]) + 1, len(bounds) - 1)
    counts = np.where(counts == 0, np.nan, counts)[first : last + 1]
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(size)
        edges = np.append(times, times[-1] + window.step_s) - window.step_s / 2
        norm = PowerNorm(0.5, vmin=0, vmax=float(np.nanmax(counts)))
        levels = np.arange(counts.shape[0] + 1)
        mesh = axes.pcolormesh(
            _dates(edges),
            levels,
            counts,
            cmap=scheme if scheme in mpl.colormaps else "Blues",
            norm=norm,
            rasterized=True,
        )
        axes.yaxis.set_major_locator(FixedLocator(list(range(1, counts.shape[0] + 1))))
        axes.set_yticklabels([_bound(bound, unit) for bound in bounds[first : last + 1]])
        bar = figure.colorbar(mesh, ax=axes, pad=0.01, aspect=30)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, "short")))
        # A span would change the colours, and they are the data.
        _mark(axes, marks, spans=False)
        _time_axis(axes, window)
        axes.set_ylim(0, counts.shape[0])
        return _svg(figure)


def spark_svg(points: Sequence[tuple[float, float]], window: Window, size: tuple[int, int]) -> str:
    """Return a small line without axes, in the colour of the text around it."""
    line = Line("", points, "white")
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(size[0] / _DPI, size[1] / _DPI), dpi=_DPI)
        axes = figure.add_axes((0, 0.02, 1, 0.96))
        axes.set_axis_off()
        times = np.array([at_s for at_s, _ in line.points])
        values = np.array([value for _, value in line.points])
        axes.fill_between(_dates(times), values, color="white", alpha=0.25, linewidth=0)
        axes.plot(_dates(times), values, color="white", linewidth=1.2, alpha=0.8)
        axes.set_xlim(
            float(_dates(np.array([window.start_s]))[0]), float(_dates(np.array([window.end_s]))[0])
        )
        axes.set_ylim(min(0.0, float(values.min())), max(float(values.max()) * _MARGIN, 1e-12))
        return _svg(figure)


def _figure(size: tuple[int, int]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(size[0] / _DPI, size[1] / _DPI), dpi=_DPI, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03)  # type: ignore[union-attr, call-arg]  # constrained
    axes = figure.add_subplot()
    axes.tick_params(length=0)
    return figure, axes


def _svg(figure: Figure) -> str:
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    FigureCanvasSVG(figure)
    out = io.StringIO()
    figure.savefig(out, format="svg", dpi=2 * _DPI, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _dates(
    times: _Numbers,
) -> _Numbers:
    return np.asarray(date2num([datetime.fromtimestamp(float(at_s), UTC) for at_s in times]))


def _on_grid(line: Line, times: _Numbers, step_s: float) -> _Numbers:
    """Return a value for each time, NaN where there is none: a gap is drawn as one."""
    values = np.full(len(times), np.nan)
    for at_s, value in line.points:
        place = round((at_s - times[0]) / step_s)
        if 0 <= place < len(values):
            values[place] = value if math.isfinite(value) else np.nan
    return values


def _alone(values: _Numbers) -> npt.NDArray[np.intp]:
    """Return the places of values between gaps, of which a line shows nothing."""
    there = np.concatenate(([False], ~np.isnan(values), [False]))
    return np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:])


def _top(greatest: float, field: Field) -> float:
    top = greatest * _MARGIN
    if field.high is not None:
        top = max(top, field.high * (1.02 if field.high >= greatest else _MARGIN))
    return top or 1.0


def _draw_thresholds(axes: Axes, field: Field, top: float) -> None:
    for bound, name in field.steps:
        # One that is far above would press all lines to the ground.
        if math.isfinite(bound) and bound <= top:
            axes.axhline(bound, color=color(name), linewidth=1, linestyle=(0, (5, 4)), alpha=0.8)


def _mark(axes: Axes, marks: Sequence[Mark], *, spans: bool = True) -> None:
    for name in dict.fromkeys(mark.color for mark in marks):
        times = [(mark.start_s, mark.end_s) for mark in marks if mark.color == name]
        for start_s, end_s in merged(times) if spans else ():
            start, end = _dates(np.array([start_s, end_s]))
            axes.axvspan(float(start), float(end), color=color(name), alpha=0.06, linewidth=0)
        for at in _dates(np.array(sorted({start_s for start_s, _ in times}))):
            axes.axvline(float(at), color=color(name), linewidth=0.9, linestyle=(0, (2, 2)), alpha=0.7)


def _time_axis(axes: Axes, window: Window) -> None:
    start, end = _dates(np.array([window.start_s, window.end_s]))
    axes.set_xlim(float(start), float(end))
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=3, maxticks=6, tz=UTC))
    span_s = window.end_s - window.start_s
    # Each label is a whole time: what a tired reader has to add from its neighbours is read wrong.
    shape = next((shape for limit_s, shape in _TIME_SHAPES if span_s <= limit_s), "%d %b")
    axes.xaxis.set_major_formatter(DateFormatter(shape, tz=UTC))


def _locator(unit: str, span: float, *, whole: bool) -> FixedLocator | MaxNLocator:
    step = None
    if unit in {"bytes", "Bps"}:
        step = 2.0 ** math.ceil(math.log2(span / _TICKS))
    elif unit == "s" and span > _TICKS:
        step = next((each for each in _TIME_STEPS_S if each >= span / _TICKS), None)
    # Labels are round in the unit's own steps.
    if step is not None:
        return FixedLocator([step * place for place in range(math.floor(span / step) + 1)])
    return MaxNLocator(_TICKS, integer=whole, steps=[1, 2, 2.5, 5, 10])


def _bound(bound: float, unit: str) -> str:
    return "more" if math.isinf(bound) else f"≤ {shown(bound, unit)}"

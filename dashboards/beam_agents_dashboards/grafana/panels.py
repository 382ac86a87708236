"""Panels as this bundle draws them: each with title, description, unit, legend and a text for no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "AMBER",
    "BLUE",
    "DATASOURCE",
    "GREEN",
    "NEUTRAL",
    "RED",
    "Column",
    "Link",
    "Panel",
    "Query",
    "Steps",
    "bars",
    "heat",
    "lines",
    "number",
    "rows",
]

RED: Final = "red"
AMBER: Final = "orange"
GREEN: Final = "green"
BLUE: Final = "blue"
NEUTRAL: Final = "text"

DATASOURCE: Final = shapes.DataSourceRef("prometheus", "${datasource}")

Steps: TypeAlias = "tuple[tuple[float | None, str], ...]"
"""Thresholds: (value from which on, colour) pairs, the first from None."""

Panel: TypeAlias = "timeseries.Panel | stat.Panel | table.Panel | heatmap.Panel | bargauge.Panel"

_PLAIN: Final[Steps] = ((None, NEUTRAL),)
_NO_DATA: Final = "No data: nothing was measured here. Is the job scraped?"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: PromQL.
        legend: What its series are called, with ``{{label}}`` for a label's value.
        exemplars: Whether traces are to be shown beside it: of histograms alone.
        color: A fixed colour; empty for one of the palette.
    """

    expr: str
    legend: str
    exemplars: bool = False
    color: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        name: Its heading.
        expr: PromQL, evaluated at the end of the time shown; its labels tell the row.
        unit: As Grafana calls it.
        steps: Thresholds that colour the cell; none for no colour.
        decimals: Digits after the point; None for as many as fit.
    """

    name: str
    expr: str
    unit: str
    steps: Steps = ()
    decimals: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """Where a click on a value leads.

    Attributes:
        title: What the link says.
        url: With Grafana's variables in it.
    """

    title: str
    url: str


def lines(
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    links: Sequence[Link] = (),
    steps: Steps = (),
    stacked: bool = False,
    low: float | None = 0,
    high: float | None = None,
    no_value: str = _NO_DATA,
) -> timeseries.Panel:
    """Return a panel of lines over time.

    Args:
        title: What it shows.
        description: What it tells a reader, and what is bad.
        unit: As Grafana calls it.
        queries: What to draw.
        links: Where a click leads.
        steps: Thresholds, drawn as lines; none for none.
        stacked: Whether the series add up to a whole.
        low: Where the vertical axis begins; None for where the values do.
        high: Where it ends at least.
        no_value: What to say when there is nothing to draw.
    """
    legend = (
        common.VizLegendOptions()
        .display_mode(shapes.LegendDisplayMode.LIST)
        .placement(shapes.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull"])
    )
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(no_value)
        .legend(legend)
        .tooltip(
            common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING)
        )
        .line_width(2 if not stacked else 1)
        .fill_opacity(30 if stacked else 6)
        .show_points(shapes.VisibilityMode.AUTO)
        .span_nulls(False)
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC))
        .thresholds(_thresholds(steps or _PLAIN))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL).group("A"))
    if steps:
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED)
        )
    if low is not None:
        panel.axis_soft_min(low) if unit == "none" else panel.min(low)
    if high is not None:
        panel.axis_soft_max(high)
    if links:
        panel.data_links([_link(link) for link in links])
    for query, ref in zip(queries, _REFS, strict=False):
        panel.with_target(_target(query, ref).range())
        if query.color:
            fixed = {"mode": "fixed", "fixedColor": query.color}
            panel.override_by_query(ref, [model.DynamicConfigValue("color", fixed)])
    return panel


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    links: Sequence[Link] = (),
    steps: Steps = _PLAIN,
    texts: Mapping[str, str] | None = None,
    no_value: str = "No data",
    decimals: int | None = None,
    over_range: bool = False,
) -> stat.Panel:
    """Return a panel with one great number, coloured by its thresholds.

    Args:
        title: What it is.
        description: What it tells a reader, and what is bad.
        unit: As Grafana calls it.
        query: Of one series.
        links: Where a click leads.
        steps: Thresholds.
        texts: What to say instead of some values.
        no_value: What to say when there is no value: never a healthy-looking number.
        decimals: Digits after the point; None for as many as fit.
        over_range: Whether the query sums up the whole time shown, and so is asked for once, at its end.
    """
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(no_value)
        .color_mode(
            shapes.BigValueColorMode.BACKGROUND_SOLID
            if steps is not _PLAIN
            else shapes.BigValueColorMode.NONE
        )
        .graph_mode(shapes.BigValueGraphMode.NONE if over_range else shapes.BigValueGraphMode.AREA)
        .text_mode(shapes.BigValueTextMode.VALUE)
        .justify_mode(shapes.BigValueJustifyMode.CENTER)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(_thresholds(steps))
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    )
    if decimals is not None:
        panel.decimals(decimals)
    if texts:
        results = {
            value: model.ValueMappingResult(text=text, index=place)
            for place, (value, text) in enumerate(texts.items())
        }
        panel.mappings([model.ValueMap(results)])
    if links:
        panel.data_links([_link(link) for link in links])
    target = _target(query, "A")
    return panel.with_target(target.instant() if over_range else target.range())


def bars(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    links: Sequence[Link] = (),
    steps: Steps = _PLAIN,
    no_value: str = _NO_DATA,
) -> bargauge.Panel:
    """Return a panel of horizontal bars, one for each series of a query over the time shown."""
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .no_value(no_value)
        .min(0)
        .orientation(shapes.VizOrientation.HORIZONTAL)
        .display_mode(shapes.BarGaugeDisplayMode.BASIC)
        .value_mode(shapes.BarGaugeValueMode.TEXT)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
        .thresholds(_thresholds(steps))
        .color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    )
    if links:
        panel.data_links([_link(link) for link in links])
    return panel.with_target(_target(query, "A").instant())


def heat(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    links: Sequence[Link] = (),
    no_value: str = _NO_DATA,
) -> heatmap.Panel:
    """Return a heat map of a histogram's buckets; ``unit`` is that of what the histogram measures."""
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("short")
        .no_value(no_value)
        .calculate(False)
        .cell_gap(1)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .scale(HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .fill("blue")
            .steps(64)
            .reverse(False)
        )
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(shapes.AxisPlacement.LEFT).reverse(False))
        .cell_values(heatmap.CellValues().unit("short"))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .show_legend()
    )
    if links:
        panel.data_links([_link(link) for link in links])
    return panel.with_target(_target(query, "A").range().format(PromQueryFormat.HEATMAP))


def rows(
    title: str,
    description: str,
    keys: Mapping[str, str],
    columns: Sequence[Column],
    *,
    links: Sequence[Link] = (),
    no_value: str = _NO_DATA,
) -> table.Panel:
    """Return a table: a row for each set of labels, a column for each query.

    Args:
        title: What it shows.
        description: What it tells a reader, and what is bad.
        keys: The labels that tell a row, with their headings.
        columns: The others.
        links: Where a click on a cell leads.
        no_value: What to say when there are no rows.
    """
    hidden = {"Time": True}
    names = dict(keys)
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("none")
        .no_value(no_value)
        .show_header(True)
        .cell_height(shapes.TableCellHeight.SM)
        .thresholds(_thresholds(_PLAIN))
    )
    if links:
        panel.data_links([_link(link) for link in links])
    for column, ref in zip(columns, _REFS, strict=False):
        target = _target(Query(column.expr, column.name), ref)
        panel.with_target(target.instant().format(PromQueryFormat.TABLE))
        names["Value" if len(columns) == 1 else f"Value #{ref}"] = column.name
        panel.override_by_name(column.name, _cells(column))
    order = {name: place for place, name in enumerate(names)}
    if len(columns) > 1:
        panel.with_transformation(model.DataTransformerConfig("merge", options={}))
    return panel.with_transformation(
        model.DataTransformerConfig(
            "organize",
            options={
                "excludeByName": hidden,
                "indexByName": order,
                "renameByName": names,
                "includeByName": {},
            },
        )
    )


_REFS: Final = "ABCDEFGHIJKL"


def _cells(column: Column) -> list[model.DynamicConfigValue]:
    values = [model.DynamicConfigValue("unit", column.unit)]
    if column.decimals is not None:
        values.append(model.DynamicConfigValue("decimals", column.decimals))
    if column.steps:
        steps = [{"value": value, "color": color} for value, color in column.steps]
        values += [
            model.DynamicConfigValue("thresholds", {"mode": "absolute", "steps": steps}),
            model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
        ]
    return values


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value, color) for value, color in steps])
    )


def _target(query: Query, ref: str) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(ref)
        .datasource(DATASOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .exemplar(query.exemplars)
    )


def _link(link: Link) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(link.title).url(link.url).target_blank(True)

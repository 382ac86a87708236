"""What all dashboards share: variables, annotations, links to each other, and how panels are laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.models import dashboard as model

from beam_agents.signals import catalogue
from beam_agents_dashboards.grafana import queries
from beam_agents_dashboards.grafana.panels import DATASOURCE, Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents_dashboards.grafana.panels import Panel
    from beam_agents_dashboards.names import Dashboard
    from beam_agents_dashboards.settings import Settings

__all__ = ["COLUMNS", "Band", "Page", "build", "to_dashboard", "to_runbook"]

COLUMNS: Final = 24
"""Columns of Grafana's grid."""

_TAG: Final = "beam-agents"
_BUILD: Final = catalogue.BUILD_INFO.prometheus_name
# Variables are searched for in metrics that are there from the start.
_AGENTS: Final = catalogue.ACTIVATIONS_IN_FLIGHT.prometheus_name
_STORES: Final = catalogue.STORE_UP.prometheus_name


@dataclass(frozen=True, slots=True)
class Band:
    """Panels side by side.

    Attributes:
        height: In rows of Grafana's grid, 38 pixels each.
        panels: From left to right, all of one width.
        title: A heading above them; empty for none.
        widths: Their widths in columns of the grid; empty for all the same.
    """

    height: int
    panels: Sequence[Panel]
    title: str = ""
    widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One dashboard.

    Attributes:
        uid: Which dashboard.
        title: Its name.
        description: The question that it answers.
        bands: Its panels, from the top.
    """

    uid: Dashboard
    title: str
    description: str
    bands: Sequence[Band]


def build(page: Page, settings: Settings) -> model.Dashboard:
    """Return a page as Grafana's model."""
    made = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.description)
        .tags([_TAG])
        .readonly()
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-3h", "now")
        .refresh("30s")
        .link(
            dashboard.DashboardLink("beam-agents")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .include_vars(True)
            .keep_time(True)
        )
        .link(
            dashboard.DashboardLink("Runbooks")
            .type(model.DashboardLinkType.LINK)
            .url(settings.runbook_url)
            .icon("doc")
            .target_blank(True)
        )
        .annotation(_alerts())
        .annotation(_versions())
    )
    for variable in _variables(settings):
        made.with_variable(variable)
    number = top = 0
    for band in page.bands:
        if band.title:
            number += 1
            row = dashboard.Row(band.title).id(number)
            made.with_row(row.grid_pos(model.GridPos(h=1, w=COLUMNS, x=0, y=top)))
            top += 1
        widths = band.widths or (COLUMNS // len(band.panels),) * len(band.panels)
        left = 0
        for panel, width in zip(band.panels, widths, strict=True):
            number += 1
            made.with_panel(panel.id(number).grid_pos(model.GridPos(h=band.height, w=width, x=left, y=top)))
            left += width
        top += band.height
    return made.build()


def to_dashboard(uid: Dashboard) -> Link:
    """Return the link to another dashboard, with the time and the variables of this one."""
    variables = "&".join(f"${{{name}:queryparam}}" for name in _NAMES)
    return Link(f"Dashboard: {uid.name.capitalize()}", f"/d/{uid}?${{__url_time_range}}&{variables}")


def to_runbook(alert: str, settings: Settings) -> Link:
    """Return the link to an alert's runbook."""
    return Link(f"Runbook: {alert}", f"{settings.runbook_url.rstrip('/')}/{alert}.md")


_NAMES: Final = ("datasource", "job", "instance", "pipeline", "agent", "backend")


def _variables(settings: Settings) -> list[dashboard.DatasourceVariable | dashboard.QueryVariable]:
    source = (
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .description("The Prometheus that scrapes the workers.")
        .type("prometheus")
        .current(model.VariableOption(selected=True, text="default", value="default"))
    )
    own = 'job=~"$job", instance=~"$instance"'
    return [
        source,
        _variable("job", "Job", "Prometheus's scrape job.", _BUILD, settings.job),
        _variable("instance", "Instance", "A worker process.", f'{_BUILD}{{job=~"$job"}}'),
        _variable(
            "pipeline",
            "Pipeline",
            "The pipeline's name, as given to RunAgent.",
            f"{_AGENTS}{{{own}}}",
            settings.pipeline,
        ),
        _variable(
            "agent",
            "Agent",
            "The agent's name, as given to RunAgent.",
            f'{_AGENTS}{{{own}, pipeline=~"$pipeline"}}',
        ),
        _variable("backend", "Backend", "The kind of long-term store.", f"{_STORES}{{{own}}}"),
    ]


def _variable(
    name: str, label: str, description: str, series: str, watched: str = ""
) -> dashboard.QueryVariable:
    """Return a variable over a label's values: those that ``watched`` matches, if it is given."""
    search = f"label_values({series}, {name})"
    variable = (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": search, "refId": f"Variable-{name}", "qryType": 1})
        .definition(search)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(watched or ".+")
        .current(model.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
    return variable.regex(f"/^(?:{watched})$/") if watched else variable


def _alerts() -> dashboard.AnnotationQuery:
    return (
        _annotation("Firing alerts", queries.FIRING, "red")
        .title_format("{{alertname}}")
        .text_format("{{severity}} {{pipeline}} {{agent}} {{backend}}")
        .tag_keys("severity,pipeline,agent,backend")
    )


def _versions() -> dashboard.AnnotationQuery:
    # A version that nothing ran a minute earlier, though something else did.
    now, before = (f"{queries.selector(catalogue.BUILD_INFO)}{offset}" for offset in ("", " offset 1m"))
    by = "count by (version, beam_version)"
    changes = f"{by} ({now}) unless {by} ({before}) and on () count({before})"
    return (
        _annotation("Version changes", changes, "blue")
        .title_format("beam-agents {{version}}, Beam {{beam_version}}")
        .text_format("First seen on these workers.")
        .tag_keys("version,beam_version")
    )


def _annotation(name: str, expr: str, color: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .hide(False)
        .icon_color(color)
        .target(prometheus.Dataquery().ref_id("Anno").expr(expr).range())
        .expr(expr)
        .step("30s")
        .use_value_for_time(False)
    )

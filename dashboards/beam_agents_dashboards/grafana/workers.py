"""The dashboard *Workers*: which processes run, what they cost, whether their telemetry can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals import catalogue as c
from beam_agents_dashboards.grafana import queries as q
from beam_agents_dashboards.grafana.common import NONE_IS_BETTER, NONE_IS_GOOD
from beam_agents_dashboards.grafana.frame import Band, Page, to_runbook
from beam_agents_dashboards.grafana.panels import BLUE, RED, Column, Query, lines, number, rows
from beam_agents_dashboards.names import Dashboard

if TYPE_CHECKING:
    from beam_agents_dashboards.grafana.panels import Panel
    from beam_agents_dashboards.settings import Settings

__all__ = ["page"]

_NO_PROCESS = "No data: the endpoint does not tell of its process (it does on Linux)."


def page(settings: Settings) -> Page:
    """Return the dashboard."""
    return Page(
        Dashboard.WORKERS,
        "beam-agents / Workers",
        "Which worker processes run, what they cost, and whether their telemetry can be trusted.",
        (
            Band(4, _numbers(settings)),
            Band(8, _processes(settings), "Processes"),
            Band(8, _bundles(settings), "Bundles and telemetry"),
            Band(6, _tables(settings)),
        ),
    )


def _numbers(settings: Settings) -> list[Panel]:
    absent = to_runbook("BeamAgentsWorkersAbsent", settings)
    dropping = to_runbook("BeamAgentsTelemetryDropping", settings)
    return [
        number(
            "Processes",
            "Worker processes that report.",
            "none",
            Query(f"count({q.selector(c.BUILD_INFO)})", "Processes"),
            steps=((None, BLUE),),
            links=(absent,),
            no_value="No worker",
        ),
        number(
            "Scrapes failing",
            "Targets of the job that Prometheus could not scrape at its last try.",
            "none",
            Query(f"sum(1 - {q.foreign('up')})", "Failing"),
            steps=NONE_IS_GOOD,
            links=(absent,),
            no_value="No target",
        ),
        number(
            "Plugins not running",
            "Telemetry plugins that could not be built, in all processes: they tell nothing.",
            "none",
            Query(f"sum(1 - {q.selector(c.TELEMETRY_INITIALISED)})", "Not running"),
            steps=NONE_IS_GOOD,
            links=(dropping,),
            no_value="No plugin",
        ),
        number(
            "Signals dropped",
            "Signals that telemetry plugins lost in the time shown. While they do, other panels may show "
            "too little.",
            "short",
            Query(
                f"{q.count_over_range(c.TELEMETRY_DROPPED)} or 0 * sum({q.selector(c.BUILD_INFO)})", "Dropped"
            ),
            steps=NONE_IS_BETTER,
            links=(dropping,),
            no_value="No worker",
            decimals=0,
            over_range=True,
        ),
        number(
            "Versions in use",
            "Versions of beam-agents that workers run. More than one outlasting a deployment means that "
            "part of it failed.",
            "none",
            Query(f"count(count by (version) ({q.selector(c.BUILD_INFO)}))", "Versions"),
            steps=((None, BLUE),),
            no_value="No worker",
        ),
        number(
            "Youngest process",
            "Time since the last process started. Never old: something kills and restarts them.",
            "s",
            Query(f"time() - max({q.foreign('process_start_time_seconds')})", "Age"),
            steps=((None, BLUE),),
            no_value="No data",
            decimals=0,
        ),
    ]


def _processes(settings: Settings) -> list[Panel]:
    absent = to_runbook("BeamAgentsWorkersAbsent", settings)
    return [
        lines(
            "Processes that report",
            "Targets that Prometheus scrapes, and those that it could not.",
            "none",
            [
                Query(f"sum({q.foreign('up')})", "up", color=BLUE),
                Query(f"sum(1 - {q.foreign('up')})", "failing", color=RED),
            ],
            links=(absent,),
            high=1,
        ),
        lines(
            "CPU",
            "Processor time of each process: 100 % is one core.",
            "percentunit",
            [Query(q.foreign_rate("process_cpu_seconds_total"), "{{instance}}")],
            no_value=_NO_PROCESS,
        ),
        lines(
            "Memory",
            "Resident memory of each process. A line that only rises is a leak.",
            "bytes",
            [Query(q.foreign("process_resident_memory_bytes"), "{{instance}}")],
            no_value=_NO_PROCESS,
        ),
        lines(
            "Open files",
            "File descriptors of each process, its connections to stores among them.",
            "none",
            [Query(q.foreign("process_open_fds"), "{{instance}}")],
            no_value=_NO_PROCESS,
        ),
    ]


def _bundles(settings: Settings) -> list[Panel]:
    dropping = to_runbook("BeamAgentsTelemetryDropping", settings)
    return [
        lines(
            "Bundles",
            "Bundles that workers began.",
            "ops",
            [Query(q.per_second(c.BUNDLES, by=("agent",)), "{{agent}}", color="")],
        ),
        lines(
            "Failed bundles",
            "Bundles that an exception ended, by the callback that raised. The runner tries them again.",
            "ops",
            [Query(q.per_second(c.BUNDLE_FAILURES, by=("agent", "phase")), "{{agent}} {{phase}}")],
            links=(to_runbook("BeamAgentsTimerBundlesFailing", settings),),
        ),
        lines(
            "Dropped telemetry",
            "Signals that plugins lost, and at what.",
            "ops",
            [Query(q.per_second(c.TELEMETRY_DROPPED, by=("plugin", "reason")), "{{plugin}} {{reason}}")],
            links=(dropping,),
            no_value="No plugin has lost a signal since these workers started.",
        ),
    ]


def _tables(settings: Settings) -> list[Panel]:
    dropping = to_runbook("BeamAgentsTelemetryDropping", settings)
    return [
        rows(
            "Versions",
            "How many processes run which version.",
            {"version": "beam-agents", "beam_version": "Apache Beam"},
            (
                Column(
                    "Processes",
                    f"count by (version, beam_version) ({q.selector(c.BUILD_INFO)})",
                    "none",
                    decimals=0,
                ),
            ),
            no_value="No worker reports.",
        ),
        rows(
            "Telemetry plugins",
            "In how many processes each plugin runs, and in how many it could not be built.",
            {"plugin": "Plugin"},
            (
                Column(
                    "Runs in", f"sum by (plugin) ({q.selector(c.TELEMETRY_INITIALISED)})", "none", decimals=0
                ),
                Column(
                    "Fails in",
                    f"sum by (plugin) (1 - {q.selector(c.TELEMETRY_INITIALISED)})",
                    "none",
                    NONE_IS_GOOD,
                    decimals=0,
                ),
            ),
            links=(dropping,),
            no_value="No worker reports.",
        ),
    ]

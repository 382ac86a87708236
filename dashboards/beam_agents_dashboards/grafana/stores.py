"""The dashboard *Stores*: which store is in trouble, since when, and what waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals import catalogue as c
from beam_agents_dashboards.grafana import queries as q
from beam_agents_dashboards.grafana.common import call_outcomes, percentiles
from beam_agents_dashboards.grafana.frame import Band, Page, to_dashboard, to_runbook
from beam_agents_dashboards.grafana.panels import (
    AMBER,
    BLUE,
    GREEN,
    RED,
    Column,
    Query,
    bars,
    heat,
    lines,
    rows,
)
from beam_agents_dashboards.names import Dashboard

if TYPE_CHECKING:
    from beam_agents_dashboards.grafana.panels import Panel
    from beam_agents_dashboards.settings import Settings

__all__ = ["page"]

_NO_STORE = "No store: these agents have no long-term tier, or nothing is scraped."
_FLUSH = '=~"flush|expire_flush"'
_READ = '=~"load|search"'


def page(settings: Settings) -> Page:
    """Return the dashboard."""
    return Page(
        Dashboard.STORES,
        "beam-agents / Stores",
        "Which long-term store is in trouble, since when, and how it shows.",
        (
            Band(7, _state(settings), widths=(14, 10)),
            Band(8, _flush_latency(settings), "Latency"),
            Band(8, _other_latency()),
            Band(8, _failures(settings), "Failures"),
            Band(8, _volume(settings), "Rows and bytes"),
            Band(8, _sizes()),
        ),
    )


def _state(settings: Settings) -> list[Panel]:
    up = q.selector(c.STORE_UP)
    failed = q.count_over_range(c.LONGTERM_FLUSH_FAILURES, by=("backend",))
    flushes = q.percentile(0.99, c.STORE_OPERATION_DURATION_SECONDS, by=("backend",), operation=_FLUSH)
    return [
        rows(
            "Stores now",
            "One row for each kind of store. Workers that are down cannot reach it; the age is since any "
            "worker's last success, and rises without traffic only as far as the next probe.",
            {"backend": "Backend"},
            (
                Column("Workers up", f"sum by (backend) ({up})", "none", decimals=0),
                Column(
                    "Workers down",
                    f"count by (backend) ({up}) - sum by (backend) ({up})",
                    "none",
                    ((None, GREEN), (1, RED)),
                    decimals=0,
                ),
                Column(
                    "Last success",
                    f"time() - max by (backend) ({q.selector(c.STORE_LAST_SUCCESS_TIMESTAMP_SECONDS)})",
                    "s",
                    # A probe is due every ten seconds.
                    ((None, GREEN), (30, AMBER), (60, RED)),
                    decimals=0,
                ),
                Column(
                    "p99 flush",
                    flushes,
                    "s",
                    ((None, GREEN), (settings.flush_latency_s, AMBER)),
                ),
                Column(
                    "Failed flushes",
                    # A failure has no series before the first one.
                    f"{failed} or 0 * count by (backend) ({up})",
                    "short",
                    ((None, GREEN), (1e-9, RED)),
                    decimals=0,
                ),
            ),
            links=(to_runbook("BeamAgentsStoreDown", settings),),
            no_value=_NO_STORE,
        ),
        lines(
            "Share of workers that reach the store",
            "By each worker's last probe or call, whichever is newer. Below 100 % some cannot; a gap means "
            "that no worker reported.",
            "percentunit",
            [Query(f"avg by (backend) ({q.selector(c.STORE_UP)})", "{{backend}}")],
            links=(to_runbook("BeamAgentsStoreDown", settings),),
            high=1,
            no_value=_NO_STORE,
        ),
    ]


def _flush_latency(settings: Settings) -> list[Panel]:
    link = to_runbook("BeamAgentsStoreLatencyHigh", settings)
    return [
        lines(
            "Flush latency",
            "Wall time of an activation's flush, retries included, with its objective for the 99th "
            "percentile.",
            "s",
            percentiles(c.LONGTERM_FLUSH_DURATION_SECONDS),
            links=(link,),
            steps=((None, GREEN), (settings.flush_latency_s, RED)),
            no_value=_NO_STORE,
        ),
        heat(
            "Flush latency, spread",
            "How many flushes took how long. Two bands are two kinds of flush, or a part of them that is "
            "retried.",
            "s",
            Query(q.buckets(c.LONGTERM_FLUSH_DURATION_SECONDS), "{{le}}", exemplars=True),
            links=(link,),
            no_value=_NO_STORE,
        ),
        lines(
            "Flush latency by backend",
            "99th percentile of each kind of store.",
            "s",
            [
                Query(
                    q.percentile(0.99, c.LONGTERM_FLUSH_DURATION_SECONDS, by=("backend",)),
                    "{{backend}} p99",
                    exemplars=True,
                )
            ],
            links=(link,),
            no_value=_NO_STORE,
        ),
    ]


def _other_latency() -> list[Panel]:
    return [
        lines(
            "Load and search latency",
            "Wall time of reads of the long-term tier, retries included.",
            "s",
            percentiles(c.STORE_OPERATION_DURATION_SECONDS, operation=_READ),
            no_value="No data: no agent has read the long-term tier.",
        ),
        heat(
            "Load and search latency, spread",
            "How many reads took how long.",
            "s",
            Query(q.buckets(c.STORE_OPERATION_DURATION_SECONDS, operation=_READ), "{{le}}", exemplars=True),
            no_value="No data: no agent has read the long-term tier.",
        ),
        lines(
            "Latency by operation",
            "99th percentile of every kind of call, health probes (ping) included.",
            "s",
            [
                Query(
                    q.percentile(0.99, c.STORE_OPERATION_DURATION_SECONDS, by=("operation",)),
                    "{{operation}} p99",
                    exemplars=True,
                )
            ],
            no_value=_NO_STORE,
        ),
    ]


def _failures(settings: Settings) -> list[Panel]:
    burn = to_runbook("BeamAgentsStoreFlushErrorBudgetBurn", settings)
    return [
        lines(
            "Failed flushes by type",
            "Each fails its activation, which the runner tries again.",
            "ops",
            [
                Query(
                    q.per_second(c.LONGTERM_FLUSH_FAILURES, by=("backend", "error_type")),
                    "{{backend}} {{error_type}}",
                )
            ],
            links=(burn,),
            no_value="No flush has failed since these workers started.",
        ),
        lines(
            "Calls by outcome",
            "Calls of any kind, health probes included, by how they ended after their retries.",
            "ops",
            call_outcomes(c.STORE_OPERATION_DURATION_SECONDS),
            links=(burn,),
            stacked=True,
            no_value=_NO_STORE,
        ),
        lines(
            "Retries",
            "Calls that were tried again after a transient error. They cost time, and lose nothing.",
            "ops",
            [
                Query(
                    q.per_second(c.STORE_RETRIES, by=("backend", "operation", "error_type")),
                    "{{backend}} {{operation}} {{error_type}}",
                )
            ],
            no_value="No call has been tried again since these workers started.",
        ),
    ]


def _volume(settings: Settings) -> list[Panel]:
    stale = to_runbook("BeamAgentsStaleUpserts", settings)
    return [
        lines(
            "Rows staged and flushed",
            "Rows that activations staged, and what became of them. Staged above applied and stale together: "
            "flushes fail, or activations do.",
            "rowsps",
            [
                Query(q.per_second(c.LONGTERM_STAGED), "staged", color=BLUE),
                Query(q.per_second(c.LONGTERM_UPSERTS, result='="applied"'), "applied", color=GREEN),
                Query(q.per_second(c.LONGTERM_UPSERTS, result='="stale"'), "stale", color=AMBER),
            ],
            links=(stale,),
            no_value=_NO_STORE,
        ),
        lines(
            "Stale share",
            "Share of rows that a store refused because it holds newer ones, with the share that is a "
            "ticket.",
            "percentunit",
            [
                Query(
                    q.share(c.LONGTERM_UPSERTS, by=("backend",), result='="stale"'),
                    "{{backend}}",
                )
            ],
            links=(stale,),
            steps=((None, GREEN), (settings.stale_ratio, AMBER)),
            no_value=_NO_STORE,
        ),
        bars(
            "Stale rows by agent",
            "Rows that a store refused in the time shown, because it holds newer ones.",
            "short",
            Query(
                q.count_over_range(
                    c.LONGTERM_UPSERTS, by=("pipeline", "agent", "backend"), result='="stale"'
                ),
                "{{pipeline}} {{agent}} {{backend}}",
            ),
            links=(stale, to_dashboard(Dashboard.ACTIVATIONS)),
            steps=((None, GREEN), (1e-9, AMBER)),
            no_value=_NO_STORE,
        ),
    ]


def _sizes() -> list[Panel]:
    return [
        lines(
            "Rows per flush",
            "How many rows one flush writes.",
            "short",
            percentiles(c.LONGTERM_FLUSH_ROWS),
            no_value=_NO_STORE,
        ),
        lines(
            "Bytes per flush",
            "How large one flush is.",
            "bytes",
            percentiles(c.LONGTERM_FLUSH_BYTES),
            no_value=_NO_STORE,
        ),
        lines(
            "Bytes flushed",
            "What flushes write, by kind of store.",
            "Bps",
            [Query(q.sum_per_second(c.LONGTERM_FLUSH_BYTES, by=("backend",)), "{{backend}}")],
            no_value=_NO_STORE,
        ),
    ]

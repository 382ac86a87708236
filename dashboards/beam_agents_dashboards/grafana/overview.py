"""The dashboard *Overview*: is anything being lost?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals import catalogue as c
from beam_agents_dashboards.grafana import queries as q
from beam_agents_dashboards.grafana.common import NONE_IS_BETTER, NONE_IS_GOOD, outcomes, percentiles
from beam_agents_dashboards.grafana.frame import Band, Page, to_dashboard, to_runbook
from beam_agents_dashboards.grafana.panels import AMBER, BLUE, GREEN, RED, Query, lines, number
from beam_agents_dashboards.grafana.recorded import RULES_LOADED, burn_queries
from beam_agents_dashboards.names import Dashboard

if TYPE_CHECKING:
    from beam_agents_dashboards.grafana.panels import Panel
    from beam_agents_dashboards.settings import Settings

__all__ = ["page"]


def page(settings: Settings) -> Page:
    """Return the dashboard. It fits a screen of 1920 by 1080 pixels."""
    return Page(
        Dashboard.OVERVIEW,
        "beam-agents / Overview",
        "Is anything being lost? The first row answers; below it, since when and why.",
        (
            Band(4, _numbers(settings)),
            Band(7, _service(settings)),
            Band(6, _stores(settings)),
            Band(6, _losses(settings)),
        ),
    )


def _numbers(settings: Settings) -> list[Panel]:
    expiry, memory = to_dashboard(Dashboard.EXPIRY), to_dashboard(Dashboard.MEMORY)
    activations, stores = to_dashboard(Dashboard.ACTIVATIONS), to_dashboard(Dashboard.STORES)
    return [
        number(
            "Firing alerts",
            "Alerts of this bundle that fire now. Grey with no data where Prometheus has not loaded the "
            "rules.",
            "none",
            Query(f"count({q.FIRING}) or {RULES_LOADED}", "Firing"),
            steps=NONE_IS_GOOD,
            no_value="Rules not loaded",
        ),
        number(
            "Stores down",
            "Kinds of long-term store that at least one worker cannot reach. What is saved meanwhile fails "
            "its activation, is retried by the runner and, at expiry, stays in working memory.",
            "none",
            Query(f"sum(1 - min by (backend) ({q.selector(c.STORE_UP)}))", "Stores down"),
            steps=NONE_IS_GOOD,
            links=(to_runbook("BeamAgentsStoreDown", settings), stores),
            no_value="No store",
        ),
        number(
            "Wedged timers",
            "Expiry timers whose flush has failed and not yet succeeded. Their keys' memory is kept until "
            "it does.",
            "none",
            Query(f"sum({q.selector(c.EXPIRE_WEDGED_TIMERS)})", "Wedged timers"),
            steps=NONE_IS_GOOD,
            links=(to_runbook("BeamAgentsExpireTimersWedged", settings), expiry),
            no_value="No store",
        ),
        number(
            "Failed activations",
            "Activations that failed in the time shown, attempts that succeeded later included. Their "
            "events are on the errors output or are retried.",
            "short",
            Query(q.count_over_range(c.ACTIVATIONS, outcome='="failed"'), "Failed"),
            steps=NONE_IS_GOOD,
            links=(to_runbook("BeamAgentsActivationErrorBudgetBurn", settings), activations),
            decimals=0,
            over_range=True,
        ),
        number(
            "Stale upserts",
            "Rows that a store refused in the time shown, because it holds newer ones. A few are replays; "
            "many are reprocessing, a clock in the past, or two pipelines on one entity.",
            "short",
            Query(q.count_over_range(c.LONGTERM_UPSERTS, result='="stale"'), "Stale"),
            steps=NONE_IS_BETTER,
            links=(to_runbook("BeamAgentsStaleUpserts", settings), stores),
            decimals=0,
            no_value="No store",
            over_range=True,
        ),
        number(
            "Suspensions wiped",
            "Suspended activations whose key expired before the answer came, in the time shown: lost work.",
            "short",
            Query(q.count_over_range(c.TTL_WIPED_SUSPENSIONS), "Wiped"),
            steps=NONE_IS_GOOD,
            links=(to_runbook("BeamAgentsSuspensionsWiped", settings), expiry),
            decimals=0,
            over_range=True,
        ),
        number(
            "Writes refused",
            "Writes to working memory that were refused at the hard cap, in the time shown: each fails its "
            "activation.",
            "short",
            Query(q.count_over_range(c.MEMORY_OVERFLOWS), "Refused"),
            steps=NONE_IS_GOOD,
            links=(to_runbook("BeamAgentsMemoryOverflow", settings), memory),
            decimals=0,
            over_range=True,
        ),
        number(
            "Evicted",
            "Bytes of working memory that the compactor evicted in the time shown. By design, not a fault: "
            "the agent's policy says what may go. Much more than usual is worth a look.",
            "bytes",
            Query(q.count_over_range(c.COMPACTION_EVICTED_BYTES), "Evicted"),
            steps=((None, BLUE),),
            links=(to_runbook("BeamAgentsEvictionStorm", settings), memory),
            over_range=True,
        ),
    ]


def _service(settings: Settings) -> list[Panel]:
    activations = to_dashboard(Dashboard.ACTIVATIONS)
    return [
        lines(
            "Activations by outcome",
            "Activations that ended, each attempt counted. A suspended one goes on when its answer comes.",
            "ops",
            outcomes(),
            links=(activations,),
            stacked=True,
        ),
        lines(
            "Activation latency",
            "Wall time of an activation, failed ones included. A rise with no rise in load is a slow model, "
            "tool or store: the Activations dashboard tells them apart.",
            "s",
            percentiles(c.ACTIVATION_DURATION_SECONDS),
            links=(activations,),
        ),
        lines(
            "Error budget burn",
            "How many times faster than its objective allows the error budget is spent: at 1 it lasts "
            "exactly for the period, above 14.4 over an hour someone is paged.",
            "none",
            burn_queries(),
            links=(
                to_runbook("BeamAgentsActivationErrorBudgetBurn", settings),
                to_runbook("BeamAgentsStoreFlushErrorBudgetBurn", settings),
            ),
            steps=((None, GREEN), (1, AMBER), (14.4, RED)),
            high=2,
            no_value="No data: nothing was measured, or Prometheus has not loaded the recording rules.",
        ),
    ]


def _stores(settings: Settings) -> list[Panel]:
    stores, activations = to_dashboard(Dashboard.STORES), to_dashboard(Dashboard.ACTIVATIONS)
    return [
        lines(
            "Stores up",
            "Share of workers that reach each kind of store, by its last probe or call. Below 100 % some "
            "cannot; a gap means that no worker reported.",
            "percentunit",
            [Query(f"avg by (backend) ({q.selector(c.STORE_UP)})", "{{backend}}")],
            links=(to_runbook("BeamAgentsStoreDown", settings), stores),
            high=1,
            no_value="No store: these agents have no long-term tier, or nothing is scraped.",
        ),
        lines(
            "Failed flushes by type",
            "Flushes to the long-term tier that failed. Each fails its activation, which the runner tries "
            "again.",
            "ops",
            [
                Query(
                    q.per_second(c.LONGTERM_FLUSH_FAILURES, by=("backend", "error_type")),
                    "{{backend}} {{error_type}}",
                )
            ],
            links=(to_runbook("BeamAgentsStoreFlushErrorBudgetBurn", settings), stores),
            no_value="No flush has failed since these workers started.",
        ),
        lines(
            "Errors by reason",
            "Records on the errors output, orphaned tool results among them. Flat at 0 is good.",
            "ops",
            [
                Query(q.per_second(c.ACTIVATION_ERRORS, by=("reason",)) + " > 0", "{{reason}}"),
                Query(q.per_second(c.ORPHANED_RESULTS) + " > 0", "orphaned_result"),
            ],
            links=(to_runbook("BeamAgentsActivationErrorBudgetBurn", settings), activations),
            no_value="No error in this time.",
        ),
    ]


def _losses(settings: Settings) -> list[Panel]:
    expiry, memory = to_dashboard(Dashboard.EXPIRY), to_dashboard(Dashboard.MEMORY)
    return [
        lines(
            "Wedged timers by agent",
            "Expiry timers whose flush has failed and not yet succeeded. The memory is kept until it does. "
            "More than a passing bump pages someone.",
            "none",
            [
                Query(
                    f"sum by (agent, backend) ({q.selector(c.EXPIRE_WEDGED_TIMERS)})", "{{agent}} {{backend}}"
                )
            ],
            links=(to_runbook("BeamAgentsExpireTimersWedged", settings), expiry),
            high=1,
            no_value="No store: these agents have no long-term tier, or nothing is scraped.",
        ),
        lines(
            "Lost or refused work",
            "Stale rows that a store refused, suspensions wiped before their answer came, writes refused at "
            "the hard cap. Flat at 0 is good.",
            "ops",
            [
                Query(q.per_second(c.LONGTERM_UPSERTS, result='="stale"'), "stale upserts", color=AMBER),
                Query(q.per_second(c.TTL_WIPED_SUSPENSIONS), "suspensions wiped", color=RED),
                Query(q.per_second(c.MEMORY_OVERFLOWS), "writes refused", color="purple"),
            ],
            links=(
                to_runbook("BeamAgentsStaleUpserts", settings),
                to_runbook("BeamAgentsSuspensionsWiped", settings),
            ),
        ),
        lines(
            "Evicted bytes",
            "Bytes of working memory that the compactor evicted. By design, but a storm means that agents "
            "remember more than they have room for.",
            "Bps",
            [Query(q.per_second(c.COMPACTION_EVICTED_BYTES, by=("agent",)), "{{agent}}")],
            links=(to_runbook("BeamAgentsEvictionStorm", settings), memory),
        ),
    ]

"""The dashboard *Expiry*: which timers are wedged, since when, and whether keys are reclaimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals import catalogue as c
from beam_agents_dashboards.grafana import queries as q
from beam_agents_dashboards.grafana.common import NONE_IS_GOOD, call_outcomes, percentiles
from beam_agents_dashboards.grafana.frame import Band, Page, to_dashboard, to_runbook
from beam_agents_dashboards.grafana.panels import AMBER, BLUE, GREEN, RED, Query, heat, lines, number
from beam_agents_dashboards.names import Dashboard

if TYPE_CHECKING:
    from beam_agents_dashboards.grafana.panels import Panel
    from beam_agents_dashboards.settings import Settings

__all__ = ["page"]

_NO_STORE = "No store: these agents have no long-term tier, or nothing is scraped."
_NONE_DUE = "No data: no key has been due in this time."


def page(settings: Settings) -> Page:
    """Return the dashboard."""
    return Page(
        Dashboard.EXPIRY,
        "beam-agents / Expiry",
        "Are keys flushed and reclaimed when they are due, and which timers are wedged?",
        (
            Band(4, _numbers(settings)),
            Band(8, _wedged(settings), "Wedged timers"),
            Band(8, _flushes(settings), "Keys that were due"),
            Band(8, _timers(settings)),
        ),
    )


def _numbers(settings: Settings) -> list[Panel]:
    wedged = to_runbook("BeamAgentsExpireTimersWedged", settings)
    failed = q.count_over_range(c.EXPIRE_FLUSHES, outcome='!="ok"')
    return [
        number(
            "Wedged now",
            "Expiry timers whose flush has failed and not yet succeeded. Their memory is kept.",
            "none",
            Query(f"sum({q.selector(c.EXPIRE_WEDGED_TIMERS)})", "Wedged"),
            steps=NONE_IS_GOOD,
            links=(wedged,),
            no_value="No store",
        ),
        number(
            "Wedged for",
            "Time since the first failure of the timer that has failed for longest.",
            "s",
            Query(f"max({q.selector(c.EXPIRE_WEDGED_OLDEST_SECONDS)})", "Oldest"),
            steps=((None, GREEN), (1e-9, AMBER), (settings.wedged_s, RED)),
            links=(wedged,),
            texts={"0": "none wedged"},
            no_value="No store",
            decimals=0,
        ),
        number(
            "Flushed",
            "Keys that were flushed at expiry in the time shown.",
            "short",
            Query(q.count_over_range(c.EXPIRE_FLUSHES, outcome='="ok"'), "Flushed"),
            steps=((None, BLUE),),
            no_value="No store",
            decimals=0,
            over_range=True,
        ),
        number(
            "Failed attempts",
            "Attempts to flush a key at expiry that failed in the time shown. Each is repeated.",
            "short",
            Query(failed, "Failed"),
            steps=NONE_IS_GOOD,
            links=(wedged,),
            no_value="No store",
            decimals=0,
            over_range=True,
        ),
        number(
            "Lost from sight",
            "Wedged timers that a worker has not seen again, in the time shown: another worker may have "
            "them, or the runner has dropped the key.",
            "short",
            Query(q.count_over_range(c.EXPIRE_WEDGES_LOST_SIGHT), "Lost from sight"),
            steps=((None, GREEN), (1e-9, AMBER)),
            links=(wedged,),
            no_value="No store",
            decimals=0,
            over_range=True,
        ),
        number(
            "Suspensions wiped",
            "Suspended activations whose key expired before the answer came, in the time shown: lost work.",
            "short",
            Query(q.count_over_range(c.TTL_WIPED_SUSPENSIONS), "Wiped"),
            steps=NONE_IS_GOOD,
            links=(to_runbook("BeamAgentsSuspensionsWiped", settings),),
            decimals=0,
            over_range=True,
        ),
    ]


def _wedged(settings: Settings) -> list[Panel]:
    wedged = to_runbook("BeamAgentsExpireTimersWedged", settings)
    by = "sum by (agent, backend)"
    return [
        lines(
            "Wedged timers",
            "By agent and store. A line that does not come down is a store that is down or refuses the rows.",
            "none",
            [Query(f"{by} ({q.selector(c.EXPIRE_WEDGED_TIMERS)})", "{{agent}} {{backend}}")],
            links=(wedged, to_dashboard(Dashboard.STORES)),
            high=1,
            no_value=_NO_STORE,
        ),
        lines(
            "Oldest wedged timer",
            "Time since its first failure, with the age that pages someone.",
            "s",
            [
                Query(
                    f"max by (agent, backend) ({q.selector(c.EXPIRE_WEDGED_OLDEST_SECONDS)})",
                    "{{agent}} {{backend}}",
                )
            ],
            links=(wedged,),
            steps=((None, GREEN), (settings.wedged_s, RED)),
            no_value=_NO_STORE,
        ),
        lines(
            "Timers set again, and lost from sight",
            "Timers that were set again because their flush failed, and wedged ones that their worker has "
            "not seen again.",
            "ops",
            [
                Query(q.per_second(c.EXPIRE_REARMS, by=("backend",)), "{{backend}} set again"),
                Query(
                    q.per_second(c.EXPIRE_WEDGES_LOST_SIGHT, by=("backend",)), "{{backend}} lost from sight"
                ),
            ],
            links=(wedged,),
            no_value=_NO_STORE,
        ),
    ]


def _flushes(settings: Settings) -> list[Panel]:
    wedged = to_runbook("BeamAgentsExpireTimersWedged", settings)
    return [
        lines(
            "Flushes at expiry",
            "Attempts to flush a key as it expired, by how they ended.",
            "ops",
            call_outcomes(c.EXPIRE_FLUSHES),
            links=(wedged,),
            stacked=True,
            no_value="No data: no key has been flushed at expiry.",
        ),
        lines(
            "Share of failed flushes",
            "Of all attempts at expiry. At 100 % nothing gets through.",
            "percentunit",
            [
                Query(
                    q.share(c.EXPIRE_FLUSHES, by=("backend",), outcome='!="ok"'),
                    "{{backend}}",
                )
            ],
            links=(wedged,),
            high=1,
            no_value="No data: no key has been flushed at expiry in this time.",
        ),
        lines(
            "Keys reclaimed",
            "Keys whose memory was wiped: flushed before, not flushed as there is no long-term tier, or "
            "empty.",
            "ops",
            [
                Query(q.per_second(c.TTL_WIPES, flushed='="true"'), "flushed", color=GREEN),
                Query(q.per_second(c.TTL_WIPES, flushed='="false"'), "not flushed", color=AMBER),
                Query(q.per_second(c.TTL_WIPES, flushed='="empty"'), "empty", color=BLUE),
            ],
            stacked=True,
        ),
    ]


def _timers(settings: Settings) -> list[Panel]:
    failing = to_runbook("BeamAgentsTimerBundlesFailing", settings)
    return [
        lines(
            "Timers due, and early",
            "Expiry timers that fired for a key that was due, and those that fired before and were set "
            "again.",
            "ops",
            [
                Query(q.per_second(c.TIMER_LATENESS_SECONDS), "due", color=BLUE),
                Query(q.per_second(c.TIMERS_EARLY), "early", color="purple"),
            ],
            no_value=_NONE_DUE,
        ),
        lines(
            "Timer lateness",
            "How long after its key was due a timer fired. It follows the watermark: hours are no fault if "
            "the source lags by hours.",
            "s",
            percentiles(c.TIMER_LATENESS_SECONDS),
            no_value=_NONE_DUE,
        ),
        heat(
            "Timer lateness, spread",
            "How many timers fired how late.",
            "s",
            Query(q.buckets(c.TIMER_LATENESS_SECONDS), "{{le}}"),
            no_value=_NONE_DUE,
        ),
        lines(
            "Failed timer bundles",
            "Bundles that an exception in a timer ended. The runner tries them again, for ever on some.",
            "ops",
            [Query(q.per_second(c.BUNDLE_FAILURES, by=("agent",), phase='="timer"'), "{{agent}}")],
            links=(failing,),
        ),
    ]

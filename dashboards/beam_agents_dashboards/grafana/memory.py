"""The dashboard *Memory*: how full working memory is, and what leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals import catalogue as c
from beam_agents_dashboards.grafana import queries as q
from beam_agents_dashboards.grafana.common import percentiles
from beam_agents_dashboards.grafana.frame import Band, Page, to_dashboard, to_runbook
from beam_agents_dashboards.grafana.panels import AMBER, BLUE, GREEN, RED, Query, bars, heat, lines
from beam_agents_dashboards.names import Dashboard

if TYPE_CHECKING:
    from beam_agents_dashboards.grafana.panels import Panel
    from beam_agents_dashboards.settings import Settings

__all__ = ["page"]

_NO_ACTIVATION = "No data: no activation has committed in this time."


def page(settings: Settings) -> Page:
    """Return the dashboard."""
    return Page(
        Dashboard.MEMORY,
        "beam-agents / Memory",
        "How full working memory is, what the compactor evicts, and what summaries save.",
        (
            Band(8, _size(), "Size"),
            Band(8, _caps(settings), "Caps and compaction"),
            Band(8, _evictions(settings)),
            Band(8, _leaving(settings), "Summaries and expiry"),
        ),
    )


def _size() -> list[Panel]:
    return [
        lines(
            "Memory per key",
            "Size of a key's working memory as an activation committed it. The 99th percentile near the "
            "soft cap means that compaction is at work.",
            "bytes",
            percentiles(c.MEMORY_SIZE_BYTES),
            no_value=_NO_ACTIVATION,
        ),
        heat(
            "Memory per key, spread",
            "How many activations left how much behind.",
            "bytes",
            Query(q.buckets(c.MEMORY_SIZE_BYTES), "{{le}}"),
            no_value=_NO_ACTIVATION,
        ),
        lines(
            "Entries per key",
            "Scalars and ring items of a key, as an activation committed them.",
            "short",
            percentiles(c.MEMORY_ENTRIES),
            no_value=_NO_ACTIVATION,
        ),
    ]


def _caps(settings: Settings) -> list[Panel]:
    overflow = to_runbook("BeamAgentsMemoryOverflow", settings)
    return [
        lines(
            "Soft cap crossings",
            "Writes that took a key over the soft cap. The compactor answers them; they lose nothing by "
            "themselves.",
            "ops",
            [Query(q.per_second(c.MEMORY_SOFT_CAP_CROSSINGS, by=("agent",)), "{{agent}}")],
        ),
        lines(
            "Writes refused at the hard cap",
            "Each fails its activation. Flat at 0 is good.",
            "ops",
            [Query(q.per_second(c.MEMORY_OVERFLOWS, by=("agent",)), "{{agent}}")],
            links=(overflow,),
        ),
        lines(
            "Compaction runs",
            "By the cap that set the compactor off. Runs at the hard cap come just before writes are "
            "refused.",
            "ops",
            [
                Query(q.per_second(c.COMPACTION_RUNS, trigger='="soft_cap"'), "soft cap", color=BLUE),
                Query(q.per_second(c.COMPACTION_RUNS, trigger='="hard_cap"'), "hard cap", color=AMBER),
            ],
            links=(overflow,),
        ),
    ]


def _evictions(settings: Settings) -> list[Panel]:
    storm = to_runbook("BeamAgentsEvictionStorm", settings)
    return [
        lines(
            "Evicted entries",
            "Entries that the compactor evicted, by the agent's own policy.",
            "ops",
            [Query(q.per_second(c.COMPACTION_EVICTIONS, by=("agent",)), "{{agent}}")],
            links=(storm,),
        ),
        lines(
            "Evicted bytes",
            "Bytes that the compactor evicted. Far above the same hour of other days is a storm.",
            "Bps",
            [Query(q.per_second(c.COMPACTION_EVICTED_BYTES, by=("agent",)), "{{agent}}")],
            links=(storm,),
        ),
        lines(
            "Keys compacted again at once",
            "Keys that were compacted again within a few activations: their memory thrashes, and the soft "
            "cap is too low for what the agent keeps.",
            "ops",
            [Query(q.per_second(c.MEMORY_COMPACTION_COOLDOWN_BREACHES, by=("agent",)), "{{agent}}")],
            links=(storm,),
            no_value="No key has been compacted twice in a row since these workers started.",
        ),
    ]


def _leaving(settings: Settings) -> list[Panel]:
    failing = to_runbook("BeamAgentsSummariesFailing", settings)
    return [
        lines(
            "Summaries by outcome",
            "Attempts to fold old ring items into a summary. One that failed fails its activation; one that "
            "is not smaller is thrown away.",
            "ops",
            [
                Query(q.per_second(c.SUMMARIES, outcome='="error"'), "error", color=RED),
                Query(q.per_second(c.SUMMARIES, outcome='="not_smaller"'), "not smaller", color=AMBER),
                Query(q.per_second(c.SUMMARIES, outcome='="ok"'), "ok", color=GREEN),
            ],
            links=(failing,),
            stacked=True,
        ),
        lines(
            "Bytes saved by summaries",
            "Working memory that summaries gave back.",
            "Bps",
            [Query(q.per_second(c.SUMMARY_BYTES_RECLAIMED, by=("agent",)), "{{agent}}")],
            links=(failing,),
        ),
        bars(
            "Keys reclaimed at expiry",
            "Keys whose memory was wiped in the time shown: flushed to the long-term tier before, not "
            "flushed as there is none, or empty.",
            "short",
            Query(q.count_over_range(c.TTL_WIPES, by=("flushed",)), "flushed: {{flushed}}"),
            links=(to_dashboard(Dashboard.EXPIRY),),
            steps=((None, BLUE),),
        ),
    ]

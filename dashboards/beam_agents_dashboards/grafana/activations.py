"""The dashboard *Activations*: how agents do, and where their time and tokens go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.signals import catalogue as c
from beam_agents_dashboards.grafana import queries as q
from beam_agents_dashboards.grafana.common import call_outcomes, outcomes, percentiles
from beam_agents_dashboards.grafana.frame import Band, Page, to_runbook
from beam_agents_dashboards.grafana.panels import AMBER, BLUE, GREEN, RED, Query, heat, lines
from beam_agents_dashboards.names import Dashboard

if TYPE_CHECKING:
    from beam_agents_dashboards.grafana.panels import Panel
    from beam_agents_dashboards.settings import Settings

__all__ = ["page"]

_NO_MODEL = "No data: no agent has called a model through the runtime."
_NO_TOOL = "No data: no agent has called a tool."


def page(settings: Settings) -> Page:
    """Return the dashboard."""
    return Page(
        Dashboard.ACTIVATIONS,
        "beam-agents / Activations",
        "How agents do, and where their time and their tokens go.",
        (
            Band(8, _throughput(settings), "Throughput and errors"),
            Band(8, _running(settings)),
            Band(8, _time(), "Time"),
            Band(8, _models(), "Models"),
            Band(8, _cache(settings), "Replay, tools and suspensions"),
        ),
    )


def _throughput(settings: Settings) -> list[Panel]:
    burn = to_runbook("BeamAgentsActivationErrorBudgetBurn", settings)
    return [
        lines(
            "Activations by outcome",
            "Activations that ended, each attempt counted. A suspended one goes on when its answer comes.",
            "ops",
            outcomes(),
            links=(burn,),
            stacked=True,
        ),
        lines(
            "Failed share by agent",
            "Share of activations that failed, with what the objective allows.",
            "percentunit",
            [
                Query(
                    q.share(c.ACTIVATIONS, by=("agent",), outcome='="failed"'),
                    "{{agent}}",
                )
            ],
            links=(burn,),
            steps=((None, GREEN), (round(1 - settings.activation_slo, 12), RED)),
            no_value="No data: no activation has ended in this time.",
        ),
        lines(
            "Errors by reason",
            "Records on the errors output, orphaned tool results among them.",
            "ops",
            [
                Query(q.per_second(c.ACTIVATION_ERRORS, by=("reason",)) + " > 0", "{{reason}}"),
                Query(q.per_second(c.ORPHANED_RESULTS) + " > 0", "orphaned_result"),
            ],
            links=(burn,),
            no_value="No error in this time.",
        ),
    ]


def _running(settings: Settings) -> list[Panel]:
    stuck = to_runbook("BeamAgentsActivationStuck", settings)
    return [
        lines(
            "In flight",
            "Activations that run at the moment of the scrape, on all workers.",
            "none",
            [Query(f"sum by (agent) ({q.selector(c.ACTIVATIONS_IN_FLIGHT)})", "{{agent}}")],
            links=(stuck,),
            high=1,
        ),
        lines(
            "Oldest in flight",
            "Age of the oldest activation that runs, with the age at which it counts as stuck: twice its "
            "timeout.",
            "s",
            [Query(f"max by (agent) ({q.selector(c.OLDEST_ACTIVATION_AGE_SECONDS)})", "{{agent}}")],
            links=(stuck,),
            steps=((None, GREEN), (2 * settings.activation_timeout_s, RED)),
        ),
        lines(
            "Event loop stalls",
            "Times that a thread waited too long for the process's event loop: something in an agent, model "
            "or tool blocks it.",
            "ops",
            [Query(q.per_second(c.EVENT_LOOP_STALLS, by=("agent",)), "{{agent}}")],
            links=(stuck,),
        ),
    ]


def _time() -> list[Panel]:
    return [
        lines(
            "Activation latency",
            "Wall time of an activation, failed ones included.",
            "s",
            percentiles(c.ACTIVATION_DURATION_SECONDS),
        ),
        heat(
            "Activation latency, spread",
            "How many activations took how long.",
            "s",
            Query(q.buckets(c.ACTIVATION_DURATION_SECONDS), "{{le}}", exemplars=True),
        ),
        lines(
            "Runtime overhead",
            "Wall time of an activation less the time in models, tools and stores: what the runtime itself "
            "costs.",
            "s",
            percentiles(c.RUNTIME_OVERHEAD_SECONDS),
        ),
    ]


def _models() -> list[Panel]:
    return [
        lines(
            "Model calls by outcome",
            "Calls that reached the provider. Repeated attempts are answered from the replay cache, and are "
            "not here.",
            "ops",
            call_outcomes(c.MODEL_CALLS),
            stacked=True,
            no_value=_NO_MODEL,
        ),
        lines(
            "Model latency",
            "95th percentile of calls that reached the provider, by model.",
            "s",
            [
                Query(
                    q.percentile(0.95, c.MODEL_CALL_DURATION_SECONDS, by=("model",)),
                    "{{model}} p95",
                    exemplars=True,
                )
            ],
            no_value=_NO_MODEL,
        ),
        lines(
            "Tokens per second",
            "Tokens that models read (prompt) and wrote (completion), as billed.",
            "short",
            [Query(q.per_second(c.TOKENS, by=("model", "direction")), "{{model}} {{direction}}")],
            no_value=_NO_MODEL,
        ),
    ]


def _cache(settings: Settings) -> list[Panel]:
    missing = to_runbook("BeamAgentsReplayCacheMissing", settings)
    return [
        lines(
            "Replay cache",
            "Look-ups: a first attempt misses, a repeated one hits. A drift is a repeated call that the "
            "provider answered differently.",
            "ops",
            [
                Query(q.per_second(c.REPLAY_CACHE_REQUESTS, result='="hit"'), "hit", color=GREEN),
                Query(q.per_second(c.REPLAY_CACHE_REQUESTS, result='="miss"'), "miss", color=BLUE),
                Query(q.per_second(c.REPLAY_CACHE_DRIFTS), "drift", color=RED),
            ],
            links=(missing,),
        ),
        lines(
            "Tool calls",
            "Read-only tools that ran inside an activation.",
            "ops",
            [Query(q.per_second(c.TOOL_CALLS, by=("tool",)), "{{tool}}")],
            no_value=_NO_TOOL,
        ),
        lines(
            "Intents",
            "Tool intents that committed activations emitted, for the pipeline to carry out.",
            "ops",
            [Query(q.per_second(c.INTENTS_EMITTED, by=("tool",)), "{{tool}}")],
            no_value="No data: no agent has emitted an intent.",
        ),
        lines(
            "Suspensions",
            "Activations that suspended, results that no suspension waited for, and suspensions that were "
            "wiped.",
            "ops",
            [
                Query(q.per_second(c.ACTIVATIONS, outcome='="suspend"'), "suspended", color=BLUE),
                Query(q.per_second(c.ORPHANED_RESULTS), "orphaned results", color=AMBER),
                Query(q.per_second(c.TTL_WIPED_SUSPENSIONS), "wiped", color=RED),
            ],
            links=(to_runbook("BeamAgentsSuspensionsWiped", settings),),
        ),
    ]

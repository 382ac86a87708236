"""The demo's agent: it watches one aircraft, and says when its delays get out of hand.

Each departure or cancellation is one event, keyed by the aircraft's tail number. The newest legs are kept one
by one; older ones are folded into a summary, through the model, as an agent would have its notes condensed.

In the long-term tier an aircraft has a row of totals, one more for each month, and, once it has expired, its
whole working memory: an aircraft that flies again later goes on from there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from beam_agents.config import AgentConfig
from beam_agents.memory.compaction import SummarizeCompactor
from beam_agents.memory.expiry import FlushToLongterm, restore_working_memory
from beam_agents.model.scripted import ScriptedModel
from beam_agents.model.types import LlmRequest, LlmResponse
from beam_agents.runtime.outcomes import Complete

if TYPE_CHECKING:
    from beam_agents.runtime.context import AgentContext

__all__ = [
    "LIMIT_MINUTES",
    "MONTH_PREFIX",
    "PROFILE",
    "RECENT_LEGS",
    "WORKING_MEMORY",
    "flights_config",
    "watch_aircraft",
]

RECENT_LEGS: Final = 8
LIMIT_MINUTES: Final = 60
"""An alert is due when the mean departure delay of the last RECENT_LEGS legs gets over this."""

PROFILE: Final = "profile"
"""The totals of the aircraft: an entry of working memory, and a long-term row."""
MONTH_PREFIX: Final = "month/"
"""Before a month, such as 2013-01, in UTC: the totals of its flights; likewise."""
WORKING_MEMORY: Final = "working_memory"
"""The long-term row that has the working memory of an aircraft that expired."""

LEGS: Final = "legs"
SUMMARY: Final = "summary"
LATE: Final = "late"

Object: TypeAlias = dict[str, Any]


async def watch_aircraft(ctx: AgentContext) -> Complete:
    """Take in one flight of the aircraft, and return the aircraft's statistics."""
    await _remember(ctx)
    flight = _parse(ctx.event)
    delay = None if flight["dep_time"] == "NA" else int(flight["dep_delay"])
    if delay is not None:
        leg = {
            "flight": f"{flight['carrier']}{flight['flight']}",
            "route": f"{flight['origin']}-{flight['dest']}",
            "scheduled": flight["scheduled"],
            "delay_minutes": delay,
        }
        ctx.memory.append(LEGS, _dump(leg))
    profile = _count(ctx, PROFILE, delay)
    _count(ctx, MONTH_PREFIX + flight["scheduled"][:7], delay)

    legs = [_parse(item) for item in ctx.memory.ring(LEGS)]
    recent = [leg["delay_minutes"] for leg in legs[-RECENT_LEGS:]]
    late = len(recent) == RECENT_LEGS and sum(recent) > RECENT_LEGS * LIMIT_MINUTES
    alert = late and LATE not in ctx.memory  # once, when the limit is crossed
    if late:
        ctx.memory.set(LATE, b"")
    else:
        ctx.memory.delete(LATE)

    summary = _parse(ctx.memory.get(SUMMARY))
    status = {
        "aircraft": ctx.entity_key.decode(),
        "scheduled": flight["scheduled"],
        **profile,
        "late": late,
        "recent_delay_minutes": sum(recent),
        "legs_in_memory": len(legs),
        "legs_in_summary": summary.get("legs", 0),
        "alert": alert,
    }
    return Complete(_dump(status))


async def _remember(ctx: AgentContext) -> None:
    """Bring back what was known of an aircraft that expired, at its first flight after that.

    Only its expiry writes that row, never an activation: a retry reads the same.
    """
    if len(ctx.memory) == 0:
        kept = await ctx.memory.longterm.load(WORKING_MEMORY)
        if kept is not None:
            restore_working_memory(ctx.memory, kept.value)


def _count(ctx: AgentContext, key: str, delay: int | None) -> Object:
    """Add a flight to the totals under a key of working memory, save them as a long-term row, return them.

    Args:
        ctx: The activation.
        key: The key, in both tiers.
        delay: The departure delay in minutes; None for a flight that was cancelled.
    """
    totals = _parse(ctx.memory.get(key)) or {
        "departures": 0,
        "cancellations": 0,
        "delay_minutes": 0,
        "worst_delay_minutes": None,
    }
    if delay is None:
        totals["cancellations"] += 1
    else:
        worst = totals["worst_delay_minutes"]
        totals["departures"] += 1
        totals["delay_minutes"] += delay
        totals["worst_delay_minutes"] = delay if worst is None else max(worst, delay)
    ctx.memory.set(key, _dump(totals))
    # Counted in working memory, not from the row: a retry may find the row that its failed attempt wrote.
    ctx.memory.longterm.save(key, _dump(totals))
    return totals


def summary_request(legs: tuple[bytes, ...], prior_summary: bytes | None) -> LlmRequest:
    """Ask the model to fold legs into what is known of the older ones."""
    body = {"legs": [_parse(leg) for leg in legs], "prior": _parse(prior_summary)}
    return LlmRequest(model="scripted-summarizer", body=_dump(body))


def summary_of(response: bytes) -> bytes:
    """Return the summary in the model's answer: all of it."""
    return response


def scripted_summary(request: LlmRequest) -> LlmResponse:
    """Stand in for a model: answer a summary_request, with no network and always alike."""
    body = json.loads(request.body)
    legs, prior = body["legs"], body["prior"]
    delays = [leg["delay_minutes"] for leg in legs]
    answer = {
        "legs": len(legs) + prior.get("legs", 0),
        "delay_minutes": sum(delays) + prior.get("delay_minutes", 0),
        "worst_delay_minutes": max([*delays, prior.get("worst_delay_minutes", delays[0])]),
        "until": legs[-1]["scheduled"],
    }
    text = _dump(answer)
    return LlmResponse(text, prompt_tokens=len(request.body) // 4, completion_tokens=len(text) // 4)


def flights_config(longterm_memory: str) -> AgentConfig:
    """Return the agent's configuration.

    Args:
        longterm_memory: The URI of the long-term store, which must have been provisioned.
    """
    return AgentConfig(
        provider_factory=ScriptedModel(scripted_summary),
        summarizer=SummarizeCompactor(
            build_request=summary_request,
            extract_summary=summary_of,
            source_keys=(LEGS,),
            summary_key=SUMMARY,
            keep_recent=RECENT_LEGS,
            # A year's months, what is kept of the legs, and as many new legs again.
            trigger_bytes=3_072,
        ),
        longterm_memory=longterm_memory,
        on_expire=FlushToLongterm(key=WORKING_MEMORY),
        ttl_ms=30 * 86_400_000,
    )


def _parse(value: bytes | None) -> Object:
    parsed: Object = json.loads(value) if value else {}
    return parsed


def _dump(value: Object) -> bytes:
    return json.dumps(value).encode()

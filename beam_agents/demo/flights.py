"""The demo's agent: it watches one aircraft, and says when its delays get out of hand.

Each departure or cancellation is one event, keyed by the aircraft's tail number. The newest legs are kept one
by one; older ones are folded into a summary, through the model, as an agent would have its notes condensed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from beam_agents.config import AgentConfig
from beam_agents.memory.compaction import SummarizeCompactor
from beam_agents.model.scripted import ScriptedModel
from beam_agents.model.types import LlmRequest, LlmResponse
from beam_agents.runtime.outcomes import Complete

if TYPE_CHECKING:
    from beam_agents.runtime.context import AgentContext

__all__ = ["CONFIG", "LIMIT_MINUTES", "RECENT_LEGS", "watch_aircraft"]

RECENT_LEGS: Final = 8
LIMIT_MINUTES: Final = 60
"""An alert is due when the mean departure delay of the last RECENT_LEGS legs gets over this."""

LEGS: Final = "legs"
SUMMARY: Final = "summary"
STATISTICS: Final = "statistics"

Object: TypeAlias = dict[str, Any]


async def watch_aircraft(ctx: AgentContext) -> Complete:
    """Take in one flight of the aircraft, and return the aircraft's statistics."""
    flight = _parse(ctx.event)
    statistics = _parse(ctx.memory.get(STATISTICS)) or {
        "departures": 0,
        "cancellations": 0,
        "delay_minutes": 0,
        "worst_delay_minutes": None,
        "late": False,
    }
    if flight["dep_time"] == "NA":
        statistics["cancellations"] += 1
    else:
        delay = int(flight["dep_delay"])
        worst = statistics["worst_delay_minutes"]
        statistics["departures"] += 1
        statistics["delay_minutes"] += delay
        statistics["worst_delay_minutes"] = delay if worst is None else max(worst, delay)
        leg = {
            "flight": f"{flight['carrier']}{flight['flight']}",
            "route": f"{flight['origin']}-{flight['dest']}",
            "scheduled": flight["scheduled"],
            "delay_minutes": delay,
        }
        ctx.memory.append(LEGS, _dump(leg))

    legs = [_parse(item) for item in ctx.memory.ring(LEGS)]
    recent = [leg["delay_minutes"] for leg in legs[-RECENT_LEGS:]]
    late = len(recent) == RECENT_LEGS and sum(recent) > RECENT_LEGS * LIMIT_MINUTES
    alert = late and not statistics["late"]  # once, when the limit is crossed
    statistics["late"] = late
    ctx.memory.set(STATISTICS, _dump(statistics))

    summary = _parse(ctx.memory.get(SUMMARY))
    status = {
        "aircraft": ctx.entity_key.decode(),
        "scheduled": flight["scheduled"],
        **statistics,
        "recent_delay_minutes": sum(recent),
        "legs_in_memory": len(legs),
        "legs_in_summary": summary.get("legs", 0),
        "alert": alert,
    }
    return Complete(_dump(status))


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


CONFIG: Final = AgentConfig(
    provider_factory=ScriptedModel(scripted_summary),
    summarizer=SummarizeCompactor(
        build_request=summary_request,
        extract_summary=summary_of,
        source_keys=(LEGS,),
        summary_key=SUMMARY,
        keep_recent=RECENT_LEGS,
        trigger_bytes=2_048,
    ),
    ttl_ms=30 * 86_400_000,
)


def _parse(value: bytes | None) -> Object:
    parsed: Object = json.loads(value) if value else {}
    return parsed


def _dump(value: Object) -> bytes:
    return json.dumps(value).encode()

"""A job of version 1, which stays as it is (its savepoint is a golden file), and the one that follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from beam_agents import AgentConfig, AgentContext, Complete, DropOldestCompactor, Suspend
from beam_agents.model import LlmRequest
from beam_agents.model.replay import ReplayCacheLimits
from beam_agents.model.scripted import ScriptedModel
from beam_agents.testing import event

if TYPE_CHECKING:
    from beam_agents import AgentEnvelope

__all__ = ["EVENTS", "HOUR_MS", "START_MS", "V1", "V2", "agent_v1", "agent_v2"]

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

V1 = AgentConfig(provider_factory=ScriptedModel(lambda request: request.body.upper()), ttl_ms=HOUR_MS)

EVENTS: list[AgentEnvelope] = [
    event(b"ada", b"tea", time_ms=START_MS, event_id="1"),
    event(b"ada", b"coffee", time_ms=START_MS + 1, event_id="2"),
    event(b"bob", b"suspend one", time_ms=START_MS + 2, event_id="3"),
    event(b"cyd", b"suspend two", time_ms=START_MS + 3, event_id="4"),
    event(b"dan", b"water", time_ms=START_MS + 4, event_id="5"),
]
"""What version 1 was sent before it was stopped."""


async def agent_v1(ctx: AgentContext) -> Complete | Suspend:
    """Count the key's events, keep them, ask the model for each; ask for tools where told to."""
    assert ctx.event is not None
    ctx.memory.set("seen", b"%d" % (int(ctx.memory.get("seen", b"0")) + 1))
    ctx.memory.append("recent", ctx.event, max_items=8)
    answer = await ctx.call_model(LlmRequest("model-1", b"version 1: " + ctx.event))
    ctx.memory.set("answer", answer.body)
    ctx.memory.set("long", answer.body * 200)
    if not ctx.event.startswith(b"suspend"):
        return Complete(answer.body)
    for number in range(1 if ctx.event.endswith(b"one") else 2):
        ctx.act("reserve", b"%d" % number)
    return Suspend(snapshot=b"version 1 waits for " + ctx.event)


V2 = replace(
    V1,
    provider_factory=ScriptedModel(lambda request: request.body.lower()),
    ttl_ms=60_000,
    compactor=DropOldestCompactor(target_bytes=10_000),
    replay_cache=ReplayCacheLimits(max_entries=1),
)


async def agent_v2(ctx: AgentContext) -> Complete:
    """Go on with what version 1 left, under keys of its own, with another prompt."""
    if ctx.snapshot is not None:
        return Complete(b"%s: %s" % (ctx.snapshot, b"+".join(each.content for each in ctx.results)))
    ctx.memory.set("count", ctx.memory.get("seen", b"0") + b"+1")
    ctx.memory.delete("long")
    answer = await ctx.call_model(LlmRequest("model-2", b"VERSION 2"))
    recent = b",".join(ctx.memory.ring("recent")) if "recent" in ctx.memory else b"nothing"
    return Complete(b"%s %s %s" % (ctx.memory.get("count"), recent, answer.body))

"""Where activations start, as an agent's own threads show."""

from __future__ import annotations

import asyncio
import threading

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, LlmRequest
from beam_agents.testing import AgentHarness, ScriptedModel, event


def threads(kind: str, events: int = 4) -> list[tuple[bool, bool]]:
    """Return, for each activation, whether it began and whether it ended on the calling thread."""
    seen: list[tuple[bool, bool]] = []
    caller = threading.get_ident()

    async def agent(ctx: AgentContext) -> Complete:
        began = threading.get_ident()
        if kind == "model":
            await ctx.call_model(LlmRequest("small", ctx.event or b""))
        elif kind == "longterm":
            await ctx.memory.longterm.load("k")
        elif kind == "own":
            await asyncio.sleep(0)
        seen.append((began == caller, threading.get_ident() == caller))
        return Complete()

    model = ScriptedModel(lambda _: b"answer", latency_s=0.001)
    config = AgentConfig(provider_factory=model, longterm_memory="memory://")
    with AgentHarness(agent, config) as harness:
        for number in range(events):
            harness.send(event(b"k", b"%d" % number, time_ms=number + 1))
    return seen


def test_an_agent_that_waits_for_nothing_stays_on_the_calling_thread() -> None:
    assert threads("nothing") == [(False, False)] + [(True, True)] * 3


@pytest.mark.parametrize("kind", ["model", "longterm"])
def test_what_the_context_offers_changes_threads_in_time(kind: str) -> None:
    assert threads(kind) == [(False, False)] + [(True, False)] * 3


def test_an_agent_that_awaits_something_of_its_own_starts_where_it_goes_on() -> None:
    assert threads("own") == [(False, False)] * 4

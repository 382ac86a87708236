from __future__ import annotations

import asyncio
from typing import Any

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, LlmRequest, LlmResponse, Tool
from beam_agents.testing import AgentHarness, Emitted, ScriptedModel, event


def reply(request: LlmRequest) -> LlmResponse:
    return LlmResponse(request.body.upper(), prompt_tokens=2, completion_tokens=1)


def send(agent: Any, **fields: Any) -> tuple[Emitted, AgentHarness]:
    with AgentHarness(agent, AgentConfig(**fields)) as harness:
        return harness.send(event(b"k", b"event", time_ms=7, event_id="e1")), harness


def test_what_an_agent_sees() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        assert (ctx.entity_key, ctx.event, ctx.event_id) == (b"k", b"event", "e1")
        assert (ctx.seq, ctx.now_ms) == (7, 7)
        assert (ctx.result, ctx.results, ctx.snapshot) == (None, (), None)
        assert ctx.used_tokens == 0
        return Complete(b"seen")

    assert send(agent)[0].outputs == [b"seen"]


def test_equal_requests_of_one_activation_are_asked_once() -> None:
    model = ScriptedModel(reply, latency_s=0.01)

    async def agent(ctx: AgentContext) -> Complete:
        request = LlmRequest("small", b"a")
        together = await asyncio.gather(*(ctx.call_model(request) for _ in range(5)))
        later = await ctx.call_model(request)
        other = await ctx.call_model(LlmRequest("small", b"a", nonce="2"))
        assert {each.body for each in (*together, later, other)} == {b"A"}
        return Complete(b"%d" % ctx.used_tokens)

    emitted, harness = send(agent, provider_factory=model)
    assert emitted.outputs == [b"21"]
    assert model.call_count == 2
    assert harness.signals.total("model_calls_total") == 2
    assert harness.signals.total("replay_cache_requests_total", result="hit") == 5
    assert harness.signals.total("replay_cache_requests_total", result="miss") == 2
    assert harness.signals.total("tokens_total", direction="prompt") == 4


def test_waiting_for_a_model_is_not_the_runtimes_time() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        await asyncio.gather(*(ctx.call_model(LlmRequest("small", b"%d" % number)) for number in range(3)))
        return Complete()

    _, harness = send(agent, provider_factory=ScriptedModel(reply, latency_s=0.05))
    (duration_s,) = harness.signals.values("activation_duration_seconds")
    (overhead_s,) = harness.signals.values("runtime_overhead_seconds")
    # The three waits overlap, and count once.
    assert duration_s - overhead_s == pytest.approx(harness.signals.records[0].external_ns / 1e9)
    assert 0 <= overhead_s < duration_s
    assert harness.signals.records[0].external_ns < 3 * 0.05 * 1e9 + 1e9


def test_a_providers_failure_reaches_the_agent_and_is_counted() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        try:
            await ctx.call_model(LlmRequest("small", b"a"))
        except ConnectionError:
            response = await ctx.call_model(LlmRequest("small", b"a"))
            return Complete(response.body)
        return Complete()

    emitted, harness = send(agent, provider_factory=ScriptedModel(reply, failures={1: ConnectionError()}))
    assert emitted.outputs == [b"A"]
    assert harness.signals.total("model_calls_total", outcome="error") == 1
    assert harness.signals.total("model_calls_total", outcome="ok") == 1


def test_tools_run_once_and_their_results_are_kept() -> None:
    calls: list[bytes] = []

    async def look_up(arguments: bytes) -> bytes:
        calls.append(arguments)
        return arguments + b"!"

    async def agent(ctx: AgentContext) -> Complete:
        first = await ctx.run_tool("look_up", b"a")
        return Complete(first + await ctx.run_tool("look_up", b"a") + await ctx.run_tool("look_up", b"b"))

    emitted, harness = send(agent, tools=[Tool("look_up", look_up)])
    assert emitted.outputs == [b"a!a!b!"]
    assert calls == [b"a", b"b"]
    assert harness.signals.total("tool_calls_total", tool="look_up") == 2
    assert [
        step.attributes["beam_agents.cache_hit"] for step in harness.signals.steps("execute_tool {target}")
    ] == [
        False,
        True,
        False,
    ]


def test_intents_have_deterministic_distinct_ids() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        ids = [ctx.act("a", b"1"), ctx.act("a", b"1"), ctx.act("b", b"1"), ctx.act("a", b"2")]
        assert ids == [intent.intent_id for intent in ctx.intents]
        return Complete()

    first, _ = send(agent)
    second, _ = send(agent)
    assert first.intents == second.intents
    assert len({intent.intent_id for intent in first.intents}) == 4
    assert {(intent.seq, intent.event_time_ms, intent.entity_key) for intent in first.intents} == {
        (7, 7, b"k")
    }


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda ctx: ctx.act("", b""), ValueError),
        (lambda ctx: ctx.act(5, b""), ValueError),
        (lambda ctx: ctx.act("tool", "text"), TypeError),
        (lambda ctx: ctx.run_tool("tool", "text"), TypeError),
        (lambda ctx: ctx.run_tool("", b""), ValueError),
        (lambda ctx: ctx.call_model("prompt"), TypeError),
        (lambda ctx: ctx.memory.set("key", "text"), TypeError),
        (lambda ctx: ctx.memory.set("", b"value"), ValueError),
    ],
)
def test_a_wrong_call_raises_in_the_agents_own_stack(call: Any, error: type[Exception]) -> None:
    raised: list[type[Exception]] = []

    async def agent(ctx: AgentContext) -> Complete:
        try:
            result = call(ctx)
            if asyncio.iscoroutine(result):
                await result
        except Exception as caught:  # noqa: BLE001 - what it is, is asserted
            raised.append(type(caught))
        return Complete()

    send(agent, provider_factory=ScriptedModel(reply))
    assert len(raised) == 1
    assert issubclass(raised[0], error)


async def returns_text(arguments: bytes) -> bytes:  # noqa: ARG001 - a tool's signature
    return "text"  # type: ignore[return-value]  # the fault


def test_a_tool_or_client_of_the_wrong_kind_is_named() -> None:
    class Client:
        async def complete(self, request: LlmRequest) -> LlmResponse:
            return request.body  # type: ignore[return-value]  # the fault

        async def close(self) -> None:
            raise OSError  # a failing close skips nothing

    async def asks(ctx: AgentContext) -> Complete:
        await ctx.call_model(LlmRequest("small", b"a"))
        return Complete()

    async def reads(ctx: AgentContext) -> Complete:
        await ctx.run_tool("tool")
        return Complete()

    (error,) = send(asks, provider_factory=Client)[0].errors
    assert "must return" in error.detail
    (error,) = send(reads, tools=[Tool("tool", returns_text)])[0].errors
    assert "must return" in error.detail


def test_the_budget_counts_replayed_answers_too() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        for _ in range(4):
            await ctx.call_model(LlmRequest("small", b"a"))
        return Complete()

    assert send(agent, provider_factory=ScriptedModel(reply), max_tokens_per_activation=12)[0].errors == []
    (error,) = send(agent, provider_factory=ScriptedModel(reply), max_tokens_per_activation=11)[0].errors
    assert error.reason == "budget_exceeded"

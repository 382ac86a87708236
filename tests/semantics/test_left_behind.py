"""What an agent leaves running, and what its tasks raise, concerns nobody else."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, LlmRequest, MemoryOverflow, Tool
from beam_agents.signals.types import Reason
from beam_agents.testing import AgentHarness, ScriptedModel, event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def busy(ctx: AgentContext) -> None:
    """Write to memory for as long as it lets one."""
    for number in range(10_000):
        ctx.memory.set(f"busy/{number % 50}", b"%d" % number)
        ctx.memory.append("ring", b"%d" % number)
        if number % 20 == 0:
            await asyncio.sleep(0)


async def leaves_tasks(ctx: AgentContext) -> Complete:
    ctx.memory.set("mine", b"1")
    tasks = [asyncio.create_task(busy(ctx)) for _ in range(3)]
    await asyncio.sleep(0.001)
    return Complete(b"%d" % len(tasks))


def test_tasks_left_running_do_not_touch_what_is_committed() -> None:
    with AgentHarness(leaves_tasks) as harness:
        for number in range(60):
            emitted = harness.send(event(b"k", time_ms=number + 1))
            assert emitted.outputs == [b"3"]
            state = harness.states[b"k"]
            memory = state.working_memory
            control = state.decoded_control
            assert (control.memory_entries, control.memory_bytes) == (len(memory), memory.size_bytes)
            assert sum(memory.size_of(key) for key in memory.keys()) == memory.size_bytes  # noqa: SIM118 - no mapping
            assert memory.get("mine") == b"1"


async def exits_in_a_task(ctx: AgentContext) -> Complete:  # noqa: ARG001 - an agent's signature
    async def bad() -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    await asyncio.gather(bad())
    return Complete()


async def exits_in_a_callback(ctx: AgentContext) -> Complete:  # noqa: ARG001 - as above
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0.01)
    return Complete()


async def stops_the_loop(ctx: AgentContext) -> Complete:  # noqa: ARG001 - as above
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    return Complete()


async def exits_in_a_tool(ctx: AgentContext) -> Complete:
    await asyncio.gather(ctx.run_tool("exit"), asyncio.sleep(0.01))
    return Complete()


async def leave(arguments: bytes) -> bytes:  # noqa: ARG001 - a tool's signature
    sys.exit(3)


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (exits_in_a_task, Reason.ACTIVATION_ERROR),
        (exits_in_a_tool, Reason.ACTIVATION_ERROR),
        (exits_in_a_callback, None),
        (stops_the_loop, None),
    ],
)
def test_the_event_loop_outlives_what_would_end_it(
    agent: Callable[[AgentContext], Awaitable[Complete]], reason: Reason | None
) -> None:
    async def switch(ctx: AgentContext) -> Complete:
        if ctx.event == b"bad":
            return await agent(ctx)
        await asyncio.sleep(0)
        return Complete(b"fine")

    with AgentHarness(switch, AgentConfig(activation_timeout_s=5, tools=[Tool("exit", leave)])) as harness:
        errors = harness.send(event(b"k", b"bad", time_ms=1)).errors
        assert [error.reason for error in errors] == ([] if reason is None else [reason])
        if reason is not None:
            assert errors[0].detail.startswith("SystemExit")
        for number in range(3):
            assert harness.send(event(b"k", b"good", time_ms=2 + number)).outputs == [b"fine"]


class OfTheirOwn(BaseException):
    """What no `except Exception` catches."""


def test_an_exception_of_any_base_ends_its_own_activation() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        raise OfTheirOwn(ctx.event)

    with AgentHarness(agent) as harness:
        (error,) = harness.send(event(b"k", b"tr0ub4dor", time_ms=1)).errors
        assert error.detail.startswith("OfTheirOwn")
        assert "tr0ub4dor" not in error.detail


def test_a_task_groups_reason_is_its_members() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        async def write() -> None:
            ctx.memory.set("large", bytes(2_000_000))

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
        return Complete()

    with AgentHarness(agent) as harness:
        (error,) = harness.send(event(b"k", time_ms=1)).errors
        assert error.reason == Reason.MEMORY_OVERFLOW
        assert error.detail.startswith(MemoryOverflow.__name__)


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (lambda ctx: ctx.memory.set("key", "text"), "a memory value must be bytes, not str: encode it first"),
        (lambda ctx: ctx.memory.set("", b""), "must not be empty"),
        (lambda ctx: ctx.memory.append("ring", b"", max_items=0), "max_items must be at least 1, not 0"),
        (lambda ctx: ctx.act("", b""), "the tool of act must not be empty"),
    ],
)
def test_a_mistakes_record_says_what_is_wrong_and_where_in_the_agent(
    wrong: Callable[[AgentContext], object], shown: str
) -> None:
    async def agent(ctx: AgentContext) -> Complete:
        wrong(ctx)
        return Complete()

    with AgentHarness(agent) as harness:
        (error,) = harness.send(event(b"k", time_ms=1)).errors
        assert shown in error.detail
        assert "test_left_behind.py" in error.detail


def classify(request: object) -> bytes:  # noqa: ARG001 - a script's
    return b"answer"


def test_an_answer_is_never_another_events() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        await ctx.call_model(LlmRequest("small", b"classify"))
        if ctx.event == b"bad":
            raise ValueError
        return Complete()

    model = ScriptedModel(classify)
    with AgentHarness(agent, AgentConfig(provider_factory=model)) as harness:
        for time_ms in (None, 5_000):
            model.reset()
            harness.send(event(b"k", b"bad", time_ms=time_ms), event(b"k", b"good", time_ms=time_ms))
            assert model.call_count == 2
            assert [record.attempt for record in harness.signals.records[-2:]] == [1, 1]


def test_an_intents_id_does_not_come_again_in_another_life() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        ctx.act("ship", b"tea")
        return Complete()

    with AgentHarness(agent, AgentConfig(ttl_ms=1_000)) as harness:
        ids = []
        for number in range(3):
            (intent,) = harness.send(event(b"k", event_id=f"order {number}")).intents
            ids.append(intent.intent_id)
            harness.advance_watermark(10_000_000)
            assert harness.states == {}
        assert len(set(ids)) == 3


def test_a_memory_cell_that_is_gone_is_no_empty_memory() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        ctx.memory.set("k", b"v")
        return Complete()

    with AgentHarness(agent) as harness:
        harness.send(event(b"k", time_ms=1))
        lost = harness.states[b"k"].with_cell("memory", None)
        harness.put_state(b"k", lost)
        (error,) = harness.send(event(b"k", time_ms=2)).errors
        assert error.reason == Reason.STATE_UNDECODABLE
        assert harness.states == {b"k": lost}

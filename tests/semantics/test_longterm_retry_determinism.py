"""The flush succeeded, the commit failed, the bundle is run again: rows, intents, outputs, state are one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, LlmRequest
from beam_agents.memory.stores.inprocess import InProcessAdmin, InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.testing import FailOnce, ScriptedModel, event, run_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.testing import AgentRun

STEPS = ("decode", "agent", "run", "flush", "commit", "bundle")


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    forget_rows()
    yield
    forget_rows()


def rows() -> list[StoreRow]:
    store = InProcessStore(parse_store_uri("memory://"))
    return asyncio.run(InProcessAdmin(store).scan(None, 1_000))


async def blind(ctx: AgentContext) -> Complete:
    """Do what the documentation says: what is saved follows from the event, memory and the model alone."""
    assert ctx.event is not None
    longterm = ctx.memory.longterm
    await longterm.search("case/", limit=10)  # a retry may see rows here that its failed attempt flushed
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    answer = await ctx.call_model(LlmRequest("small", ctx.event))
    longterm.save(f"case/{ctx.event_id}", answer.body)
    longterm.save("profile", b"seen %d" % seen)
    ctx.act("notify", answer.body)
    return Complete(answer.body)


async def check_then_set(ctx: AgentContext) -> Complete:
    """Do what the documentation warns of: a retry reads what its failed attempt flushed."""
    existing = await ctx.memory.longterm.load("counter")
    count = 1 if existing is None else int(existing.value) + 1
    ctx.memory.longterm.save("counter", b"%d" % count)
    return Complete(b"%d" % count)


def events() -> list[object]:
    return [
        event(key, b"%s %d" % (key, number), time_ms=1_000 * number, event_id=str(number))
        for number in range(1, 5)
        for key in (b"a", b"b")
    ]


def run_with(agent: object, *faults: FailOnce) -> tuple[AgentRun, list[StoreRow], int]:
    forget_rows()
    model = ScriptedModel(lambda request: b"about " + request.body)
    config = AgentConfig(provider_factory=model, longterm_memory="memory://", telemetry=())
    done = run_events(
        agent,  # type: ignore[arg-type]  # one of the agents above
        events(),  # type: ignore[arg-type]  # envelopes
        config=config,
        runner="BundleBasedDirectRunner",
        faults=faults,
    )
    return done, rows(), model.call_count


@pytest.mark.parametrize("occurrence", [1, 4])
@pytest.mark.parametrize("step", STEPS)
def test_a_retry_converges(step: str, occurrence: int) -> None:
    expected, expected_rows, expected_calls = run_with(blind)
    assert len(expected_rows) == 10
    fault = FailOnce(step, occurrence=1 if step == "bundle" else occurrence)
    disturbed, disturbed_rows, calls = run_with(blind, fault)
    assert fault.raised
    assert disturbed_rows == expected_rows
    assert disturbed.states == expected.states
    assert sorted(disturbed.outputs) == sorted(expected.outputs)
    assert sorted(each.intent_id for each in disturbed.intents) == sorted(
        each.intent_id for each in expected.intents
    )
    assert disturbed.errors == expected.errors == []
    assert calls == expected_calls
    # Rows are flushed again onto equal ones. Where the failed bundle had got on to later events, what
    # an earlier one writes anew is behind them: refused, and told.
    results = [
        disturbed.signals.total("longterm_upserts_total", result=each) for each in ("applied", "stale")
    ]
    assert sum(results) == disturbed.signals.total("longterm_staged_total")


def test_what_the_documentation_warns_of_does_fork() -> None:
    _, expected_rows, _ = run_with(check_then_set)
    disturbed, disturbed_rows, _ = run_with(check_then_set, FailOnce("commit"))
    assert disturbed.errors == []
    # The retry read its own row and counted twice: exactly what the author was told not to write.
    assert disturbed_rows != expected_rows


READ: list[tuple[int, bytes | None]] = []


async def reads_back(ctx: AgentContext) -> Complete:
    row = await ctx.memory.longterm.load("k")
    READ.append((ctx.seq, None if row is None else row.value))
    ctx.memory.longterm.save("k", b"always the same")
    return Complete()


def test_a_retry_reads_its_own_flushed_row() -> None:
    READ.clear()
    config = AgentConfig(longterm_memory="memory://", telemetry=())
    run_events(reads_back, [event(b"k", time_ms=5)], config=config, faults=[FailOnce("flush")])
    assert READ == [(5, None), (5, b"always the same")]

"""Every kind of failure commits nothing, gives one record, and lets the key go on."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import pytest

from beam_agents import (
    AgentConfig,
    AgentContext,
    AgentEnvelope,
    Complete,
    LlmRequest,
    LlmResponse,
    SummarizeCompactor,
    Suspend,
    ToolResult,
)
from beam_agents.signals.types import Reason
from beam_agents.testing import AgentHarness, KeyState, ScriptedModel, answer, event, run_events
from beam_agents.wire.beam_agents_pb2 import ControlState, MemoryBlob, ReplayState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SECRET = b"tr0ub4dor&3"
DAY_MS = 86_400_000


def reply(request: LlmRequest) -> LlmResponse:
    return LlmResponse(b"ok:" + request.body[:8], prompt_tokens=60, completion_tokens=50)


async def spoil(ctx: AgentContext) -> None:
    """Touch everything, so that a failure has something to undo."""
    ctx.memory.set("secret", SECRET)
    ctx.memory.append("ring", SECRET)
    ctx.act("notify", SECRET)
    await ctx.call_model(LlmRequest("small", SECRET))


async def raises(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    raise ValueError(f"cannot handle {SECRET.decode()}")


async def overspends(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    await ctx.call_model(LlmRequest("small", b"again"))
    return Complete()


async def returns_nothing(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    return None  # type: ignore[return-value]  # the fault


async def returns_its_secret(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    return SECRET  # type: ignore[return-value]  # the fault


async def waits_for_nothing(ctx: AgentContext) -> Suspend:
    ctx.memory.set("secret", SECRET)
    return Suspend()


async def waits_for_a_stranger(ctx: AgentContext) -> Suspend:
    await spoil(ctx)
    return Suspend(waiting_for=("no such intent",))


async def outputs_text(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    return Complete("text")  # type: ignore[arg-type]  # the fault


async def overflows(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    ctx.memory.set("large", SECRET * 100_000)
    return Complete()


async def exits(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    sys.exit(SECRET.decode())


async def cancels_itself(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    raise asyncio.CancelledError


async def times_out_on_its_own(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    async with asyncio.timeout(0):
        await asyncio.sleep(60)
    return Complete()


async def takes_another_tool(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    await ctx.run_tool("no such tool")
    return Complete()


async def uses_the_long_term_tier(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    assert ctx.memory.longterm is not None
    return Complete()


async def good(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    return Complete(b"done")


FAILURES = [
    (raises, Reason.ACTIVATION_ERROR, "ValueError"),
    (overspends, Reason.BUDGET_EXCEEDED, "220 tokens of the 200"),
    (returns_nothing, Reason.INVALID_OUTCOME, "NoneType"),
    (returns_its_secret, Reason.INVALID_OUTCOME, "bytes"),
    (waits_for_nothing, Reason.INVALID_OUTCOME, "ctx.act"),
    (waits_for_a_stranger, Reason.INVALID_OUTCOME, "waiting_for"),
    (outputs_text, Reason.INVALID_OUTCOME, "str"),
    (overflows, Reason.MEMORY_OVERFLOW, "hard cap"),
    (exits, Reason.ACTIVATION_ERROR, "SystemExit"),
    (cancels_itself, Reason.ACTIVATION_ERROR, "CancelledError"),
    (times_out_on_its_own, Reason.ACTIVATION_ERROR, "TimeoutError"),
    (takes_another_tool, Reason.ACTIVATION_ERROR, "no such tool"),
    (uses_the_long_term_tier, Reason.ACTIVATION_ERROR, "AgentConfig.longterm_memory"),
]


@pytest.mark.parametrize(
    ("agent", "reason", "shown"), FAILURES, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_failure_commits_nothing(
    agent: Callable[[AgentContext], Awaitable[Complete]], reason: Reason, shown: str
) -> None:
    async def switch(ctx: AgentContext) -> Complete:
        return await (agent if ctx.event == b"bad" else good)(ctx)

    config = AgentConfig(provider_factory=ScriptedModel(reply), max_tokens_per_activation=200)
    with AgentHarness(switch, config) as harness:
        harness.send(event(b"k", b"good", time_ms=1_000))
        before, timers = harness.states, harness.timers(b"k")
        emitted = harness.send(event(b"k", b"bad", time_ms=2_000, event_id="e7"))
        assert harness.states == before
        assert harness.timers(b"k") == timers
        assert (emitted.outputs, emitted.intents) == ([], [])
        (error,) = emitted.errors
        assert (error.reason, error.entity_key, error.event_id) == (reason, b"k", "e7")
        assert (error.event_time_ms, error.seq) == (2_000, 2_000)
        assert shown in error.detail
        assert SECRET not in error.detail.encode()
        assert harness.signals.total("activation_errors_total", reason=reason.value) == 1
        assert harness.signals.total("activations_total", outcome="failed") == 1
        assert harness.send(event(b"k", b"good", time_ms=3_000)).outputs == [b"done"]


def test_a_refused_write_may_be_handled_by_the_agent() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        try:
            ctx.memory.set("large", b"x" * 2_000_000)
        except Exception as error:  # noqa: BLE001 - what it is, is asserted
            return Complete(type(error).__name__.encode())
        return Complete()

    with AgentHarness(agent) as harness:
        assert harness.send(event(b"k")).outputs == [b"MemoryOverflow"]
        assert harness.signals.total("memory_overflows_total") == 1
        assert len(harness.signals.happenings("memory_overflow")) == 1


async def sleeps(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    try:
        await asyncio.sleep(3_600)
    finally:
        ctx.memory.set("late", SECRET)
    return Complete()


async def swallows_its_cancellation(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        return Complete(b"too late")
    return Complete()


async def blocks(ctx: AgentContext) -> Complete:
    await spoil(ctx)
    time.sleep(0.2)  # noqa: ASYNC251 - the fault
    return Complete(b"too late")


@pytest.mark.parametrize(
    "agent", [sleeps, swallows_its_cancellation, blocks], ids=lambda agent: agent.__name__
)
def test_a_timeout_commits_nothing(agent: Callable[[AgentContext], Awaitable[Complete]]) -> None:
    config = AgentConfig(provider_factory=ScriptedModel(reply), activation_timeout_s=0.05)
    with AgentHarness(agent, config) as harness:
        emitted = harness.send(event(b"k", time_ms=1_000))
        assert (emitted.outputs, emitted.intents, harness.states) == ([], [], {})
        (error,) = emitted.errors
        assert error.reason == Reason.ACTIVATION_TIMEOUT
        assert "activation_timeout_s=0.05" in error.detail


def test_one_failing_element_does_not_touch_the_others_of_its_bundle() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        if ctx.event == b"bad":
            raise ValueError
        return Complete(ctx.entity_key)

    events = [event(b"%d" % key, b"bad" if key % 3 == 0 else b"good", time_ms=1) for key in range(30)]
    run = run_events(agent, events)
    assert len(run.errors) == 10
    assert len(run.outputs) == 20
    errors = run.signals.total("activation_errors_total") + run.signals.total("orphaned_results_total")
    assert errors == len(run.errors)


async def idle(ctx: AgentContext) -> Complete:  # noqa: ARG001 - an agent's signature
    return Complete(b"done")


def refused(envelope: AgentEnvelope, config: AgentConfig | None = None) -> tuple[str, str]:
    with AgentHarness(idle, config) as harness:
        emitted = harness.send(envelope)
        assert harness.states == {}
        assert harness.timers(envelope.entity_key) == {}
        assert emitted.outputs == []
        (error,) = emitted.errors
        return error.reason, error.detail


def test_an_event_from_the_future_is_refused() -> None:
    now_ms = time.time_ns() // 1_000_000
    reason, detail = refused(event(b"k", time_ms=now_ms + DAY_MS + 60_000))
    assert reason == Reason.EVENT_TIME_IN_FUTURE
    assert "max_future_skew_ms" in detail


def test_the_skew_can_be_set() -> None:
    now_ms = time.time_ns() // 1_000_000
    ahead = event(b"k", time_ms=now_ms + 60_000)
    assert refused(ahead, AgentConfig(max_future_skew_ms=1_000))[0] == Reason.EVENT_TIME_IN_FUTURE
    with AgentHarness(idle) as harness:
        assert harness.send(ahead).outputs == [b"done"]


@pytest.mark.parametrize(
    ("envelope", "shown"),
    [
        (AgentEnvelope(entity_key=b"k"), "neither event nor tool_result"),
        (event(b"k", time_ms=-1), "event_time_ms"),
        (event(b"k", time_ms=10**15), "event_time_ms"),
    ],
)
def test_an_impossible_envelope_is_refused(envelope: AgentEnvelope, shown: str) -> None:
    reason, detail = refused(envelope)
    assert reason == Reason.INVALID_ENVELOPE
    assert shown in detail


def test_an_envelope_under_another_key_is_refused() -> None:
    run = run_events(idle, [event(b"k")])
    assert run.errors == []
    with AgentHarness(idle) as harness:
        emitted = harness._dofn.process((b"other", event(b"k")), harness_timestamp(), *cells(harness))  # type: ignore[call-arg]  # without deadlines
        (error,) = [each.value for each in emitted]  # type: ignore[union-attr]  # tagged
        assert error.reason == Reason.INVALID_ENVELOPE


def harness_timestamp() -> object:
    from apache_beam.utils.timestamp import MIN_TIMESTAMP  # noqa: PLC0415 - of this one use

    return MIN_TIMESTAMP


def cells(harness: AgentHarness) -> tuple[object, ...]:
    held = harness._held(b"other")
    return held.control, held.memory, held.replay, held.ttl


NEWER = {
    "control": KeyState(control=ControlState(state_schema_version=99, seq=7).SerializeToString()),
    "memory": KeyState(
        control=ControlState(state_schema_version=1, seq=7, memory_entries=1).SerializeToString(),
        memory=MemoryBlob(state_schema_version=99).SerializeToString(),
    ),
    "replay": KeyState(
        control=ControlState(state_schema_version=1, seq=7, replay_seq=7).SerializeToString(),
        replay=ReplayState(state_schema_version=99).SerializeToString(),
    ),
}


@pytest.mark.parametrize("cell", NEWER)
def test_state_of_a_newer_version_is_refused_and_kept(cell: str) -> None:
    with AgentHarness(idle, AgentConfig(provider_factory=ScriptedModel(reply))) as harness:
        harness.put_state(b"k", NEWER[cell])
        (error,) = harness.send(event(b"k", time_ms=1_000)).errors
        assert error.reason == Reason.STATE_VERSION_UNSUPPORTED
        assert cell in error.detail
        assert "99" in error.detail
        assert harness.states == {b"k": NEWER[cell]}
        if cell == "control":
            (error,) = [each.value for each in harness.fire_expiry(b"k", 10**12)]  # type: ignore[union-attr]  # tagged
            assert error.reason == Reason.STATE_VERSION_UNSUPPORTED
            assert harness.states == {b"k": NEWER[cell]}


@pytest.mark.parametrize("cell", ["control", "memory", "replay"])
@pytest.mark.parametrize("garbage", [b"", b"\xff\xff\xff\xff", b"\x08"])
def test_state_that_does_not_decode_is_refused_and_kept(cell: str, garbage: bytes) -> None:
    holds = {"memory_entries": 1} if cell == "memory" else {"replay_seq": 7}
    control = ControlState(state_schema_version=1, seq=7, **holds).SerializeToString()
    state = KeyState(control=control).with_cell(cell, garbage)
    with AgentHarness(idle, AgentConfig(provider_factory=ScriptedModel(reply))) as harness:
        harness.put_state(b"k", state)
        (error,) = harness.send(event(b"k", time_ms=1_000)).errors
        assert error.reason == Reason.STATE_UNDECODABLE
        assert cell in error.detail
        assert harness.states == {b"k": state}


def test_what_a_left_behind_task_does_reaches_nobody() -> None:
    leftovers: list[asyncio.Task[None]] = []
    outcome: list[str] = []

    async def later(ctx: AgentContext) -> None:
        await asyncio.sleep(0.05)
        try:
            ctx.memory.set("late", SECRET)
        except Exception as error:  # noqa: BLE001 - what it is, is asserted
            outcome.append(type(error).__name__)

    async def agent(ctx: AgentContext) -> Complete:
        leftovers.append(asyncio.create_task(later(ctx)))
        return Complete()

    async def join() -> None:
        await asyncio.gather(*leftovers)

    with AgentHarness(agent) as harness:
        harness.send(event(b"k", time_ms=1_000))
        before = harness.states
        harness._dofn._worker.bridge.run(join())
        assert harness.states == before
    assert outcome == ["ActivationClosed"]


def test_a_summarizer_that_fails_names_itself() -> None:
    def refuse(items: tuple[bytes, ...], prior: bytes | None) -> LlmRequest:  # noqa: ARG001 - a builder's
        raise ValueError(SECRET.decode())

    async def agent(ctx: AgentContext) -> Complete:
        for _ in range(20):
            ctx.memory.append("log", SECRET)
        return Complete()

    summarizer = SummarizeCompactor(
        build_request=refuse,
        extract_summary=bytes,
        source_keys=("log",),
        summary_key="summary",
        trigger_bytes=100,
    )
    with AgentHarness(
        agent, AgentConfig(provider_factory=ScriptedModel(reply), summarizer=summarizer)
    ) as harness:
        (error,) = harness.send(event(b"k", time_ms=1_000)).errors
        assert error.reason == Reason.SUMMARY_FAILED
        assert SECRET.decode() not in error.detail
        assert harness.states == {}
        assert harness.signals.total("summaries_total", outcome="error") == 1


@pytest.mark.parametrize(("length", "outcome"), [(10_000, "not_smaller"), (4, "ok")])
def test_a_summary_must_shrink(length: int, outcome: str) -> None:
    async def agent(ctx: AgentContext) -> Complete:
        for index in range(20):
            ctx.memory.append("log", b"item %02d" % index)
        return Complete()

    summarizer = SummarizeCompactor(
        build_request=lambda items, prior: LlmRequest("small", b"".join(items) + (prior or b"")),
        extract_summary=lambda _: b"s" * length,
        source_keys=("log",),
        summary_key="summary",
        keep_recent=3,
        trigger_bytes=100,
    )
    with AgentHarness(
        agent, AgentConfig(provider_factory=ScriptedModel(reply), summarizer=summarizer)
    ) as harness:
        emitted = harness.send(event(b"k", time_ms=1_000))
        assert harness.signals.total("summaries_total", outcome=outcome) == 1
        if outcome == "ok":
            memory = harness.states[b"k"].working_memory
            assert memory.ring("log") == (b"item 17", b"item 18", b"item 19")
            assert memory.get("summary") == b"ssss"
            assert harness.signals.total("summary_bytes_reclaimed_total") == 17 * 7 - 4
        else:
            assert [error.reason for error in emitted.errors] == [Reason.SUMMARY_FAILED]
            assert harness.states == {}


def test_without_a_provider_the_model_is_off() -> None:
    async def agent(ctx: AgentContext) -> Complete:
        await ctx.call_model(LlmRequest("small", b""))
        return Complete()

    with AgentHarness(agent) as harness:
        (error,) = harness.send(event(b"k")).errors
        assert "AgentConfig.provider_factory" in error.detail


@pytest.mark.parametrize(
    ("made", "reason"),
    [(object, "InvalidArgumentType"), (lambda: (_ for _ in ()).throw(OSError(SECRET.decode())), "OSError")],
)
def test_a_provider_that_cannot_be_made_fails_the_activation(made: Callable[[], object], reason: str) -> None:
    async def agent(ctx: AgentContext) -> Complete:
        await ctx.call_model(LlmRequest("small", b""))
        return Complete()

    with AgentHarness(agent, AgentConfig(provider_factory=made)) as harness:  # type: ignore[arg-type]  # the fault
        (error,) = harness.send(event(b"k")).errors
        assert error.detail.startswith(reason)
        assert SECRET.decode() not in error.detail


def test_orphans_are_told_apart() -> None:
    async def agent(ctx: AgentContext) -> Complete | Suspend:
        if ctx.snapshot is not None:
            return Complete(b"resumed")
        ctx.act("question")
        return Suspend(b"snapshot")

    with AgentHarness(agent) as harness:
        (intent,) = harness.send(event(b"k", time_ms=1_000)).intents
        stranger = AgentEnvelope(entity_key=b"k", tool_result=ToolResult(intent_id="stranger"))
        for envelope, why in ((stranger, "unknown"), (None, ""), (answer(intent), "twice")):
            before = harness.states
            emitted = harness.send(envelope or answer(intent, b"yes", time_ms=2_000))
            if envelope is None:
                assert emitted.outputs == [b"resumed"]
                continue
            (error,) = emitted.errors
            assert error.reason == Reason.ORPHANED_RESULT
            assert error.detail.startswith(why)
            assert harness.states == before
        assert harness.signals.total("orphaned_results_total") == 2
        assert harness.signals.total("activation_errors_total") == 0


def test_what_suspensions_take_is_bounded() -> None:
    async def agent(ctx: AgentContext) -> Complete | Suspend:
        if ctx.snapshot is not None:
            return Complete(b"resumed")
        ctx.act("one")
        ctx.act("two")
        return Suspend(bytes(1_000_000))

    with AgentHarness(agent) as harness:
        sent = [harness.send(event(b"k", time_ms=number)) for number in range(1, 6)]
        assert [[error.reason for error in each.errors] for each in sent] == [
            [],
            [],
            [],
            [],
            ["invalid_outcome"],
        ]
        first, second = sent[0].intents
        before = harness.states
        (error,) = harness.send(answer(first, bytes(500_000))).errors
        assert error.reason == Reason.INVALID_ENVELOPE
        assert harness.states == before
        harness.send(answer(first, b"short"))
        assert harness.send(answer(second, bytes(5_000_000))).outputs == [b"resumed"]

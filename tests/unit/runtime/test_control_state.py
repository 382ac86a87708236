"""The control cell's bytes: one file per version is kept, and every later version must read it."""

from __future__ import annotations

import pathlib

from beam_agents import AgentConfig, AgentContext, Complete, Suspend
from beam_agents.runtime.control import MAX_SETTLED_INTENTS
from beam_agents.testing import AgentHarness, KeyState, answer, event

GOLDEN = pathlib.Path(__file__).with_name("golden") / "control_v1.bin"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def agent(ctx: AgentContext) -> Complete | Suspend:
    if ctx.snapshot is not None:
        return Complete(b"resumed %s" % ctx.snapshot)
    assert ctx.event is not None
    ctx.memory.set("last", ctx.event)
    for index in range(int(ctx.event)):
        ctx.act("ask", b"%d" % index)
    return Suspend(snapshot=b"asked " + ctx.event) if ctx.event != b"0" else Complete()


def written() -> tuple[KeyState, list[object]]:
    """Return a state with one settled suspension, one half answered and one that waits."""
    with AgentHarness(agent, AgentConfig(ttl_ms=1_000)) as harness:
        first = harness.send(event(b"k", b"1", time_ms=1_000_000, traceparent=TRACEPARENT)).intents
        second = harness.send(event(b"k", b"2", time_ms=1_000_001)).intents
        harness.send(event(b"k", b"3", time_ms=1_000_001), event(b"k", b"0"))
        harness.send(answer(first[0], b"yes"), answer(second[1], b"half"))
        return harness.states[b"k"], [*second]


def test_the_bytes_of_this_version_are_kept() -> None:
    assert written()[0].control == GOLDEN.read_bytes()


def test_the_kept_bytes_are_read() -> None:
    state, second = written()
    with AgentHarness(agent, AgentConfig(ttl_ms=1_000)) as harness:
        harness.put_state(b"k", KeyState(GOLDEN.read_bytes(), state.memory, state.replay))
        assert harness.send(answer(second[0], b"rest")).outputs == [b"resumed asked 2"]  # type: ignore[arg-type]  # an intent
        control = harness.states[b"k"].decoded_control
        assert [each.seq for each in control.suspensions] == [1_000_002]
        assert len(control.settled) == 3


def test_what_is_remembered_of_settled_intents_is_bounded() -> None:
    with AgentHarness(agent) as harness:
        first = harness.send(event(b"k", b"1", time_ms=1)).intents[0]
        harness.send(answer(first))
        for number in range(MAX_SETTLED_INTENTS):
            intent = harness.send(event(b"k", b"1", time_ms=2 + number)).intents[0]
            harness.send(answer(intent))
        control = harness.states[b"k"].decoded_control
        assert len(control.settled) == MAX_SETTLED_INTENTS
        assert harness.send(answer(first)).errors[0].detail.startswith("unknown")
        assert harness.send(answer(intent)).errors[0].detail.startswith("twice")

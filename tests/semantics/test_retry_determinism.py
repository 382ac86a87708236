"""A bundle that fails after any step and is run again leaves what an undisturbed run leaves."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from beam_agents import (
    AgentConfig,
    AgentContext,
    Complete,
    DropOldestCompactor,
    LlmRequest,
    LlmResponse,
    SummarizeCompactor,
    Suspend,
    Tool,
)
from beam_agents.testing import (
    AgentHarness,
    AgentRun,
    FailOnce,
    InjectedFault,
    ScriptedModel,
    answer,
    event,
    run_events,
)

if TYPE_CHECKING:
    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

STEPS = ("decode", "agent", "summarize", "run", "commit", "bundle")
BIG = 200_000


def reply(request: LlmRequest) -> LlmResponse:
    return LlmResponse(b"about " + request.body[:24], prompt_tokens=7, completion_tokens=3)


async def look_up(arguments: bytes) -> bytes:
    return arguments[::-1]


async def agent(ctx: AgentContext) -> Complete | Suspend:
    """Do everything that an activation can do: memory up to its cap, model, tool, intents, suspension."""
    memory = ctx.memory
    if ctx.snapshot is not None:
        assert ctx.result is not None
        memory.append("answers", ctx.result.content)
        return Complete(b"resumed with " + ctx.result.content)
    assert ctx.event is not None
    seen = int(memory.get("seen", b"0")) + 1
    memory.set("seen", b"%d" % seen)
    memory.append("log", b"item %d of " % seen + ctx.event * 40, max_items=32)
    memory.set(f"big/{seen}", bytes([seen]) * BIG)
    response = await ctx.call_model(LlmRequest("small", ctx.event))
    found = await ctx.run_tool("look_up", ctx.event)
    intent_id = ctx.act("notify", response.body)
    if ctx.event.startswith(b"ask"):
        return Suspend(snapshot=found, waiting_for=(intent_id,), output=b"asking")
    output = {"seen": seen, "keys": list(memory.keys()), "size": memory.size_bytes, "found": found.decode()}
    return Complete(json.dumps(output, sort_keys=True).encode())


def build_request(items: tuple[bytes, ...], prior: bytes | None) -> LlmRequest:
    return LlmRequest("summarizer", b"|".join(items) + (prior or b""))


def extract_summary(response: bytes) -> bytes:
    return response[:16]


def config(model: ScriptedModel) -> AgentConfig:
    return AgentConfig(
        provider_factory=model,
        compactor=DropOldestCompactor(),
        summarizer=SummarizeCompactor(
            build_request=build_request,
            extract_summary=extract_summary,
            source_keys=("log",),
            summary_key="summary",
            keep_recent=2,
            trigger_bytes=BIG * 2,
        ),
        tools=[Tool("look_up", look_up)],
        telemetry=(),
    )


def envelopes() -> list[AgentEnvelope]:
    """Return events of two keys, then the answer to the first key's question."""
    events = [
        event(
            key,
            b"%s %d" % (b"ask" if index == 2 else b"tell", index),
            time_ms=1_000 * (index + 1),
            event_id=str(index),
        )
        for index in range(7)
        for key in (b"alpha", b"beta")
    ]
    with AgentHarness(agent, config(ScriptedModel(reply))) as harness:
        asked = [
            intent
            for each in events
            for intent in harness.send(each).intents
            if each.entity_key == b"alpha" and each.event.startswith(b"ask")
        ]
    (intent,) = asked
    return [*events, answer(intent, b"yes", time_ms=9_000)]


def observed(run: AgentRun, model: ScriptedModel) -> dict[str, object]:
    return {
        "outputs": sorted(run.outputs),
        "intents": sorted(intent.SerializeToString(deterministic=True) for intent in run.intents),
        "errors": sorted(error.SerializeToString(deterministic=True) for error in run.errors),
        "states": run.states,
        "calls": sorted(call.request.body for call in model.calls),
    }


def undisturbed(runner: str) -> dict[str, object]:
    model = ScriptedModel(reply)
    return observed(run_events(agent, envelopes(), config=config(model), runner=runner), model)


@pytest.fixture(scope="module")
def expected() -> dict[str, object]:
    return undisturbed("BundleBasedDirectRunner")


def test_the_runners_agree(expected: dict[str, object]) -> None:
    assert undisturbed("FnApiRunner") == expected


def test_the_run_does_all_that_it_is_to_show() -> None:
    model = ScriptedModel(reply)
    run = run_events(agent, envelopes(), config=config(model))
    # Bounded input ends with the expiry of the question that nobody answers.
    assert [(error.entity_key, error.reason) for error in run.errors] == [(b"beta", "ttl_wiped_suspension")]
    assert run.signals.total("compaction_evictions_total") > 0
    assert run.signals.total("summaries_total", outcome="ok") > 0
    assert run.signals.total("activations_total", outcome="suspend") == 2
    assert b"resumed with yes" in run.outputs


@pytest.mark.parametrize("occurrence", [1, 5, 9])
@pytest.mark.parametrize("step", STEPS)
def test_a_bundle_that_fails_once_changes_nothing(
    step: str, occurrence: int, expected: dict[str, object]
) -> None:
    model = ScriptedModel(reply)
    fault = FailOnce(step, occurrence=1 if step == "bundle" else occurrence)
    run = run_events(
        agent, envelopes(), config=config(model), runner="BundleBasedDirectRunner", faults=[fault]
    )
    assert fault.raised
    assert run.signals.bundle_failures == ([] if step == "bundle" else [("process", "InjectedFault")])
    assert observed(run, model) == expected


def test_a_retry_is_served_from_the_replay_cache() -> None:
    model = ScriptedModel(reply)
    fault = FailOnce("commit")
    run = run_events(agent, [event(b"k", b"tell", time_ms=1)], config=config(model), faults=[fault])
    assert len(model.calls) == 1
    assert run.signals.total("replay_cache_requests_total", result="miss") == 2
    assert run.signals.total("replay_cache_requests_total", result="hit") == 2
    assert [record.attempt for record in run.signals.records if record.seq == 1][:2] == [1, 2]


def test_another_runs_answers_are_not_used() -> None:
    for _ in range(2):
        model = ScriptedModel(reply)
        run_events(agent, [event(b"k", b"tell", time_ms=1)], config=config(model))
        assert len(model.calls) == 1


def test_without_a_second_attempt_the_fault_fails_the_pipeline() -> None:
    with pytest.raises(Exception, match=r"injected after the step .commit"):
        run_events(
            agent,
            [event(b"k", b"tell", time_ms=1)],
            config=config(ScriptedModel(reply)),
            runner="FnApiRunner",
            faults=[FailOnce("commit")],
        )


def test_replaying_a_whole_bundle_gives_the_same_bytes() -> None:
    """Several events of one key in one bundle, which fails after its last one."""
    script = [each for each in envelopes() if each.entity_key == b"alpha"]
    states = []
    for fault in (None, FailOnce("commit", occurrence=len(script))):
        model = ScriptedModel(reply)
        with AgentHarness(agent, config(model), probe=fault) as harness:
            emitted = harness.send(*script, attempts=2)
            states.append((emitted, harness.states, len(model.calls)))
    assert states[0] == states[1]


def test_the_harness_raises_what_no_attempt_mends() -> None:
    with AgentHarness(agent, config(ScriptedModel(reply)), probe=FailOnce("decode")) as harness:
        with pytest.raises(InjectedFault):
            harness.send(event(b"k", b"tell", time_ms=1))
        assert harness.states == {}

"""Traces and metrics as an independent OTLP receiver gets them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import types
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from beam_agents import (
    AgentConfig,
    AgentContext,
    Complete,
    FlushToLongterm,
    LlmRequest,
    LlmResponse,
    SummarizeCompactor,
    Suspend,
    Tool,
)
from beam_agents.errors import StoreUnavailable
from beam_agents.memory.stores.inprocess import InProcessStore, forget_rows
from beam_agents.signals import catalogue, hub, losses
from beam_agents.signals.observer import MAX_CONTENT_BYTES
from beam_agents.signals.trace import format_traceparent
from beam_agents.testing import AgentHarness, FailOnce, ScriptedModel, answer, event, run_events
from beam_agents_telemetry.otlp import OpenTelemetry
from tests.servers import otlp_receiver
from tests.telemetry.scraping import forget_all

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator, Sequence

    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.signals.types import UpsertResult
    from tests.servers.otlp_receiver import ReceivedSpan, Receiver

INTERNAL, CLIENT, CONSUMER = 1, 3, 5
ERROR = 2
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WITHIN_S = 30.0


@pytest.fixture
def receiver(tmp_path: pathlib.Path) -> Iterator[Receiver]:
    forget_rows()
    forget_all()
    with otlp_receiver.running(tmp_path) as running:
        yield running
    forget_rows()


def config(receiver: Receiver, plugin: dict[str, Any] | None = None, **fields: Any) -> AgentConfig:
    options: dict[str, Any] = {"endpoint": receiver.endpoint, "sample_ratio": 1, **(plugin or {})}
    fields.setdefault("longterm_memory", "memory://")
    fields.setdefault(
        "provider_factory",
        ScriptedModel(lambda _: LlmResponse(b"answer", prompt_tokens=3, completion_tokens=2)),
    )
    return AgentConfig(telemetry=[OpenTelemetry(**options)], **fields)


def roots(receiver: Receiver) -> list[ReceivedSpan]:
    return [span for span in receiver.spans if span.name.startswith(("invoke_agent", "memory.expire"))]


def tree(receiver: Receiver, root: ReceivedSpan) -> Any:
    """Return (name, [(name, …), …]) of a span and its parts, by their start."""
    parts = [span for span in receiver.spans if span.parent_id == root.span_id]
    return root.name, [tree(receiver, part) for part in parts]


async def everything(ctx: AgentContext) -> Complete:
    longterm = ctx.memory.longterm
    await longterm.load("row")
    await longterm.search("r", limit=3)
    await ctx.call_model(LlmRequest("small", ctx.event or b""))
    for number in range(5):
        ctx.memory.append("log", b"an item %d" % number * 20)
    longterm.save("row", b"value")
    longterm.save("row/2", b"a value")
    return Complete(b"done")


def test_the_tree_of_an_activation(receiver: Receiver) -> None:
    summarizer = SummarizeCompactor(
        build_request=lambda items, prior: LlmRequest("summarizer", b"".join(items) + (prior or b"")),
        extract_summary=lambda _: b"s",
        source_keys=("log",),
        summary_key="summary",
        keep_recent=1,
        trigger_bytes=100,
    )
    with AgentHarness(everything, config(receiver, {"detail": True}, summarizer=summarizer)) as harness:
        assert harness.send(event(b"k", b"question", time_ms=1_000)).outputs == [b"done"]
        (record,) = [each for each in harness.signals.records if each.agent]
    (root,) = roots(receiver)
    assert tree(receiver, root) == (
        "invoke_agent agent",
        [
            ("memory.decode", []),
            ("search_memory inprocess", [("load", [])]),
            ("search_memory inprocess", [("search", [])]),
            ("chat small", []),
            ("longterm.stage", []),
            ("memory.summarize", [("chat summarizer", [])]),
            ("upsert_memory inprocess", [("flush", [])]),
            ("memory.commit", []),
        ],
    )
    assert (root.trace_id, root.span_id, root.parent_id) == (record.trace_id, record.span_id, "")
    assert (root.start_ns, root.end_ns) == (record.start_ns, record.end_ns)
    assert root.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "agent",
        "gen_ai.conversation.id": record.entity,
        "beam_agents.seq": 1_000,
        "beam_agents.attempt": 1,
        "beam_agents.outcome": "complete",
        "beam_agents.entity": record.entity,
        "beam_agents.pipeline": "harness",
    }
    saved = "longterm.stage"
    lengths = {"beam_agents.longterm.key_length", "beam_agents.longterm.value_bytes"}
    assert [(name, attributes.keys()) for name, attributes in root.events] == [(saved, lengths)] * 2
    spans = {span.name: span for span in receiver.spans}
    assert {name: span.kind for name, span in spans.items()} == {
        "invoke_agent agent": CONSUMER,
        "memory.decode": INTERNAL,
        "search_memory inprocess": CLIENT,
        "load": CLIENT,
        "search": CLIENT,
        "chat small": CLIENT,
        "longterm.stage": INTERNAL,
        "memory.summarize": INTERNAL,
        "chat summarizer": CLIENT,
        "upsert_memory inprocess": CLIENT,
        "flush": CLIENT,
        "memory.commit": INTERNAL,
    }
    assert spans["chat small"].attributes["gen_ai.usage.input_tokens"] == 3
    assert spans["upsert_memory inprocess"].attributes["beam_agents.longterm.rows_applied"] == 2
    assert spans["flush"].attributes["db.system.name"] == "beam_agents.inprocess"
    assert spans["longterm.stage"].attributes == {
        "beam_agents.longterm.rows": 2,
        "beam_agents.longterm.bytes": 12,
    }
    assert all(span.status == 0 for span in receiver.spans)
    assert all(root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns for span in receiver.spans)
    assert {span.trace_id for span in receiver.spans} == {record.trace_id}
    assert losses.dropped() == {}


def test_the_events_traceparent_is_the_parent_and_decides(receiver: Receiver) -> None:
    kept = event(b"k", time_ms=1_000, traceparent=format_traceparent(TRACE_ID, SPAN_ID, sampled=True))
    other = event(b"k", time_ms=2_000, traceparent=format_traceparent(TRACE_ID, "b" * 16, sampled=False))
    with AgentHarness(everything, config(receiver, {"sample_ratio": 0})) as harness:
        harness.send(kept, other, event(b"k", time_ms=3_000))
    (root,) = roots(receiver)
    assert (root.trace_id, root.parent_id) == (TRACE_ID, SPAN_ID)


def test_a_retried_bundle_is_two_attempts_in_one_trace(receiver: Receiver) -> None:
    settings = config(receiver, {"metrics": False})
    run = run_events(
        everything,
        [event(b"k", time_ms=1_000)],
        config=settings,
        name="watcher",
        faults=[FailOnce("commit")],
    )
    assert run.outputs == [b"done"]

    # This runner tears nothing down.
    ended = hub._plugins.pop(settings.plugins[0]).begin_close(10.0)
    assert ended is not None
    assert ended.wait(WITHIN_S)
    first, second = [span for span in roots(receiver) if span.name == "invoke_agent watcher"]
    assert first.trace_id == second.trace_id
    assert first.span_id != second.span_id
    assert [span.attributes["beam_agents.attempt"] for span in (first, second)] == [1, 2]
    assert first.parent_id == second.parent_id == ""
    assert second.links == [(first.trace_id, first.span_id, {"beam_agents.attempt": 1})]
    assert (first.status, first.attributes["error.type"]) == (ERROR, "InjectedFault")
    assert (second.status, second.attributes["beam_agents.outcome"]) == (0, "complete")


def test_a_resume_links_to_what_it_resumes_and_an_expiry_to_the_last(receiver: Receiver) -> None:
    async def agent(ctx: AgentContext) -> Complete | Suspend:
        if ctx.results:
            return Complete()
        ctx.act("ask")
        return Suspend()

    with AgentHarness(agent, config(receiver, ttl_ms=1_000)) as harness:
        (intent,) = harness.send(event(b"k", time_ms=1_000)).intents
        harness.send(answer(intent, b"yes", time_ms=1_500))
        harness.advance_watermark(10_000)
    suspended, resumed, expired = roots(receiver)
    assert suspended.attributes["beam_agents.outcome"] == "suspend"
    assert resumed.links == [(suspended.trace_id, suspended.span_id, {"beam_agents.seq": 1_000})]
    assert (expired.name, expired.kind) == ("memory.expire", CONSUMER)
    assert expired.links == [(resumed.trace_id, resumed.span_id, {"beam_agents.seq": 1_500})]


def test_a_failure_is_told_by_class_and_kept_whatever_the_ratio(receiver: Receiver) -> None:
    async def agent(ctx: AgentContext) -> Complete:
        if ctx.event == b"fail":
            raise ValueError("SECRET")
        return Complete()

    with AgentHarness(agent, config(receiver, {"sample_ratio": 0})) as harness:
        harness.send(*(event(b"SECRET", b"SECRET", time_ms=at_ms) for at_ms in range(1, 20)))
        harness.send(event(b"SECRET", b"fail", time_ms=20))
        harness.send(*(event(b"SECRET", b"refused", time_ms=10**16 + each) for each in range(2)))
    failed, *refused = roots(receiver)
    assert (failed.status, failed.attributes["error.type"]) == (ERROR, "ValueError")
    assert failed.attributes["beam_agents.reason"] == "activation_error"
    assert len({span.span_id for span in refused}) == len({span.trace_id for span in refused}) == 2
    assert "SECRET" not in receiver.text
    assert b"SECRET".hex() not in receiver.text


def test_stale_upserts_are_kept(receiver: Receiver) -> None:
    with AgentHarness(everything, config(receiver, {"sample_ratio": 0})) as harness:
        harness.send(event(b"k", time_ms=5_000))
    with AgentHarness(everything, config(receiver, {"sample_ratio": 0})) as harness:
        harness.send(event(b"k", time_ms=1_000))
    (root,) = roots(receiver)
    assert root.attributes["beam_agents.seq"] == 1_000
    (flushed,) = [span for span in receiver.spans if span.name == "upsert_memory inprocess"]
    assert flushed.attributes["beam_agents.longterm.rows_stale"] == 2


def test_a_wedged_expiry_is_sent_before_its_bundle_fails(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_: InProcessStore, __: Sequence[StoreRow]) -> list[UpsertResult]:
        raise StoreUnavailable("inprocess", "flush", "ConnectionRefusedError")

    hook = FlushToLongterm(key="working_memory")
    settings = config(receiver, {"sample_ratio": 0, "batch_delay_s": 60}, on_expire=hook, ttl_ms=1_000)

    async def agent(ctx: AgentContext) -> Complete:
        ctx.memory.set("seen", b"1")
        return Complete()

    with AgentHarness(agent, settings, name="expiring") as harness:
        harness.send(event(b"k", time_ms=1_000))
        with monkeypatch.context() as patched:
            patched.setattr(InProcessStore, "save_many", down)
            with pytest.raises(Exception, match="expir"):
                harness.fire_expiry(b"k", 2_000)
        wait_for(lambda: "beam_agents.expire.wedged.timers" in receiver.metrics)
        (wedged,) = roots(receiver)
        wedged_timers = [
            int(point["asInt"])
            for attributes, point in receiver.points("beam_agents.expire.wedged.timers")
            if attributes["agent"] == "expiring"
        ]
        assert wedged_timers == [1]
        assert (wedged.name, wedged.status) == ("memory.expire", ERROR)
        assert wedged.attributes["beam_agents.expire.wedged_attempt"] == 1
        harness.fire_expiry(b"k", 2_000)
    assert [span.name for span in roots(receiver)] == ["memory.expire"] * 2


def test_metrics_are_the_processs_own_counts(receiver: Receiver) -> None:
    with AgentHarness(everything, config(receiver), name="metered") as harness:
        harness.send(*(event(b"k", time_ms=at_ms) for at_ms in range(1, 4)))
        records = [record for record in harness.signals.records if record.agent]
    counted = {
        attributes["outcome"]: int(point["asInt"])
        for attributes, point in receiver.points("beam_agents.activations")
        if attributes["agent"] == "metered"
    }
    assert counted == {"complete": 3, "suspend": 0, "failed": 0}
    metric = receiver.metrics["beam_agents.activation.duration"]
    assert (metric["unit"], metric["histogram"]["aggregationTemporality"]) == ("s", 2)
    (point,) = [
        point
        for attributes, point in receiver.points("beam_agents.activation.duration")
        if attributes["agent"] == "metered"
    ]
    assert point["count"] == "3"
    assert [float(each) for each in point["explicitBounds"]] == list(
        catalogue.ACTIVATION_DURATION_SECONDS.buckets
    )
    spans = {(record.trace_id, record.span_id) for record in records}
    assert {(each["traceId"], each["spanId"]) for each in point["exemplars"]} <= spans
    assert point["exemplars"]
    # Histograms under the convention's name are made of the same counts.
    ours = receiver.points("beam_agents.store.operation.duration")
    theirs = receiver.points("db.client.operation.duration")
    assert Counter({each["operation"]: int(point["count"]) for each, point in ours}) == Counter(
        {each["db.operation.name"]: int(point["count"]) for each, point in theirs}
    )
    usage = {
        attributes["gen_ai.token.type"]: (int(point["count"]), point["sum"])
        for attributes, point in receiver.points("gen_ai.client.token.usage")
        if attributes["gen_ai.agent.name"] == "metered"
    }
    assert usage == {"input": (3, 9.0), "output": (3, 6.0)}
    for name, metric in receiver.metrics.items():
        known = {each.otel_name: each for each in catalogue.METRICS}.get(name)
        if known is not None:
            assert (metric["unit"], metric["description"]) == (known.ucum, known.help)
        else:
            assert name in {each.convention for each in catalogue.METRICS}


def test_histograms_may_be_exponential(receiver: Receiver) -> None:
    with AgentHarness(everything, config(receiver, {"exponential_histograms": True})) as harness:
        harness.send(event(b"k", time_ms=1))
    found = receiver.metrics["beam_agents.memory.entries"]["exponentialHistogram"]
    (point,) = [
        each
        for each in found["dataPoints"]
        if {"key": "agent", "value": {"stringValue": "agent"}} in each["attributes"]
    ]
    assert sum(int(each) for each in point["positive"]["bucketCounts"]) == int(point["count"])


@pytest.mark.parametrize("waits", [False, True])
def test_what_an_agent_reads_of_the_current_span_is_ours(receiver: Receiver, *, waits: bool) -> None:
    seen: list[tuple[str, str, bool]] = []

    async def agent(_: AgentContext) -> Complete:
        for _ in range(2):
            current = trace.get_current_span().get_span_context()
            seen.append((f"{current.trace_id:032x}", f"{current.span_id:016x}", current.trace_flags.sampled))
            if waits:
                await asyncio.sleep(0)
        return Complete()

    kept = event(b"k", time_ms=1_000, traceparent=format_traceparent(TRACE_ID, SPAN_ID, sampled=True))
    with AgentHarness(agent, config(receiver, {"sample_ratio": 0})) as harness:
        harness.send(kept, event(b"k", time_ms=2_000))
        records = [record for record in harness.signals.records if record.agent]
    first, second = records
    expected = [(first.trace_id, first.span_id, True), (second.trace_id, second.span_id, False)]
    assert seen == [each for each in expected for _ in range(2)]
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_forked_process_sends_for_itself(receiver: Receiver) -> None:
    async def agent(_: AgentContext) -> Complete:
        return Complete()

    settings = config(receiver, {"metrics": False}, longterm_memory=None)
    with AgentHarness(agent, settings) as harness:
        harness.send(event(b"k", time_ms=1_000))
        child = os.fork()
        if child == 0:
            try:
                with AgentHarness(agent, settings) as inner:
                    inner.send(event(b"child", time_ms=1_000))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(roots(receiver)) == 1
    assert len(roots(receiver)) == 2


async def talkative(ctx: AgentContext) -> Complete:
    await ctx.call_model(LlmRequest("small", b"a prompt"))
    await ctx.run_tool("look_up", b"arguments" * 10_000)
    ctx.memory.set("a key", b"a value")
    return Complete(b"an output")


async def look_up(_: bytes) -> bytes:
    return b"a result"


def redact(attribute: str, data: bytes) -> str | None:
    if attribute == "gen_ai.tool.call.result":
        raise ValueError("SECRET")
    return None if data == b"an event" else data.decode().upper()


@pytest.mark.parametrize("captures", [False, True])
def test_content_is_captured_only_where_it_is_asked_for(receiver: Receiver, *, captures: bool) -> None:
    settings = config(
        receiver, {"capture_content": captures, "metrics": False}, tools=[Tool("look_up", look_up)]
    )
    with AgentHarness(talkative, settings) as harness:
        harness.send(event(b"k", b"an event", time_ms=1_000))
        (record,) = [each for each in harness.signals.records if each.agent]
    spans = {span.name: span.attributes for span in receiver.spans}
    told = ["an event", "an output", "a prompt", "answer", "a result", "arguments"]
    if not captures:
        assert record.contents == []
        assert not [each for each in told[:-1] if each in receiver.text]
        assert "argumentsarguments" not in receiver.text
        return
    assert json.loads(spans["invoke_agent agent"]["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "an event"}]}
    ]
    assert json.loads(spans["invoke_agent agent"]["gen_ai.output.messages"]) == [
        {"role": "assistant", "finish_reason": "stop", "parts": [{"type": "text", "content": "an output"}]}
    ]
    assert "a prompt" in spans["chat small"]["gen_ai.input.messages"]
    assert "answer" in spans["chat small"]["gen_ai.output.messages"]
    assert spans["execute_tool look_up"]["gen_ai.tool.call.result"] == "a result"
    assert len(spans["execute_tool look_up"]["gen_ai.tool.call.arguments"]) == MAX_CONTENT_BYTES
    assert "a key" not in receiver.text
    assert "a value" not in receiver.text


def test_content_may_be_redacted(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = types.ModuleType("hooks_of_a_test")
    hooks.redact = redact  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "hooks_of_a_test", hooks)
    options = {"capture_content": True, "redact": "hooks_of_a_test:redact"}
    with AgentHarness(talkative, config(receiver, options, tools=[Tool("look_up", look_up)])) as harness:
        harness.send(event(b"k", b"an event", time_ms=1_000))
    spans = {span.name: span.attributes for span in receiver.spans}
    assert "gen_ai.input.messages" not in spans["invoke_agent agent"]
    assert "AN OUTPUT" in spans["invoke_agent agent"]["gen_ai.output.messages"]
    assert "gen_ai.tool.call.result" not in spans["execute_tool look_up"]
    assert losses.dropped() == {("otlp", "redact"): 1}


def test_without_its_redaction_hook_nothing_is_sent(receiver: Receiver) -> None:
    options = {"capture_content": True, "redact": "no_such_module:redact"}
    with AgentHarness(talkative, config(receiver, options, tools=[Tool("look_up", look_up)])) as harness:
        assert harness.send(event(b"k", b"an event", time_ms=1_000)).outputs == [b"an output"]
    assert receiver.spans == []
    assert losses.dropped() == {("otlp", "build"): 1}


def test_at_exit_everything_is_sent(receiver: Receiver) -> None:
    program = f"""
from beam_agents import AgentConfig, Complete
from beam_agents.testing import AgentHarness, event

async def agent(ctx):
    return Complete()

plugin = "otlp?endpoint={receiver.endpoint}&sample_ratio=1&batch_delay_s=60"
harness = AgentHarness(agent, AgentConfig(telemetry=[plugin])).__enter__()
harness.send(event(b"k", time_ms=1_000))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert [span.name for span in roots(receiver)] == ["invoke_agent agent"]
    assert "beam_agents.activations" in receiver.metrics


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

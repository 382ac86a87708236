"""What is told agrees with what happened, with the catalogue, and changes nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from beam_agents import (
    AgentConfig,
    AgentContext,
    AgentEnvelope,
    Complete,
    LlmRequest,
    LlmResponse,
    RunAgent,
    SummarizeCompactor,
    Suspend,
    Tool,
    ToolResult,
)
from beam_agents.signals import Observer, catalogue
from beam_agents.signals.hub import acquire_hub, release_hub
from beam_agents.signals.types import BeamKind, MetricKind
from beam_agents.testing import AgentHarness, AgentRun, RecordingTelemetry, ScriptedModel, event, run_events
from beam_agents.testing.registry import Shared

if TYPE_CHECKING:
    from beam_agents.signals import Metric, Record

BIG = 150_000


async def look_up(arguments: bytes) -> bytes:
    return arguments


async def agent(ctx: AgentContext) -> Complete | Suspend:
    """Do a bit of everything, by the event's number."""
    assert ctx.event is not None
    number = int(ctx.event)
    ctx.memory.append("log", b"a line of the log %d" % number)
    ctx.memory.set(f"big/{number % 20}", b"x" * BIG)
    await ctx.call_model(LlmRequest("small", ctx.event))
    await ctx.call_model(LlmRequest("small", ctx.event))
    await ctx.run_tool("look_up", ctx.event)
    if number % 7 == 3:
        raise ValueError
    if number % 7 == 4:
        ctx.memory.set("large", b"x" * 2_000_000)
    if number % 7 == 5:
        ctx.act("question")
        return Suspend()
    ctx.act("notify")
    return Complete(b"%d" % number)


def summarizer() -> SummarizeCompactor:
    return SummarizeCompactor(
        build_request=lambda items, prior: LlmRequest("summarizer", b"".join(items) + (prior or b"")),
        extract_summary=lambda response: response[:2],
        source_keys=("log",),
        summary_key="summary",
        keep_recent=3,
        trigger_bytes=2 * BIG,
    )


def config(*telemetry: object) -> AgentConfig:
    return AgentConfig(
        provider_factory=ScriptedModel(
            lambda _: LlmResponse(b"answer", prompt_tokens=3, completion_tokens=2)
        ),
        summarizer=summarizer(),
        tools=[Tool("look_up", look_up)],
        telemetry=telemetry,  # type: ignore[arg-type]  # plugins
    )


def script() -> list[AgentEnvelope]:
    events = [event(key, b"%d" % number, time_ms=number) for number in range(1, 30) for key in (b"a", b"b")]
    stranger = AgentEnvelope(entity_key=b"a", tool_result=ToolResult(intent_id="stranger"))
    future = event(b"a", b"1", time_ms=time.time_ns() // 1_000_000 + 10**9)
    return [*events, stranger, future]


@pytest.fixture(scope="module")
def run() -> AgentRun:
    return run_events(agent, script(), config=config())


def test_every_signal_is_in_the_catalogue_as_it_is_told(run: AgentRun) -> None:
    seen: set[Metric] = set()
    for record in run.signals.records:
        for metric, value, labels in record.measurements:
            seen.add(metric)
            assert metric in catalogue.METRICS
            assert len(labels) == len(metric.labels)
            assert value >= 0
            closed = dict(metric.values)
            for label, given in zip(metric.labels, labels, strict=True):
                if label in closed:
                    assert given in set(closed[label])
        for step in record.steps:
            assert step.span in catalogue.SPANS
            assert step.attributes.keys() <= set(step.span.attributes), step.span.name
            assert record.start_ns <= step.start_ns <= step.end_ns <= record.end_ns
        for happening in record.happenings:
            assert happening.event in catalogue.EVENTS
            assert happening.attributes.keys() <= set(happening.event.attributes), happening.event.name
    expected = {
        catalogue.ACTIVATIONS,
        catalogue.ACTIVATION_ERRORS,
        catalogue.ORPHANED_RESULTS,
        catalogue.ACTIVATION_DURATION_SECONDS,
        catalogue.RUNTIME_OVERHEAD_SECONDS,
        catalogue.MODEL_CALLS,
        catalogue.REPLAY_CACHE_REQUESTS,
        catalogue.MODEL_CALL_DURATION_SECONDS,
        catalogue.TOKENS,
        catalogue.TOOL_CALLS,
        catalogue.INTENTS_EMITTED,
        catalogue.MEMORY_SIZE_BYTES,
        catalogue.MEMORY_ENTRIES,
        catalogue.MEMORY_OVERFLOWS,
        catalogue.COMPACTION_RUNS,
        catalogue.COMPACTION_EVICTIONS,
        catalogue.COMPACTION_EVICTED_BYTES,
        catalogue.MEMORY_COMPACTION_COOLDOWN_BREACHES,
        catalogue.MEMORY_SOFT_CAP_CROSSINGS,
        catalogue.SUMMARIES,
        catalogue.SUMMARY_BYTES_RECLAIMED,
        catalogue.TTL_WIPES,
        catalogue.TTL_WIPED_SUSPENSIONS,
        catalogue.TIMER_LATENESS_SECONDS,
    }
    assert expected <= seen


def test_the_errors_are_counted(run: AgentRun) -> None:
    signals = run.signals
    counted = signals.total("activation_errors_total") + signals.total("orphaned_results_total")
    assert counted == len(run.errors) > 0
    for reason in {error.reason for error in run.errors} - {"orphaned_result"}:
        told = [error for error in run.errors if error.reason == reason]
        assert signals.total("activation_errors_total", reason=reason) == len(told)
    assert signals.total("orphaned_results_total") == 1


def test_the_rest_is_counted(run: AgentRun) -> None:
    signals = run.signals
    assert signals.total("intents_emitted_total") == len(run.intents)
    assert signals.total("activations_total", outcome="complete") == len(run.outputs)
    committed = len(run.outputs) + signals.total("activations_total", outcome="suspend")
    assert len(signals.values("memory_size_bytes")) == committed
    # Two equal questions in each activation that reached the model: one of them is answered from the cache.
    asked = signals.total("model_calls_total", model="small")
    assert signals.total("replay_cache_requests_total", result="hit") >= asked
    assert signals.total("ttl_wipes_total") == 2 == len(run.expired)
    compactions = signals.steps("memory.compact")
    assert len(compactions) >= signals.total("compaction_runs_total") > 0


def test_beams_counters_are_the_sums_over_the_labels() -> None:
    recording = RecordingTelemetry()
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    pairs = [(each.entity_key, each) for each in script()]
    created = pipeline | beam.Create(pairs).with_output_types(tuple[bytes, AgentEnvelope])
    _ = created | RunAgent(agent, config=config("beam", recording))
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace(catalogue.BEAM_NAMESPACE))
    counters = {each.key.metric.name: each.committed for each in found["counters"]}
    distributions = {each.key.metric.name: each.committed for each in found["distributions"]}
    for metric in catalogue.METRICS:
        for form in metric.beam:
            if form.kind is BeamKind.COUNTER and metric.kind is MetricKind.COUNTER:
                expected = sum(
                    value
                    for record in recording.records
                    for measured, value, labels in record.measurements
                    if measured is metric
                    and all(
                        dict(zip(metric.labels, labels, strict=True))[label] in allowed
                        for label, allowed in form.where
                    )
                )
                assert counters.get(form.name, 0) == expected, form.name
            elif form.kind is BeamKind.COUNTER:
                assert counters.get(form.name, 0) == len(recording.values(metric.name)), form.name
            elif form.kind is BeamKind.DISTRIBUTION:
                count = len(recording.values(metric.name))
                assert (distributions[form.name].count if form.name in distributions else 0) == count, (
                    form.name
                )


class Faulty(Shared, Observer):
    """A plugin that raises whatever it is told."""

    name = "faulty"

    def build(self) -> Observer:
        return self

    def bundle_started(self, worker: object) -> None:  # noqa: ARG002 - an observer's
        raise ZeroDivisionError

    def activation_started(self, record: Record) -> None:  # noqa: ARG002 - as above
        raise ZeroDivisionError

    def record(self, record: Record) -> None:  # noqa: ARG002 - as above
        raise ZeroDivisionError


class Slow(Shared, Observer):
    """A plugin that takes its time."""

    name = "slow"

    def build(self) -> Observer:
        return self

    def record(self, record: Record) -> None:  # noqa: ARG002 - as above
        time.sleep(0.005)


class Unbuildable(Shared):
    """A plugin that cannot be built."""

    name = "unbuildable"

    def build(self) -> Observer:
        raise ZeroDivisionError


def test_telemetry_changes_nothing(run: AgentRun) -> None:
    plugins = (Faulty(), Slow(), Unbuildable())
    hub = acquire_hub(plugins)
    try:
        disturbed = run_events(agent, script(), config=config("beam", *plugins))
        assert hub.dropped["faulty", "record"] >= len(disturbed.signals.records)
        assert hub.dropped["unbuildable", "build"] == 1
    finally:
        release_hub(hub)

    def outcome(of: AgentRun) -> object:
        future = "event_time_in_future"
        return of.outputs, of.intents, [error for error in of.errors if error.reason != future], of.states

    assert outcome(disturbed) == outcome(run)


def test_no_content_reaches_a_signal() -> None:
    secret = "tr0ub4dor"  # noqa: S105 - so that it would be noticed

    async def leaky(ctx: AgentContext) -> Complete:
        assert ctx.event is not None
        ctx.memory.set(secret, ctx.event)
        ctx.memory.append("ring", ctx.event)
        await ctx.call_model(LlmRequest("small", ctx.event))
        ctx.act("notify", ctx.event)
        if ctx.event.endswith(b"!"):
            raise ValueError(ctx.event)
        return Complete(ctx.event)

    with AgentHarness(leaky, config()) as harness:
        harness.send(event(b"k", secret.encode(), time_ms=1), event(b"k", secret.encode() + b"!", time_ms=2))
        for record in harness.signals.records:
            told = [
                *(labels for _, _, labels in record.measurements),
                *(step.attributes for step in record.steps),
                *(happening.attributes for happening in record.happenings),
                (record.reason, record.error_type, record.outcome, record.entity),
            ]
            assert secret not in repr(told)
            assert record.entity != "k"


def test_an_attempt_is_told_from_an_activation() -> None:
    from beam_agents.testing import FailOnce  # noqa: PLC0415 - of this one use

    run = run_events(agent, [event(b"k", b"1", time_ms=1)], config=config(), faults=[FailOnce("run")])
    attempts = [(record.seq, record.attempt) for record in run.signals.records if record.seq == 1]
    assert attempts[:2] == [(1, 1), (1, 2)]
    assert run.signals.bundle_failures == [("process", "InjectedFault")]
    # The failed attempt neither completed nor failed: its bundle did.
    assert run.signals.total("activations_total") == 1

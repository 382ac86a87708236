"""Together with an application that uses OpenTelemetry itself: its provider, its spans."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.signals.trace import format_traceparent
from beam_agents.testing import AgentHarness, event
from beam_agents_telemetry.otlp import OpenTelemetry
from tests.servers import otlp_receiver

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.servers.otlp_receiver import Receiver

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(autouse=True)
def _no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process's provider can be set once; each test here is a process of its own in that.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    """What an application's own provider exports."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


@pytest.fixture
def receiver(tmp_path: pathlib.Path) -> Iterator[Receiver]:
    with otlp_receiver.running(tmp_path) as running:
        yield running


async def inline(_: AgentContext) -> Complete:
    with trace.get_tracer("author").start_as_current_span("author's own"):
        return Complete()


async def on_the_loop(_: AgentContext) -> Complete:
    await asyncio.sleep(0)
    with trace.get_tracer("author").start_as_current_span("author's own"):
        await asyncio.sleep(0)
        await asyncio.create_task(in_a_task())
    return Complete()


async def in_a_task() -> None:
    with trace.get_tracer("author").start_as_current_span("in a task"):
        await asyncio.sleep(0)


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def named(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return found


@pytest.mark.parametrize("agent", [inline, on_the_loop])
def test_an_authors_span_nests_under_the_activation(exported: InMemorySpanExporter, agent: object) -> None:
    config = AgentConfig(telemetry=[OpenTelemetry(sample_ratio=1, metrics=False)])
    with AgentHarness(agent, config) as harness:  # type: ignore[arg-type]  # one of two agents
        # Twice: the first activation of an agent starts on the loop, later ones where they can.
        harness.send(event(b"k", time_ms=1_000))
        harness._dofn._worker.telemetry.flush(10.0)
        exported.clear()
        harness.send(event(b"k", time_ms=2_000))
        record = harness.signals.records[-1]
    root, own = named(exported, "invoke_agent agent"), named(exported, "author's own")
    assert ids(root) == (int(record.trace_id, 16), int(record.span_id, 16))
    assert root.resource.attributes["service.name"] == "shop"
    assert root.parent is None
    assert own.parent is not None
    assert (own.parent.trace_id, own.parent.span_id) == ids(root)
    assert (root.start_time, root.end_time) == (record.start_ns, record.end_ns)
    assert own.start_time is not None
    assert record.start_ns <= own.start_time <= record.end_ns
    if agent is on_the_loop:
        assert named(exported, "in a task").parent == own.context


def test_the_applications_processors_get_whole_traces(exported: InMemorySpanExporter) -> None:
    async def agent(ctx: AgentContext) -> Complete:
        if ctx.event == b"fail":
            raise ValueError
        return Complete()

    config = AgentConfig(telemetry=[OpenTelemetry(sample_ratio=0, metrics=False)])
    traceparent = format_traceparent(TRACE_ID, SPAN_ID, sampled=False)
    with AgentHarness(agent, config) as harness:
        harness.send(event(b"k", b"", time_ms=1_000))
        harness.send(event(b"k", b"fail", time_ms=2_000, traceparent=traceparent))
    root, decode = named(exported, "invoke_agent agent"), named(exported, "memory.decode")
    assert len(exported.get_finished_spans()) == 2
    assert root.parent is not None
    assert (root.parent.trace_id, root.parent.span_id) == (int(TRACE_ID, 16), int(SPAN_ID, 16))
    assert decode.parent == root.context
    assert root.status.status_code is trace.StatusCode.ERROR
    assert root.status.description is None
    assert root.attributes is not None
    assert root.attributes["error.type"] == "ValueError"


def test_an_authors_span_is_off_with_its_activations_trace(exported: InMemorySpanExporter) -> None:
    config = AgentConfig(telemetry=[OpenTelemetry(sample_ratio=0, metrics=False)])
    with AgentHarness(inline, config) as harness:
        harness.send(event(b"k", time_ms=1_000))
    assert exported.get_finished_spans() == ()


def test_without_a_provider_one_can_be_set_for_the_process(receiver: Receiver) -> None:
    for time_ms in (1_000, 2_000):
        options = OpenTelemetry(receiver.endpoint, sample_ratio=1, metrics=False, set_global=True)
        with AgentHarness(inline, AgentConfig(telemetry=[options])) as harness:
            harness.send(event(b"k", time_ms=time_ms))
    found = [(span.name, span.parent_id) for span in receiver.spans if span.name != "memory.decode"]
    spans = receiver.spans
    first, second = [span for span in spans if span.name.startswith("invoke_agent")]
    assert {parent for name, parent in found if name == "author's own"} == {first.span_id, second.span_id}


def test_no_provider_is_set_unasked(receiver: Receiver) -> None:
    options = OpenTelemetry(receiver.endpoint, sample_ratio=1, metrics=False)
    with AgentHarness(inline, AgentConfig(telemetry=[options])) as harness:
        harness.send(event(b"k", time_ms=1_000))
    assert trace._TRACER_PROVIDER is None
    assert "author's own" not in {span.name for span in receiver.spans}

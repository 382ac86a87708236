"""Spans as bytes: the same messages as the SDK's own encoder makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link, SpanKind

from beam_agents_telemetry.otlp_encoding import SpanEncoder
from beam_agents_telemetry.otlp_export import readable, scope_of
from beam_agents_telemetry.otlp_spans import MAX_EVENTS, SpanData, span_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

RESOURCE = Resource({"service.name": "beam-agents", "rack": 3, "zones": ["a", "b"]}, "https://schema/1")

texts = st.text(max_size=300)
times = st.integers(0, (1 << 64) - 1)
contexts = st.builds(
    lambda trace, span, sampled, remote: span_context(
        f"{trace:032x}", f"{span:016x}", sampled=sampled, remote=remote
    ),
    st.integers(1, (1 << 128) - 1),
    st.integers(1, (1 << 64) - 1),
    st.booleans(),
    st.booleans(),
)
attributes = st.dictionaries(
    texts, texts | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False)
)
spans = st.builds(
    SpanData,
    name=texts,
    context=contexts,
    parent=st.none() | contexts,
    kind=st.sampled_from(SpanKind),
    start_ns=times,
    end_ns=times,
    attributes=attributes,
    failed=st.booleans(),
    schema_url=st.sampled_from(["", "https://schema/2", "https://schema/3"]),
    events=st.lists(st.tuples(texts, attributes, times), max_size=3),
    links=st.lists(st.builds(Link, contexts, attributes), max_size=2),
)


def encoded(given_spans: Sequence[SpanData | ReadableSpan]) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(SpanEncoder(RESOURCE, scope_of).encode(given_spans))


def by_scope(request: ExportTraceServiceRequest) -> list[tuple[str, str, str, list[bytes]]]:
    """Return its spans with what is around them; the order of a map's entries is not that of the other's."""
    return sorted(
        (
            str(resource.resource) + resource.schema_url,
            str(each.scope),
            each.schema_url,
            sorted(span.SerializeToString(deterministic=True) for span in each.spans),
        )
        for resource in request.resource_spans
        for each in resource.scope_spans
    )


@given(st.lists(spans, max_size=4))
def test_a_request_is_what_the_sdk_makes_of_the_same_spans(made: list[SpanData]) -> None:
    theirs = encode_spans(readable(made, RESOURCE))
    assert by_scope(encoded(made)) == by_scope(theirs)


def test_spans_that_others_made_go_along() -> None:
    theirs = TracerProvider(resource=RESOURCE).get_tracer("author").start_span("theirs")
    theirs.end()
    assert isinstance(theirs, ReadableSpan)
    request = encoded([make_span(), theirs])
    assert {each.scope.name: [span.name for span in each.spans] for each in scopes(request)} == {
        "beam_agents": ["ours"],
        "author": ["theirs"],
    }


def test_the_newest_events_are_kept_and_the_others_counted() -> None:
    events = [(f"{number}", {}, number) for number in range(MAX_EVENTS + 2)]
    (span,) = sent(make_span(events=events))
    assert [each.name for each in span.events] == [str(number) for number in range(2, MAX_EVENTS + 2)]
    assert span.dropped_events_count == 2


def test_what_has_no_form_does_not_cost_the_batch() -> None:
    (span,) = sent(make_span(attributes={"count": 1 << 63, "name": "half \ud83d", "rows": 3}))
    found = {each.key: each.value for each in span.attributes}
    assert found.keys() == {"name", "rows"}
    assert found["name"].string_value == "half ?"
    assert found["rows"].int_value == 3


def make_span(**given_fields: object) -> SpanData:
    fields: dict[str, object] = {
        "name": "ours",
        "context": span_context("1" * 32, "2" * 16, sampled=True),
        "parent": None,
        "kind": SpanKind.INTERNAL,
        "start_ns": 1,
        "end_ns": 2,
        "attributes": {},
        "failed": False,
        "schema_url": "",
    }
    return SpanData(**{**fields, **given_fields})  # type: ignore[arg-type]  # each of its own type


def scopes(request: ExportTraceServiceRequest) -> list[ScopeSpans]:
    return [each for resource in request.resource_spans for each in resource.scope_spans]


def sent(span: SpanData) -> list[Span]:
    return [each for scope_spans in scopes(encoded([span])) for each in scope_spans.spans]

"""From a record to OpenTelemetry spans: names, ids, kinds and attributes. Pure functions; nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import getrandbits
from typing import TYPE_CHECKING, Final, TypeAlias

from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags

from beam_agents.signals import Outcome, catalogue
from beam_agents.signals import SpanKind as CatalogueKind
from beam_agents.signals import attributes as ours
from beam_agents.signals import conventions as otel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from beam_agents.signals import AttributeValue, Record, Step
    from beam_agents.signals.trace import Traceparent
    from beam_agents_telemetry.otlp_content import ContentAttributes

__all__ = ["MAX_EVENTS", "SCOPE", "SpanData", "span_context", "spans_of"]

SCOPE: Final = "beam_agents"
"""The instrumentation scope of all that the plugin tells."""

MAX_EVENTS: Final = 128
"""Events of one span, as OpenTelemetry's own default has it."""

_Attributes: TypeAlias = "dict[str, AttributeValue]"

_KINDS: Final = {
    CatalogueKind.CONSUMER: SpanKind.CONSUMER,
    CatalogueKind.INTERNAL: SpanKind.INTERNAL,
    CatalogueKind.CLIENT: SpanKind.CLIENT,
}
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)


@dataclass(slots=True)
class SpanData:
    """One span, in OpenTelemetry's terms.

    Attributes:
        name: Its name.
        context: Its ids.
        parent: The span that it is a part of; None for a trace's root.
        kind: Its kind.
        start_ns: Start, nanoseconds since the Unix epoch.
        end_ns: End, likewise.
        attributes: Its attributes.
        failed: Whether its status is ERROR; ``error.type`` is an attribute then.
        schema_url: What its names mean.
        events: (name, attributes, when) of what took no time.
        links: Other spans that it has to do with.
    """

    name: str
    context: SpanContext
    parent: SpanContext | None
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: _Attributes
    failed: bool
    schema_url: str
    events: list[tuple[str, Mapping[str, AttributeValue], int]] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)


def span_context(trace_id: str, span_id: str, *, sampled: bool, remote: bool = False) -> SpanContext:
    """Return ids in OpenTelemetry's form."""
    flags = _SAMPLED if sampled else _UNSAMPLED
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=flags)


def spans_of(
    record: Record, *, detail: bool, max_spans: int, content: ContentAttributes | None = None
) -> tuple[list[SpanData], int]:
    """Return the spans of a record, parents before their parts, and how many were too many.

    Args:
        record: What ended.
        detail: Whether the time from the first save to the flush is a span, too.
        max_spans: How many to return at most; the first and the last steps are kept.
        content: Makes attributes of what was captured; None to have none.
    """
    captured: Mapping[int, Mapping[str, str]] = content.of(record) if content is not None else {}
    root = _root(record)
    root.attributes.update(captured.get(0, {}))
    spans = [root]
    if detail:
        spans += _staging(record, root.context)
    steps, left_out = _bounded(record.steps, max_spans - len(spans))
    contexts: dict[int, SpanContext] = {}
    for step in steps:
        context = SpanContext(
            root.context.trace_id, getrandbits(64) or 1, is_remote=False, trace_flags=root.context.trace_flags
        )
        contexts[id(step)] = context
        parent = contexts.get(id(step.parent), root.context)
        span = _child(step, context, parent, record.end_ns)
        span.attributes.update(captured.get(id(step), {}))
        spans.append(span)
    return spans, left_out


def _root(record: Record) -> SpanData:
    parent = record.parent
    span = SpanData(
        name=record.span.filled(record.agent),
        context=span_context(record.trace_id, record.span_id, sampled=True),
        parent=_remote(parent) if parent is not None else None,
        kind=_KINDS[record.span.kind],
        start_ns=record.start_ns,
        end_ns=record.end_ns,
        attributes=_root_attributes(record),
        failed=bool(record.error_type) or record.outcome == Outcome.FAILED,
        schema_url=otel.GEN_AI_SCHEMA_URL,
        events=[(moment.name, moment.attributes, moment.at_ns) for moment in record.moments],
    )
    link, first = record.link, record.first_attempt
    if link is not None and record.continues is not None:
        span.links.append(Link(_remote(link), {ours.SEQ: record.continues[0]}))
    if first is not None:
        span.links.append(Link(_remote(first), {ours.ATTEMPT: 1}))
    return span


def _root_attributes(record: Record) -> _Attributes:
    found: _Attributes = {}
    if record.span is catalogue.SPAN_INVOKE_AGENT:
        found = {
            otel.GEN_AI_OPERATION_NAME: otel.INVOKE_AGENT,
            otel.GEN_AI_AGENT_NAME: record.agent,
            otel.GEN_AI_CONVERSATION_ID: record.entity,
            ours.SEQ: record.seq,
            ours.ATTEMPT: record.attempt,
            ours.REASON: record.reason,
            ours.OUTCOME: record.outcome,
            ours.ENTITY: record.entity,
            ours.PIPELINE: record.pipeline,
        }
    elif record.span is catalogue.SPAN_MEMORY_EXPIRE:
        found = {
            ours.SEQ: record.seq,
            ours.OUTCOME: record.outcome,
            ours.ENTITY: record.entity,
            ours.PIPELINE: record.pipeline,
        }
        for each in record.happenings:
            if each.event in (catalogue.EVENT_EXPIRE_WEDGED, catalogue.EVENT_EXPIRE_RECOVERED):
                found[ours.WEDGED_ATTEMPT] = each.attributes["attempt"]
                found[ours.AGE_SECONDS] = each.attributes["age_seconds"]
    if record.error_type:
        found[otel.ERROR_TYPE] = record.error_type
    return {name: value for name, value in found.items() if value != ""}


def _child(step: Step, context: SpanContext, parent: SpanContext, record_end_ns: int) -> SpanData:
    attributes = dict(step.attributes)
    if step.error_type:
        attributes[otel.ERROR_TYPE] = step.error_type
    database = step.span is catalogue.SPAN_DB_OPERATION
    return SpanData(
        name=step.span.filled(step.target),
        context=context,
        parent=parent,
        kind=_KINDS[step.span.kind],
        start_ns=step.start_ns,
        # What was left behind has no end of its own.
        end_ns=step.end_ns or record_end_ns,
        attributes=attributes,
        failed=bool(step.error_type),
        schema_url=otel.SCHEMA_URL if database else otel.GEN_AI_SCHEMA_URL,
    )


def _staging(record: Record, parent: SpanContext) -> list[SpanData]:
    """Return the span from the first save to the flush, if something was saved."""
    saves = [moment for moment in record.moments if moment.name == catalogue.SPAN_LONGTERM_STAGE.name]
    if not saves:
        return []
    start_ns = saves[0].at_ns
    flushes = [
        step.start_ns
        for step in record.steps
        if step.span is catalogue.SPAN_UPSERT_MEMORY and step.start_ns >= start_ns
    ]
    context = SpanContext(
        parent.trace_id, getrandbits(64) or 1, is_remote=False, trace_flags=parent.trace_flags
    )
    return [
        SpanData(
            name=catalogue.SPAN_LONGTERM_STAGE.filled(""),
            context=context,
            parent=parent,
            kind=_KINDS[catalogue.SPAN_LONGTERM_STAGE.kind],
            start_ns=start_ns,
            end_ns=flushes[0] if flushes else record.end_ns,
            attributes={
                ours.ROWS: len(saves),
                ours.ROWS_BYTES: sum(int(save.attributes[ours.VALUE_BYTES]) for save in saves),
            },
            failed=False,
            schema_url=otel.GEN_AI_SCHEMA_URL,
        )
    ]


def _bounded(steps: Sequence[Step], at_most: int) -> tuple[list[Step], int]:
    """Return the first and the last of the steps, and how many are left out between them."""
    if len(steps) <= at_most:
        return list(steps), 0
    first = at_most // 2
    last = at_most - first
    return [*steps[:first], *steps[len(steps) - last :]], len(steps) - at_most


def _remote(of: Traceparent) -> SpanContext:
    return span_context(of.trace_id, of.span_id, sampled=of.sampled, remote=True)

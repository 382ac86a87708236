"""Spans as OTLP's bytes, written directly: to make a message object of each attribute takes far longer.

What is written is a Span of opentelemetry/proto/trace/v1/trace.proto, field by field; what is around the
spans comes from the SDK's own encoder.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanKind

from beam_agents_telemetry.otlp_spans import MAX_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext

    from beam_agents.signals import AttributeValue
    from beam_agents_telemetry.otlp_spans import SpanData

__all__ = ["SpanEncoder", "encode_span"]

_MORE: Final = 0x80
_UINT64: Final = (1 << 64) - 1
_INT64: Final = 1 << 63

_times = struct.Struct("<BQBQ").pack
_time = struct.Struct("<BQ").pack
_double = struct.Struct("<Bd").pack
_flags = struct.Struct("<I").pack

_KINDS: Final = {
    SpanKind.INTERNAL: b"\x30\x01",
    SpanKind.SERVER: b"\x30\x02",
    SpanKind.CLIENT: b"\x30\x03",
    SpanKind.PRODUCER: b"\x30\x04",
    SpanKind.CONSUMER: b"\x30\x05",
}
_UNSET: Final = b"\x7a\x00"
_ERROR: Final = b"\x7a\x02\x18\x02"

# The flags tell that they know whether a parent or a linked span is another process's; and that it is.
_LOCAL: Final = _flags(0x100)
_REMOTE: Final = _flags(0x300)


class SpanEncoder:
    """Makes the body of a request.

    Args:
        resource: What the process is.
        scope: Makes the instrumentation scope of a schema URL.
    """

    def __init__(self, resource: Resource, scope: Callable[[str], InstrumentationScope]) -> None:
        self._resource = resource
        self._scope = scope
        # By schema URL: the bytes of the resource, and those of the scope.
        self._around: dict[str, tuple[bytes, bytes]] = {}

    def encode(self, spans: Sequence[SpanData | ReadableSpan]) -> bytes:
        """Return an ExportTraceServiceRequest."""
        ours: dict[str, list[bytes]] = {}
        others: list[ReadableSpan] = []
        for span in spans:
            if isinstance(span, ReadableSpan):
                others.append(span)
            else:
                ours.setdefault(span.schema_url, []).append(_part(b"\x12", encode_span(span)))
        body = b"".join(self._resource_spans(url, parts) for url, parts in ours.items())
        # Messages of one kind that follow each other are one message with all of their spans.
        return body + encode_spans(others).SerializeToString() if others else body

    def _resource_spans(self, schema_url: str, parts: list[bytes]) -> bytes:
        around = self._around.get(schema_url)
        if around is None:
            around = self._around[schema_url] = self._encode_around(schema_url)
        resource, scope = around
        return _part(b"\x0a", resource + _part(b"\x12", scope + b"".join(parts)))

    def _encode_around(self, schema_url: str) -> tuple[bytes, bytes]:
        empty = ReadableSpan(
            "",
            resource=self._resource,
            instrumentation_scope=self._scope(schema_url),
            context=INVALID_SPAN_CONTEXT,
            start_time=0,
            end_time=0,
        )
        (resource,) = encode_spans([empty]).resource_spans
        (scope,) = resource.scope_spans
        del scope.spans[:], resource.scope_spans[:]
        return resource.SerializeToString(), scope.SerializeToString()


def encode_span(span: SpanData) -> bytes:
    """Return a Span."""
    context, parent = span.context, span.parent
    name = _text(span.name)
    parts = [
        b"\x0a\x10",
        context.trace_id.to_bytes(16),
        b"\x12\x08",
        context.span_id.to_bytes(8),
        b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8),
        b"\x2a",
        _varint(len(name)),
        name,
        _KINDS[span.kind],
        _times(0x39, span.start_ns, 0x41, span.end_ns),
        _attributes(b"\x4a", span.attributes),
        _ERROR if span.failed else _UNSET,
        b"\x85\x01",
        _of(parent),
    ]
    if span.events:
        parts += _events(span.events)
    if span.links:
        parts += [_link(link) for link in span.links]
    return b"".join(parts)


def _events(events: Sequence[tuple[str, Mapping[str, AttributeValue], int]]) -> Iterable[bytes]:
    for name, attributes, at_ns in events[-MAX_EVENTS:]:
        yield _part(
            b"\x5a", _time(0x09, at_ns) + _part(b"\x12", _text(name)) + _attributes(b"\x1a", attributes)
        )
    if len(events) > MAX_EVENTS:
        yield b"\x60" + _varint(len(events) - MAX_EVENTS)


def _link(link: Link) -> bytes:
    context = link.context
    # As otlp_spans has made it.
    attributes = cast("Mapping[str, AttributeValue]", link.attributes or {})
    ids = b"\x0a\x10" + context.trace_id.to_bytes(16) + b"\x12\x08" + context.span_id.to_bytes(8)
    return _part(b"\x6a", ids + _attributes(b"\x22", attributes) + b"\x35" + _of(context))


def _of(context: SpanContext | None) -> bytes:
    return _REMOTE if context is not None and context.is_remote else _LOCAL


def _attributes(tag: bytes, attributes: Mapping[str, AttributeValue]) -> bytes:
    """Return a KeyValue for each; a whole number that OTLP has no room for is left out, as the SDK does."""
    parts: list[bytes] = []
    for key, value in attributes.items():
        if isinstance(value, str):
            text = _text(value)
            encoded = b"\x0a" + _varint(len(text)) + text
        elif isinstance(value, bool):
            encoded = b"\x10\x01" if value else b"\x10\x00"
        elif isinstance(value, int):
            if not -_INT64 <= value < _INT64:
                continue
            encoded = b"\x18" + _varint(value & _UINT64)
        else:
            encoded = _double(0x21, value)
        pair = _key(key) + b"\x12" + _varint(len(encoded)) + encoded
        parts += tag, _varint(len(pair)), pair
    return b"".join(parts)


@lru_cache(maxsize=1_024)
def _key(key: str) -> bytes:
    return _part(b"\x0a", _text(key))


def _text(text: str) -> bytes:
    """Return UTF-8. What an author's names have of half characters is no UTF-8, and would cost the batch."""
    return text.encode("utf-8", "replace")


def _part(tag: bytes, message: bytes) -> bytes:
    return b"%b%b%b" % (tag, _varint(len(message)), message)


def _varint(number: int) -> bytes:
    if number < _MORE:
        return _SMALL[number]
    found = bytearray()
    while number >= _MORE:
        found.append(number & 0x7F | _MORE)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL: Final = tuple(bytes([number]) for number in range(_MORE))

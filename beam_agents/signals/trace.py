"""Which trace an activation belongs to, and its span's id: the same for whoever asks.

An event that carries a W3C traceparent continues that trace. Any other activation's trace id is a function of
(pipeline, entity key, seq), so that all attempts at it land in one trace, on whichever worker they run.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Traceparent", "format_traceparent", "parse_traceparent", "span_id_of", "trace_id_of"]

SAMPLED: Final = 0x01

# https://www.w3.org/TR/trace-context/#traceparent-header: lower-case hex; version ff is invalid, a version
# above 00 may have more fields, and ids of zeros are invalid.
_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Traceparent(NamedTuple):
    """A W3C traceparent, in parts.

    Attributes:
        trace_id: 32 hex digits.
        span_id: The parent span's id, 16 hex digits.
        sampled: Whether whoever sent it keeps the trace.
    """

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(text: str) -> Traceparent | None:
    """Take a traceparent apart; None for one that is not valid, which the standard says to ignore."""
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if not int(trace_id, 16) or not int(span_id, 16) or (more is not None and version == "00"):
        return None
    return Traceparent(trace_id, span_id, bool(int(flags, 16) & SAMPLED))


def format_traceparent(trace_id: str, span_id: str, *, sampled: bool) -> str:
    """Return the header's text, version 00."""
    return f"00-{trace_id}-{span_id}-{SAMPLED if sampled else 0:02x}"


def trace_id_of(pipeline: str, entity_key: bytes, seq: int) -> str:
    """Return the trace id of an activation whose event carried none: 32 hex digits."""
    return _digest(b"trace", (pipeline.encode(), entity_key, b"%d" % seq))[:32]


def span_id_of(pipeline: str, agent: str, entity_key: bytes, seq: int, attempt: int) -> str:
    """Return the id of the span of one attempt at an activation: 16 hex digits."""
    parts = (pipeline.encode(), agent.encode(), entity_key, b"%d" % seq, b"%d" % attempt)
    return _digest(b"span", parts)[:16]


def _digest(purpose: bytes, parts: Iterable[bytes]) -> str:
    """Return SHA-256 over the length-prefixed parts, in hex."""
    text = b"".join([len(part).to_bytes(8, "big") + part for part in parts])
    return hashlib.sha256(b"beam-agents %b v1" % purpose + text).hexdigest()

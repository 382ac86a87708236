"""Which trace an activation belongs to, and its span's id: the same for whoever asks.

An event that carries a W3C traceparent continues that trace. Any other activation's trace id is a function of
(pipeline, entity key, seq), so that all attempts at it land in one trace, on whichever worker they run.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Traceparent",
    "format_traceparent",
    "parse_traceparent",
    "sampling_bits_of",
    "span_id_of",
    "trace_id_of",
]

SAMPLED: Final = 0x01
_UINT64: Final = (1 << 64) - 1

_length = struct.Struct(">Q").pack

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
    first = _digest(_trace_head(pipeline), entity_key, b"%d" % seq)[:8].hex()
    return f"{first}{sampling_bits_of(pipeline, entity_key, seq):016x}"


def sampling_bits_of(pipeline: str, entity_key: bytes, seq: int) -> int:
    """Return the second half of that id as a number, by which samplers decide.

    Every activation is decided on, and few ids are ever needed whole. So this half is no digest, which would
    take several times as long, but the output function of SplitMix64 (Steele, Lea, Flood: Fast splittable
    pseudorandom number generators, OOPSLA 2014) over a checksum of the names and the seq's place in its
    sequence: as even as one, and what tells activations apart is the first half.
    """
    bits = (crc32(entity_key, _checksum(pipeline)) << 32 ^ seq * 0x9E3779B97F4A7C15) & _UINT64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _UINT64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _UINT64
    return bits ^ bits >> 31


def span_id_of(pipeline: str, agent: str, entity_key: bytes, seq: int, attempt: int) -> str:
    """Return the id of the span of one attempt at an activation: 16 hex digits."""
    return _digest(_span_head(pipeline, agent), entity_key, b"%d" % seq, b"%d" % attempt)[:8].hex()


def _digest(head: bytes, *parts: bytes) -> bytes:
    """Return SHA-256 over a head and the length-prefixed parts."""
    return sha256(head + _joined(parts)).digest()


# The same for all activations of a pipeline, or of an agent of it.


@lru_cache(maxsize=256)
def _checksum(pipeline: str) -> int:
    return crc32(pipeline.encode())


@lru_cache(maxsize=256)
def _trace_head(pipeline: str) -> bytes:
    return _head(b"trace", pipeline)


@lru_cache(maxsize=256)
def _span_head(pipeline: str, agent: str) -> bytes:
    return _head(b"span", pipeline, agent)


def _head(purpose: bytes, *names: str) -> bytes:
    return b"beam-agents %b v1" % purpose + _joined([name.encode() for name in names])


def _joined(parts: Iterable[bytes]) -> bytes:
    """Return the parts, each after its length."""
    return b"".join([_length(len(part)) + part for part in parts])

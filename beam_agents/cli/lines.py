"""What the output files hold: one JSON object a line."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from beam_agents.cli.rows import Malformed
    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.wire.beam_agents_pb2 import ActivationError, ToolIntent

__all__ = [
    "MALFORMED_LINE",
    "error_line",
    "intent_line",
    "located_error_line",
    "malformed_line",
    "output_line",
    "row_line",
]

MALFORMED_LINE: Final = "malformed_line"
"""The ``reason`` of input lines that are no events; beside those of ``beam_agents.signals.types.Reason``."""


def output_line(output: bytes) -> bytes:
    """Return an output's line.

    A JSON object is the line itself, on one line; other text is ``{"output": …}``; bytes that are not
    UTF-8 are ``{"output_base64": …}``.
    """
    value = _json_object(output)
    if value is None:
        return _dump(_as_text("output", output))
    return output.strip() if not _breaks_line(output.strip()) else _dump(value)


def error_line(error: ActivationError) -> bytes:
    """Return the line of one element that could not be done."""
    return _dump(_error(error))


def located_error_line(error: ActivationError) -> bytes:
    """Return the line of one element that could not be done, whose event id is its place, ``FILE:LINE``."""
    file, _, line = error.event_id.rpartition(":")
    # What comes of a timer (a suspension that timed out, say) is no row's own.
    place = {"file": file, "line": int(line)} if line.isdecimal() else {}
    return _dump(_error(error) | place)


def _error(error: ActivationError) -> dict[str, object]:
    return {
        **_as_text("entity_key", error.entity_key),
        "reason": error.reason,
        "detail": error.detail,
        "event_time_ms": error.event_time_ms if error.HasField("event_time_ms") else None,
        "event_id": error.event_id,
        "seq": error.seq,
    }


def malformed_line(malformed: Malformed) -> bytes:
    """Return the line of one input line that is no event: where it is, what is wrong, not what it holds."""
    return _dump(
        {
            "reason": MALFORMED_LINE,
            "file": malformed.file,
            "line": malformed.line,
            "detail": malformed.detail,
        }
    )


def intent_line(intent: ToolIntent) -> bytes:
    """Return the line of one side effect that an agent asks for."""
    arguments = _json_object(intent.arguments)
    return _dump(
        {
            "intent_id": intent.intent_id,
            **_as_text("entity_key", intent.entity_key),
            "tool": intent.tool,
            **(_as_text("arguments", intent.arguments) if arguments is None else {"arguments": arguments}),
            "seq": intent.seq,
            "event_time_ms": intent.event_time_ms,
            "traceparent": intent.traceparent,
        }
    )


def row_line(row: StoreRow) -> bytes:
    """Return the line of a long-term row: all but its value."""
    return _dump(
        {
            **_as_text("entity_key", row.entity_key),
            "key": row.key,
            "bytes": len(row.rec),
            "seq": row.seq,
            "updated_at_ms": row.updated_at_ms,
        }
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _json_object(value: bytes) -> dict[str, object] | None:
    """Return the JSON object that bytes are, or None."""
    if not value.lstrip().startswith(b"{"):
        return None
    try:
        # The decoder takes only a space's kin around the value, as JSON does.
        decoded = _DECODER.decode(value.decode())
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _breaks_line(line: bytes) -> bool:
    return b"\n" in line or b"\r" in line


def _as_text(name: str, value: bytes) -> dict[str, object]:
    """Return bytes as a field of text or, where they are none, of base64."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _dump(value: dict[str, object]) -> bytes:
    # Escaped: one line stays one line for every reader, and half a surrogate pair does not fail.
    return json.dumps(value, ensure_ascii=True, separators=(", ", ": ")).encode()

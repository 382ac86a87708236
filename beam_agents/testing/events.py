"""Envelopes for tests, in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.wire.beam_agents_pb2 import AgentEnvelope, ToolResult

if TYPE_CHECKING:
    from beam_agents.wire.beam_agents_pb2 import ToolIntent

__all__ = ["answer", "event"]


def event(
    key: bytes, payload: bytes = b"", *, time_ms: int | None = None, event_id: str = "", traceparent: str = ""
) -> AgentEnvelope:
    """Return an envelope with an external event.

    Args:
        key: The entity's key.
        payload: What ``ctx.event`` is.
        time_ms: The event's time, milliseconds since the Unix epoch; None for an event without a time.
        event_id: The event's id.
        traceparent: A W3C traceparent.
    """
    return AgentEnvelope(
        entity_key=key, event=payload, event_time_ms=time_ms, event_id=event_id, traceparent=traceparent
    )


def answer(
    intent: ToolIntent, content: bytes = b"", *, time_ms: int | None = None, is_error: bool = False
) -> AgentEnvelope:
    """Return the envelope that answers an intent."""
    result = ToolResult(intent_id=intent.intent_id, content=content, is_error=is_error)
    return AgentEnvelope(entity_key=intent.entity_key, tool_result=result, event_time_ms=time_ms)

"""A configuration of all that has signals: a model, a summarizer, a tool, a store, expiry, telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents import AgentConfig, FlushToLongterm, LlmRequest, SummarizeCompactor, Tool
from beam_agents.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from beam_agents import LlmResponse

__all__ = ["TTL_MS", "everything"]

TTL_MS = 1_000


async def look_up(arguments: bytes) -> bytes:
    return arguments


def everything(
    uri: str,
    respond: Callable[[LlmRequest], LlmResponse],
    *plugins: object,
    on_failure: str,
    keep_recent: int,
    trigger_bytes: int,
) -> AgentConfig:
    """Return the configuration.

    Args:
        uri: The store.
        respond: What the model answers, and the summarizer's model, whose requests are the log's entries.
        plugins: Telemetry.
        on_failure: What a failing flush on expiry means.
        keep_recent: The newest entries of ``log`` that are not summarized.
        trigger_bytes: The size from which there are summaries.
    """
    return AgentConfig(
        provider_factory=ScriptedModel(respond),
        longterm_memory=uri,
        ttl_ms=TTL_MS,
        on_expire=FlushToLongterm(on_failure=on_failure),
        summarizer=SummarizeCompactor(
            build_request=lambda items, prior: LlmRequest("summarizer", b"".join(items) + (prior or b"")),
            extract_summary=lambda response: response[:2],
            source_keys=("log",),
            summary_key="summary",
            keep_recent=keep_recent,
            trigger_bytes=trigger_bytes,
        ),
        tools=[Tool("look_up", look_up)],
        telemetry=plugins,  # type: ignore[arg-type]  # plugins
    )

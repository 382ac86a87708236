"""The summarizer's step: old ring items become one summary, through the activation's own model calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.errors import InvalidArgumentType, SummaryNotSmaller
from beam_agents.model.types import LlmRequest
from beam_agents.signals import attributes, catalogue
from beam_agents.signals.types import SummaryOutcome

if TYPE_CHECKING:
    from beam_agents.memory.compaction import SummarizeCompactor
    from beam_agents.memory.facade import WorkingMemory
    from beam_agents.runtime.context import AgentContext
    from beam_agents.signals.observer import Record, Step

__all__ = ["SummaryFailed", "summarize"]


class SummaryFailed(Exception):
    """Wraps whatever a summarizer raised, so that the activation's reason names it. Stays in the runtime."""


async def summarize(ctx: AgentContext, summarizer: SummarizeCompactor, record: Record) -> None:
    """Fold the old items of the source rings into the summary, if memory has grown to the trigger.

    The items and the prior summary go to ``build_request``, its request to the model, and the answer through
    ``extract_summary``; only when all of that worked is memory touched.

    Raises:
        SummaryFailed: From whatever went wrong; memory is as it was.
    """
    if ctx.memory.size_bytes < summarizer.trigger_bytes:
        return
    outcome = SummaryOutcome.ERROR
    error_type = ""
    step: Step | None = None
    try:
        folded = _old_items(ctx.memory, summarizer)
        if not folded:
            # Memory is large, and nothing in it is old enough to be folded.
            return
        step = record.part_of = record.begin(catalogue.SPAN_MEMORY_SUMMARIZE)
        reclaimed_bytes = await _fold(ctx, summarizer, folded, step)
        outcome = SummaryOutcome.OK
        record.measure(catalogue.SUMMARY_BYTES_RECLAIMED, reclaimed_bytes)
    except Exception as error:
        error_type = type(error).__name__
        if isinstance(error, SummaryNotSmaller):
            outcome = SummaryOutcome.NOT_SMALLER
        record.happened(catalogue.EVENT_SUMMARY_FAILED, outcome=outcome.value, error_type=error_type)
        raise SummaryFailed from error
    except BaseException as error:
        error_type = type(error).__name__
        raise
    finally:
        record.part_of = None
        if step is not None or error_type:
            record.measure(catalogue.SUMMARIES, 1, outcome.value)
        if step is not None:
            step.attributes[attributes.OUTCOME] = outcome.value
            record.finish(step, error_type)


def _old_items(memory: WorkingMemory, summarizer: SummarizeCompactor) -> dict[str, tuple[bytes, ...]]:
    """Return what each source ring holds beyond its newest ``keep_recent`` items, where it does."""
    kept = summarizer.keep_recent
    return {key: items for key in summarizer.source_keys if (items := memory.ring(key)[: -kept or None])}


async def _fold(
    ctx: AgentContext, summarizer: SummarizeCompactor, folded: dict[str, tuple[bytes, ...]], step: Step
) -> int:
    """Put a summary in the place of items and return how many bytes that saved."""
    memory = ctx.memory
    prior = memory.get(summarizer.summary_key)
    items = tuple(item for source in folded.values() for item in source)
    source_bytes = sum(map(len, items)) + len(prior or b"")
    step.attributes[attributes.SOURCE_BYTES] = source_bytes
    request = summarizer.build_request(items, prior)
    if not isinstance(request, LlmRequest):
        raise InvalidArgumentType(f"build_request must return an LlmRequest, not {type(request).__name__}")
    response = await ctx.call_model(request)
    summary = summarizer.extract_summary(response.body)
    if not isinstance(summary, bytes):
        raise InvalidArgumentType(f"extract_summary must return bytes, not {type(summary).__name__}")
    step.attributes[attributes.SUMMARY_BYTES] = len(summary)
    if len(summary) >= source_bytes:
        raise SummaryNotSmaller(source_bytes, len(summary))
    for key in folded:
        memory.trim_ring(key, summarizer.keep_recent)
    memory.set(summarizer.summary_key, summary)
    return source_bytes - len(summary)

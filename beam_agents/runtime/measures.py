"""What an activation's record is told of its outcome, its memory and its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beam_agents.runtime.outcomes import Suspend
from beam_agents.signals import attributes, catalogue
from beam_agents.signals.types import Group, UpsertResult
from beam_agents.signals.types import Outcome as OutcomeLabel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.runtime.activation import Activation
    from beam_agents.runtime.outcomes import Outcome
    from beam_agents.signals.observer import Record

__all__ = ["bytes_of", "measure_attempted", "measure_committed", "measure_ended", "measure_upserts"]


_COMMITTED: Final = {
    outcome.value: Group(
        (
            (catalogue.ACTIVATIONS, (outcome.value,)),
            (catalogue.ACTIVATION_DURATION_SECONDS, (outcome.value,)),
            (catalogue.RUNTIME_OVERHEAD_SECONDS, ()),
            (catalogue.MEMORY_SIZE_BYTES, ()),
            (catalogue.MEMORY_ENTRIES, ()),
        )
    )
    for outcome in (OutcomeLabel.COMPLETE, OutcomeLabel.SUSPEND)
}


def measure_committed(activation: Activation, outcome: Outcome) -> None:
    """Note what a committed activation did."""
    record, memory, control = activation.record, activation.memory, activation.control
    label = (OutcomeLabel.SUSPEND if isinstance(outcome, Suspend) else OutcomeLabel.COMPLETE).value
    record.outcome = label
    elapsed_s = record.elapsed_s
    record.measure_all(
        _COMMITTED[label],
        1,
        elapsed_s,
        _overhead_s(record, elapsed_s),
        control.memory_bytes,
        control.memory_entries,
    )
    for intent in activation.context.intents:
        record.measure(catalogue.INTENTS_EMITTED, 1, intent.tool)
    stats = memory.stats
    if stats.soft_cap_crossings:
        record.measure(catalogue.MEMORY_SOFT_CAP_CROSSINGS, stats.soft_cap_crossings)
    for compaction in stats.compactions:
        record.measure(catalogue.COMPACTION_RUNS, 1, compaction.trigger)
        record.measure(catalogue.COMPACTION_EVICTIONS, compaction.evictions)
        record.measure(catalogue.COMPACTION_EVICTED_BYTES, compaction.evicted_bytes)
        record.happened(
            catalogue.EVENT_MEMORY_EVICTED,
            trigger=compaction.trigger,
            scalars=compaction.scalars,
            rings=compaction.rings,
            evictions=compaction.evictions,
            evicted_bytes=compaction.evicted_bytes,
            size_bytes=compaction.size_after,
        )


def measure_ended(record: Record, outcome: str) -> None:
    """Note that an activation ended, and how long it took."""
    elapsed_s = record.elapsed_s
    record.measure(catalogue.ACTIVATIONS, 1, outcome)
    record.measure(catalogue.ACTIVATION_DURATION_SECONDS, elapsed_s, outcome)
    record.measure(catalogue.RUNTIME_OVERHEAD_SECONDS, _overhead_s(record, elapsed_s))


def _overhead_s(record: Record, elapsed_s: float) -> float:
    """Return what it took beside waiting for models, tools and stores."""
    return max(0.0, elapsed_s - record.external_ns / 1e9)


def measure_attempted(activation: Activation) -> None:
    """Note what counts whether the activation commits or not."""
    record = activation.record
    for compaction in activation.memory.stats.compactions:
        step = record.add(catalogue.SPAN_MEMORY_COMPACT, compaction.started_ns, compaction.ended_ns)
        step.attributes[attributes.TRIGGER] = compaction.trigger
        step.attributes[attributes.EVICTIONS] = compaction.evictions
        step.attributes[attributes.EVICTED_BYTES] = compaction.evicted_bytes
        step.attributes[attributes.MEMORY_SIZE_BEFORE_BYTES] = compaction.size_before
        step.attributes[attributes.MEMORY_SIZE_AFTER_BYTES] = compaction.size_after
    overflows = activation.memory.stats.overflows
    if overflows:
        record.measure(catalogue.MEMORY_OVERFLOWS, overflows)
        record.happened(catalogue.EVENT_MEMORY_OVERFLOW, overflows=overflows)
    if activation.replay.drifts:
        record.measure(catalogue.REPLAY_CACHE_DRIFTS, activation.replay.drifts)


def measure_upserts(record: Record, backend: str, results: list[UpsertResult]) -> None:
    """Note what the guard did; what it refused is never silent."""
    stale = sum(result is UpsertResult.STALE for result in results)
    if len(results) > stale:
        record.measure(catalogue.LONGTERM_UPSERTS, len(results) - stale, backend, UpsertResult.APPLIED.value)
    if stale:
        record.measure(catalogue.LONGTERM_UPSERTS, stale, backend, UpsertResult.STALE.value)
        record.happened(catalogue.EVENT_LONGTERM_UPSERT_STALE, backend=backend, rows=stale, seq=record.seq)


def bytes_of(rows: Sequence[StoreRow]) -> int:
    """Return what rows' records measure together."""
    return sum(len(row.rec) for row in rows)

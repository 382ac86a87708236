"""The long-term store on an activation's behalf: each call is a step with its measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents.runtime.bridge import on_loop_thread
from beam_agents.signals import attributes, catalogue, conventions
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.contract import StoreLimits, StoreRow
    from beam_agents.memory.stores.guarded import GuardedStore, StoreCall
    from beam_agents.runtime.external import ExternalWaits
    from beam_agents.signals.observer import Record, Step
    from beam_agents.signals.types import SpanName, StoreOperation

__all__ = ["RecordedStore"]


class RecordedStore:
    """A store whose calls are noted on one record. Used on the event loop."""

    def __init__(self, store: GuardedStore, record: Record, waits: ExternalWaits) -> None:
        self._store = store.observed(self._note)
        self._record = record
        self._waits = waits
        self._closed = False
        self._last: Step | None = None

    @property
    def backend(self) -> str:
        """The backend's label."""
        return self._store.backend

    @property
    def limits(self) -> StoreLimits:
        """What a row may measure."""
        return self._store.limits

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        entered_ns = self._waits.enter()
        try:
            await on_loop_thread()
            return await self._store.load(entity_key, key)
        finally:
            self._waits.leave(entered_ns)

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first rows whose key begins with ``prefix``."""
        entered_ns = self._waits.enter()
        try:
            await on_loop_thread()
            return await self._store.search(entity_key, prefix, limit)
        finally:
            self._waits.leave(entered_ns)

    async def save_many(self, rows: Sequence[StoreRow], operation: StoreOperation) -> list[UpsertResult]:
        """Upsert rows under the guard."""
        entered_ns = self._waits.enter()
        try:
            results = await self._store.save_many(rows, operation=operation)
        finally:
            self._waits.leave(entered_ns)
        if self._last is not None:
            applied = sum(result is UpsertResult.APPLIED for result in results)
            self._last.attributes[attributes.ROWS_APPLIED] = applied
            self._last.attributes[attributes.ROWS_STALE] = len(results) - applied
        return results

    def close(self) -> None:
        """Note nothing more: what a task that was left behind does now is no part of the activation."""
        self._closed = True

    def _note(self, call: StoreCall) -> None:
        if self._closed and not _writes(call):
            return
        record, operation, outcome = self._record, call.operation.value, call.outcome.value
        step = self._last = record.add(_span(call), call.started_ns, call.ended_ns, call.backend)
        step.error_type = call.error_type
        step.attributes.update(
            {
                conventions.GEN_AI_OPERATION_NAME: _gen_ai_operation(call),
                conventions.GEN_AI_MEMORY_STORE_ID: call.backend,
                conventions.GEN_AI_MEMORY_RECORD_COUNT: call.rows,
                conventions.DB_SYSTEM_NAME: call.backend,
                conventions.DB_OPERATION_NAME: operation,
                attributes.ROWS: call.rows,
                attributes.ROWS_BYTES: call.bytes,
                attributes.RETRIES: len(call.retries),
            }
        )
        record.measure(
            catalogue.STORE_OPERATION_DURATION_SECONDS, call.seconds, call.backend, operation, outcome
        )
        for error_type in call.retries:
            record.measure(catalogue.STORE_RETRIES, 1, call.backend, operation, error_type)


def _span(call: StoreCall) -> SpanName:
    return catalogue.SPAN_UPSERT_MEMORY if _writes(call) else catalogue.SPAN_SEARCH_MEMORY


def _gen_ai_operation(call: StoreCall) -> str:
    return conventions.UPSERT_MEMORY if _writes(call) else conventions.SEARCH_MEMORY


def _writes(call: StoreCall) -> bool:
    return call.operation.value.endswith("flush")

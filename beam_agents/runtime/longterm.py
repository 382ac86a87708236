"""The long-term store on an activation's behalf: each call is a step with its measurements."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from beam_agents.runtime.bridge import on_loop_thread
from beam_agents.signals import attributes, catalogue, conventions
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.contract import StoreLimits, StoreRow
    from beam_agents.memory.stores.guarded import GuardedStore, StoreCall
    from beam_agents.memory.stores.uri import StoreUri
    from beam_agents.runtime.external import ExternalWaits
    from beam_agents.signals.observer import AttributeValue, Record, Step
    from beam_agents.signals.types import SpanName, StoreOperation

__all__ = ["RecordedStore", "note_attempts", "note_call"]


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

    def saved(self, key_bytes: int, value_bytes: int) -> None:
        """Note that a row was staged."""
        self._record.moment(
            catalogue.SPAN_LONGTERM_STAGE.name,
            **{attributes.KEY_LENGTH: key_bytes, attributes.VALUE_BYTES: value_bytes},
        )

    def overlaid(self, rows: int) -> None:
        """Note how many rows of the last search are staged ones."""
        if self._last is not None and not self._closed:
            self._last.attributes[attributes.ROWS_OVERLAID] = rows

    def close(self) -> None:
        """Note no more reads: what a task that was left behind does now is no part of the activation."""
        self._closed = True

    def _note(self, call: StoreCall) -> None:
        if self._closed and not _writes(call):
            return
        record = self._record
        step = self._last = record.add(_span(call), call.started_ns, call.ended_ns, call.backend)
        step.error_type = call.error_type
        step.attributes.update(_database_attributes(self._store.uri))
        step.attributes.update(
            {
                conventions.GEN_AI_MEMORY_STORE_ID: call.backend,
                conventions.GEN_AI_OPERATION_NAME: _gen_ai_operation(call),
                conventions.GEN_AI_MEMORY_RECORD_COUNT: call.rows,
                conventions.DB_OPERATION_NAME: call.operation.value,
                attributes.ROWS: call.rows,
                attributes.ROWS_BYTES: call.bytes,
                attributes.RETRIES: len(call.retries),
            }
        )
        note_attempts(record, call, self._store.uri, step)
        note_call(record, call)


def note_attempts(record: Record, call: StoreCall, uri: StoreUri, parent: Step | None) -> None:
    """Note each of a call's attempts as a step of the database convention."""
    operation = call.operation.value
    for attempt in call.attempts:
        step = record.add(
            catalogue.SPAN_DB_OPERATION,
            attempt.started_ns,
            attempt.ended_ns,
            f"{operation} {_collection(uri)}".rstrip(),
            parent=parent,
        )
        step.error_type = attempt.error_type
        step.attributes.update(_database_attributes(uri))
        step.attributes[conventions.DB_OPERATION_NAME] = operation
        if _writes(call) and call.rows > 1:
            # The convention has it for batches alone.
            step.attributes[conventions.DB_OPERATION_BATCH_SIZE] = call.rows


def note_call(record: Record, call: StoreCall) -> None:
    """Note what a call tells of its store."""
    backend, operation = call.backend, call.operation.value
    record.measure(
        catalogue.STORE_OPERATION_DURATION_SECONDS, call.seconds, backend, operation, call.outcome.value
    )
    for error_type in call.retries:
        record.measure(catalogue.STORE_RETRIES, 1, backend, operation, error_type)
    if call.went_down:
        record.happened(catalogue.EVENT_STORE_DOWN, backend=backend, error_type=call.error_type)
    if call.down_for_s is not None:
        record.happened(catalogue.EVENT_STORE_RECOVERED, backend=backend, down_seconds=call.down_for_s)


@lru_cache(maxsize=64)
def _database_attributes(uri: StoreUri) -> dict[str, AttributeValue]:
    """Return what OpenTelemetry's database conventions tell of a store."""
    found: dict[str, AttributeValue] = {conventions.DB_SYSTEM_NAME: conventions.DB_SYSTEMS[uri.backend]}
    named = {
        conventions.DB_NAMESPACE: _namespace(uri),
        conventions.DB_COLLECTION_NAME: _collection(uri),
        conventions.SERVER_ADDRESS: uri.host,
    }
    found.update({name: value for name, value in named.items() if value})
    if uri.port:
        found[conventions.SERVER_PORT] = uri.port
    return found


def _namespace(uri: StoreUri) -> str:
    match uri.backend:
        case "bigtable":
            return f"{uri.project}/{uri.instance}"
        case "firestore":
            return f"{uri.project}/{uri.options.database}"
        case "sqlite":
            # A path may tell more than a name: of it, the file's name alone.
            return uri.database.rsplit("/", 1)[-1]
        case _:
            return uri.database


def _collection(uri: StoreUri) -> str:
    match uri.backend:
        case "inprocess" | "redis":
            return ""
        case "bigtable":
            return uri.table
        case "firestore":
            return uri.collection
        case _:
            return uri.options.table


def _span(call: StoreCall) -> SpanName:
    return catalogue.SPAN_UPSERT_MEMORY if _writes(call) else catalogue.SPAN_SEARCH_MEMORY


def _gen_ai_operation(call: StoreCall) -> str:
    return conventions.UPSERT_MEMORY if _writes(call) else conventions.SEARCH_MEMORY


def _writes(call: StoreCall) -> bool:
    return call.operation.value.endswith("flush")

"""What a key's timers do: its expiry, and the deadlines of its suspensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.timestamp import Timestamp

from beam_agents.errors import (
    ExpireFlushFailed,
    StateUndecodable,
    StateVersionUnsupported,
    StoreTimeout,
    hash_entity_key,
)
from beam_agents.memory.expiry import ExpiringKey, OnFailure, backoff_ms
from beam_agents.memory.stores.contract import StoreRow, check_key, encode_record
from beam_agents.runtime import clock
from beam_agents.runtime.control import (
    MAX_TIMER_MS,
    decode_control,
    read_control,
    set_ttl,
    settle,
    write_cell,
    write_control,
)
from beam_agents.runtime.elements import ERRORS
from beam_agents.runtime.external import ExternalWaits
from beam_agents.runtime.longterm import RecordedStore
from beam_agents.runtime.measures import measure_upserts
from beam_agents.runtime.probe import ProbedStep
from beam_agents.runtime.refusals import Refused, refusal, refuse
from beam_agents.signals import catalogue
from beam_agents.signals.observer import Record
from beam_agents.signals.stores import store_table
from beam_agents.signals.types import CallOutcome, Flushed, Reason, StoreOperation
from beam_agents.signals.types import Outcome as OutcomeLabel
from beam_agents.signals.wedges import wedge_table
from beam_agents.wire.beam_agents_pb2 import ActivationError, AgentEnvelope

if TYPE_CHECKING:
    from beam_agents.memory.expiry import ExpireHook
    from beam_agents.memory.stores.uri import StoreUri
    from beam_agents.runtime.activation import AgentRunner
    from beam_agents.runtime.cells import Cells
    from beam_agents.runtime.elements import Element
    from beam_agents.wire.beam_agents_pb2 import ControlState, Suspension, ToolIntent

__all__ = ["expire", "time_out_suspension"]

MAX_SHOWN_INTENTS: Final = 8
"""Ids of intents that an error's detail lists."""


def expire(runner: AgentRunner, key: bytes, fired_ms: int, cells: Cells) -> list[Element]:
    """Wipe a key that is due; set the timer of one that is not again."""
    record = Record(catalogue.SPAN_MEMORY_EXPIRE, runner.pipeline, runner.name, key)
    try:
        elements = _expire(runner, key, fired_ms, cells, record)
        runner.probed(ProbedStep.EXPIRE, key)
    except (StateUndecodable, StateVersionUnsupported) as error:
        return [refuse(record, AgentEnvelope(entity_key=key), fired_ms, refusal(error))]
    else:
        return elements
    finally:
        record.end_ns = record.now_ns()
        runner.worker.telemetry.record(record)


def _expire(runner: AgentRunner, key: bytes, fired_ms: int, cells: Cells, record: Record) -> list[Element]:
    stored = cells.control.read()
    if stored is None:
        # Wiped by an earlier firing: a runner may deliver a timer that it should have dropped.
        return []
    control = decode_control(key, stored)
    record.seq = control.seq
    record.continues = control.seq, control.traceparent
    if fired_ms < min(control.expires_at_ms, MAX_TIMER_MS):
        record.measure(catalogue.TIMERS_EARLY, 1)
        set_ttl(cells, control)
        return []
    lateness_s = (clock.wall_clock_ms() - control.expires_at_ms) / 1000
    record.measure(catalogue.TIMER_LATENESS_SECONDS, max(0.0, lateness_s))
    flushed = _flush_expiring(runner, key, fired_ms, control, cells, record)
    if flushed is None:
        return []
    wedge_table().ended(runner.pipeline, runner.name, key)
    # Each call on a cell costs some runners a millisecond: only what holds something is cleared.
    if control.memory_entries:
        cells.memory.clear()
    if control.replay_seq:
        cells.replay.clear()
    cells.control.clear()
    record.measure(catalogue.TTL_WIPES, 1, flushed.value)
    errors: list[Element] = []
    for suspension in control.suspensions:
        runner.clear_deadline(cells, suspension)
        record.measure(catalogue.TTL_WIPED_SUSPENSIONS, 1)
        record.happened(catalogue.EVENT_SUSPENSION_WIPED, seq=suspension.seq)
        errors.append(_suspension_error(key, suspension, fired_ms, Reason.TTL_WIPED_SUSPENSION, record))
    return errors


def _flush_expiring(
    runner: AgentRunner, key: bytes, fired_ms: int, control: ControlState, cells: Cells, record: Record
) -> Flushed | None:
    """Let the hook's rows outlast the key; None if that failed and the timer was set again.

    Raises:
        ExpireFlushFailed: It failed, and the bundle is to fail with it.
    """
    hook, store = runner.config.on_expire, runner.worker.store
    if not control.memory_entries:
        return Flushed.EMPTY
    if hook is None or store is None:
        return Flushed.FALSE
    backend = store.backend
    if hook.on_failure == OnFailure.REARM and _hangs(store.uri):
        # Each attempt would hold up all keys of the bundle for as long as a call may take.
        _note_wedged(runner, StoreTimeout.__name__, fired_ms, control, record)
        _rearm(fired_ms, control, max(1, control.expire_failures), backend, cells, record)
        return None
    recorded = RecordedStore(store, record, ExternalWaits(record))
    try:
        rows = _rows_of_expiring(runner, hook, key, control, cells)
        if not rows:
            return Flushed.FALSE
        results = runner.worker.bridge.run(
            recorded.save_many(rows, StoreOperation.EXPIRE_FLUSH), hook.timeout_s, inline=False
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the memory is kept
        _expire_failed(runner, error, fired_ms, control, cells, record)
        return None
    record.measure(catalogue.EXPIRE_FLUSHES, 1, backend, CallOutcome.OK.value)
    record.measure(catalogue.LONGTERM_STAGED, len(rows), backend)
    measure_upserts(record, backend, results)
    _expire_succeeded(runner, fired_ms, control, backend, record)
    return Flushed.TRUE


def _expire_succeeded(
    runner: AgentRunner, fired_ms: int, control: ControlState, backend: str, record: Record
) -> None:
    """Note that a timer is wedged no longer, if it was."""
    wedge = wedge_table().ended(runner.pipeline, runner.name, record.entity_key)
    if wedge is None and not control.expire_failures:
        return
    # State knows of failures after which the timer was set again, whoever saw them; the process, of those
    # whose bundle failed as well.
    failures = max(control.expire_failures, wedge.attempts if wedge is not None else 0)
    event_s = (fired_ms - control.expire_failing_since_ms) / 1000 if control.expire_failures else 0.0
    record.attempt = failures + 1
    record.happened(
        catalogue.EVENT_EXPIRE_RECOVERED,
        backend=backend,
        attempt=failures + 1,
        age_seconds=max(event_s, wedge.age_s if wedge is not None else 0.0),
    )
    record.measure(catalogue.EXPIRE_WEDGED_TIMERS, len(wedge_table()), backend)


def _rows_of_expiring(
    runner: AgentRunner, hook: ExpireHook, key: bytes, control: ControlState, cells: Cells
) -> list[StoreRow]:
    """Return the hook's rows, in the order of their keys' bytes: a function of committed state alone."""
    memory = cells.memory.read()
    store = runner.worker.store
    if memory is None or store is None:
        return []
    chosen = hook.rows(ExpiringKey(key, memory, control.seq, control.expires_at_ms))
    rows = []
    for row_key in sorted(chosen, key=lambda each: check_key(each, store.limits).encode()):
        rec = encode_record(chosen[row_key], control.seq, control.expires_at_ms)
        rows.append(StoreRow(key, row_key, control.seq, rec, control.expires_at_ms))
    return rows


def _expire_failed(
    runner: AgentRunner, error: Exception, fired_ms: int, control: ControlState, cells: Cells, record: Record
) -> None:
    """Note a failed flush, and set the timer again or fail the bundle. Memory stays either way."""
    hook, store = runner.config.on_expire, runner.worker.store
    assert hook is not None  # noqa: S101 - it has just failed
    assert store is not None  # noqa: S101 - as above
    backend, error_type = store.backend, type(error).__name__
    timed_out = isinstance(error, TimeoutError | StoreTimeout)
    outcome = CallOutcome.TIMEOUT if timed_out else CallOutcome.ERROR
    record.measure(catalogue.EXPIRE_FLUSHES, 1, backend, outcome.value)
    _note_wedged(runner, error_type, fired_ms, control, record)
    failures = control.expire_failures + 1
    gives_up = hook.max_attempts is not None and failures >= hook.max_attempts
    if hook.on_failure == OnFailure.FAIL_BUNDLE or gives_up:
        raise ExpireFlushFailed(backend, hash_entity_key(record.entity_key), error_type) from error
    _rearm(fired_ms, control, failures, backend, cells, record)


def _hangs(uri: StoreUri) -> bool:
    """Tell whether a store gave no answer in time when it was asked last, by a health probe or a call.

    That is held against it until the next probe must have ended; without one, a key asks again then.
    """
    within_s = uri.options.probe_period_s + uri.options.operation_timeout_s
    return store_table().failed_within(uri, within_s, StoreTimeout.__name__)


def _note_wedged(
    runner: AgentRunner, error_type: str, fired_ms: int, control: ControlState, record: Record
) -> None:
    """Tell of a key that is due, and could not be written."""
    store = runner.worker.store
    assert store is not None  # noqa: S101 - it does not answer
    record.outcome, record.error_type = OutcomeLabel.FAILED.value, error_type
    since_ms = control.expire_failing_since_ms or fired_ms
    wedge = wedge_table().failed(
        runner.pipeline, runner.name, record.entity_key, backend=store.backend, error_type=error_type
    )
    record.attempt = max(control.expire_failures + 1, wedge.attempts)
    record.measure(catalogue.EXPIRE_WEDGED_TIMERS, len(wedge_table()), store.backend)
    record.happened(
        catalogue.EVENT_EXPIRE_WEDGED,
        backend=store.backend,
        error_type=error_type,
        attempt=record.attempt,
        age_seconds=max((fired_ms - since_ms) / 1000, wedge.age_s),
    )


def _rearm(
    fired_ms: int, control: ControlState, failures: int, backend: str, cells: Cells, record: Record
) -> None:
    """Set the timer again, later the more often it has failed; memory stays."""
    control.expire_failures = failures
    control.expire_failing_since_ms = control.expire_failing_since_ms or fired_ms
    write_cell(cells, control)
    at_ms = min(fired_ms + backoff_ms(failures), MAX_TIMER_MS)
    cells.ttl.set(Timestamp(micros=at_ms * 1000))
    record.measure(catalogue.EXPIRE_REARMS, 1, backend)


def time_out_suspension(runner: AgentRunner, key: bytes, tag: str, cells: Cells) -> list[Element]:
    """Give up the suspension whose deadline has come, if it still waits."""
    record = Record(catalogue.SPAN_MEMORY_EXPIRE, runner.pipeline, runner.name, key)
    try:
        control = read_control(key, cells.control)
        suspension = next((each for each in control.suspensions if str(each.seq) == tag), None)
        if suspension is None:
            return []
        record.seq = suspension.seq
        error = _suspension_error(key, suspension, control.clock_ms, Reason.SUSPENSION_TIMEOUT, record)
        settle(control, suspension, answered=False)
        control.suspensions.remove(suspension)
        write_control(cells, control)
    except Refused as refused:
        return [refuse(record, AgentEnvelope(entity_key=key), None, refused)]
    else:
        return [error]
    finally:
        record.end_ns = record.now_ns()
        runner.worker.telemetry.record(record)


def _suspension_error(
    key: bytes,
    suspension: Suspension,
    event_time_ms: int,
    reason: Reason,
    record: Record,
) -> TaggedOutput[str, ToolIntent | ActivationError]:
    answered = {result.intent_id for result in suspension.results}
    missing = [intent_id for intent_id in suspension.waiting_for if intent_id not in answered]
    record.measure(catalogue.ACTIVATION_ERRORS, 1, reason.value)
    error = ActivationError(
        entity_key=key,
        reason=reason.value,
        detail=(
            f"waiting for {len(missing)} of {len(suspension.waiting_for)} answers: "
            f"{', '.join(missing[:MAX_SHOWN_INTENTS])}"
        ),
        event_time_ms=event_time_ms,
        seq=suspension.seq,
    )
    return TaggedOutput(ERRORS, error)

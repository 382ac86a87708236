"""One activation's life: decode → run → summarize → flush → commit.

Each step is a function of its own, with its span and its metrics in it. Up to ``commit`` nothing is written;
whatever goes wrong before ends the activation with one record on the errors output and the key's state as
it was.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from google.protobuf.message import DecodeError

from beam_agents.errors import (
    BeamAgentsError,
    BudgetExceeded,
    BundleFailure,
    InvalidOutcome,
    MemoryOverflow,
    StateUndecodable,
    StateVersionUnsupported,
    hash_entity_key,
)
from beam_agents.memory.facade import WorkingMemory
from beam_agents.model.replay import ReplayCache, begin_attempt
from beam_agents.runtime import clock
from beam_agents.runtime.bridge import DeadlineExceeded
from beam_agents.runtime.context import AgentContext
from beam_agents.runtime.lifetime import advance_clock, event_clock_ms, is_in_future, next_seq
from beam_agents.runtime.outcomes import Complete, Outcome, Suspend
from beam_agents.runtime.probe import ProbedStep
from beam_agents.runtime.summarize import SummaryFailed, summarize
from beam_agents.signals import attributes, catalogue
from beam_agents.signals.observer import Record
from beam_agents.signals.types import Outcome as OutcomeLabel
from beam_agents.signals.types import Reason
from beam_agents.wire.beam_agents_pb2 import (
    ActivationError,
    AgentEnvelope,
    ControlState,
    SettledIntent,
    Suspension,
    ToolIntent,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from beam_agents.config import AgentConfig, Tool
    from beam_agents.runtime.cells import Cells, StateCell
    from beam_agents.runtime.probe import Probe
    from beam_agents.runtime.worker import AgentWorker
    from beam_agents.wire.beam_agents_pb2 import ToolResult

__all__ = ["ERRORS", "INTENTS", "MAX_EVENT_MS", "MIN_EVENT_MS", "AgentFunction", "AgentRunner", "Element"]

AgentFunction: TypeAlias = "Callable[[AgentContext], Awaitable[Outcome]]"
Element: TypeAlias = bytes | TaggedOutput[str, ToolIntent | ActivationError]

INTENTS: Final = "intents"
ERRORS: Final = "errors"

CONTROL_VERSION: Final = 1
MAX_SETTLED_INTENTS: Final = 64
"""Intents remembered per key after they were answered or given up."""
MAX_SNAPSHOT_BYTES: Final = 1_048_576
COMPACTION_COOLDOWN: Final = 8
"""A key that is compacted again within so many activations thrashes: its memory is too small for its use."""
MAX_SHOWN_INTENTS: Final = 8
"""Ids of intents that an error's detail lists."""

MAX_TIMESTAMP: Final = GlobalWindow().max_timestamp()
MAX_TIMER_MS: Final = MAX_TIMESTAMP.micros // 1000
MIN_EVENT_MS: Final = 0
MAX_EVENT_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: what is later was not meant in milliseconds."""


@dataclass(slots=True)
class Activation:
    """What one activation holds between its steps."""

    record: Record
    envelope: AgentEnvelope
    event_time_ms: int | None
    control: ControlState
    context: AgentContext
    memory: WorkingMemory
    replay: ReplayCache
    resumed: Suspension | None


class AgentRunner:
    """Runs one agent's activations and timer callbacks for one DoFn instance."""

    def __init__(
        self,
        agent: AgentFunction,
        config: AgentConfig,
        worker: AgentWorker,
        *,
        name: str,
        pipeline: str,
        run_id: str,
        probe: Probe | None = None,
    ) -> None:
        self.agent = agent
        self.config = config
        self.worker = worker
        self.name = name
        self.pipeline = pipeline
        self.run_id = run_id
        self.probe = probe
        self.tools: dict[str, Tool] = {tool.name: tool for tool in config.tools}
        self.client = worker.client if config.provider_factory is not None else None
        self.replays = self.client is not None or bool(self.tools)

    def process(
        self, key: bytes, envelope: AgentEnvelope, timestamp: Timestamp, cells: Cells
    ) -> list[Element]:
        """Run what one element asks for and return what it emits."""
        record = Record(catalogue.SPAN_INVOKE_AGENT, self.pipeline, self.name, key)
        record.traceparent = envelope.traceparent
        self.worker.telemetry.activation_started(record)
        event_time_ms = _event_time_ms(envelope, timestamp)
        try:
            elements = self._process(key, envelope, event_time_ms, cells, record)
        except _Refused as refusal:
            elements = [_refuse(record, envelope, event_time_ms, refusal)]
        finally:
            record.end_ns = record.now_ns()
            self.worker.telemetry.record(record)
        return elements

    def _process(
        self, key: bytes, envelope: AgentEnvelope, event_time_ms: int | None, cells: Cells, record: Record
    ) -> list[Element]:
        _check_envelope(key, envelope)
        if event_time_ms is not None:
            wall_ms = clock.wall_clock_ms()
            if is_in_future(event_time_ms, wall_ms, self.config.max_future_skew_ms):
                ahead = event_time_ms - wall_ms
                raise _Refused(
                    Reason.EVENT_TIME_IN_FUTURE,
                    f"{ahead} ms ahead of the worker's clock; max_future_skew_ms is "
                    f"{self.config.max_future_skew_ms}",
                )
        control = _read_control(key, cells.control)
        resumed: Suspension | None = None
        if envelope.WhichOneof("payload") == "tool_result":
            resumed = _take_result(control, envelope.tool_result)
            if len(resumed.results) < len(resumed.waiting_for):
                return self._keep_result(cells, control, event_time_ms, record)
        activation = decode(
            self,
            key=key,
            envelope=envelope,
            event_time_ms=event_time_ms,
            control=control,
            resumed=resumed,
            cells=cells,
            record=record,
        )
        try:
            self.probed(ProbedStep.DECODE, key)
            outcome = run(self, activation)
            self.probed(ProbedStep.RUN, key)
            elements = commit(self, activation, outcome, cells)
            self.probed(ProbedStep.COMMIT, key)
            return elements
        finally:
            _measure_attempted(activation)
            activation.context.close()

    def _keep_result(
        self, cells: Cells, control: ControlState, event_time_ms: int | None, record: Record
    ) -> list[Element]:
        """Commit an answer that came while others are still awaited; no activation runs."""
        advance_clock(control, event_time_ms, self.config.ttl_ms)
        _write_control(cells, control)
        record.outcome = ""
        return []

    def expire(self, key: bytes, fired_ms: int, cells: Cells) -> list[Element]:
        """Wipe a key that is due; set the timer of one that is not again."""
        record = Record(catalogue.SPAN_MEMORY_EXPIRE, self.pipeline, self.name, key)
        try:
            elements = self._expire(key, fired_ms, cells, record)
            self.probed(ProbedStep.EXPIRE, key)
        except (StateUndecodable, StateVersionUnsupported) as error:
            refusal = _refusal(error)
            return [_refuse(record, AgentEnvelope(entity_key=key), fired_ms, refusal)]
        else:
            return elements
        finally:
            record.end_ns = record.now_ns()
            self.worker.telemetry.record(record)

    def _expire(self, key: bytes, fired_ms: int, cells: Cells, record: Record) -> list[Element]:
        stored = cells.control.read()
        if stored is None:
            # Wiped by an earlier firing: a runner may deliver a timer that it should have dropped.
            return []
        control = _decode_control(key, stored)
        record.seq = control.seq
        record.link = control.traceparent
        if fired_ms < min(control.expires_at_ms, MAX_TIMER_MS):
            record.measure(catalogue.TIMERS_EARLY, 1)
            _set_ttl(cells, control)
            return []
        lateness_s = (clock.wall_clock_ms() - control.expires_at_ms) / 1000
        record.measure(catalogue.TIMER_LATENESS_SECONDS, max(0.0, lateness_s))
        # Each call on a cell costs some runners a millisecond: only what holds something is cleared.
        if control.memory_entries:
            cells.memory.clear()
        if control.replay_seq:
            cells.replay.clear()
        cells.control.clear()
        record.measure(catalogue.TTL_WIPES, 1, "false" if control.memory_entries else "empty")
        errors: list[Element] = []
        for suspension in control.suspensions:
            self.clear_deadline(cells, suspension)
            record.measure(catalogue.TTL_WIPED_SUSPENSIONS, 1)
            record.happened(catalogue.EVENT_SUSPENSION_WIPED, seq=suspension.seq)
            errors.append(
                self._suspension_error(key, suspension, fired_ms, Reason.TTL_WIPED_SUSPENSION, record)
            )
        return errors

    def time_out_suspension(self, key: bytes, tag: str, cells: Cells) -> list[Element]:
        """Give up the suspension whose deadline has come, if it still waits."""
        record = Record(catalogue.SPAN_MEMORY_EXPIRE, self.pipeline, self.name, key)
        try:
            control = _read_control(key, cells.control)
            suspension = next((each for each in control.suspensions if str(each.seq) == tag), None)
            if suspension is None:
                return []
            record.seq = suspension.seq
            error = self._suspension_error(
                key, suspension, control.clock_ms, Reason.SUSPENSION_TIMEOUT, record
            )
            _settle(control, suspension, answered=False)
            control.suspensions.remove(suspension)
            _write_control(cells, control)
        except _Refused as refusal:
            return [_refuse(record, AgentEnvelope(entity_key=key), None, refusal)]
        else:
            return [error]
        finally:
            record.end_ns = record.now_ns()
            self.worker.telemetry.record(record)

    def _suspension_error(
        self, key: bytes, suspension: Suspension, event_time_ms: int, reason: Reason, record: Record
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

    def probed(self, step: ProbedStep, key: bytes) -> None:
        """Let a test's probe see that a step has ended."""
        if self.probe is not None:
            self.probe.after(step, key)

    def set_deadline(self, cells: Cells, suspension: Suspension) -> None:
        """Set the timer of a suspension's deadline, where the configuration has one."""
        timeout_ms = self.config.suspension_timeout_ms
        if cells.suspension is not None and timeout_ms is not None:
            at_ms = clock.wall_clock_ms() + timeout_ms
            cells.suspension.set(Timestamp(micros=at_ms * 1000), dynamic_timer_tag=str(suspension.seq))

    def clear_deadline(self, cells: Cells, suspension: Suspension) -> None:
        """Clear the timer of a suspension's deadline, where there is one."""
        if cells.suspension is not None:
            cells.suspension.clear(dynamic_timer_tag=str(suspension.seq))


def decode(
    runner: AgentRunner,
    *,
    key: bytes,
    envelope: AgentEnvelope,
    event_time_ms: int | None,
    control: ControlState,
    resumed: Suspension | None,
    cells: Cells,
    record: Record,
) -> Activation:
    """Read the key's state and make the context. Reads happen here, on the bundle's own thread."""
    config = runner.config
    seq = next_seq(control.seq, event_time_ms)
    now_ms = event_clock_ms(control, event_time_ms)
    record.seq = seq
    record.attempt = begin_attempt(runner.run_id, key, seq)
    if resumed is not None:
        record.link = resumed.traceparent
    step = record.begin(catalogue.SPAN_MEMORY_DECODE)
    try:
        memory = WorkingMemory(
            cells.memory.read() if control.memory_entries else None,
            compactor=config.compactor,
            # With a summarizer, a full memory is first folded; only the hard cap evicts.
            soft_cap_compacts=config.summarizer is None,
        )
        replay = ReplayCache(
            cells.replay.read() if control.replay_seq and runner.replays else None,
            limits=config.replay_cache,
            entity_key=key,
            seq=seq,
            now_ms=now_ms,
            scope=runner.run_id,
        )
        replay.verify()
    except (StateUndecodable, StateVersionUnsupported) as error:
        record.finish(step, type(error).__name__)
        raise _refusal(error, hash_entity_key(key)) from error
    step.attributes[attributes.MEMORY_SIZE_BYTES] = memory.size_bytes
    step.attributes[attributes.MEMORY_ENTRIES] = control.memory_entries
    record.finish(step)
    context = AgentContext(
        entity_key=key,
        event=None if resumed is not None else envelope.event,
        event_id=envelope.event_id,
        seq=seq,
        now_ms=now_ms,
        memory=memory,
        results=_in_order(resumed),
        snapshot=resumed.snapshot if resumed is not None else None,
        replay=replay,
        client=runner.client,
        tools=runner.tools,
        max_tokens=config.max_tokens_per_activation,
        record=record,
    )
    return Activation(record, envelope, event_time_ms, control, context, memory, replay, resumed)


def run(runner: AgentRunner, activation: Activation) -> Outcome:
    """Run the agent and what follows it on the event loop, within the timeout."""
    config = runner.config
    record = activation.record
    try:
        outcome = runner.worker.bridge.run(
            _agent_and_tail(runner, activation),
            config.activation_timeout_s,
            on_stall=lambda: record.measure(catalogue.EVENT_LOOP_STALLS, 1),
        )
    except BundleFailure:
        raise
    except DeadlineExceeded as error:
        detail = f"over activation_timeout_s={config.activation_timeout_s:g}: {error.how}"
        raise _Refused(Reason.ACTIVATION_TIMEOUT, detail, TimeoutError.__name__) from error
    except (Exception, asyncio.CancelledError, GeneratorExit) as error:
        # An agent that cancels itself ends its own activation, not the worker.
        raise _refusal(error) from error
    return outcome


async def _agent_and_tail(runner: AgentRunner, activation: Activation) -> Outcome:
    """Run the agent, then the summarizer: all that may wait, under one timeout."""
    context = activation.context
    try:
        outcome = await runner.agent(context)
    except (SystemExit, KeyboardInterrupt) as error:
        # asyncio lets these through to the loop's thread, and they would end it.
        raise _AgentExited from error
    _check_outcome(outcome, activation)
    runner.probed(ProbedStep.AGENT, context.entity_key)
    if runner.config.summarizer is not None:
        await summarize(context, runner.config.summarizer, activation.record)
        runner.probed(ProbedStep.SUMMARIZE, context.entity_key)
    return outcome


def commit(runner: AgentRunner, activation: Activation, outcome: Outcome, cells: Cells) -> list[Element]:
    """Write the key's state and return what the activation emits. Only a failing bundle undoes this."""
    record, control, memory = activation.record, activation.control, activation.memory
    step = record.begin(catalogue.SPAN_MEMORY_COMMIT)
    memory_bytes = memory.encode() if memory.changed else None
    replay_bytes = activation.replay.encode() if activation.replay.changed else None
    resumed = activation.resumed
    if resumed is not None:
        _settle(control, resumed, answered=True)
        runner.clear_deadline(cells, resumed)
        control.suspensions.remove(resumed)
    advance_clock(control, activation.event_time_ms, runner.config.ttl_ms)
    control.activations += 1
    if memory.stats.compactions:
        if control.compacted_at and control.activations - control.compacted_at <= COMPACTION_COOLDOWN:
            record.measure(catalogue.MEMORY_COMPACTION_COOLDOWN_BREACHES, 1)
        control.compacted_at = control.activations
    control.seq = record.seq
    control.traceparent = record.traceparent
    control.memory_bytes = memory.size_bytes
    control.memory_entries = len(memory)
    if replay_bytes is not None:
        control.replay_seq = record.seq
    if isinstance(outcome, Suspend):
        suspension = _suspension(outcome, activation)
        control.suspensions.append(suspension)
        runner.set_deadline(cells, suspension)
    if memory.changed:
        _write_or_clear(cells.memory, memory_bytes)
    if replay_bytes is not None:
        cells.replay.write(replay_bytes)
    _write_control(cells, control)
    step.attributes[attributes.MEMORY_SIZE_BYTES] = control.memory_bytes
    step.attributes[attributes.MEMORY_ENTRIES] = control.memory_entries
    record.finish(step)
    _measure_committed(activation, outcome)
    elements: list[Element] = [] if outcome.output is None else [outcome.output]
    elements.extend(TaggedOutput(INTENTS, intent) for intent in activation.context.intents)
    return elements


def _measure_committed(activation: Activation, outcome: Outcome) -> None:
    """Note what a committed activation did."""
    record, memory, control = activation.record, activation.memory, activation.control
    label = (OutcomeLabel.SUSPEND if isinstance(outcome, Suspend) else OutcomeLabel.COMPLETE).value
    record.outcome = label
    _measure_ended(record, label)
    record.measure(catalogue.MEMORY_SIZE_BYTES, control.memory_bytes)
    record.measure(catalogue.MEMORY_ENTRIES, control.memory_entries)
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


def _measure_ended(record: Record, outcome: str) -> None:
    elapsed_s = record.elapsed_s
    record.measure(catalogue.ACTIVATIONS, 1, outcome)
    record.measure(catalogue.ACTIVATION_DURATION_SECONDS, elapsed_s, outcome)
    record.measure(catalogue.RUNTIME_OVERHEAD_SECONDS, max(0.0, elapsed_s - record.external_ns / 1e9))


def _measure_attempted(activation: Activation) -> None:
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


class _Refused(Exception):
    """Ends an element with one record on the errors output."""

    def __init__(self, reason: Reason, detail: str, error_type: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.error_type = error_type or reason.value
        super().__init__(reason, detail)


class _AgentExited(Exception):
    """The agent called sys.exit(), or raised KeyboardInterrupt."""


def _refuse(
    record: Record, envelope: AgentEnvelope, event_time_ms: int | None, refusal: _Refused
) -> TaggedOutput[str, ToolIntent | ActivationError]:
    """Note a refusal and return its record for the errors output."""
    record.outcome = OutcomeLabel.FAILED.value
    record.reason = refusal.reason.value
    record.error_type = refusal.error_type
    if refusal.reason is Reason.ORPHANED_RESULT:
        record.measure(catalogue.ORPHANED_RESULTS, 1)
    else:
        record.measure(catalogue.ACTIVATION_ERRORS, 1, record.reason)
        if record.span is catalogue.SPAN_INVOKE_AGENT:
            _measure_ended(record, record.outcome)
    record.happened(
        catalogue.EVENT_ACTIVATION_FAILED, reason=record.reason, error_type=record.error_type, seq=record.seq
    )
    error = ActivationError(
        entity_key=record.entity_key,
        reason=record.reason,
        detail=refusal.detail,
        event_time_ms=event_time_ms,
        event_id=envelope.event_id,
        seq=record.seq,
    )
    return TaggedOutput(ERRORS, error)


_REASONS: Final[tuple[tuple[type[Exception], Reason], ...]] = (
    (BudgetExceeded, Reason.BUDGET_EXCEEDED),
    (InvalidOutcome, Reason.INVALID_OUTCOME),
    (MemoryOverflow, Reason.MEMORY_OVERFLOW),
    (StateUndecodable, Reason.STATE_UNDECODABLE),
    (StateVersionUnsupported, Reason.STATE_VERSION_UNSUPPORTED),
)


def _refusal(error: BaseException, entity: str = "") -> _Refused:
    """Return what an exception means: a reason and a detail that hold no content.

    The text of an exception of ours is built from types, sizes and ids, so it may be shown; of any other
    exception only the class and the place may.
    """
    by_default = Reason.ACTIVATION_ERROR
    if isinstance(error, SummaryFailed) and error.__cause__ is not None:
        by_default = Reason.SUMMARY_FAILED
        error = error.__cause__
    if isinstance(error, _AgentExited) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, StateUndecodable | StateVersionUnsupported):
        error.entity = error.entity or entity
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), by_default)
    error_type = type(error).__name__
    detail = f"{error_type}: {error}" if isinstance(error, BeamAgentsError) else error_type
    place = _place(error)
    return _Refused(reason, f"{detail} (at {place})" if place else detail, error_type)


def _place(error: BaseException) -> str:
    """Return where an exception was raised, as file name, line and function: code, not content."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frame = frames[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"  # noqa: PTH119 - no path is touched


def _check_envelope(key: bytes, envelope: AgentEnvelope) -> None:
    """Refuse an element that no activation can be run for."""
    if envelope.entity_key != key:
        raise _Refused(Reason.INVALID_ENVELOPE, "AgentEnvelope.entity_key differs from the element's key")
    payload = envelope.WhichOneof("payload")
    if payload is None:
        raise _Refused(Reason.INVALID_ENVELOPE, "AgentEnvelope has neither event nor tool_result")
    if envelope.HasField("event_time_ms") and not MIN_EVENT_MS <= envelope.event_time_ms <= MAX_EVENT_MS:
        raise _Refused(
            Reason.INVALID_ENVELOPE,
            f"AgentEnvelope.event_time_ms must be from {MIN_EVENT_MS} to {MAX_EVENT_MS} (milliseconds)",
        )


def _event_time_ms(envelope: AgentEnvelope, timestamp: Timestamp) -> int | None:
    """Return the event's time: the envelope's, else the element's where its source gave one."""
    if envelope.HasField("event_time_ms"):
        return envelope.event_time_ms
    if MIN_TIMESTAMP < timestamp < MAX_TIMESTAMP:
        return timestamp.micros // 1000
    return None


def _read_control(key: bytes, cell: StateCell) -> ControlState:
    stored = cell.read()
    if stored is None:
        return ControlState()
    try:
        return _decode_control(key, stored)
    except (StateUndecodable, StateVersionUnsupported) as error:
        raise _refusal(error) from error


def _decode_control(key: bytes, stored: bytes) -> ControlState:
    try:
        control = ControlState.FromString(stored)
    except DecodeError as error:
        raise StateUndecodable("control", hash_entity_key(key)) from error
    version = control.state_schema_version
    if version > CONTROL_VERSION:
        raise StateVersionUnsupported("control", version, CONTROL_VERSION, hash_entity_key(key))
    if version == 0:
        # No version of the runtime writes a control cell without its version.
        raise StateUndecodable("control", hash_entity_key(key))
    return control


def _write_control(cells: Cells, control: ControlState) -> None:
    control.state_schema_version = CONTROL_VERSION
    cells.control.write(control.SerializeToString(deterministic=True))
    _set_ttl(cells, control)


def _write_or_clear(cell: StateCell, value: bytes | None) -> None:
    if value is None:
        cell.clear()
    else:
        cell.write(value)


def _set_ttl(cells: Cells, control: ControlState) -> None:
    cells.ttl.set(Timestamp(micros=min(control.expires_at_ms, MAX_TIMER_MS) * 1000))


def _take_result(control: ControlState, result: ToolResult) -> Suspension:
    """Put an answer to the suspension that waits for it and return that.

    Raises:
        _Refused: Nobody waits for it.
    """
    for suspension in control.suspensions:
        if result.intent_id in suspension.waiting_for:
            if any(result.intent_id == kept.intent_id for kept in suspension.results):
                raise _orphan("twice: the same intent was answered before")
            suspension.results.append(result)
            return suspension
    for settled in control.settled:
        if settled.intent_id == result.intent_id:
            if settled.answered:
                raise _orphan("twice: the same intent was answered before")
            raise _orphan("late: its suspension had timed out")
    raise _orphan("unknown: this key waits for no such intent (or was wiped since)")


def _orphan(why: str) -> _Refused:
    return _Refused(Reason.ORPHANED_RESULT, why)


def _in_order(resumed: Suspension | None) -> tuple[ToolResult, ...]:
    """Return the answers in the order in which the suspension named their intents."""
    if resumed is None:
        return ()
    by_id = {result.intent_id: result for result in resumed.results}
    return tuple(by_id[intent_id] for intent_id in resumed.waiting_for)


def _settle(control: ControlState, suspension: Suspension, *, answered: bool) -> None:
    """Remember how a suspension's intents ended; the oldest are forgotten."""
    came = {result.intent_id for result in suspension.results}
    for intent_id in suspension.waiting_for:
        control.settled.append(SettledIntent(intent_id=intent_id, answered=answered or intent_id in came))
    excess = len(control.settled) - MAX_SETTLED_INTENTS
    if excess > 0:
        del control.settled[:excess]


def _suspension(outcome: Suspend, activation: Activation) -> Suspension:
    intents = activation.context.intents
    waiting_for = outcome.waiting_for or tuple(intent.intent_id for intent in intents)
    return Suspension(
        seq=activation.record.seq,
        snapshot=outcome.snapshot,
        waiting_for=waiting_for,
        traceparent=activation.record.traceparent,
    )


def _check_outcome(outcome: object, activation: Activation) -> None:
    """Refuse what is no outcome, or one that could never be resumed."""
    if isinstance(outcome, Complete):
        return
    if not isinstance(outcome, Suspend):
        raise InvalidOutcome(f"an agent must return Complete or Suspend, not {type(outcome).__name__}")
    staged = {intent.intent_id for intent in activation.context.intents}
    if not staged:
        raise InvalidOutcome("Suspend waits for nothing: call ctx.act first")
    unknown = [each for each in outcome.waiting_for or () if each not in staged]
    if unknown or (outcome.waiting_for and len(set(outcome.waiting_for)) < len(outcome.waiting_for)):
        raise InvalidOutcome(
            "Suspend.waiting_for must name intents of this activation, each once: "
            f"{len(unknown)} of its {len(outcome.waiting_for or ())} ids are of none"
        )
    if len(outcome.snapshot) > MAX_SNAPSHOT_BYTES:
        raise InvalidOutcome(
            f"Suspend.snapshot has {len(outcome.snapshot)} bytes, and may have {MAX_SNAPSHOT_BYTES}"
        )

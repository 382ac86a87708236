"""One activation's life: decode → run (the agent, then the summarizer) → flush → commit.

Each step is a function of its own, with its span and its metrics in it. Up to ``commit`` nothing is written;
whatever goes wrong before ends the activation with one record on the errors output and the key's state as
it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from beam_agents.errors import (
    BundleFailure,
    InvalidOutcome,
    StateUndecodable,
    StateVersionUnsupported,
    StoreError,
    StoreTimeout,
    hash_entity_key,
)
from beam_agents.memory.facade import WorkingMemory
from beam_agents.memory.longterm import LongTermMemory
from beam_agents.model.replay import ReplayCache, begin_attempt
from beam_agents.runtime import clock
from beam_agents.runtime.bridge import DeadlineExceeded
from beam_agents.runtime.context import AgentContext, event_digest
from beam_agents.runtime.control import (
    MAX_CONTROL_BYTES,
    MAX_TIMESTAMP,
    in_order,
    read_control,
    settle,
    take_result,
    write_control,
)
from beam_agents.runtime.elements import INTENTS
from beam_agents.runtime.external import ExternalWaits
from beam_agents.runtime.interrupts import ends_program
from beam_agents.runtime.lifetime import advance_clock, event_clock_ms, is_in_future, next_seq
from beam_agents.runtime.longterm import RecordedStore
from beam_agents.runtime.measures import bytes_of, measure_attempted, measure_committed, measure_upserts
from beam_agents.runtime.outcomes import Complete, Outcome, Suspend
from beam_agents.runtime.probe import ProbedStep
from beam_agents.runtime.refusals import AgentExited, Refused, refusal, refuse
from beam_agents.runtime.summarize import summarize
from beam_agents.signals import attributes, catalogue
from beam_agents.signals.observer import Record
from beam_agents.signals.types import CallOutcome, Content, Reason, StoreOperation
from beam_agents.signals.wedges import wedge_table
from beam_agents.wire.beam_agents_pb2 import (
    AgentEnvelope,
    ControlState,
    Suspension,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from beam_agents.config import AgentConfig, Tool
    from beam_agents.runtime.cells import Cells, StateCell
    from beam_agents.runtime.elements import Element
    from beam_agents.runtime.probe import Probe
    from beam_agents.runtime.worker import AgentWorker

__all__ = ["MAX_EVENT_MS", "MIN_EVENT_MS", "Activation", "AgentFunction", "AgentRunner"]

AgentFunction: TypeAlias = "Callable[[AgentContext], Awaitable[Outcome]]"


MAX_SNAPSHOT_BYTES: Final = 1_048_576
COMPACTION_COOLDOWN: Final = 8
"""A key that is compacted again within so many activations thrashes: its memory is too small for its use."""

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
    waits: ExternalWaits
    memory: WorkingMemory
    replay: ReplayCache
    resumed: Suspension | None
    store: RecordedStore | None
    longterm: LongTermMemory | None

    def close(self) -> None:
        """End it for whoever still holds its context; what it staged stays readable. May be repeated."""
        self.context.close()
        if self.longterm is not None:
            self.longterm.close()
        if self.store is not None:
            self.store.close()


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
        event_time_ms = _event_time_ms(envelope, timestamp)
        try:
            elements = self._process(key, envelope, event_time_ms, cells, record)
        except Refused as refused:
            elements = [refuse(record, envelope, event_time_ms, refused)]
        except BaseException as error:
            # The bundle fails, and the element with it: it will be tried again.
            record.error_type = type(error).__name__
            raise
        finally:
            record.end_ns = record.now_ns()
            self.worker.telemetry.record(record)
        return elements

    def _process(
        self, key: bytes, envelope: AgentEnvelope, event_time_ms: int | None, cells: Cells, record: Record
    ) -> list[Element]:
        _check_envelope(key, envelope)
        self._check_expirable(key)
        if event_time_ms is not None:
            wall_ms = clock.wall_clock_ms()
            if is_in_future(event_time_ms, wall_ms, self.config.max_future_skew_ms):
                ahead = event_time_ms - wall_ms
                raise Refused(
                    Reason.EVENT_TIME_IN_FUTURE,
                    f"{ahead} ms ahead of the worker's clock; max_future_skew_ms is "
                    f"{self.config.max_future_skew_ms}",
                )
        control = read_control(key, cells.control)
        resumed: Suspension | None = None
        if envelope.WhichOneof("payload") == "tool_result":
            resumed = take_result(control, envelope.tool_result)
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
            flush(self, activation)
            self.probed(ProbedStep.FLUSH, key)
            elements = commit(self, activation, outcome, cells)
            self.probed(ProbedStep.COMMIT, key)
            return elements
        finally:
            # Again: an agent that was left behind has not closed it.
            activation.close()
            measure_attempted(activation)

    def _check_expirable(self, key: bytes) -> None:
        """Refuse a key whose memory could not be written when it expires, before it has any."""
        store = self.worker.store
        if self.config.on_expire is None or store is None or len(key) <= store.limits.max_entity_key_bytes:
            return
        raise Refused(
            Reason.INVALID_ENVELOPE,
            f"with AgentConfig.on_expire an entity key may have {store.limits.max_entity_key_bytes} bytes; "
            f"this one has {len(key)}",
        )

    def _keep_result(
        self, cells: Cells, control: ControlState, event_time_ms: int | None, record: Record
    ) -> list[Element]:
        """Commit an answer that came while others are still awaited; no activation runs.

        Raises:
            Refused: What the key keeps of answers and snapshots would be too much.
        """
        size = control.ByteSize()
        if size > MAX_CONTROL_BYTES:
            raise Refused(
                Reason.INVALID_ENVELOPE,
                f"with this answer the key's suspensions take {size} bytes, and may take {MAX_CONTROL_BYTES}",
            )
        advance_clock(control, event_time_ms, self.config.ttl_ms)
        write_control(cells, control)
        record.outcome = ""
        return []

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
    record.attempt = begin_attempt(runner.run_id, key, seq, hash((envelope.event_id, envelope.event)))
    if resumed is not None:
        record.continues = resumed.seq, resumed.traceparent
    # Not before: a trace's id depends on the seq, and a span's on the attempt.
    runner.worker.telemetry.activation_started(record)
    record.capture(None, Content.INPUT, envelope.event)
    waits = ExternalWaits(record)
    worker_store = runner.worker.store
    store = RecordedStore(worker_store, record, waits) if worker_store is not None else None
    longterm = (
        LongTermMemory(store, entity_key=key, seq=seq, now_ms=now_ms, watcher=store)
        if store is not None
        else None
    )
    step = record.begin(catalogue.SPAN_MEMORY_DECODE)
    try:
        memory = WorkingMemory(
            _read_memory(cells, control),
            compactor=config.compactor,
            # With a summarizer, a full memory is first folded; only the hard cap evicts.
            soft_cap_compacts=config.summarizer is None,
            longterm=longterm,
        )
        replay = ReplayCache(
            cells.replay.read() if control.replay_seq and runner.replays else None,
            limits=config.replay_cache,
            entity_key=key,
            seq=seq,
            now_ms=now_ms,
            # A failed activation gives its seq back: the next event may have the same one.
            scope=f"{runner.run_id}/{event_digest(envelope).hex()}" if runner.replays else None,
        )
        replay.verify()
    except (StateUndecodable, StateVersionUnsupported) as error:
        record.finish(step, type(error).__name__)
        raise refusal(error, hash_entity_key(key)) from error
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
        results=in_order(resumed),
        snapshot=resumed.snapshot if resumed is not None else None,
        replay=replay,
        client=runner.client,
        tools=runner.tools,
        max_tokens=config.max_tokens_per_activation,
        record=record,
        waits=waits,
        envelope=envelope,
    )
    return Activation(
        record, envelope, event_time_ms, control, context, waits, memory, replay, resumed, store, longterm
    )


def _read_memory(cells: Cells, control: ControlState) -> bytes | None:
    """Return the memory cell's bytes; none where the control cell says that there are none."""
    if not control.memory_entries:
        return None
    stored = cells.memory.read()
    if stored is None:
        # Never taken for an empty memory in silence.
        raise StateUndecodable("memory")
    return stored


def run(runner: AgentRunner, activation: Activation) -> Outcome:
    """Run the agent and what follows it on the event loop, within the timeout."""
    config = runner.config
    worker = runner.worker
    record = activation.record
    try:
        outcome = worker.bridge.run(
            _agent_and_tail(runner, activation),
            config.activation_timeout_s,
            on_stall=lambda: record.measure(catalogue.EVENT_LOOP_STALLS, 1),
            inline=worker.start.inline,
            on_first_step=lambda done: worker.start.learn(waited=not done and not activation.waits.running),
        )
    except BundleFailure:
        raise
    except DeadlineExceeded as error:
        detail = f"over activation_timeout_s={config.activation_timeout_s:g}: {error.how}"
        raise Refused(Reason.ACTIVATION_TIMEOUT, detail, TimeoutError.__name__) from error
    except BaseException as error:
        if ends_program(error):
            raise
        # Whatever else an agent raises, even what is meant to end a process, ends its own activation.
        raise refusal(error) from error
    return outcome


async def _agent_and_tail(runner: AgentRunner, activation: Activation) -> Outcome:
    """Run the agent, then the summarizer: all that may wait, under one timeout."""
    try:
        return await _agent_then_summarizer(runner, activation)
    finally:
        # Before anything else of the loop runs: what the agent left running must not touch what is committed.
        activation.close()


async def _agent_then_summarizer(runner: AgentRunner, activation: Activation) -> Outcome:
    context = activation.context
    try:
        outcome = await runner.agent(context)
    except (SystemExit, KeyboardInterrupt) as error:
        if ends_program(error):
            raise
        # asyncio lets these through to whoever runs the loop; from the agent they end its activation alone.
        raise AgentExited from error
    _check_outcome(outcome, activation)
    if outcome.output is not None:
        activation.record.capture(None, Content.OUTPUT, outcome.output)
    runner.probed(ProbedStep.AGENT, context.entity_key)
    if runner.config.summarizer is not None:
        await summarize(context, runner.config.summarizer, activation.record)
        runner.probed(ProbedStep.SUMMARIZE, context.entity_key)
    return outcome


def flush(runner: AgentRunner, activation: Activation) -> None:
    """Write what the agent saved to the long-term store, in one call, before anything commits."""
    record, store = activation.record, activation.store
    rows = activation.longterm.staged if activation.longterm is not None else ()
    if store is None or not rows:
        return
    backend = store.backend
    record.measure(catalogue.LONGTERM_STAGED, len(rows), backend)
    started_ns = record.now_ns()
    outcome = CallOutcome.ERROR
    try:
        results = runner.worker.bridge.run(store.save_many(rows, StoreOperation.FLUSH), inline=False)
        outcome = CallOutcome.OK
    except Exception as error:
        error_type = type(error).__name__
        if isinstance(error, StoreTimeout):
            outcome = CallOutcome.TIMEOUT
        record.measure(catalogue.LONGTERM_FLUSH_FAILURES, 1, backend, error_type)
        record.happened(
            catalogue.EVENT_LONGTERM_FLUSH_FAILED,
            backend=backend,
            error_type=error_type,
            rows=len(rows),
            bytes=bytes_of(rows),
            retries=error.attempts - 1 if isinstance(error, StoreError) else 0,
        )
        raise Refused(Reason.LONGTERM_FLUSH_FAILED, refusal(error).detail, error_type) from error
    finally:
        seconds = (record.now_ns() - started_ns) / 1e9
        record.measure(catalogue.LONGTERM_FLUSH_DURATION_SECONDS, seconds, backend, outcome.value)
        record.measure(catalogue.LONGTERM_FLUSH_ROWS, len(rows), backend, outcome.value)
        record.measure(catalogue.LONGTERM_FLUSH_BYTES, bytes_of(rows), backend, outcome.value)
    measure_upserts(record, backend, results)


def commit(runner: AgentRunner, activation: Activation, outcome: Outcome, cells: Cells) -> list[Element]:
    """Write the key's state and return what the activation emits. Only a failing bundle undoes this."""
    record, control, memory = activation.record, activation.control, activation.memory
    step = record.begin(catalogue.SPAN_MEMORY_COMMIT)
    memory_bytes = memory.encode() if memory.changed else None
    replay_bytes = activation.replay.encode() if activation.replay.changed else None
    resumed = activation.resumed
    if resumed is not None:
        settle(control, resumed, answered=True)
        runner.clear_deadline(cells, resumed)
        control.suspensions.remove(resumed)
    advance_clock(control, activation.event_time_ms, runner.config.ttl_ms)
    control.activations += 1
    control.expire_failures = control.expire_failing_since_ms = 0
    # Its timer is set anew: whatever wedged the last one is no longer in the way of anything.
    wedge_table().ended(runner.pipeline, runner.name, record.entity_key)
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
    write_control(cells, control)
    step.attributes[attributes.MEMORY_SIZE_BYTES] = control.memory_bytes
    step.attributes[attributes.MEMORY_ENTRIES] = control.memory_entries
    record.finish(step)
    measure_committed(activation, outcome)
    elements: list[Element] = [] if outcome.output is None else [outcome.output]
    elements.extend(TaggedOutput(INTENTS, intent) for intent in activation.context.intents)
    return elements


def _check_envelope(key: bytes, envelope: AgentEnvelope) -> None:
    """Refuse an element that no activation can be run for."""
    if envelope.entity_key != key:
        raise Refused(Reason.INVALID_ENVELOPE, "AgentEnvelope.entity_key differs from the element's key")
    payload = envelope.WhichOneof("payload")
    if payload is None:
        raise Refused(Reason.INVALID_ENVELOPE, "AgentEnvelope has neither event nor tool_result")
    if envelope.HasField("event_time_ms") and not MIN_EVENT_MS <= envelope.event_time_ms <= MAX_EVENT_MS:
        raise Refused(
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


def _write_or_clear(cell: StateCell, value: bytes | None) -> None:
    if value is None:
        cell.clear()
    else:
        cell.write(value)


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
    size = activation.control.ByteSize() + len(outcome.snapshot)
    if size > MAX_CONTROL_BYTES:
        raise InvalidOutcome(
            f"with this Suspend the key's suspensions take {size} bytes, and may take {MAX_CONTROL_BYTES}"
        )

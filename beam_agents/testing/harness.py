"""An agent's DoFn without a runner: state, timers and bundles in plain dicts, fast.

It is for tests of an agent's logic over many events. What a runner does around the DoFn (coders, fusion,
retries, the order of timers) it does not do: :func:`beam_agents.testing.run_events` has a real one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self, cast

from apache_beam.pvalue import TaggedOutput
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp

from beam_agents.config import AgentConfig
from beam_agents.runtime.dofn import AgentDoFnWithDeadlines, make_dofn
from beam_agents.testing.state import KeyState
from beam_agents.testing.telemetry import RecordingTelemetry
from beam_agents.wire.beam_agents_pb2 import ToolIntent

if TYPE_CHECKING:
    from types import TracebackType

    from beam_agents.runtime.activation import AgentFunction
    from beam_agents.runtime.elements import Element
    from beam_agents.runtime.probe import Probe
    from beam_agents.wire.beam_agents_pb2 import ActivationError, AgentEnvelope

__all__ = ["AgentHarness", "DictCell", "DictTimer", "Emitted"]


@dataclass(slots=True)
class DictCell:
    """A state cell in memory."""

    value: bytes | None = None

    def read(self) -> bytes | None:
        """Return the value, or None where the cell is empty."""
        return self.value

    def write(self, value: bytes) -> None:
        """Put a value in the place of what is there."""
        self.value = value

    def clear(self) -> None:
        """Empty the cell."""
        self.value = None


@dataclass(slots=True)
class DictTimer:
    """A timer in memory.

    Attributes:
        set_for: When it fires, by tag.
    """

    set_for: dict[str, Timestamp] = field(default_factory=dict)

    def set(self, timestamp: Timestamp, dynamic_timer_tag: str = "") -> None:
        """Set the timer, or set it again; each tag is a timer of its own."""
        self.set_for[dynamic_timer_tag] = timestamp

    def clear(self, dynamic_timer_tag: str = "") -> None:
        """Take the timer back."""
        self.set_for.pop(dynamic_timer_tag, None)


@dataclass(slots=True)
class Emitted:
    """What an element or a timer emitted."""

    outputs: list[bytes] = field(default_factory=list)
    intents: list[ToolIntent] = field(default_factory=list)
    errors: list[ActivationError] = field(default_factory=list)

    def add(self, elements: list[Element]) -> None:
        """Sort elements by their output."""
        for element in elements:
            if not isinstance(element, TaggedOutput):
                self.outputs.append(element)
            elif isinstance(element.value, ToolIntent):
                self.intents.append(element.value)
            else:
                self.errors.append(element.value)


@dataclass(slots=True)
class _Key:
    control: DictCell = field(default_factory=DictCell)
    memory: DictCell = field(default_factory=DictCell)
    replay: DictCell = field(default_factory=DictCell)
    ttl: DictTimer = field(default_factory=DictTimer)
    suspension: DictTimer = field(default_factory=DictTimer)


class AgentHarness:
    """Runs an agent's DoFn in this thread. Use it as a context manager.

    Args:
        agent: The agent.
        config: Its configuration; a :class:`RecordingTelemetry` is added to its plugins.
        name: Its name.
        probe: What may fail a step, such as a :class:`FailOnce`.

    Attributes:
        signals: Everything that was told to telemetry.
        watermark_ms: Where the watermark is, milliseconds since the Unix epoch.
    """

    def __init__(
        self,
        agent: AgentFunction,
        config: AgentConfig | None = None,
        *,
        name: str = "agent",
        probe: Probe | None = None,
    ) -> None:
        self.signals = RecordingTelemetry()
        self.watermark_ms = 0
        configured = config if config is not None else AgentConfig()
        configured = replace(configured, telemetry=(*configured.telemetry, self.signals))
        self._dofn = make_dofn(
            agent, configured, name=name, pipeline="harness", run_id=self.signals.identity, probe=probe
        )
        self._keys: dict[bytes, _Key] = {}
        self._entered = False

    def __enter__(self) -> Self:
        self._entered = True
        self._dofn.setup()
        self._dofn.start_bundle()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dofn.teardown()

    @property
    def states(self) -> dict[bytes, KeyState]:
        """The cells of each key that holds something."""
        states = {
            key: KeyState(held.control.value, held.memory.value, held.replay.value)
            for key, held in self._keys.items()
        }
        return {key: state for key, state in states.items() if state != KeyState()}

    def timers(self, key: bytes) -> dict[str, int]:
        """Return when a key's expiry timer fires, in milliseconds of event time: by tag, empty for none."""
        return {tag: at.micros // 1000 for tag, at in self._held(key).ttl.set_for.items()}

    def put_state(self, key: bytes, state: KeyState) -> None:
        """Put bytes into a key's cells, as another version of the runtime might have left them."""
        held = self._held(key)
        held.control.value, held.memory.value, held.replay.value = state.control, state.memory, state.replay

    def send(self, *envelopes: AgentEnvelope, attempts: int = 1) -> Emitted:
        """Run envelopes as one bundle.

        Args:
            envelopes: The elements.
            attempts: How often the bundle may be run before its failure is raised; state and timers are
                rolled back before each further attempt.
        """
        if not self._entered:
            raise RuntimeError("use the harness as a context manager: with AgentHarness(...) as harness: ...")
        for attempt in range(1, attempts + 1):
            before = copy.deepcopy(self._keys)
            emitted = Emitted()
            try:
                for envelope in envelopes:
                    emitted.add(self._process(envelope))
            except Exception:
                self._keys = before
                if attempt == attempts:
                    raise
            else:
                return emitted
        raise ValueError(f"attempts must be at least 1, not {attempts}")

    def _process(self, envelope: AgentEnvelope) -> list[Element]:
        held = self._held(envelope.entity_key)
        has_time = envelope.HasField("event_time_ms")
        at = Timestamp(micros=envelope.event_time_ms * 1000) if has_time else MIN_TIMESTAMP
        cells = (held.control, held.memory, held.replay, held.ttl)
        if isinstance(self._dofn, AgentDoFnWithDeadlines):
            return self._dofn.process((envelope.entity_key, envelope), at, *cells, held.suspension)
        return self._dofn.process((envelope.entity_key, envelope), at, *cells)

    def advance_watermark(self, to_ms: int) -> Emitted:
        """Move the watermark and fire the expiry timers that it passes, oldest first."""
        self.watermark_ms = max(self.watermark_ms, to_ms)
        emitted = Emitted()
        while due := sorted(
            (at, key)
            for key, held in self._keys.items()
            for at in held.ttl.set_for.values()
            if at.micros // 1000 <= self.watermark_ms
        ):
            at, key = due[0]
            self._held(key).ttl.clear()
            emitted.add(self.fire_expiry(key, at.micros // 1000))
        return emitted

    def fire_expiry(self, key: bytes, at_ms: int) -> list[Element]:
        """Call a key's expiry callback, as a runner would that fires a timer set for ``at_ms``."""
        held = self._held(key)
        cells = (held.control, held.memory, held.replay, held.ttl)
        at = Timestamp(micros=at_ms * 1000)
        if isinstance(self._dofn, AgentDoFnWithDeadlines):
            return self._dofn.on_ttl(key, at, *cells, held.suspension)
        return self._dofn.on_ttl(key, at, *cells)

    def fire_deadlines(self, key: bytes) -> Emitted:
        """Fire all suspension deadlines of a key that are set, in the order of their suspensions."""
        emitted = Emitted()
        held = self._held(key)
        dofn = cast("AgentDoFnWithDeadlines", self._dofn)
        for tag in sorted(held.suspension.set_for, key=int):
            held.suspension.clear(tag)
            emitted.add(
                dofn.on_suspension(
                    key, tag, held.control, held.memory, held.replay, held.ttl, held.suspension
                )
            )
        return emitted

    def _held(self, key: bytes) -> _Key:
        return self._keys.setdefault(key, _Key())

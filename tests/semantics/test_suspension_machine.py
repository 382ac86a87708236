"""Suspend, resume, deadlines, expiry, answers that come twice, late or for nobody, against a plain model."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from beam_agents import AgentConfig, AgentContext, AgentEnvelope, Complete, Suspend, ToolIntent, ToolResult
from beam_agents.signals.types import Reason
from beam_agents.testing import AgentHarness, answer, event

KEY = b"key"
TTL_MS = 10_000
START_MS = 1_000_000


async def agent(ctx: AgentContext) -> Complete | Suspend:
    """Ask as many questions as the event says, and wait for as many of the first of them."""
    if ctx.snapshot is not None:
        contents = [result.content for result in ctx.results]
        if b"poison" in contents:
            raise ValueError
        return Complete(b"%s<-%s" % (ctx.snapshot, b",".join(contents)))
    assert ctx.event is not None
    asks, waits = (int(part) for part in ctx.event.split())
    intents = [ctx.act("ask", b"%d" % index) for index in range(asks)]
    if waits == 0:
        return Complete(b"plain")
    return Suspend(snapshot=b"%d" % ctx.seq, waiting_for=tuple(intents[:waits]))


@dataclass
class Waiting:
    """A suspension, as the model has it."""

    seq: int
    wanted: tuple[str, ...]
    came: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """An intent, and the life of the key in which it was asked."""

    intent: ToolIntent
    life: int


class SuspensionMachine(RuleBasedStateMachine):
    """Drives the DoFn and the model side by side."""

    intents = Bundle("intents")

    @initialize()
    def start(self) -> None:
        self.harness = AgentHarness(agent, AgentConfig(ttl_ms=TTL_MS, suspension_timeout_ms=1_000))
        self.harness.__enter__()
        self.now_ms = START_MS
        self.life = 0
        self.waiting: list[Waiting] = []
        self.answered: set[str] = set()
        self.given_up: set[str] = set()
        self.seq = 0
        self.highest_seq = 0

    @rule(target=intents, asks=st.integers(0, 3), waits=st.integers(0, 3), step_ms=st.integers(-2_000, 2_000))
    def ask(self, asks: int, waits: int, step_ms: int) -> object:
        self.now_ms = max(START_MS, self.now_ms + step_ms)
        waits = min(asks, waits)
        emitted = self.harness.send(event(KEY, b"%d %d" % (asks, waits), time_ms=self.now_ms))
        self.seq = max(self.seq + 1, self.now_ms)
        assert emitted.errors == []
        assert len(emitted.intents) == asks
        if waits:
            self.waiting.append(Waiting(self.seq, tuple(each.intent_id for each in emitted.intents[:waits])))
        else:
            assert emitted.outputs == [b"plain"]
        return multiple(*(Asked(intent, self.life) for intent in emitted.intents))

    @rule(asked=intents, content=st.sampled_from([b"yes", b"no", b"poison"]))
    def answer_one(self, asked: Asked, content: bytes) -> None:
        before = self.harness.states
        emitted = self.harness.send(answer(asked.intent, content))
        intent_id = asked.intent.intent_id
        waiting = next((each for each in self.waiting if intent_id in each.wanted), None)
        if waiting is None or intent_id in waiting.came:
            assert [error.reason for error in emitted.errors] == [Reason.ORPHANED_RESULT]
            assert emitted.errors[0].detail.split(":")[0] == self._why(intent_id, waiting)
            assert self.harness.states == before
            return
        came = {**waiting.came, intent_id: content}
        if len(came) < len(waiting.wanted):
            assert emitted.errors == []
            assert emitted.outputs == []
            waiting.came = came
            return
        contents = [came[wanted] for wanted in waiting.wanted]
        if b"poison" in contents:
            assert [error.reason for error in emitted.errors] == [Reason.ACTIVATION_ERROR]
            assert self.harness.states == before
            return
        assert emitted.errors == []
        assert emitted.outputs == [b"%d<-%s" % (waiting.seq, b",".join(contents))]
        self.seq += 1
        self.waiting.remove(waiting)
        self.answered.update(waiting.wanted)

    def _why(self, intent_id: str, waiting: Waiting | None) -> str:
        if waiting is not None or intent_id in self.answered:
            return "twice"
        return "late" if intent_id in self.given_up else "unknown"

    @rule()
    def answer_a_stranger(self) -> None:
        before = self.harness.states
        stranger = AgentEnvelope(entity_key=KEY, tool_result=ToolResult(intent_id="stranger"))
        (error,) = self.harness.send(stranger).errors
        assert error.reason == Reason.ORPHANED_RESULT
        assert self.harness.states == before

    @rule()
    def deadlines_pass(self) -> None:
        errors = self.harness.fire_deadlines(KEY).errors
        assert [error.reason for error in errors] == [Reason.SUSPENSION_TIMEOUT] * len(self.waiting)
        assert [error.seq for error in errors] == [each.seq for each in self.waiting]
        for each in self.waiting:
            self.answered.update(each.came)
            self.given_up.update(set(each.wanted) - set(each.came))
        self.waiting.clear()

    @rule()
    def expire(self) -> None:
        (due_ms,) = self.harness.timers(KEY).values() or (0,)
        errors = self.harness.advance_watermark(due_ms).errors
        assert [error.reason for error in errors] == [Reason.TTL_WIPED_SUSPENSION] * len(self.waiting)
        assert self.harness.states == {}
        self.waiting.clear()
        self.answered.clear()
        self.given_up.clear()
        self.seq = 0
        self.life += 1
        # The next life's events are newer than all of the last one's.
        self.now_ms = max(self.now_ms, due_ms)

    @invariant()
    def the_state_is_the_models(self) -> None:
        if not hasattr(self, "harness"):
            return
        state = self.harness.states.get(KEY)
        if state is None:
            assert self.seq == 0
            return
        control = state.decoded_control
        assert control.seq == self.seq
        assert [(each.seq, tuple(each.waiting_for)) for each in control.suspensions] == [
            (each.seq, each.wanted) for each in self.waiting
        ]
        deadlines = set(self.harness._held(KEY).suspension.set_for)
        assert deadlines == {str(each.seq) for each in self.waiting}

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.__exit__(None, None, None)


TestSuspensionMachine = SuspensionMachine.TestCase
# At most 3 intents a step: what a key remembers of settled ones (64) is never exceeded.
TestSuspensionMachine.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)

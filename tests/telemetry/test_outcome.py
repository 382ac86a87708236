"""Telemetry never changes the outcome: outputs, errors, intents, rows, timers and state are equal, byte by
byte.

The scenarios are those of the runtime's own tests; each is run with each plugin that is installed, with all
of them, and with plugins that misbehave in every method, and compared with a run that has none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, DropOldestCompactor, FlushToLongterm
from beam_agents.errors import BundleFailure, StoreUnavailable
from beam_agents.memory.stores.inprocess import InProcessAdmin, InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.runtime.dofn import make_dofn
from beam_agents.signals import Observer, acquire_hub, losses, release_hub, take_snapshot
from beam_agents.signals.types import DropReason
from beam_agents.testing import (
    AdvanceWatermark,
    AgentHarness,
    FailOnce,
    ScriptedModel,
    answer,
    event,
    run_events,
)
from beam_agents.testing import pipeline as pipeline_kit
from beam_agents.testing.registry import Shared
from tests.semantics import (
    test_failures,
    test_longterm,
    test_longterm_retry_determinism,
    test_retry_determinism,
    test_suspension_machine,
)
from tests.telemetry import installed
from tests.workers import end_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.runtime.activation import AgentFunction
    from beam_agents.runtime.probe import Probe
    from beam_agents.signals import Measured, Record, TelemetryPlugin, Worker
    from beam_agents.signals.types import UpsertResult
    from beam_agents.testing import AgentRun, Emitted

Plugins: TypeAlias = "tuple[TelemetryPlugin, ...]"
Outcome: TypeAlias = "dict[str, object]"


class Raises(Shared, Observer):
    """A plugin that raises whatever it is asked."""

    name = "raises"
    reads_aggregates: ClassVar[bool] = True

    def build(self) -> Observer:
        return self

    def start(self, worker: Worker) -> None:
        raise ZeroDivisionError(worker.agent)

    def bundle_started(self, worker: Worker) -> None:
        raise LookupError(worker.agent)

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:
        raise OSError(worker.agent, phase, error_type)

    def activation_started(self, record: Record) -> None:
        raise TimeoutError(record.agent)

    def record(self, record: Record) -> None:
        raise BundleFailure(record.agent)

    def measured(self, pipeline: str, agent: str, measured: Sequence[Measured]) -> None:
        raise EOFError(pipeline, agent, len(measured))

    def flush(self, timeout_s: float) -> None:
        raise StoreUnavailable("redis", str(timeout_s))

    def close(self, timeout_s: float) -> None:
        raise AssertionError(timeout_s)


class Unbuildable(Shared):
    """A plugin that cannot be made."""

    name = "unbuildable"

    def build(self) -> Observer:
        raise ImportError


class Does(Shared, Observer):
    """A plugin that does the same in every method."""

    name = "does"
    reads_aggregates: ClassVar[bool] = True

    def build(self) -> Observer:
        return self

    def act(self, *told: object) -> None:
        raise NotImplementedError

    def start(self, worker: Worker) -> None:
        self.act(worker)

    def bundle_started(self, worker: Worker) -> None:
        self.act(worker)

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:
        self.act(worker, phase, error_type)

    def activation_started(self, record: Record) -> None:
        self.act(record)

    def record(self, record: Record) -> None:
        self.act(record)

    def measured(self, pipeline: str, agent: str, measured: Sequence[Measured]) -> None:
        self.act(pipeline, agent, measured)

    def flush(self, timeout_s: float) -> None:
        self.act(timeout_s)

    def close(self, timeout_s: float) -> None:
        self.act(timeout_s)


class Sleeps(Does):
    """A plugin that takes its time."""

    name = "sleeps"

    def act(self, *told: object) -> None:  # noqa: ARG002 - whatever it is
        time.sleep(0.001)


class Leaks(Does):
    """A plugin that lets go of nothing, and looks at everything."""

    name = "leaks"

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[object] = []

    def act(self, *told: object) -> None:
        self.kept += told, bytearray(10_000), take_snapshot()
        for each in told:
            self.kept += (getattr(each, name, None) for name in ("trace_id", "span_id", "link", "entity"))


BAD: dict[str, Callable[[], TelemetryPlugin]] = {
    "raises": Raises,
    "unbuildable": Unbuildable,
    "sleeps": Sleeps,
    "leaks": Leaks,
}


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    end_workers()
    forget_rows()
    losses.forget()
    assert not any(each.name == "beam-agents-logs-writer" for each in threading.enumerate())


@pytest.fixture(autouse=True)
def _no_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away the plugin that the kit adds to each run."""

    def replace(given: object, **fields: object) -> object:
        return given if "telemetry" in fields else dataclasses.replace(given, **fields)  # type: ignore[type-var]  # of the kit's own

    monkeypatch.setattr(pipeline_kit, "replace", replace)


def harness(agent: AgentFunction, config: AgentConfig, *, probe: Probe | None = None) -> AgentHarness:
    """Return a harness whose DoFn has the configuration's plugins and no other."""
    made = AgentHarness(agent, config, probe=probe)
    run_id = made.signals.identity
    made._dofn = make_dofn(agent, config, name="agent", pipeline="harness", run_id=run_id, probe=probe)
    return made


def of_run(run: AgentRun) -> Outcome:
    return {
        "outputs": sorted(run.outputs),
        "intents": sorted(intent.SerializeToString(deterministic=True) for intent in run.intents),
        "errors": sorted(error.SerializeToString(deterministic=True) for error in run.errors),
        "states": run.states,
        "expired": sorted(run.expired),
    }


def of_emitted(*emitted: Emitted) -> list[object]:
    return [
        (
            each.outputs,
            [intent.SerializeToString(deterministic=True) for intent in each.intents],
            [error.SerializeToString(deterministic=True) for error in each.errors],
        )
        for each in emitted
    ]


def rows() -> list[StoreRow]:
    store = InProcessStore(parse_store_uri("memory://"))
    return asyncio.run(InProcessAdmin(store).scan(None, 1_000))


# The scenarios


def everything(plugins: Plugins, *, runner: str = "FnApiRunner", faults: Sequence[FailOnce] = ()) -> Outcome:
    """Memory up to its cap, models, tools, summaries, intents, a suspension, expiry."""
    model = ScriptedModel(test_retry_determinism.reply)
    config = dataclasses.replace(test_retry_determinism.config(model), telemetry=plugins)
    run = run_events(
        test_retry_determinism.agent,
        test_retry_determinism.envelopes(),
        config=config,
        runner=runner,
        faults=faults,
    )
    assert all(fault.raised for fault in faults)
    return {**of_run(run), "calls": sorted(call.request.body for call in model.calls)}


def a_failing_bundle(plugins: Plugins) -> Outcome:
    """The same, and one bundle fails."""
    return everything(plugins, runner="BundleBasedDirectRunner", faults=[FailOnce("run", occurrence=4)])


def long_term_saves(plugins: Plugins) -> Outcome:
    """Rows are flushed, the commit fails, and the bundle is run again."""
    model = ScriptedModel(lambda request: b"about " + request.body)
    config = AgentConfig(provider_factory=model, longterm_memory="memory://", telemetry=plugins)
    run = run_events(
        test_longterm_retry_determinism.blind,
        test_longterm_retry_determinism.events(),  # type: ignore[arg-type]  # envelopes
        config=config,
        faults=[FailOnce("flush", occurrence=3)],
    )
    return {**of_run(run), "rows": rows(), "calls": model.call_count}


def failing_timers_on_a_runner(plugins: Plugins) -> Outcome:
    """The flush of an expiring key fails twice, and its bundle with it."""
    failures = [True, True]
    save_many = InProcessStore.save_many

    async def failing(store: InProcessStore, given: Sequence[StoreRow]) -> list[UpsertResult]:
        if failures:
            failures.pop()
            raise ValueError
        return await save_many(store, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessStore, "save_many", failing)
        run = run_events(
            test_longterm.remember,
            [event(b"k", time_ms=1_000), AdvanceWatermark(3_000), event(b"k", time_ms=4_000)],
            config=dataclasses.replace(test_longterm.expiring(), telemetry=plugins),
        )
    assert failures == []
    return {**of_run(run), "rows": rows()}


def failures(plugins: Plugins) -> Outcome:
    """Every way in which an activation may fail, and the one after it."""
    told: Outcome = {}
    for agent, _, _ in test_failures.FAILURES:

        async def switch(ctx: AgentContext, agent: AgentFunction = agent) -> object:
            return await (agent if ctx.event == b"bad" else test_failures.good)(ctx)

        config = AgentConfig(
            provider_factory=ScriptedModel(test_failures.reply),
            max_tokens_per_activation=200,
            telemetry=plugins,
        )
        with harness(switch, config) as running:  # type: ignore[arg-type]  # some return what they must not
            emitted = [
                running.send(event(b"k", payload, time_ms=1_000 * at))
                for at, payload in enumerate((b"good", b"bad", b"good"), 1)
            ]
            told[agent.__name__] = of_emitted(*emitted), running.states, running.timers(b"k")
    return told


def refusals(plugins: Plugins) -> Outcome:
    """Elements and state for which no agent runs."""
    told: Outcome = {}
    for name, state in test_failures.NEWER.items():
        with harness(test_failures.idle, AgentConfig(telemetry=plugins)) as running:
            running.put_state(b"k", state)
            emitted = running.send(
                event(b"k", time_ms=5), event(b"other", time_ms=-1), event(b"third", time_ms=7)
            )
            told[name] = of_emitted(emitted), running.states
    return told


def suspensions(plugins: Plugins) -> Outcome:
    """Answers in time, twice, to nobody, too late, and never."""
    config = AgentConfig(ttl_ms=10_000, suspension_timeout_ms=1_000, telemetry=plugins)
    with harness(test_suspension_machine.agent, config) as running:
        emitted = [running.send(event(key, b"3 2", time_ms=1_000)) for key in (b"a", b"b", b"c")]
        first, second, unwanted = emitted[0].intents
        emitted += [
            running.send(answer(intent, b"yes", time_ms=2_000))
            for intent in (first, unwanted, second, second)
        ]
        emitted.append(running.send(answer(emitted[1].intents[0], b"poison", time_ms=2_000)))
        emitted.append(running.send(answer(emitted[1].intents[1], b"no", time_ms=2_000)))
        emitted.append(running.fire_deadlines(b"b"))
        emitted.append(running.advance_watermark(20_000))
        return {"emitted": of_emitted(*emitted), "states": running.states}


def expiry(plugins: Plugins, **hook: object) -> Outcome:
    """Outages while activations flush and while keys expire, and their end."""
    with pytest.MonkeyPatch.context() as patch:
        outage = test_longterm.Outage(patch)
        config = AgentConfig(
            longterm_memory="memory://",
            ttl_ms=1_000,
            on_expire=FlushToLongterm(**hook),  # type: ignore[arg-type]  # as given
            compactor=DropOldestCompactor(),
            telemetry=plugins,
        )
        told: list[object] = []
        with harness(test_longterm.remember, config) as running:
            told += of_emitted(running.send(event(b"k", time_ms=1_000), event(b"other", time_ms=1_500)))
            outage.down = True
            for fired_ms in (2_000, 2_000, 90_000):
                try:
                    told.append(running.fire_expiry(b"k", fired_ms))
                except BundleFailure as error:
                    told.append(str(error))
                told += running.states, running.timers(b"k")
            told += of_emitted(running.send(event(b"k", time_ms=2_500)))
            outage.down = False
            told += of_emitted(running.advance_watermark(10**9))
            told += running.states, running.timers(b"k"), outage.calls
    return {"told": told, "rows": rows()}


def failing_flushes(plugins: Plugins) -> Outcome:
    """A store that is down while activations save."""
    with pytest.MonkeyPatch.context() as patch:
        outage = test_longterm.Outage(patch)
        config = AgentConfig(longterm_memory="memory://", ttl_ms=1_000, telemetry=plugins)
        emitted = []
        with harness(test_longterm.keep, config) as running:
            for at, (down, payload) in enumerate(
                [(False, b"1"), (True, b"2"), (False, b"fail"), (False, b"3")]
            ):
                outage.down = down
                emitted.append(running.send(event(b"k", payload, time_ms=1_000 + at)))
            return {"emitted": of_emitted(*emitted), "states": running.states, "rows": rows()}


def failing_bundles_in_the_harness(plugins: Plugins) -> Outcome:
    """Several events of one key in a bundle, which fails after each of its steps, and is run again."""
    told: Outcome = {}
    script = [each for each in test_retry_determinism.envelopes() if each.entity_key == b"alpha"]
    for step in test_retry_determinism.STEPS[:-1]:
        model = ScriptedModel(test_retry_determinism.reply)
        config = dataclasses.replace(test_retry_determinism.config(model), telemetry=plugins)
        fault = FailOnce(step, occurrence=3)
        with harness(test_retry_determinism.agent, config, probe=fault) as running:  # type: ignore[arg-type]  # a probe
            emitted = running.send(*script, attempts=2)
            told[step] = of_emitted(emitted), running.states, model.call_count
        assert fault.raised
    return told


SCENARIOS: dict[str, Callable[[Plugins], Outcome]] = {
    each.__name__: each
    for each in (
        everything,
        a_failing_bundle,
        long_term_saves,
        failing_timers_on_a_runner,
        failures,
        refusals,
        suspensions,
        expiry,
        failing_flushes,
        failing_bundles_in_the_harness,
    )
}
SCENARIOS["expiry that sets timers again"] = lambda plugins: expiry(
    plugins, on_failure="rearm", max_attempts=2
)

_EXPECTED: dict[str, Outcome] = {}


def run_scenario(scenario: str, plugins: Plugins) -> Outcome:
    forget_rows()
    return SCENARIOS[scenario](plugins)


def expected(scenario: str) -> Outcome:
    """Return what comes of a scenario without any plugin."""
    if scenario not in _EXPECTED:
        _EXPECTED[scenario] = run_scenario(scenario, ())
    return _EXPECTED[scenario]


def test_plugins_that_are_there_can_be_used() -> None:
    assert {"beam", "logs"} <= set(installed.NAMES)
    assert installed.declared() == installed.NAMES


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_the_same_each_time_and_does_something(scenario: str) -> None:
    first = expected(scenario)
    assert run_scenario(scenario, ()) == first
    assert any(first.values())


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", [*installed.NAMES, "all"])
def test_installed_plugins_change_nothing(name: str, scenario: str, tmp_path: Path) -> None:
    names = installed.NAMES if name == "all" else [name]
    plugins = tuple(installed.make_plugin(each, tmp_path) for each in names)
    assert run_scenario(scenario, plugins) == expected(scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", BAD)
def test_plugins_that_misbehave_change_nothing(name: str, scenario: str) -> None:
    plugins = (BAD[name](),)
    hub = acquire_hub(plugins)
    try:
        assert run_scenario(scenario, plugins) == expected(scenario)
        dropped = dict(hub.dropped)
    finally:
        release_hub(hub)
    if name == "raises":
        assert dropped["raises", DropReason.START.value] > 0
        assert dropped["raises", DropReason.RECORD.value] > 0
    elif name == "unbuildable":
        assert dropped == {("unbuildable", DropReason.BUILD.value): 1}
    else:
        assert dropped == {}


def test_every_method_that_raises_is_counted() -> None:
    plugins = (Raises(),)
    assert run_scenario("expiry", plugins) == expected("expiry")
    called = set(DropReason) - {DropReason.BUILD, DropReason.TIMEOUT}
    assert {reason for _, reason in losses.dropped()} == {reason.value for reason in called}


def test_all_of_them_at_once_change_nothing(tmp_path: Path) -> None:
    plugins = (
        *(make() for make in BAD.values()),
        *(installed.make_plugin(name, tmp_path) for name in installed.NAMES),
    )
    for scenario in SCENARIOS:
        assert run_scenario(scenario, plugins) == expected(scenario), scenario


async def noted(ctx: AgentContext) -> Complete:
    return Complete(ctx.event or b"")


def test_the_comparison_can_fail() -> None:
    with harness(noted, AgentConfig(telemetry=())) as running:
        one, other = (running.send(event(b"k", payload, time_ms=1)) for payload in (b"one", b"other"))
    assert of_emitted(one) != of_emitted(other)

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from beam_agents.signals import (
    Observer,
    Record,
    Telemetry,
    TelemetryPlugin,
    Worker,
    acquire_hub,
    catalogue,
    count_lost,
    dropped,
    hub,
    initialised,
    losses,
    release_hub,
)
from beam_agents.signals.aggregates import ADD_UP_EVERY
from beam_agents.signals.types import Group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from beam_agents.signals import Measured, Metric

WORKER = Worker("flights", "watcher")
GROUP = Group(((catalogue.ACTIVATIONS, ("complete",)), (catalogue.MEMORY_ENTRIES, ())))

# By plugin: the observers that were built, and what they were told.
built: dict[str, list[Recorder]] = defaultdict(list)


class Recorder(Observer):
    def __init__(self, name: str) -> None:
        self.calls: list[str] = []
        self.records: list[Record] = []
        self.told: list[Sequence[Measured]] = []
        self.measurements: list[tuple[str, str, Metric, tuple[str, ...], Sequence[float]]] = []
        built[name].append(self)

    def start(self, worker: Worker) -> None:
        self.calls.append(f"start {worker.agent}")

    def bundle_started(self, worker: Worker) -> None:
        self.calls.append(f"bundle_started {worker.agent}")

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:
        self.calls.append(f"bundle_failed {worker.agent} {phase} {error_type}")

    def activation_started(self, record: Record) -> None:
        self.calls.append(f"activation_started {record.agent}")

    def record(self, record: Record) -> None:
        self.calls.append(f"record {record.agent}")
        self.records.append(record)

    def measured(self, pipeline: str, agent: str, measured: Sequence[Measured]) -> None:
        self.calls.append(f"measured {agent}")
        self.told.append(measured)
        self.measurements += [(pipeline, agent, *each) for each in measured]

    def flush(self, timeout_s: float) -> None:
        self.calls.append(f"flush {timeout_s:g}")

    def close(self, timeout_s: float) -> None:
        self.calls.append(f"close {timeout_s:g}")


@dataclass(frozen=True)
class Recording:
    name: str = "recording"

    def build(self) -> Observer:
        return Recorder(self.name)


class Faulty(Observer):
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def fail(self, *_: object, **__: object) -> None:
        raise self.error("sk-secret")

    start = bundle_started = bundle_failed = activation_started = record = measured = flush = close = fail


@dataclass(frozen=True)
class Failing:
    name: str = "failing"
    error: type[BaseException] = RuntimeError

    def build(self) -> Observer:
        return Faulty(self.error)


@dataclass(frozen=True)
class Unbuildable:
    name: str = "unbuildable"

    def build(self) -> Observer:
        raise OSError(98, "sk-secret")


@dataclass(frozen=True)
class Wrong:
    name: str = "wrong"

    def build(self) -> Observer:
        return object()  # type: ignore[return-value]  # what the test is about


@dataclass(frozen=True)
class Stuck:
    """Its observer's flush and close wait until the test lets them go."""

    gate: threading.Event
    name: str = "stuck"

    def build(self) -> Observer:
        gate = self.gate

        class Waiter(Observer):
            def flush(self, timeout_s: float) -> None:  # noqa: ARG002 - overrunning it is the point
                gate.wait()

            def close(self, timeout_s: float) -> None:  # noqa: ARG002 - as above
                gate.wait()

        return Waiter()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Runners that drop a failing DoFn without its teardown leave plugins behind in this process.
    monkeypatch.setattr(hub, "_plugins", {})
    losses.forget()
    built.clear()
    yield
    assert not hub._plugins, "a test did not give its hub back"


@pytest.fixture
def hubs() -> Iterator[Callable[..., Telemetry]]:
    acquired: list[Telemetry] = []

    def acquire(*plugins: TelemetryPlugin) -> Telemetry:
        acquired.append(acquire_hub(plugins))
        return acquired[-1]

    yield acquire
    for telemetry in acquired:
        release_hub(telemetry)


def make_record() -> Record:
    return Record(catalogue.SPAN_INVOKE_AGENT, WORKER.pipeline, WORKER.agent, b"key")


def tell_everything(telemetry: Telemetry) -> None:
    record = make_record()
    record.measure_all(GROUP, 3, 2)
    telemetry.start(WORKER)
    telemetry.bundle_started(WORKER)
    telemetry.activation_started(record)
    telemetry.record(record)
    telemetry.bundle_finished()
    telemetry.bundle_failed(WORKER, "timer", "StoreTimeout")
    telemetry.flush(5.0)


EVERYTHING = [
    "start watcher",
    "bundle_started watcher",
    "activation_started watcher",
    "record watcher",
    "measured watcher",
    "bundle_failed watcher timer StoreTimeout",
    "flush 5",
]


def test_every_plugin_is_told_everything(hubs: Callable[..., Telemetry]) -> None:
    telemetry = hubs(Recording("one"), Recording("two"))
    tell_everything(telemetry)
    release_hub(telemetry)
    for name in ("one", "two"):
        (observer,) = built[name]
        assert observer.calls == [*EVERYTHING, "close 5"]
    assert telemetry.dropped == {}


def counted(observer: Recorder) -> dict[tuple[str, str, str, tuple[str, ...]], list[float]]:
    """Return what it was told of measurements, by pipeline, agent, metric and labels."""
    found: defaultdict[tuple[str, str, str, tuple[str, ...]], list[float]] = defaultdict(list)
    for pipeline, agent, metric, labels, values in observer.measurements:
        found[pipeline, agent, metric.name, labels] += values
    return found


@pytest.mark.parametrize("records", [1, ADD_UP_EVERY - 1, ADD_UP_EVERY, 3 * ADD_UP_EVERY + 1])
def test_a_bundles_end_has_told_all_that_was_measured(hubs: Callable[..., Telemetry], records: int) -> None:
    telemetry = hubs(Recording())
    telemetry.start(WORKER)
    telemetry.bundle_started(WORKER)
    for number in range(records):
        record = make_record()
        record.measure_all(GROUP, 1, number)
        if number % 50 == 7:
            record.measure(catalogue.MEMORY_OVERFLOWS, number)
        telemetry.record(record)
    telemetry.bundle_finished()
    telemetry.bundle_finished()
    (observer,) = built["recording"]
    told = counted(observer)
    of = (WORKER.pipeline, WORKER.agent)
    assert told[(*of, "activations_total", ("complete",))] == [1] * records
    assert sorted(told[(*of, "memory_entries", ())]) == list(range(records))
    assert told[(*of, "memory_overflows_total", ())] == list(range(7, records, 50))
    # A long bundle tells of itself before its end.
    assert max(len(values) for *_, values in observer.measurements) <= ADD_UP_EVERY


def test_what_a_failed_bundle_left_is_not_told_with_the_next_one(hubs: Callable[..., Telemetry]) -> None:
    telemetry = hubs(Recording())
    telemetry.start(WORKER)
    for fails in (True, True, False):
        telemetry.bundle_started(WORKER)
        record = make_record()
        record.measure_all(GROUP, 1, 0)
        telemetry.record(record)
        if not fails:
            telemetry.bundle_finished()
    (observer,) = built["recording"]
    assert counted(observer)[WORKER.pipeline, WORKER.agent, "activations_total", ("complete",)] == [1]


@pytest.mark.parametrize("records", [3, 2 * ADD_UP_EVERY + 3])
def test_measurements_are_lost_by_the_record(hubs: Callable[..., Telemetry], records: int) -> None:
    telemetry = hubs(Failing(), Recording())
    telemetry.start(WORKER)
    telemetry.bundle_started(WORKER)
    before = telemetry.dropped.get(("failing", "record"), 0)
    for number in range(records):
        record = make_record()
        record.measure_all(GROUP, 1, number)
        if number == 1:
            record.measure(catalogue.MEMORY_OVERFLOWS, 1)
        telemetry.record(record)
    telemetry.bundle_finished()
    # The record itself, and what it measured.
    assert telemetry.dropped["failing", "record"] - before == 2 * records
    (observer,) = built["recording"]
    assert len(counted(observer)[WORKER.pipeline, WORKER.agent, "memory_entries", ()]) == records
    # Nobody can take anything from the next plugin.
    with pytest.raises(TypeError):
        del observer.told[0][0]  # type: ignore[attr-defined]  # what is tried here


def test_outside_of_a_bundle_it_is_told_at_once(hubs: Callable[..., Telemetry]) -> None:
    telemetry = hubs(Recording())
    telemetry.start(WORKER)
    record = make_record()
    record.measure_all(GROUP, 1, 0)
    telemetry.record(record)
    (observer,) = built["recording"]
    assert observer.calls == ["start watcher", "record watcher", "measured watcher"]


def test_no_plugins_is_silence() -> None:
    telemetry = acquire_hub(())
    tell_everything(telemetry)
    release_hub(telemetry)
    assert dropped() == {}
    assert initialised() == {}


def test_agents_share_an_observer_until_the_last_lets_go(hubs: Callable[..., Telemetry]) -> None:
    first, second = hubs(Recording()), hubs(Recording())
    first.start(Worker("flights", "a"))
    second.start(Worker("flights", "b"))
    (observer,) = built["recording"]
    release_hub(first)
    release_hub(first)
    assert observer.calls == ["start a", "start b"]
    release_hub(second)
    assert observer.calls[2:] == ["close 5"]


def test_what_was_closed_is_built_anew(hubs: Callable[..., Telemetry]) -> None:
    for _ in range(2):
        telemetry = hubs(Recording())
        telemetry.start(WORKER)
        release_hub(telemetry)
    assert [observer.calls for observer in built["recording"]] == [["start watcher", "close 5"]] * 2


def test_a_released_hub_tells_nobody(hubs: Callable[..., Telemetry]) -> None:
    telemetry = hubs(Recording())
    telemetry.start(WORKER)
    release_hub(telemetry)
    tell_everything(telemetry)
    assert [observer.calls for observer in built["recording"]] == [["start watcher", "close 5"]]


def test_nothing_is_built_before_it_is_used(hubs: Callable[..., Telemetry]) -> None:
    telemetry = hubs(Recording())
    assert built["recording"] == []
    assert initialised() == {}
    release_hub(telemetry)
    assert built["recording"] == []


@pytest.mark.parametrize("call", ["bundle_started", "bundle_failed", "activation_started", "record"])
def test_any_call_builds(hubs: Callable[..., Telemetry], call: str) -> None:
    telemetry = hubs(Recording())
    arguments = {
        "bundle_started": (WORKER,),
        "bundle_failed": (WORKER, "timer", "StoreTimeout"),
    }.get(call, (make_record(),))
    getattr(telemetry, call)(*arguments)
    (observer,) = built["recording"]
    assert [each.split()[0] for each in observer.calls] == [call]


def test_threads_that_come_at_once_build_one(hubs: Callable[..., Telemetry]) -> None:
    telemetry = hubs(Recording())
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        telemetry.record(make_record())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (observer,) = built["recording"]
    assert len(observer.records) == 8


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("place", [0, 1])
def test_a_raising_plugin_costs_the_others_nothing(
    hubs: Callable[..., Telemetry], place: int, error: type[BaseException]
) -> None:
    plugins: list[TelemetryPlugin] = [Recording()]
    plugins.insert(place, Failing(error=error))
    telemetry = hubs(*plugins)
    tell_everything(telemetry)
    assert telemetry.dropped == {
        ("failing", "start"): 1,
        ("failing", "bundle"): 2,
        ("failing", "activation"): 1,
        ("failing", "record"): 2,
        ("failing", "flush"): 1,
    }
    release_hub(telemetry)
    assert dropped()["failing", "close"] == 1
    (observer,) = built["recording"]
    assert observer.calls == [*EVERYTHING, "close 5"]


def test_a_fault_is_told_once_and_without_its_text(
    hubs: Callable[..., Telemetry], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        telemetry = hubs(Failing(), Failing("other", KeyError))
        tell_everything(telemetry)
        tell_everything(telemetry)
        release_hub(telemetry)
    assert [each.getMessage() for each in caplog.records] == [
        "telemetry_plugin_failed plugin=failing reason=start error_type=RuntimeError",
        "telemetry_plugin_failed plugin=other reason=start error_type=KeyError",
    ]
    assert "sk-secret" not in caplog.text
    assert all(each.exc_info is None for each in caplog.records)


@pytest.mark.parametrize("plugin", [Unbuildable(), Wrong()], ids=lambda plugin: plugin.name)
def test_a_plugin_that_cannot_be_built_is_counted_once(
    hubs: Callable[..., Telemetry], plugin: TelemetryPlugin
) -> None:
    telemetry = hubs(plugin, Recording())
    tell_everything(telemetry)
    assert telemetry.dropped == {(plugin.name, "build"): 1}
    assert initialised() == {plugin.name: False, "recording": True}
    release_hub(telemetry)
    assert initialised() == {}


@pytest.mark.parametrize("backwards", [False, True])
def test_a_name_counts_as_initialised_when_all_of_it_is(
    hubs: Callable[..., Telemetry], *, backwards: bool
) -> None:
    plugins = [Recording("same"), Unbuildable("same")]
    for plugin in reversed(plugins) if backwards else plugins:
        hubs(plugin).start(WORKER)
    assert initialised() == {"same": False}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_fault_of_a_plugin(
    hubs: Callable[..., Telemetry], interrupt: type[BaseException]
) -> None:
    telemetry = hubs(Failing("interrupted", interrupt))
    with pytest.raises(interrupt):
        telemetry.record(make_record())
    assert dropped() == {}


def test_an_interrupt_on_the_plugins_own_thread_is_counted(hubs: Callable[..., Telemetry]) -> None:
    telemetry = hubs(Failing("interrupted", SystemExit))
    with pytest.raises(SystemExit):
        telemetry.bundle_started(WORKER)
    telemetry.flush(5.0)
    telemetry.flush(5.0)
    assert telemetry.dropped == {("interrupted", "flush"): 2}


def test_a_stuck_flush_is_left_behind_and_not_joined_by_another(hubs: Callable[..., Telemetry]) -> None:
    gate = threading.Event()
    telemetry = hubs(Stuck(gate), Recording())
    telemetry.start(WORKER)
    for _ in range(3):
        telemetry.flush(0.01)
    assert telemetry.dropped == {("stuck", "timeout"): 1}
    (shared,) = (each for each in hub._plugins.values() if each.name == "stuck")
    assert shared._aside is not None
    assert shared._aside._calls.empty()
    (observer,) = built["recording"]
    assert observer.calls.count("flush 0.01") == 3
    gate.set()


def test_a_stuck_close_is_left_behind(
    hubs: Callable[..., Telemetry], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(hub, "CLOSE_TIMEOUT_S", 0.01)
    telemetry = hubs(Stuck(gate), Recording())
    telemetry.start(WORKER)
    release_hub(telemetry)
    assert dropped() == {("stuck", "timeout"): 1}
    (observer,) = built["recording"]
    assert observer.calls == ["start watcher", "close 0.01"]
    gate.set()


def test_only_what_flushes_or_closes_has_a_thread(hubs: Callable[..., Telemetry]) -> None:
    @dataclass(frozen=True)
    class Plain:
        name: str = "plain"

        def build(self) -> Observer:
            return Observer()

    telemetry = hubs(Plain(), Recording())
    telemetry.start(WORKER)
    names = {thread.name for thread in threading.enumerate()}
    assert "beam-agents-telemetry-plain" not in names
    (thread,) = (each for each in threading.enumerate() if each.name == "beam-agents-telemetry-recording")
    release_hub(telemetry)
    thread.join(10)
    assert not thread.is_alive()


def test_a_plugin_counts_its_own_losses(caplog: pytest.LogCaptureFixture) -> None:
    count_lost("exporter", "queue_full", amount=17)
    count_lost("exporter", "queue_full")
    assert dropped() == {("exporter", "queue_full"): 18}
    assert caplog.records == []


def run_python(code: str) -> str:
    """Run code in a process of its own and return what it printed."""
    head = """
        import os, sys
        from dataclasses import dataclass
        from beam_agents.signals import *

        WORKER = Worker("flights", "watcher")

        def say(*words):
            os.write(1, (" ".join(map(str, words)) + "\\n").encode())

        class Teller(Observer):
            def __init__(self):
                self.pid = os.getpid()
                say("built in", who())
            def start(self, worker):
                say("start", worker.agent, "in", who())
            def record(self, record):
                say("record in", who(), self.pid == os.getpid())
            def close(self, timeout_s):
                say("closed in", who())

        @dataclass(frozen=True)
        class Telling:
            name: str = "telling"
            def build(self):
                return Teller()

        parent = os.getpid()

        def who():
            return "parent" if os.getpid() == parent else "child"

        record = Record(catalogue.SPAN_INVOKE_AGENT, "flights", "watcher", b"key")
    """
    script = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_nobody_closed_is_closed_at_exit() -> None:
    told = run_python("""
        telemetry = acquire_hub((Telling(),))
        telemetry.start(WORKER)
        say("end")
    """)
    assert told.splitlines() == ["built in parent", "start watcher in parent", "end", "closed in parent"]


@pytest.mark.parametrize(
    "fork",
    [
        "os.fork()",
        # A fork of some C library, which Python does not hear of.
        "__import__('ctypes').PyDLL(None).fork()",
    ],
    ids=["python", "bypassing"],
)
def test_a_forked_process_has_an_observer_of_its_own(fork: str) -> None:
    told = run_python(f"""
        telemetry = acquire_hub((Telling(),))
        telemetry.start(WORKER)
        count_lost("telling", "queue_full")
        child = {fork}
        if child == 0:
            telemetry.bundle_started(WORKER)
            telemetry.record(record)
            say(dict(telemetry.dropped), initialised())
            release_hub(telemetry)
            mine = acquire_hub((Telling(),))
            mine.record(record)
            release_hub(mine)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        telemetry.record(record)
        release_hub(telemetry)
    """)
    assert told.splitlines() == [
        "built in parent",
        "start watcher in parent",
        "built in child",
        "start watcher in child",
        "record in child True",
        "{} {'telling': True}",
        "record in child True",
        "closed in child",
        "record in parent True",
        "closed in parent",
    ]


def test_a_fork_while_another_thread_holds_the_locks_does_not_hang() -> None:
    told = run_python("""
        import threading
        from beam_agents.signals import hub, losses

        telemetry = acquire_hub((Telling(),))
        telemetry.start(WORKER)
        held, gate = threading.Event(), threading.Event()

        def hold():
            with hub._lock, losses._lock:
                held.set()
                gate.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            count_lost("telling", "queue_full")
            mine = acquire_hub((Telling(),))
            mine.record(record)
            release_hub(mine)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        gate.set()
        thread.join()
    """)
    assert "closed in child" in told

"""The fan-out from the runtime to the plugins of this process.

There is one observer per plugin and process, shared by all agents that name the plugin. It is made at its
first use, where it is used: never before a fork. A plugin's fault ends here, as a count.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from beam_agents.errors import InvalidArgument, PluginUnusable
from beam_agents.signals import catalogue, losses
from beam_agents.signals.aggregates import ADD_UP_EVERY, Waiting, process_aggregates
from beam_agents.signals.in_flight import in_flight
from beam_agents.signals.observer import Observer
from beam_agents.signals.per_process import renew_all
from beam_agents.signals.termination import watch_termination
from beam_agents.signals.types import DropReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from beam_agents.signals.observer import Measured, Record, TelemetryPlugin, Worker

__all__ = [
    "CLOSE_TIMEOUT_S",
    "Telemetry",
    "acquire_hub",
    "initialised",
    "release_hub",
    "watch_from_start",
    "workers",
]

FAULTS: Final = (Exception, asyncio.CancelledError, GeneratorExit)
"""What a plugin may raise and nobody gets to see: all but what a signal's handler ends the program with."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long all plugins together may take to close."""

TERMINATION_FLUSH_TIMEOUT_S: Final = 1.0
"""How long they may take at SIGTERM before the application's own handler is called."""


class _Aside:
    """A thread of its own for calls that may hang.

    It is started with the observer, not with the call: at the interpreter's exit no thread can be started.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"beam-agents-telemetry-{name}", daemon=True).start()

    def submit(self, call: Callable[[], None]) -> threading.Event:
        """Queue a call, which must not raise, and return what is set at its end."""
        ended = threading.Event()
        self._calls.put((call, ended))
        return ended

    def end(self) -> None:
        """End the thread after what is queued."""
        self._calls.put(None)

    def _run(self) -> None:
        while (queued := self._calls.get()) is not None:
            call, ended = queued
            call()
            ended.set()


class _Shared:
    """One plugin in this process: its observer, and how many use it.

    Attributes:
        plugin: The configuration.
        name: Its name.
        users: How many hubs of this process hold it.
        observer: The live object, or what stands in for it before it is built and after it is closed.
        works: Whether it could be built; None before it was tried.
    """

    def __init__(self, plugin: TelemetryPlugin) -> None:
        self.plugin = plugin
        self.name = plugin.name
        self._workers: list[Worker] = []
        self.renew()

    def renew(self) -> None:
        """Go back to before the first use: a forked process has neither the threads nor the users."""
        self.users = 0
        self.observer: Observer = _Unbuilt(self)
        self.works: bool | None = None
        self._aside: _Aside | None = None
        self._flush_ended: threading.Event | None = None
        self._overran: threading.Event | None = None
        self._lock = threading.Lock()

    def start(self, worker: Worker) -> None:
        """Tell the observer of an agent; it is built for that if need be."""
        with self._lock:
            self._workers.append(worker)
            if self.works is None:
                self._build()
            else:
                self._start(worker)

    def built(self) -> Observer:
        """Return the observer, built if need be."""
        with self._lock:
            if self.works is None:
                self._build()
            return self.observer

    def _build(self) -> None:
        try:
            observer = self.plugin.build()
            if not isinstance(observer, Observer):
                raise TypeError("build() must return an Observer")
            if _overrides(observer, "flush") or _overrides(observer, "close"):
                self._aside = _Aside(self.name)
        except FAULTS as error:
            self.lost(DropReason.BUILD, error)
            self.works = False
            self.observer = Observer()
            return
        self.works = True
        self.observer = observer
        for worker in self._workers:
            self._start(worker)

    def _start(self, worker: Worker) -> None:
        try:
            self.observer.start(worker)
        except FAULTS as error:
            self.lost(DropReason.START, error)

    def lost(self, reason: DropReason, error: BaseException, amount: int = 1) -> None:
        """Count a fault, by which so many signals are lost."""
        # No other exception's text is known to hold no content.
        problem = error.problem if isinstance(error, InvalidArgument | PluginUnusable) else ""
        losses.count_lost(self.name, reason.value, type(error).__name__, amount, problem)

    def begin_flush(self, timeout_s: float) -> threading.Event | None:
        """Start a flush and return what is set at its end; None where there is nothing to wait for."""
        observer, aside = self.observer, self._aside
        if aside is None or not _overrides(observer, "flush"):
            return None
        running = self._flush_ended
        if running is not None and not running.is_set():
            # To wait for one that has overrun its bound would cost each failing bundle that bound again.
            return None if running is self._overran else running
        self._flush_ended = aside.submit(lambda: self._guarded(DropReason.FLUSH, observer.flush, timeout_s))
        return self._flush_ended

    def begin_close(self, timeout_s: float) -> threading.Event | None:
        """Let go of the observer and start its close; return what is set at its end."""
        with self._lock:
            observer, aside = self.observer, self._aside
            self.observer = Observer()
            self.works = False
            self._aside = None
        if aside is None:
            return None
        ended = aside.submit(lambda: self._guarded(DropReason.CLOSE, observer.close, timeout_s))
        aside.end()
        return ended

    def _guarded(self, reason: DropReason, call: Callable[[float], None], timeout_s: float) -> None:
        try:
            call(timeout_s)
        except BaseException as error:  # noqa: BLE001 - on a thread of the plugin's own nobody else would see it
            self.lost(reason, error)

    def wait(self, ended: threading.Event, deadline: float) -> None:
        """Wait for a flush or close until a time of the monotonic clock; what overruns it is left behind."""
        if not ended.wait(max(0.0, deadline - time.monotonic())):
            self._overran = ended
            self.lost(DropReason.TIMEOUT, TimeoutError())


class _Unbuilt(Observer):
    """Stands in until the first use, which builds the real one."""

    # What it will be, it does not know: too much is summed up rather than too little.
    reads_aggregates = True

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared

    def bundle_started(self, worker: Worker) -> None:
        self._shared.built().bundle_started(worker)

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:
        self._shared.built().bundle_failed(worker, phase, error_type)

    def activation_started(self, record: Record) -> None:
        self._shared.built().activation_started(record)

    def record(self, record: Record) -> None:
        self._shared.built().record(record)

    def measured(self, pipeline: str, agent: str, measured: Sequence[Measured]) -> None:
        self._shared.built().measured(pipeline, agent, measured)


class _OfThread(threading.local):
    """What each thread that runs bundles has of its own.

    Attributes:
        waiting: What its bundle has measured and not told; None outside of a bundle.
    """

    waiting: Waiting | None = None


class Telemetry:
    """Tells each plugin what the runtime tells it. No call raises what a plugin raised.

    Attributes:
        pid: The process that acquired it.
    """

    __slots__ = (
        "_aggregates",
        "_aggregating",
        "_capturing",
        "_in_flight",
        "_measuring",
        "_of_thread",
        "_on_activation",
        "_on_measured",
        "_on_record",
        "_shared",
        "pid",
    )

    def __init__(self, shared: tuple[_Shared, ...] = ()) -> None:
        self.pid = os.getpid()
        self._shared = shared
        self._of_thread = _OfThread()
        self._aggregating = self._capturing = self._measuring = False
        self._on_measured: tuple[tuple[_Shared, Callable[[str, str, Sequence[Measured]], None]], ...] = ()
        self._on_activation: tuple[tuple[_Shared, Callable[[Record], None]], ...] = ()
        self._on_record: tuple[tuple[_Shared, Callable[[Record], None]], ...] = ()
        self._look_up()

    @property
    def aggregates(self) -> bool:
        """Whether any of these plugins reads the process's aggregates."""
        return any(shared.observer.reads_aggregates for shared in self._shared)

    @property
    def dropped(self) -> Mapping[tuple[str, str], int]:
        """What these plugins have lost in this process, by (plugin, reason)."""
        names = {shared.name for shared in self._shared}
        return {key: count for key, count in losses.dropped().items() if key[0] in names}

    def start(self, worker: Worker) -> None:
        """An agent's DoFn came up in this process."""
        if self._shared:
            _workers[worker] = None
        for shared in self._shared:
            shared.start(worker)
        self._look_up()

    def bundle_started(self, worker: Worker) -> None:
        """A bundle began."""
        if self._shared and os.getpid() != _pid:
            # Some forks bypass Python's hooks.
            _renew()
        for shared in self._shared:
            try:
                shared.observer.bundle_started(worker)
            except FAULTS as error:  # one plugin's fault is not the next one's
                shared.lost(DropReason.BUNDLE, error)
        # What another bundle left that failed in another step.
        self._let_go_of_waiting()
        self._look_up()
        if self._measuring:
            waiting = self._of_thread.waiting = Waiting(worker.pipeline, worker.agent)
            if self._aggregating:
                self._aggregates.watch(waiting)
                self._aggregates.count(catalogue.BUNDLES, worker.pipeline, worker.agent)

    def bundle_finished(self) -> None:
        """All of this thread's bundle has been recorded."""
        waiting = self._of_thread.waiting
        if waiting is not None:
            self._tell_waiting(waiting)
            self._let_go_of_waiting()

    def _let_go_of_waiting(self) -> None:
        """Count what this thread's bundle has left, and begin anew with the next one."""
        waiting, self._of_thread.waiting = self._of_thread.waiting, None
        # In a forked child they are its parent's, and so is what waits.
        if waiting is not None and self._aggregating and self._aggregates is process_aggregates():
            self._aggregates.unwatch(waiting)

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:
        """Something raised out of the DoFn: the runner fails the bundle."""
        for shared in self._shared:
            try:
                shared.observer.bundle_failed(worker, phase, error_type)
            except FAULTS as error:
                shared.lost(DropReason.BUNDLE, error)
        self._let_go_of_waiting()
        if self._aggregating:
            process_aggregates().count(catalogue.BUNDLE_FAILURES, worker.pipeline, worker.agent, phase)

    def activation_started(self, record: Record) -> None:
        """An activation began."""
        record.captures = self._capturing
        if self._aggregating:
            self._in_flight.began(record)
        for shared, started in self._on_activation:
            try:
                started(record)
            except FAULTS as error:
                shared.lost(DropReason.ACTIVATION, error)

    def record(self, record: Record) -> None:
        """Something ended."""
        if self._aggregating:
            self._in_flight.ended(record)
        for shared, tell in self._on_record:
            try:
                tell(record)
            except FAULTS as error:
                shared.lost(DropReason.RECORD, error)
        if self._measuring:
            waiting = self._of_thread.waiting
            # Last: by now it is decided whether its trace is kept, and only what is kept can be an exemplar.
            if waiting is None or record.singles or record.sampled:
                self._tell_measured_by(record)
            else:
                # Most of them. For each alone, all of the code and data that sums up would first have to come
                # back into the processor's caches, which takes longer than the work.
                rows = waiting.rows
                rows.append(record.groups)
                if len(rows) >= ADD_UP_EVERY:
                    self._tell_waiting(waiting)

    def _tell_measured_by(self, record: Record) -> None:
        if self._on_measured and (record.groups or record.singles):
            measured = [(metric, labels, (value,)) for metric, value, labels in record.measurements]
            self._tell_measured(record.pipeline, record.agent, measured, 1)
        if self._aggregating:
            self._aggregates.record(record)

    def _tell_waiting(self, waiting: Waiting) -> None:
        records = len(waiting.rows)
        measured = self._aggregates.settle(waiting) if self._aggregating else waiting.take()
        if measured:
            self._tell_measured(waiting.pipeline, waiting.agent, measured, records)

    def _tell_measured(self, pipeline: str, agent: str, measured: Iterable[Measured], records: int) -> None:
        # One plugin cannot take anything from the next one.
        unchangeable = tuple(measured)
        for shared, tell in self._on_measured:
            try:
                tell(pipeline, agent, unchangeable)
            except FAULTS as error:
                shared.lost(DropReason.RECORD, error, records)

    def _look_up(self) -> None:
        """Look up what is called for every activation: a call that would do nothing is not made."""
        self._aggregating = self.aggregates
        self._aggregates = process_aggregates()
        self._in_flight = in_flight()
        self._capturing = any(shared.observer.captures_content for shared in self._shared)
        self._on_activation = tuple(
            (shared, shared.observer.activation_started)
            for shared in self._shared
            if _overrides(shared.observer, "activation_started")
        )
        self._on_record = tuple(
            (shared, shared.observer.record)
            for shared in self._shared
            if _overrides(shared.observer, "record")
        )
        self._on_measured = tuple(
            (shared, shared.observer.measured)
            for shared in self._shared
            if _overrides(shared.observer, "measured")
        )
        self._measuring = self._aggregating or bool(self._on_measured)

    def flush(self, timeout_s: float) -> None:
        """Let all plugins send what they have, side by side, and wait at most ``timeout_s`` seconds."""
        _run_bounded(self._shared, _Shared.begin_flush, timeout_s)

    def _let_go(self) -> tuple[_Shared, ...]:
        self._let_go_of_waiting()
        shared, self._shared = self._shared, ()
        return shared


def _overrides(observer: Observer, method: str) -> bool:
    return getattr(type(observer), method) is not getattr(Observer, method)


def _run_bounded(
    plugins: Iterable[_Shared],
    begin: Callable[[_Shared, float], threading.Event | None],
    timeout_s: float,
) -> None:
    deadline = time.monotonic() + timeout_s
    begun = [(shared, begin(shared, timeout_s)) for shared in plugins]
    for shared, ended in begun:
        if ended is not None:
            shared.wait(ended, deadline)


_plugins: dict[TelemetryPlugin, _Shared] = {}
_workers: dict[Worker, None] = {}
"""The agents that came up in this process, in that order."""
_pid = os.getpid()
_finalizing_pid = 0
_lock = threading.Lock()
"""Held while plugins close, too: the next to be built may need the port that the last one had."""


def acquire_hub(plugins: Sequence[TelemetryPlugin]) -> Telemetry:
    """Return a hub for these plugins, which share their observers with every other hub of this process.

    Args:
        plugins: What :func:`~beam_agents.signals.plugins.resolve_plugins` returned.
    """
    if os.getpid() != _pid:
        _renew()
    if plugins:
        watch_termination(_at_termination)
        _close_at_a_childs_exit()
    with _lock:
        held = []
        for plugin in plugins:
            shared = _plugins.get(plugin)
            if shared is None:
                shared = _plugins[plugin] = _Shared(plugin)
            shared.users += 1
            held.append(shared)
        return Telemetry(tuple(held))


def watch_from_start() -> None:
    """Have SIGTERM close the plugins that are there by then; for the main thread of a worker's own program.

    Without it that holds from the first agent on, and there from when the main thread next runs Python code.
    """
    watch_termination(_at_termination)


def release_hub(telemetry: Telemetry) -> None:
    """Give back what :func:`acquire_hub` gave; plugins that nobody else holds are closed, within a bound.

    A second call does nothing, nor does a call in a forked process: its parent holds the plugins.
    """
    if telemetry.pid != os.getpid():
        return
    with _lock:
        unused = []
        for shared in telemetry._let_go():  # noqa: SLF001 - of this module
            shared.users -= 1
            if shared.users == 0:
                unused.append(shared)
                # Not there at the interpreter's exit, or where another has taken its place.
                if _plugins.get(shared.plugin) is shared:
                    del _plugins[shared.plugin]
        _run_bounded(unused, _Shared.begin_close, CLOSE_TIMEOUT_S)


def workers() -> tuple[Worker, ...]:
    """Return the agents of this process that have plugins, in the order in which they came up."""
    return tuple(_workers)


def initialised() -> dict[str, bool]:
    """Tell of each plugin in use in this process, by name, whether it could be built.

    One that chose to do nothing here (as where OpenTelemetry is off for the process) is not in use. Takes no
    lock: it may be asked while a plugin is being built or closed.
    """
    states: dict[str, bool] = {}
    for shared in tuple(_plugins.values()):
        idle = shared.works and type(shared.observer) is Observer
        if shared.works is not None and not idle:
            states[shared.name] = shared.works and states.get(shared.name, True)
    return states


def _renew() -> None:
    """Give a forked child locks that nobody holds, and observers of its own at their first use."""
    global _lock, _pid  # noqa: PLW0603 - one per process is the point
    _pid = os.getpid()
    _lock = threading.Lock()
    losses.forget()
    renew_all()
    for shared in _plugins.values():
        shared.renew()


def _close_all() -> None:
    """Close what is still open at the interpreter's exit."""
    if _lock.acquire(timeout=CLOSE_TIMEOUT_S):
        try:
            open_plugins = tuple(_plugins.values())
            _plugins.clear()
            _run_bounded(open_plugins, _Shared.begin_close, CLOSE_TIMEOUT_S)
        finally:
            _lock.release()


def _close_at_a_childs_exit() -> None:
    """A child that multiprocessing forked leaves by its own door: Python's exit hooks are not run."""
    global _finalizing_pid  # noqa: PLW0603 - one per process is the point
    if parent_process() is not None and _finalizing_pid != os.getpid():
        _finalizing_pid = os.getpid()
        Finalize(None, _close_all, exitpriority=0)


def _at_termination(ends: bool) -> None:  # noqa: FBT001 - as it is called
    """Close, or only flush where the application has its own way to end."""
    if ends:
        _close_all()
    else:
        _run_bounded(tuple(_plugins.values()), _Shared.begin_flush, TERMINATION_FLUSH_TIMEOUT_S)


os.register_at_fork(after_in_child=_renew)
atexit.register(_close_all)

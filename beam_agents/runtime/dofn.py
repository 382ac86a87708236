"""The stateful DoFn: what Beam calls, and nothing more. The work is in activation.py.

There are two of them, because a timer's callback belongs to one class, and because a processing-time timer
costs every runner something (and the in-process ones fire it at once): the one that declares it is used
only where the configuration asks for suspension deadlines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer

from beam_agents.runtime.activation import AgentRunner
from beam_agents.runtime.cells import Cells
from beam_agents.runtime.expire import expire, time_out_suspension
from beam_agents.runtime.probe import Probe, ProbedStep
from beam_agents.runtime.worker import AgentWorker, acquire_worker, release_worker
from beam_agents.signals.observer import Worker
from beam_agents.signals.types import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from apache_beam.utils.timestamp import Timestamp

    from beam_agents.config import AgentConfig
    from beam_agents.runtime.activation import AgentFunction
    from beam_agents.runtime.cells import StateCell, Timer
    from beam_agents.runtime.elements import Element
    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

__all__ = ["AgentDoFn", "AgentDoFnWithDeadlines", "make_dofn"]

FLUSH_TIMEOUT_S: Final = 1.0
"""How long a failing timer's bundle waits for plugins to send what they hold."""

CONTROL: Final = ReadModifyWriteStateSpec("control", BytesCoder())
MEMORY: Final = ReadModifyWriteStateSpec("memory", BytesCoder())
REPLAY: Final = ReadModifyWriteStateSpec("replay", BytesCoder())

# Beam puts the real thing in the place of these defaults; the casts tell so to the type checker.
_CONTROL: Final = cast("StateCell", beam.DoFn.StateParam(CONTROL))
_MEMORY: Final = cast("StateCell", beam.DoFn.StateParam(MEMORY))
_REPLAY: Final = cast("StateCell", beam.DoFn.StateParam(REPLAY))
_TIMESTAMP: Final = cast("Timestamp", beam.DoFn.TimestampParam)
_KEY: Final = cast("bytes", beam.DoFn.KeyParam)
_TAG: Final = cast("str", beam.DoFn.DynamicTimerTagParam)


class _AgentDoFnBase(beam.DoFn):
    """What both DoFns share: their life and the report of a failing bundle."""

    def __init__(
        self,
        agent: AgentFunction,
        config: AgentConfig,
        *,
        name: str,
        pipeline: str,
        run_id: str,
        probe: Probe | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Beam's own
        self._agent = agent
        self._config = config
        self._name = name
        self._pipeline = pipeline
        self._run_id = run_id
        self._probe = probe
        uri = config.store_uri
        self._worker_info = Worker(pipeline, name, uri.backend if uri is not None else "")

    def default_label(self) -> str:
        # Part of the step's name, by which runners find its state again: the same with and without deadlines.
        return AgentDoFn.__name__

    def setup(self) -> None:
        self._worker: AgentWorker = acquire_worker(self._run_id, self._config, self._worker_info)
        self._runner = AgentRunner(
            self._agent,
            self._config,
            self._worker,
            name=self._name,
            pipeline=self._pipeline,
            run_id=self._run_id,
            probe=self._probe,
        )

    def start_bundle(self) -> None:
        self._worker.telemetry.bundle_started(self._worker_info)

    def finish_bundle(self) -> None:
        self._worker.telemetry.bundle_finished()
        if self._probe is not None:
            self._probe.after(ProbedStep.BUNDLE, b"")

    def teardown(self) -> None:
        release_worker(self._run_id)

    def _cells(self, key: bytes, cells: Cells) -> Cells:
        return cells if self._probe is None else self._probe.cells(key, cells)

    def _reported(self, phase: Phase, work: Callable[[], list[Element]]) -> list[Element]:
        """Do a bundle's work; what it raises fails the bundle, and is told first."""
        try:
            return work()
        except BaseException as error:
            telemetry = self._worker.telemetry
            telemetry.bundle_failed(self._worker_info, phase, type(error).__name__)
            if phase == Phase.TIMER:
                # Some runners end the process next, and with it whatever plugins still hold.
                telemetry.flush(FLUSH_TIMEOUT_S)
            raise


class AgentDoFn(_AgentDoFnBase):
    """Runs an agent; its suspensions last as long as their key."""

    TTL: Final = TimerSpec("ttl", TimeDomain.WATERMARK)

    def process(  # noqa: D102 - Beam's own
        self,
        element: tuple[bytes, AgentEnvelope],
        timestamp: Timestamp = _TIMESTAMP,
        control: StateCell = _CONTROL,
        memory: StateCell = _MEMORY,
        replay: StateCell = _REPLAY,
        ttl: Timer = cast("Timer", beam.DoFn.TimerParam(TTL)),
    ) -> list[Element]:
        key, envelope = element
        cells = self._cells(key, Cells(control, memory, replay, ttl))
        return self._reported(Phase.PROCESS, lambda: self._runner.process(key, envelope, timestamp, cells))

    @on_timer(TTL)
    def on_ttl(  # noqa: D102 - Beam's own
        self,
        key: bytes = _KEY,
        timestamp: Timestamp = _TIMESTAMP,
        control: StateCell = _CONTROL,
        memory: StateCell = _MEMORY,
        replay: StateCell = _REPLAY,
        ttl: Timer = cast("Timer", beam.DoFn.TimerParam(TTL)),
    ) -> list[Element]:
        cells = self._cells(key, Cells(control, memory, replay, ttl))
        return self._reported(Phase.TIMER, lambda: expire(self._runner, key, timestamp.micros // 1000, cells))


class AgentDoFnWithDeadlines(_AgentDoFnBase):
    """Runs an agent; its suspensions fail at their deadline."""

    TTL: Final = TimerSpec("ttl", TimeDomain.WATERMARK)
    SUSPENSION: Final = TimerSpec("suspension", TimeDomain.REAL_TIME)

    def process(  # noqa: D102 - Beam's own
        self,
        element: tuple[bytes, AgentEnvelope],
        timestamp: Timestamp = _TIMESTAMP,
        control: StateCell = _CONTROL,
        memory: StateCell = _MEMORY,
        replay: StateCell = _REPLAY,
        ttl: Timer = cast("Timer", beam.DoFn.TimerParam(TTL)),
        suspension: Timer = cast("Timer", beam.DoFn.TimerParam(SUSPENSION)),
    ) -> list[Element]:
        key, envelope = element
        cells = self._cells(key, Cells(control, memory, replay, ttl, suspension))
        return self._reported(Phase.PROCESS, lambda: self._runner.process(key, envelope, timestamp, cells))

    @on_timer(TTL)
    def on_ttl(  # noqa: D102 - Beam's own
        self,
        key: bytes = _KEY,
        timestamp: Timestamp = _TIMESTAMP,
        control: StateCell = _CONTROL,
        memory: StateCell = _MEMORY,
        replay: StateCell = _REPLAY,
        ttl: Timer = cast("Timer", beam.DoFn.TimerParam(TTL)),
        suspension: Timer = cast("Timer", beam.DoFn.TimerParam(SUSPENSION)),
    ) -> list[Element]:
        cells = self._cells(key, Cells(control, memory, replay, ttl, suspension))
        return self._reported(Phase.TIMER, lambda: expire(self._runner, key, timestamp.micros // 1000, cells))

    @on_timer(SUSPENSION)
    def on_suspension(  # noqa: D102 - Beam's own
        self,
        key: bytes = _KEY,
        tag: str = _TAG,
        control: StateCell = _CONTROL,
        memory: StateCell = _MEMORY,
        replay: StateCell = _REPLAY,
        ttl: Timer = cast("Timer", beam.DoFn.TimerParam(TTL)),
        suspension: Timer = cast("Timer", beam.DoFn.TimerParam(SUSPENSION)),
    ) -> list[Element]:
        cells = self._cells(key, Cells(control, memory, replay, ttl, suspension))
        return self._reported(Phase.TIMER, lambda: time_out_suspension(self._runner, key, tag, cells))


def make_dofn(
    agent: AgentFunction,
    config: AgentConfig,
    *,
    name: str,
    pipeline: str,
    run_id: str,
    probe: Probe | None = None,
) -> AgentDoFn | AgentDoFnWithDeadlines:
    """Return the DoFn that the configuration asks for.

    Args:
        agent: The agent.
        config: Its configuration.
        name: Its name.
        pipeline: The pipeline's name.
        run_id: What tells this step from every other, in this process and in this run.
        probe: A test's probe.
    """
    kind = AgentDoFn if config.suspension_timeout_ms is None else AgentDoFnWithDeadlines
    return kind(agent, config, name=name, pipeline=pipeline, run_id=run_id, probe=probe)

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, Suspend
from beam_agents.runtime.clock import wall_clock_ms
from beam_agents.testing import (
    AdvanceProcessingTime,
    AdvanceWatermark,
    AgentHarness,
    FailOnce,
    RecordingTelemetry,
    answer,
    event,
    run_events,
)


async def echo(ctx: AgentContext) -> Complete:
    return Complete(ctx.event)


async def ask(ctx: AgentContext) -> Complete | Suspend:
    if ctx.snapshot is not None:
        return Complete(b"resumed")
    ctx.act("question")
    return Suspend()


def test_a_fault_needs_a_step_that_there_is() -> None:
    with pytest.raises(ValueError, match="decode, agent, summarize, run, flush, commit, expire, bundle"):
        FailOnce("no such step")
    with pytest.raises(ValueError, match="occurrence"):
        FailOnce("run", occurrence=0)


def test_a_fault_may_choose_its_key_and_occurrence() -> None:
    fault = FailOnce("commit", key=b"b", occurrence=2)
    events = [event(key, b"%d" % number, time_ms=number) for number in range(3) for key in (b"a", b"b")]
    run = run_events(echo, events, faults=[fault])
    assert fault.raised
    assert len(run.outputs) == 6
    committed = [record for record in run.signals.records if record.entity_key == b"b"]
    assert [record.attempt for record in committed[:3]] == [1, 1, 2]


def test_a_failing_expiry_is_run_again() -> None:
    fault = FailOnce("expire")
    run = run_events(
        echo,
        [event(b"k", b"1", time_ms=1_000), AdvanceWatermark(10_000), event(b"k", b"2", time_ms=10_000)],
        config=AgentConfig(ttl_ms=1_000),
        faults=[fault],
    )
    assert fault.raised
    assert run.expired == [b"k", b"k"]
    assert run.signals.bundle_failures == [("timer", "InjectedFault")]


def test_clocks_move_on_one_runner_only() -> None:
    with pytest.raises(ValueError, match="FnApiRunner"):
        run_events(echo, [AdvanceWatermark(5)], runner="FnApiRunner")


def test_a_suspensions_deadline_on_a_runner() -> None:
    config = AgentConfig(suspension_timeout_ms=60_000)
    now_ms = wall_clock_ms()
    asked = event(b"k", time_ms=1_000)
    with AgentHarness(ask, config) as harness:
        (intent,) = harness.send(asked).intents
    # The run's own clock starts at 0; a deadline is a time of the worker's clock.
    passed = AdvanceProcessingTime(now_ms + 3_600_000)
    timed_out = run_events(ask, [asked, passed, answer(intent)], config=config)
    assert [error.reason for error in timed_out.errors] == ["suspension_timeout", "orphaned_result"]
    assert timed_out.errors[1].detail.startswith("late")
    in_time = run_events(ask, [asked, AdvanceProcessingTime(now_ms), answer(intent), passed], config=config)
    assert in_time.errors == []
    assert in_time.outputs == [b"resumed"]


def test_totals_know_a_metrics_labels() -> None:
    run = run_events(echo, [event(b"k", b"1")])
    assert run.signals.total("activations_total") == 1
    with pytest.raises(ValueError, match="outcome"):
        run.signals.total("activations_total", reason="none")


def test_a_shared_object_unpickles_to_itself_and_nowhere_else() -> None:
    recording = RecordingTelemetry()
    pickled = pickle.dumps(recording)
    assert pickle.loads(pickled) is recording  # noqa: S301 - its own
    program = f"import pickle; pickle.loads({pickled!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "belongs to the process that made it" in done.stderr


def test_attempts_must_be_possible() -> None:
    with AgentHarness(echo) as harness, pytest.raises(ValueError, match="attempts"):
        harness.send(event(b"k"), attempts=0)

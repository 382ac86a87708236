"""A collector that does harm hurts nobody: outcome, time, memory."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.signals import losses
from beam_agents.testing import AgentHarness, event
from beam_agents_telemetry.otlp import OpenTelemetry, OpenTelemetryObserver
from beam_agents_telemetry.otlp_export import THREAD_PREFIX
from tests.servers import hostile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.testing import Emitted
    from beam_agents.testing.state import KeyState

ACTIVATIONS = 400
MAX_QUEUED = 60
TIMEOUT_S = 0.5
WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    losses.forget()
    yield
    losses.forget()


async def agent(ctx: AgentContext) -> Complete:
    ctx.memory.append("log", ctx.event or b"")
    return Complete(ctx.event)


def plugin(endpoint: str) -> OpenTelemetry:
    return OpenTelemetry(
        endpoint=endpoint,
        sample_ratio=1,
        timeout_s=TIMEOUT_S,
        max_queued_spans=MAX_QUEUED,
        max_activation_spans=10,
        max_batch_spans=20,
        batch_delay_s=0.01,
        metrics_period_s=0.1,
    )


def send_all(harness: AgentHarness) -> tuple[Emitted, dict[bytes, KeyState]]:
    emitted = harness.send(*(event(b"k", b"%d" % number, time_ms=number) for number in range(ACTIVATIONS)))
    return emitted, harness.states


def queues(harness: AgentHarness) -> int:
    """Return the weight of what the plugin has queued."""
    for shared in harness._dofn._worker.telemetry._shared:
        if isinstance(shared.observer, OpenTelemetryObserver):
            assert shared.observer._traces is not None
            return shared.observer._traces._queue.weight
    raise AssertionError


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_the_outcome_is_the_same_and_what_is_lost_is_counted(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with AgentHarness(agent, AgentConfig()) as harness:
        expected = send_all(harness)
    with hostile.running(kind) as server:
        with AgentHarness(agent, AgentConfig(telemetry=[plugin(server.endpoint)])) as harness:
            deadline = time.monotonic() + WITHIN_S
            weights = []
            while losses.dropped().get(("otlp", "queue_full"), 0) == 0:
                assert time.monotonic() < deadline
                if kind in hostile.ANSWERING and losses.dropped().get(("otlp", "span_export"), 0) > 0:
                    break
                found = send_all(harness)
                weights.append(queues(harness))
                if len(weights) == 1:
                    assert found == expected
            assert max(weights) <= MAX_QUEUED
            while ("otlp", "span_export") not in losses.dropped():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            while ("otlp", "metric_export") not in losses.dropped():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            sent = ACTIVATIONS * len(weights) * 3
            harness._dofn.teardown()
        lost = losses.dropped()
        # Each span was counted once: as refused at the queue, as not taken by the collector, or at the end.
        spans = sum(lost.get(("otlp", reason), 0) for reason in ("queue_full", "span_export", "closed"))
        assert spans == sent
        assert ("otlp", "timeout") not in lost
        assert not [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]
    assert "SECRET" not in caplog.text
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) <= 2, "told once per class of error"


def test_a_collector_that_hangs_for_long_is_left_behind_within_the_bound() -> None:
    with hostile.running("hanging") as server:
        options = OpenTelemetry(endpoint=server.endpoint, sample_ratio=1, timeout_s=60, batch_delay_s=0.01)
        observer = options.build()
        harness = AgentHarness(agent, AgentConfig())
        with harness:
            harness.send(*(event(b"k", time_ms=number) for number in range(5)))
        records = [record for record in harness.signals.records if record.agent]
        observer.record(records[0])
        deadline = time.monotonic() + WITHIN_S
        while server.requests == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for record in records[1:]:
            observer.record(record)
        ended = threading.Event()

        def close() -> None:
            observer.flush(0.1)
            observer.close(0.2)
            ended.set()

        threading.Thread(target=close, daemon=True).start()
        assert ended.wait(10)
        assert losses.dropped()["otlp", "closed"] >= 12
    # The server is gone, and with it what the threads waited for.
    while [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]:
        assert time.monotonic() < deadline
        time.sleep(0.02)

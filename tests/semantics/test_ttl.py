"""Expiry: refreshed by each activation; early timers, late and timeless events, a wake at the last moment."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from beam_agents import AgentConfig, AgentContext, AgentEnvelope, Complete, RunAgent, Suspend
from beam_agents.signals import Observer, Record, catalogue
from beam_agents.testing import AdvanceWatermark, AgentHarness, event, run_events
from beam_agents.testing.registry import Shared

TTL_MS = 1_000


async def agent(ctx: AgentContext) -> Complete | Suspend:
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    if ctx.event == b"fail":
        raise ValueError
    if ctx.event == b"ask":
        ctx.act("question")
        return Suspend()
    return Complete(b"%s %d at %d" % (ctx.entity_key, seen, ctx.now_ms))


@pytest.fixture
def config() -> AgentConfig:
    return AgentConfig(ttl_ms=TTL_MS)


def test_every_activation_refreshes_the_timer(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        for time_ms in (10_000, 10_500, 11_200):
            harness.send(event(b"k", time_ms=time_ms))
            assert harness.timers(b"k") == {"": time_ms + TTL_MS}
        assert harness.advance_watermark(12_199).errors == []
        assert harness.states[b"k"].decoded_control.expires_at_ms == 12_200
        harness.advance_watermark(12_200)
        assert harness.states == {}
        assert harness.signals.total("ttl_wipes_total", flushed="false") == 1


def test_a_wiped_key_starts_anew_with_a_greater_seq(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        harness.send(event(b"k", time_ms=10_000), event(b"k", time_ms=10_000))
        before = harness.states[b"k"].seq
        harness.advance_watermark(20_000)
        assert harness.send(event(b"k", time_ms=20_001)).outputs == [b"k 1 at 20001"]
        assert harness.states[b"k"].seq > before


def test_a_timer_that_fires_early_is_set_again(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        harness.send(event(b"k", time_ms=10_000))
        before = harness.states
        assert harness.fire_expiry(b"k", 10_999) == []
        assert harness.states == before
        assert harness.timers(b"k") == {"": 11_000}
        assert harness.signals.total("timers_early_total") == 1
        assert harness.signals.total("ttl_wipes_total") == 0


def test_a_timer_of_an_earlier_life_is_no_fault(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        assert harness.fire_expiry(b"k", 10_999) == []
        assert harness.states == {}


def test_an_event_out_of_order_has_its_own_time_and_turns_nothing_back(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        harness.send(event(b"k", time_ms=10_000))
        assert harness.send(event(b"k", time_ms=9_000)).outputs == [b"k 2 at 9000"]
        control = harness.states[b"k"].decoded_control
        assert (control.seq, control.clock_ms, control.expires_at_ms) == (10_001, 10_000, 11_000)
        assert harness.timers(b"k") == {"": 11_000}


def test_an_event_without_a_time_counts_on_from_the_keys_clock(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        assert harness.send(event(b"new")).outputs == [b"new 1 at 0"]
        assert harness.states[b"new"].seq == 1
        harness.send(event(b"k", time_ms=10_000))
        assert harness.send(event(b"k")).outputs == [b"k 2 at 10000"]
        assert harness.states[b"k"].seq == 10_001
        assert harness.timers(b"k") == {"": 11_000}


def test_a_failed_activation_refreshes_nothing(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        harness.send(event(b"k", time_ms=10_000))
        before = harness.states
        (error,) = harness.send(event(b"k", b"fail", time_ms=10_900)).errors
        assert error.reason == "activation_error"
        assert harness.states == before
        assert harness.timers(b"k") == {"": 11_000}


def test_a_suspended_key_says_what_was_lost(config: AgentConfig) -> None:
    with AgentHarness(agent, config) as harness:
        harness.send(event(b"k", b"ask", time_ms=10_000), event(b"k", b"ask", time_ms=10_001))
        errors = harness.advance_watermark(99_999).errors
        assert [error.reason for error in errors] == ["ttl_wiped_suspension"] * 2
        assert [error.seq for error in errors] == [10_000, 10_001]
        assert harness.states == {}
        assert harness.signals.total("ttl_wiped_suspensions_total") == 2
        assert harness.signals.total("activation_errors_total", reason="ttl_wiped_suspension") == 2


def test_a_key_with_empty_memory_is_wiped_as_empty() -> None:
    async def forgetful(ctx: AgentContext) -> Complete:  # noqa: ARG001 - an agent's signature
        return Complete()

    with AgentHarness(forgetful, AgentConfig(ttl_ms=TTL_MS)) as harness:
        harness.send(event(b"k", time_ms=10_000))
        harness.advance_watermark(11_000)
        assert harness.signals.total("ttl_wipes_total", flushed="empty") == 1


def test_on_a_runner_the_watermark_wipes(config: AgentConfig) -> None:
    run = run_events(
        agent,
        [
            event(b"k", time_ms=10_000),
            event(b"other", time_ms=10_900),
            AdvanceWatermark(11_500),
            event(b"k", time_ms=11_600),
            event(b"other", time_ms=11_600),
        ],
        config=config,
    )
    assert sorted(run.outputs) == [
        b"k 1 at 10000",
        b"k 1 at 11600",
        b"other 1 at 10900",
        b"other 2 at 11600",
    ]
    assert sorted(run.expired) == [b"k", b"k", b"other"]


def test_on_a_runner_a_late_event_is_processed(config: AgentConfig) -> None:
    run = run_events(
        agent,
        [event(b"k", time_ms=10_000), AdvanceWatermark(50_000), event(b"k", time_ms=12_000)],
        config=config,
    )
    assert run.outputs == [b"k 1 at 10000", b"k 1 at 12000"]
    assert run.errors == []
    assert run.expired == [b"k", b"k"]


def test_on_a_runner_a_key_wakes_as_it_expires(config: AgentConfig) -> None:
    """The event that keeps it alive and the watermark that ends it come with nothing between them."""
    run = run_events(
        agent,
        [
            event(b"k", time_ms=10_000),
            AdvanceWatermark(10_999),
            event(b"k", time_ms=10_999),
            AdvanceWatermark(11_000),
            event(b"k", time_ms=11_001),
        ],
        config=config,
    )
    assert run.outputs == [b"k 1 at 10000", b"k 2 at 10999", b"k 3 at 11001"]
    assert run.expired == [b"k"]


def test_bounded_input_ends_with_the_expiry_of_all_keys(config: AgentConfig) -> None:
    run = run_events(agent, [event(b"%d" % key, time_ms=10_000) for key in range(50)], config=config)
    assert len(run.outputs) == 50
    assert sorted(run.expired) == sorted(b"%d" % key for key in range(50))


class Expired(Shared):
    """Keeps the entities of the keys that were wiped, by agent."""

    name = "expired"

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[tuple[str, bytes]] = set()

    def build(self) -> Observer:
        keys = self.keys

        class Watches(Observer):
            def record(self, record: Record) -> None:
                if any(metric is catalogue.TTL_WIPES for metric, _, _ in record.measurements):
                    keys.add((record.agent, record.entity_key))

        return Watches()


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner"])
def test_each_of_a_pipelines_agents_sees_its_own_keys_expire(runner: str) -> None:
    """FnApiRunner takes timers of one name in one stage for one step's."""
    expired = Expired()
    config = AgentConfig(ttl_ms=TTL_MS, telemetry=[expired])
    kinds = tuple[bytes, AgentEnvelope]

    def events(*keys: bytes) -> list[tuple[bytes, AgentEnvelope]]:
        return [(key, event(key, time_ms=10_000)) for key in keys]

    with beam.Pipeline(options=PipelineOptions([f"--runner={runner}"])) as pipeline:
        shared = pipeline | beam.Create(events(b"a", b"b")).with_output_types(kinds)
        more = pipeline | "More" >> beam.Create(events(b"c")).with_output_types(kinds)
        first = shared | "First" >> RunAgent(agent, config=config, name="first")
        _ = (shared, more) | beam.Flatten() | "Second" >> RunAgent(agent, config=config, name="second")
        _ = (
            first.output
            | beam.Map(lambda output: (output, event(output, time_ms=10_000))).with_output_types(kinds)
            | "After the first" >> RunAgent(agent, config=config, name="third")
        )
    assert expired.keys == {
        *(("first", key) for key in (b"a", b"b")),
        *(("second", key) for key in (b"a", b"b", b"c")),
        *(("third", b"%s 1 at 10000" % key) for key in (b"a", b"b")),
    }

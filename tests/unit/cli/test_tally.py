from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from beam_agents.cli.tally import Tally, TallyPlugin, forget_tally, tally_of
from beam_agents.signals import catalogue
from beam_agents.signals.observer import Record, TelemetryPlugin, Worker


def record(*sizes: int, outcome: str = "complete", attempt: int = 1) -> Record:
    made = Record(catalogue.SPAN_INVOKE_AGENT, "p", "a", b"key")
    made.attempt = attempt
    made.measure(catalogue.ACTIVATIONS, 1, outcome)
    for size in sizes:
        made.measure(catalogue.MEMORY_SIZE_BYTES, size)
    return made


def test_counters_add_up_by_label() -> None:
    tally = Tally()
    for each in (record(), record(outcome="failed", attempt=2), record()):
        tally.add(each)
    assert tally.activations == 3
    assert tally.total(catalogue.ACTIVATIONS, "complete") == 2
    assert tally.total(catalogue.ACTIVATIONS, "suspend") == 0
    assert tally.total(catalogue.MODEL_CALLS) == 0
    assert tally.repeated_attempts == 1


def test_reading_is_noted_as_totals_so_that_a_second_reading_counts_once() -> None:
    tally = Tally()
    tally.reading(10, 100, 9)
    tally.reading(10, 100, 9, done=True)
    assert (tally.lines_read, tally.bytes_read, tally.events, tally.reading_done) == (10, 100, 9, True)


def test_only_a_replay_has_an_event_time() -> None:
    tally = Tally()
    assert tally.event_time == []
    tally.replaying(1_357_034_700_000)
    assert tally.event_time == ["event time 2013-01-01 10:05", "0 keys expired"]


@given(st.lists(st.integers(0, 1_048_576), min_size=1))
def test_the_median_is_right_to_three_digits(sizes: list[int]) -> None:
    tally = Tally()
    for size in sizes:
        tally.add(record(size))
    exact = sorted(sizes)[(len(sizes) - 1) // 2]
    assert abs(tally.median_memory_bytes - exact) <= exact / 200
    assert tally.largest_memory_bytes == max(sizes)


def test_without_activations_there_is_no_median() -> None:
    assert Tally().median_memory_bytes == 0


def test_the_plugin_fills_the_tally_of_its_run() -> None:
    plugin = TallyPlugin("a run")
    try:
        assert isinstance(plugin, TelemetryPlugin)
        assert pickle.loads(pickle.dumps(plugin)) == plugin  # noqa: S301 - our own bytes
        observer = plugin.build()
        assert not tally_of("a run").in_process
        observer.start(Worker("p", "a"))
        observer.record(record(5))
        assert tally_of("a run").in_process
        assert tally_of("a run").activations == 1
        assert tally_of("another run").activations == 0
    finally:
        forget_tally("a run")
        forget_tally("another run")
    assert tally_of("a run").activations == 0
    forget_tally("a run")

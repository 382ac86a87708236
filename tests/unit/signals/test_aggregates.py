from __future__ import annotations

import threading

import pytest

from beam_agents.signals import catalogue
from beam_agents.signals.aggregates import ADD_UP_EVERY, Aggregates, Histogram, Waiting
from beam_agents.signals.observer import Record
from beam_agents.signals.types import Group


@pytest.fixture
def aggregates() -> Aggregates:
    return Aggregates()


def record(agent: str = "a", *, sampled: bool = False) -> Record:
    made = Record(catalogue.SPAN_INVOKE_AGENT, "p", agent, b"k")
    made.sampled = sampled
    made.seq = 1
    made.end_ns = 2_000_000_000
    return made


def found(aggregates: Aggregates) -> dict[tuple[str, str, str, tuple[str, ...]], float | Histogram]:
    return {
        (metric.name, pipeline, agent, labels): state
        for metric, pipeline, agent, labels, state in aggregates.read()
    }


def test_counters_add_up_by_agent_and_labels(aggregates: Aggregates) -> None:
    for agent, outcome in (("a", "complete"), ("a", "complete"), ("a", "failed"), ("b", "complete")):
        each = record(agent)
        each.measure(catalogue.ACTIVATIONS, 1, outcome)
        aggregates.record(each)
    assert found(aggregates) == {
        ("activations_total", "p", "a", ("complete",)): 2,
        ("activations_total", "p", "a", ("failed",)): 1,
        ("activations_total", "p", "b", ("complete",)): 1,
    }


def test_histograms_count_by_bucket_with_bounds_that_belong_to_the_lower_one(aggregates: Aggregates) -> None:
    each = record()
    for value in (64, 65, 1_048_576, 1_048_577):
        each.measure(catalogue.MEMORY_SIZE_BYTES, value)
    aggregates.record(each)
    (histogram,) = found(aggregates).values()
    assert isinstance(histogram, Histogram)
    assert histogram.counts[:2] == (1, 1)
    assert histogram.counts[-2:] == (1, 1)
    assert (histogram.count, histogram.sum) == (4, 64 + 65 + 1_048_576 + 1_048_577)
    assert histogram.exemplars == ()


def test_what_comes_together_counts_as_one_by_one(aggregates: Aggregates) -> None:
    group = Group(((catalogue.ACTIVATIONS, ("complete",)), (catalogue.MEMORY_SIZE_BYTES, ())))
    one_by_one = Aggregates()
    for value in range(ADD_UP_EVERY + 3):
        together, single = record(sampled=value == 1), record(sampled=value == 1)
        together.measure_all(group, 1, value)
        single.measure(catalogue.ACTIVATIONS, 1, "complete")
        single.measure(catalogue.MEMORY_SIZE_BYTES, value)
        aggregates.record(together)
        one_by_one.record(single)
    assert found(aggregates) == found(one_by_one)
    assert found(aggregates)["activations_total", "p", "a", ("complete",)] == ADD_UP_EVERY + 3


def test_a_kept_trace_leaves_its_exemplar_in_the_bucket(aggregates: Aggregates) -> None:
    for sampled, value in ((True, 0.003), (True, 0.004), (False, 0.0049), (True, 100.0)):
        each = record(sampled=sampled)
        each.measure(catalogue.ACTIVATION_DURATION_SECONDS, value, "complete")
        aggregates.record(each)
    (histogram,) = found(aggregates).values()
    assert isinstance(histogram, Histogram)
    exemplars = dict(histogram.exemplars)
    assert [exemplar.value for exemplar in exemplars.values()] == [0.004, 100.0]
    assert {exemplar.trace_id for exemplar in exemplars.values()} == {record().trace_id}
    assert exemplars[len(histogram.counts) - 1].at_s == 2.0


def test_what_a_process_has_once_is_told_once(aggregates: Aggregates) -> None:
    for agent in ("a", "b"):
        each = record(agent)
        each.measure(catalogue.STORE_OPERATION_DURATION_SECONDS, 0.1, "redis", "flush", "ok")
        aggregates.record(each)
    ((series, histogram),) = found(aggregates).items()
    assert series == ("store_operation_duration_seconds", "", "", ("redis", "flush", "ok"))
    assert isinstance(histogram, Histogram)
    assert histogram.count == 2


def test_gauges_are_no_sums(aggregates: Aggregates) -> None:
    each = record()
    each.measure(catalogue.EXPIRE_WEDGED_TIMERS, 3, "redis")
    aggregates.record(each)
    assert found(aggregates) == {}


def test_open_labels_are_bounded(aggregates: Aggregates) -> None:
    each = record()
    for number in range(70):
        each.measure(catalogue.LONGTERM_FLUSH_FAILURES, 1, "redis", f"Error{number}")
        each.measure(catalogue.LONGTERM_FLUSH_FAILURES, 1, "redis", "Error0")
    aggregates.record(each)
    series = found(aggregates)
    assert len(series) == catalogue.MAX_ERROR_TYPES + 1
    assert series["longterm_flush_failures_total", "p", "a", ("redis", "other")] == 20
    assert series["longterm_flush_failures_total", "p", "a", ("redis", "Error0")] == 71


def test_single_counts_and_records_meet_in_one_series(aggregates: Aggregates) -> None:
    aggregates.count(catalogue.BUNDLE_FAILURES, "p", "a", "timer")
    aggregates.count(catalogue.BUNDLE_FAILURES, "p", "a", "timer")
    each = record()
    each.measure(catalogue.BUNDLE_FAILURES, 1, "timer")
    aggregates.record(each)
    assert found(aggregates) == {("bundle_failures_total", "p", "a", ("timer",)): 3}


GROUP = Group(((catalogue.ACTIVATIONS, ("complete",)), (catalogue.MEMORY_ENTRIES, ())))


def test_what_waits_is_read_and_is_counted_once(aggregates: Aggregates) -> None:
    waiting = Waiting("p", "a")
    aggregates.watch(waiting)
    activations = ("activations_total", "p", "a", ("complete",))
    for number in range(1, 6):
        waiting.rows.append([(GROUP, (1, number))])
        if number % 2:
            assert found(aggregates)[activations] == number
    (counted, entries) = aggregates.settle(waiting)
    assert counted == (catalogue.ACTIVATIONS, ("complete",), (1,) * 5)
    assert entries == (catalogue.MEMORY_ENTRIES, (), (1, 2, 3, 4, 5))
    assert aggregates.settle(waiting) == []
    waiting.rows.append([(GROUP, (1, 7))])
    aggregates.unwatch(waiting)
    aggregates.unwatch(waiting)
    series = found(aggregates)
    assert series[activations] == 6
    histogram = series["memory_entries", "p", "a", ()]
    assert isinstance(histogram, Histogram)
    assert (histogram.count, histogram.sum) == (6, 22)


def test_what_an_ended_thread_left_is_counted(aggregates: Aggregates) -> None:
    def work() -> None:
        waiting = Waiting("p", "a")
        aggregates.watch(waiting)
        waiting.rows.append([(GROUP, (1, 2))])

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    aggregates.watch(Waiting("p", "b"))
    assert found(aggregates)["activations_total", "p", "a", ("complete",)] == 3
    assert len(aggregates._waiting) == 1


def test_threads_that_settle_lose_nothing_beside_readers(aggregates: Aggregates) -> None:
    def work() -> None:
        for _ in range(20):
            waiting = Waiting("p", "a")
            aggregates.watch(waiting)
            for number in range(100):
                waiting.rows.append([(GROUP, (1, number))])
                if number % 16 == 15:
                    aggregates.settle(waiting)
            aggregates.unwatch(waiting)

    def read() -> None:
        while any(thread.is_alive() for thread in threads):
            aggregates.read()

    threads = [threading.Thread(target=work) for _ in range(4)]
    reader = threading.Thread(target=read)
    for thread in (*threads, reader):
        thread.start()
    for thread in (*threads, reader):
        thread.join()
    series = found(aggregates)
    histogram = series["memory_entries", "p", "a", ()]
    assert series["activations_total", "p", "a", ("complete",)] == 8_000
    assert isinstance(histogram, Histogram)
    assert (histogram.count, histogram.sum) == (8_000, 80 * sum(range(100)))


def test_threads_lose_nothing(aggregates: Aggregates) -> None:
    def work() -> None:
        for _ in range(500):
            each = record()
            each.measure(catalogue.ACTIVATIONS, 1, "complete")
            each.measure(catalogue.MEMORY_ENTRIES, 1)
            aggregates.record(each)
            aggregates.read()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    series = found(aggregates)
    histogram = series["memory_entries", "p", "a", ()]
    assert series["activations_total", "p", "a", ("complete",)] == 4_000
    assert isinstance(histogram, Histogram)
    assert histogram.count == 4_000

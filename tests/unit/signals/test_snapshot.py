from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from beam_agents.signals import (
    Observer,
    Worker,
    acquire_hub,
    aggregates,
    catalogue,
    hub,
    in_flight,
    release_hub,
    stores,
    take_snapshot,
    wedges,
)
from beam_agents.signals.aggregates import process_aggregates
from beam_agents.signals.observer import Record
from beam_agents.signals.stores import store_table
from beam_agents.signals.types import Group
from beam_agents.signals.wedges import wedge_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.signals.hub import Telemetry

WORKER = Worker("snapshot-pipeline", "snapshot-agent", "redis")
OF_AGENT = (("pipeline", WORKER.pipeline), ("agent", WORKER.agent))


class Reading(Observer):
    reads_aggregates = True


@dataclass(frozen=True)
class Reader:
    name: str = "reader"

    def build(self) -> Observer:
        return Reading()


@dataclass(frozen=True)
class Deaf:
    name: str = "deaf"

    def build(self) -> Observer:
        return Observer()


@pytest.fixture(autouse=True)
def _process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin as a fresh process would."""
    monkeypatch.setattr(aggregates._aggregates, "value", aggregates.Aggregates())
    monkeypatch.setattr(in_flight._running, "value", in_flight.InFlight())
    monkeypatch.setattr(wedges._table, "value", wedges.WedgeTable())
    monkeypatch.setattr(stores._table, "value", stores.StoreTable())
    monkeypatch.setattr(hub, "_workers", {})


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    acquired = acquire_hub((Reader(),))
    acquired.start(WORKER)
    yield acquired
    release_hub(acquired)


def values(**labels: str) -> dict[str, object]:
    """Every metric of our agent, or of the process, that has these labels, by name."""
    wanted = set(labels.items())
    return {
        series.metric.name: series.value
        for series in take_snapshot().series
        if wanted <= set(series.labels)
        and (not series.metric.per_agent or set(OF_AGENT) <= set(series.labels))
    }


def record() -> Record:
    return Record(catalogue.SPAN_INVOKE_AGENT, WORKER.pipeline, WORKER.agent, b"k")


def test_counters_of_closed_labels_begin_at_nothing(telemetry: Telemetry) -> None:
    assert values(outcome="suspend")["activations_total"] == 0
    assert values(flushed="empty")["ttl_wipes_total"] == 0
    assert values()["memory_overflows_total"] == 0
    ended = record()
    ended.measure(catalogue.MEMORY_OVERFLOWS, 2)
    telemetry.record(ended)
    assert values()["memory_overflows_total"] == 2


def test_activations_are_in_flight_until_their_record_comes(telemetry: Telemetry) -> None:
    running = record()
    assert values()["activations_in_flight"] == 0
    assert values()["oldest_activation_age_seconds"] == 0
    telemetry.activation_started(running)
    assert values()["activations_in_flight"] == 1
    age_s = values()["oldest_activation_age_seconds"]
    assert isinstance(age_s, float)
    assert age_s > 0
    telemetry.record(running)
    assert values()["activations_in_flight"] == 0


def test_bundles_and_their_failures_count_by_phase(telemetry: Telemetry) -> None:
    before = process_aggregates()
    telemetry.bundle_started(WORKER)
    telemetry.bundle_failed(WORKER, "timer", "ExpireFlushFailed")
    assert process_aggregates() is before
    assert values()["bundles_total"] == 1
    assert values(phase="timer")["bundle_failures_total"] == 1
    assert values(phase="process")["bundle_failures_total"] == 0


def test_a_bundle_is_told_of_while_it_runs_and_after_it_failed(telemetry: Telemetry) -> None:
    group = Group(((catalogue.ACTIVATIONS, ("complete",)),))

    def activate() -> None:
        ended = record()
        ended.measure_all(group, 1)
        telemetry.record(ended)

    telemetry.bundle_started(WORKER)
    activate()
    assert values(outcome="complete")["activations_total"] == 1
    activate()
    telemetry.bundle_failed(WORKER, "process", "OSError")
    assert values(outcome="complete")["activations_total"] == 2
    telemetry.bundle_started(WORKER)
    activate()
    # One that failed in another step told nobody.
    telemetry.bundle_started(WORKER)
    activate()
    telemetry.bundle_finished()
    assert values(outcome="complete")["activations_total"] == 4
    telemetry.bundle_started(WORKER)
    activate()
    release_hub(telemetry)
    assert values(outcome="complete")["activations_total"] == 5


@pytest.mark.usefixtures("telemetry")
def test_wedges_are_zero_where_there_could_be_some() -> None:
    assert values(backend="redis")["expire_wedged_timers"] == 0
    wedge_table().failed(WORKER.pipeline, WORKER.agent, b"k", backend="redis", error_type="StoreTimeout")
    assert values(backend="redis")["expire_wedged_timers"] == 1
    age_s = values(backend="redis")["expire_wedged_oldest_seconds"]
    assert isinstance(age_s, float)
    assert age_s > 0
    wedge_table().ended(WORKER.pipeline, WORKER.agent, b"k")
    assert values(backend="redis")["expire_wedged_timers"] == 0
    assert values(backend="redis")["expire_wedges_lost_sight_total"] == 0


@pytest.mark.usefixtures("telemetry")
def test_a_backend_is_up_when_all_its_stores_are() -> None:
    table = store_table()
    table.opened("one", "snapshot-db", "one")
    table.opened("two", "snapshot-db", "two")
    assert "store_up" not in values(backend="snapshot-db")
    table.answered("one")
    assert values(backend="snapshot-db")["store_up"] == 1
    table.failed("two", "StoreUnavailable")
    assert values(backend="snapshot-db")["store_up"] == 0
    table.answered("two")
    assert values(backend="snapshot-db")["store_up"] == 1
    table.closed("one")
    table.closed("two")


@pytest.mark.usefixtures("telemetry")
def test_the_process_tells_of_itself() -> None:
    assert values(plugin="reader")["telemetry_initialised"] == 1
    assert values()["build_info"] == 1


def test_series_are_in_the_order_of_the_catalogue_and_each_is_there_once(telemetry: Telemetry) -> None:
    ended = record()
    ended.measure(catalogue.ACTIVATIONS, 1, "complete")
    telemetry.record(ended)
    series = take_snapshot().series
    order = [catalogue.METRICS.index(each.metric) for each in series]
    assert order == sorted(order)
    assert len({(each.metric.name, each.labels) for each in series}) == len(series)


def test_nothing_is_summed_up_for_plugins_that_do_not_read_it() -> None:
    deaf = acquire_hub((Deaf(),))
    worker = Worker("deaf-pipeline", "deaf-agent")
    deaf.start(worker)
    deaf.bundle_started(worker)
    ended = Record(catalogue.SPAN_INVOKE_AGENT, worker.pipeline, worker.agent, b"k")
    ended.measure(catalogue.ACTIVATIONS, 1, "complete")
    deaf.record(ended)
    release_hub(deaf)
    assert not [each for each in process_aggregates().read() if each[1] == worker.pipeline]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_counts_for_itself(telemetry: Telemetry) -> None:
    ended = record()
    ended.measure(catalogue.MEMORY_OVERFLOWS, 1)
    telemetry.record(ended)
    telemetry.activation_started(record())
    wedge_table().failed(WORKER.pipeline, WORKER.agent, b"k", backend="redis", error_type="StoreTimeout")
    child = os.fork()
    if child == 0:
        clean = not list(process_aggregates().read()) and not len(wedge_table()) and not store_table().all()
        os._exit(0 if clean and not values()["activations_in_flight"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    wedge_table().ended(WORKER.pipeline, WORKER.agent, b"k")


def test_so_does_one_that_was_forked_past_pythons_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_plugins", {})
    acquired = acquire_hub((Reader(),))
    acquired.start(WORKER)
    ended = record()
    ended.measure(catalogue.MEMORY_OVERFLOWS, 1)
    acquired.record(ended)
    acquired.activation_started(record())
    wedge_table().failed(WORKER.pipeline, WORKER.agent, b"k", backend="redis", error_type="StoreTimeout")
    monkeypatch.setattr(hub, "_pid", -1)
    acquired.bundle_started(WORKER)
    assert values()["memory_overflows_total"] == 0
    assert values()["activations_in_flight"] == 0
    assert values(backend="redis")["expire_wedged_timers"] == 0
    assert values()["bundles_total"] == 1

"""A run over thousands of flights, scraped while it goes and after: the numbers agree with each other."""

from __future__ import annotations

import csv
import json
import threading
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from beam_agents import AgentContext, AgentEnvelope, Complete, RunAgent, ToolResult
from beam_agents.demo.data import write_flights
from beam_agents.demo.flights import flights_config, watch_aircraft
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import shared_bridge
from beam_agents.signals import catalogue
from beam_agents.signals.types import BeamKind, MetricKind
from beam_agents.testing import event
from beam_agents.testing.registry import Shared
from beam_agents_telemetry.prometheus import PrometheusMetrics
from tests.telemetry.scraping import Scrape, endpoint, forget_all, scrape

if TYPE_CHECKING:
    import pathlib

FLIGHTS = 3_000
AGAIN = 400
GARBLED = 25
STRANGERS = 7
ROWS = 4  # of an activation: two of the demo's, two of the test's
PLUGIN = PrometheusMetrics(port=0)

# One process runs the flights, for all of them.
pytestmark = pytest.mark.xdist_group("prometheus flights")


async def watch_and_save(ctx: AgentContext) -> Complete:
    """Do what the demo does, and keep the newest status in the long-term tier."""
    done = await watch_aircraft(ctx)
    assert done.output is not None
    ctx.memory.longterm.save("status", done.output)
    ctx.memory.longterm.save("route", ctx.event or b"")
    return done


class Count(Shared):
    """Counts what comes out of an output."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.elements = 0

    def __call__(self, element: object) -> object:
        with self._lock:
            self.elements += 1
        return element


@dataclass(frozen=True)
class Run:
    during: list[Scrape]
    after: Scrape
    counters: dict[str, int]
    distributions: dict[str, int]
    outputs: int
    errors: int
    activations: int


def envelopes(folder: pathlib.Path) -> list[AgentEnvelope]:
    file = folder / "flights.csv"
    write_flights(file, FLIGHTS)
    found = []
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            at_ms = int(datetime.fromisoformat(row["scheduled"]).timestamp() * 1000)
            if row["tailnum"]:
                found.append(event(row["tailnum"].encode(), json.dumps(row).encode(), time_ms=at_ms))
    return found


def run_pipeline(script: list[AgentEnvelope], uri: str) -> tuple[dict[str, int], dict[str, int], int, int]:
    config = replace(flights_config(uri), telemetry=("beam", PLUGIN))
    outputs, errors = Count(), Count()
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    pairs = [(each.entity_key, each) for each in script]
    created = pipeline | beam.Create(pairs).with_output_types(tuple[bytes, AgentEnvelope])
    ran = created | RunAgent(watch_and_save, config=config, name="flights")
    _ = ran.output | "Outputs" >> beam.Map(outputs)
    _ = ran.errors | "Errors" >> beam.Map(errors)
    result = pipeline.run()
    result.wait_until_finish()
    query = result.metrics().query(MetricsFilter().with_namespace(catalogue.BEAM_NAMESPACE))
    return (
        {each.key.metric.name: each.committed for each in query["counters"]},
        {each.key.metric.name: each.committed.count for each in query["distributions"]},
        outputs.elements,
        errors.elements,
    )


def provision(uri: str) -> None:
    async def make() -> None:
        store = open_store(uri)
        await open_admin(store).provision()
        await store.close()

    shared_bridge().run(make(), 60, inline=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("flights")
    uri = f"sqlite+aiosqlite:///{folder / 'longterm.db'}?probe_period_s=0.05"
    provision(uri)
    script = envelopes(folder)
    garbled = [event(each.entity_key, b"{", time_ms=each.event_time_ms) for each in script[:GARBLED]]
    strangers = [
        AgentEnvelope(entity_key=each.entity_key, tool_result=ToolResult(intent_id="stranger"))
        for each in script[:STRANGERS]
    ]
    # Flights of an hour before, processed after the others: their rows are refused.
    again = [
        event(each.entity_key, each.event, time_ms=each.event_time_ms - 3_600_000) for each in script[:AGAIN]
    ]
    forget_all()
    during: list[Scrape] = []
    with endpoint(PLUGIN) as observer:
        ended = threading.Event()

        def scrape_on() -> None:
            while not ended.wait(0.1):
                during.append(scrape(observer.url))

        scraper = threading.Thread(target=scrape_on)
        scraper.start()
        try:
            first = run_pipeline([*script, *garbled, *strangers], uri)
            second = run_pipeline(again, uri)
        finally:
            ended.set()
            scraper.join()
        after = scrape(observer.url)
    forget_all()
    return Run(
        during,
        after,
        {name: first[0].get(name, 0) + second[0].get(name, 0) for name in first[0] | second[0]},
        {name: first[1].get(name, 0) + second[1].get(name, 0) for name in first[1] | second[1]},
        first[2] + second[2],
        first[3] + second[3],
        len(script) + len(again),
    )


def test_the_run_is_what_it_should_be(run: Run) -> None:
    assert run.activations > 3_300
    assert run.outputs == run.activations
    assert run.errors == GARBLED + STRANGERS
    assert run.after.total("activations_total", outcome="complete") == run.outputs
    assert run.after.total("activations_total", outcome="failed") == GARBLED


def test_rows_staged_are_applied_or_stale(run: Run) -> None:
    staged = run.after.total("longterm_staged_total", backend="sqlite")
    applied = run.after.total("longterm_upserts_total", backend="sqlite", result="applied")
    stale = run.after.total("longterm_upserts_total", backend="sqlite", result="stale")
    expired = run.after.total("expire_flushes_total", outcome="ok")
    assert expired > 0
    assert staged == applied + stale == ROWS * run.activations + expired
    assert stale > 0


def test_errors_are_counted_by_reason(run: Run) -> None:
    counted = run.after.total("activation_errors_total") + run.after.total("orphaned_results_total")
    assert counted == run.errors
    assert run.after.total("activation_errors_total", reason="activation_error") == GARBLED
    assert run.after.total("orphaned_results_total") == STRANGERS


def test_each_flush_is_one_call_of_the_store(run: Run) -> None:
    calls = run.after.total("store_operation_duration_seconds_count", operation="flush")
    assert calls == run.activations
    for histogram in ("longterm_flush_duration_seconds", "longterm_flush_rows", "longterm_flush_bytes"):
        assert run.after.total(f"{histogram}_count") == calls
    assert run.after.total("longterm_flush_rows_sum") == ROWS * run.activations


def test_every_sum_over_the_labels_is_beams_counter(run: Run) -> None:
    """No bundle failed, so that the runner's ledger has it all, too."""
    assert run.after.total("bundle_failures_total") == 0
    compared = 0
    for metric in catalogue.METRICS:
        for form in metric.beam:
            if metric.kind is MetricKind.HISTOGRAM:
                found = run.distributions if form.kind is BeamKind.DISTRIBUTION else run.counters
                assert found.get(form.name, 0) == run.after.total(f"{metric.name}_count"), form.name
            elif metric.kind is MetricKind.COUNTER:
                counted = sum(
                    sample.value
                    for sample in run.after.matching(metric.name)
                    if all(sample.labels[label] in values for label, values in form.where)
                )
                assert run.counters.get(form.name, 0) == counted, form.name
            else:
                continue
            compared += 1
    assert compared > 30


def test_counters_only_grow_and_all_of_it_was_seen_on_the_way(run: Run) -> None:
    completed = [found.total("activations_total", outcome="complete") for found in run.during]
    assert completed == sorted(completed)
    assert any(0 < each < run.outputs for each in completed)
    assert any(found.total("activations_in_flight") > 0 for found in run.during)
    assert run.after.total("activations_in_flight") == 0
    assert any(found.total("store_up", backend="sqlite") == 1 for found in run.during)

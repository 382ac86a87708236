from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import apache_beam as beam
import pytest
from apache_beam.metrics.execution import MetricsContainer
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.signals import Record, Telemetry, acquire_hub, catalogue, release_hub
from beam_agents.signals.types import BeamKind, BeamMetric, Metric, MetricKind
from beam_agents_telemetry.beam import BeamMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.signals import Measured

Measurement = tuple[Metric, float, tuple[str, ...]]

MEASURED: list[list[Measurement]] = [
    [
        (catalogue.ACTIVATIONS, 1, ("complete",)),
        (catalogue.ACTIVATION_DURATION_SECONDS, 0.0004, ("complete",)),
        (catalogue.TOKENS, 120, ("small-1", "prompt")),
        (catalogue.TOKENS, 30, ("small-1", "completion")),
        (catalogue.MEMORY_SIZE_BYTES, 512, ()),
        (catalogue.REPLAY_CACHE_REQUESTS, 1, ("miss",)),
        (catalogue.TIMER_LATENESS_SECONDS, 3.0, ()),
    ],
    [
        (catalogue.ACTIVATIONS, 1, ("suspend",)),
        (catalogue.ACTIVATION_DURATION_SECONDS, 0.0005, ("suspend",)),
        (catalogue.TOKENS, 80, ("large-1", "prompt")),
        (catalogue.MEMORY_SIZE_BYTES, 2048, ()),
        (catalogue.REPLAY_CACHE_REQUESTS, 1, ("hit",)),
        (catalogue.EXPIRE_WEDGED_TIMERS, 3, ("redis",)),
    ],
    [
        (catalogue.ACTIVATIONS, 1, ("failed",)),
        (catalogue.ACTIVATION_ERRORS, 1, ("activation_error",)),
        (catalogue.ACTIVATION_DURATION_SECONDS, 0.0125, ("failed",)),
        (catalogue.SUMMARIES, 1, ("not_smaller",)),
        (catalogue.SUMMARIES, 1, ("ok",)),
    ],
]


class Measuring(beam.DoFn):
    def setup(self) -> None:
        self.telemetry: Telemetry = acquire_hub((BeamMetrics(),))

    def teardown(self) -> None:
        release_hub(self.telemetry)

    def process(self, element: list[Measurement]) -> Iterator[int]:
        record = Record(catalogue.SPAN_INVOKE_AGENT, "flights", "watcher", b"key")
        for metric, value, labels in element:
            record.measure(metric, value, *labels)
        self.telemetry.record(record)
        yield len(element)


def test_a_pipeline_reports_what_was_measured() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    # The measurements travel pickled: their metrics are still the catalogue's.
    _ = pipeline | beam.Create(MEASURED) | beam.ParDo(Measuring())
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace("beam_agents.runtime"))

    counters = {each.key.metric.name: each.committed for each in found["counters"]}
    assert counters == {
        "activations": 2,
        "suspensions": 1,
        "agent_errors": 1,
        "prompt_tokens": 200,
        "completion_tokens": 30,
        "replay_cache_hits": 1,
        "replay_cache_misses": 1,
        "summaries": 2,
        "summary_failures": 1,
    }
    distributions = {
        each.key.metric.name: (
            each.committed.count,
            each.committed.sum,
            each.committed.min,
            each.committed.max,
        )
        for each in found["distributions"]
    }
    assert distributions == {"activation_ms": (3, 14, 0, 13), "memory_bytes": (2, 2560, 512, 2048)}
    gauges = {each.key.metric.name: each.committed.value for each in found["gauges"]}
    assert gauges == {"expire_wedged": 3}


def updates(measurements: list[Measurement]) -> dict[str, object]:
    """Tell the plugin of them as on a bundle's thread; return what Beam holds, by name."""
    one_by_one: list[Measured] = [(metric, labels, (value,)) for metric, value, labels in measurements]
    together: dict[tuple[Metric, tuple[str, ...]], list[float]] = {}
    for metric, value, labels in measurements:
        together.setdefault((metric, labels), []).append(value)
    held = held_after(one_by_one)
    assert held_after([(*series, values) for series, values in together.items()]) == held
    return held


def held_after(measured: list[Measured]) -> dict[str, object]:
    container = MetricsContainer("step")
    sampler = statesampler.StateSampler("test", CounterFactory())
    before = statesampler.get_current_tracker()
    statesampler.set_current_tracker(sampler)
    observer = BeamMetrics().build()
    try:
        sampler.start()
        with sampler.scoped_state("step", "process", metrics_container=container):
            observer.measured("flights", "watcher", measured)
        sampler.stop()
    finally:
        statesampler.set_current_tracker(before)
    cumulative = container.get_cumulative()
    return {
        key.metric.name: value
        for kind in (cumulative.counters, cumulative.distributions, cumulative.gauges)
        for key, value in kind.items()
    }


@given(st.lists(st.floats(min_value=0, max_value=100_000), min_size=1, max_size=20))
def test_milliseconds_are_rounded_half_up(seconds: list[float]) -> None:
    held = updates([(catalogue.RUNTIME_OVERHEAD_SECONDS, each, ()) for each in seconds])
    (distribution,) = held.values()
    rounded = [math.floor(each * 1000 + 0.5) for each in seconds]
    assert (distribution.count, distribution.sum, distribution.min, distribution.max) == (  # type: ignore[attr-defined]  # Beam ships no types
        len(rounded),
        sum(rounded),
        min(rounded),
        max(rounded),
    )


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(0.0, 0), (0.00049, 0), (0.0005, 1), (0.0015, 2), (0.0025, 3), (1.0, 1000)]
)
def test_half_a_millisecond_is_one(seconds: float, milliseconds: int) -> None:
    (held,) = updates([(catalogue.RUNTIME_OVERHEAD_SECONDS, seconds, ())]).values()
    assert held.sum == milliseconds  # type: ignore[attr-defined]  # Beam ships no types


COUNTERS = [each for each in catalogue.METRICS if each.kind is MetricKind.COUNTER and each.beam]


@st.composite
def counted(draw: st.DrawFn) -> Measurement:
    metric = draw(st.sampled_from(COUNTERS))
    closed = dict(metric.values)
    labels = tuple(
        draw(st.sampled_from([each.value for each in closed[label]])) if label in closed else "any"
        for label in metric.labels
    )
    return metric, draw(st.integers(0, 2**40)), labels


@given(st.lists(counted(), max_size=30))
def test_each_beam_counter_sums_the_labels_that_it_stands_for(measurements: list[Measurement]) -> None:
    expected: Counter[str] = Counter()
    for metric, value, labels in measurements:
        own = dict(zip(metric.labels, labels, strict=True))
        for form in metric.beam:
            if all(own[label] in values for label, values in form.where):
                expected[form.name] += int(value)
    assert updates(measurements) == expected
    assert set(expected) >= {name for name, value in expected.items() if value}


def test_a_histograms_counter_counts_its_measurements() -> None:
    measured = [
        (catalogue.LONGTERM_FLUSH_DURATION_SECONDS, each, ("redis", "ok")) for each in (0.2, 7.0, 0.0)
    ]
    held = updates(measured)
    assert held["longterm_flushes"] == 3
    assert held["longterm_flush_ms"].sum == 7200  # type: ignore[attr-defined]  # Beam ships no types


def test_whole_numbers_stay_exact() -> None:
    assert updates([(catalogue.COMPACTION_EVICTED_BYTES, 2**53 + 1, ())]) == {
        "compaction_evicted_bytes": 2**53 + 1
    }


def test_a_metric_outside_the_catalogue_is_counted_too() -> None:
    own = Metric(
        "own_total",
        MetricKind.COUNTER,
        "1",
        "Of a test.",
        labels=("a", "b"),
        beam=(BeamMetric("own", BeamKind.COUNTER, where=(("a", ("x",)), ("b", ("y", "z")))),),
    )
    measured: list[Measurement] = [
        (own, 1.0, labels) for labels in (("x", "y"), ("x", "z"), ("x", "w"), ("v", "y"))
    ]
    assert updates(measured) == {"own": 2}


def test_outside_of_a_bundle_nothing_happens() -> None:
    measured: list[Measured] = [(catalogue.ACTIVATIONS, ("complete",), (1,))]
    BeamMetrics().build().measured("flights", "watcher", measured)


def test_it_is_configuration() -> None:
    plugin = BeamMetrics()
    assert plugin.name == "beam"
    assert pickle.loads(pickle.dumps(plugin)) == plugin  # noqa: S301 - our own bytes
    assert hash(BeamMetrics()) == hash(plugin)


@pytest.mark.parametrize("module", ["beam_agents.signals", "beam_agents_telemetry.beam"])
def test_it_needs_no_library_of_another_plugin(module: str) -> None:
    code = f"""
import sys
for name in ("opentelemetry", "prometheus_client", "structlog"):
    sys.modules[name] = None  # an import of it raises
import {module}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_plugins_import_no_more_of_the_runtime_than_its_signals() -> None:
    code = """
import sys, types
package = types.ModuleType("beam_agents")
import importlib.util
package.__path__ = list(importlib.util.find_spec("beam_agents").submodule_search_locations)
sys.modules["beam_agents"] = package
import beam_agents_telemetry.beam
ours = {name for name in sys.modules if name.startswith("beam_agents.")}
ours = {name for name in ours if not name.startswith("beam_agents.signals")}
assert ours <= {"beam_agents.errors"}, ours
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""The parts of the plugin ``otlp`` that decide: options, sampling, spans, data points."""

from __future__ import annotations

import multiprocessing
import pathlib
import pickle
import re
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from beam_agents.errors import PluginUnusable
from beam_agents.signals import Exemplar, Histogram, Record, Series, Snapshot, catalogue, resolve_plugins
from beam_agents.signals import attributes as ours
from beam_agents.signals.trace import format_traceparent
from beam_agents_telemetry.otlp import OpenTelemetry, OpenTelemetryObserver
from beam_agents_telemetry.otlp_export import process_resource, read_headers
from beam_agents_telemetry.otlp_metrics import metrics_data
from beam_agents_telemetry.otlp_process import DEFAULTS
from beam_agents_telemetry.otlp_sampling import Sampling, did_something, worth_keeping
from beam_agents_telemetry.otlp_spans import spans_of

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import ExponentialHistogramDataPoint, HistogramDataPoint


def make_record() -> Record:
    record = Record(catalogue.SPAN_INVOKE_AGENT, "flights", "watcher", b"N107US")
    record.seq = 7
    return record


# Options


def test_options_of_a_text_are_those_of_the_class() -> None:
    text = (
        "otlp?endpoint=http://collector:4318/&sample_ratio=0.5&traces=yes&metrics=off&detail=true"
        "&max_queued_spans=1000&headers_file=/run/secrets/otlp"
    )
    (plugin,) = resolve_plugins([text])
    same = OpenTelemetry(
        "http://collector:4318",
        "/run/secrets/otlp",
        sample_ratio=0.5,
        metrics=False,
        detail=True,
        max_queued_spans=1_000,
    )
    assert plugin == same
    assert hash(plugin) == hash(same)
    assert pickle.loads(pickle.dumps(plugin)) == same  # noqa: S301 - our own bytes
    assert OpenTelemetry(sample_ratio=1) == OpenTelemetry(sample_ratio=1.0)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"endpoint": "collector:4318"}, ValueError, "endpoint"),
        ({"endpoint": "grpc://collector:4317"}, ValueError, "endpoint"),
        ({"endpoint": "http://user:SECRET@collector:4318"}, ValueError, "headers_file"),
        ({"endpoint": "http://collector:4318/?token=SECRET"}, ValueError, "query"),
        ({"endpoint": "http://collector:4318/v1/traces"}, ValueError, "/v1/traces"),
        ({"endpoint": "http://collector:SECRET"}, ValueError, "port"),
        ({"endpoint": "http://collector:4318/SECRET thing"}, ValueError, "spaces"),
        ({"headers_file": "secrets"}, ValueError, "headers_file"),
        ({"sample_ratio": 1.1}, ValueError, "sample_ratio"),
        ({"max_batch_spans": 1.5}, TypeError, "max_batch_spans"),
        ({"max_queued_spans": 0}, ValueError, "max_queued_spans"),
        ({"max_queued_spans": 10, "max_activation_spans": 11}, ValueError, "max_activation_spans"),
        ({"capture_content": True, "redact": "SECRET"}, ValueError, "redact"),
        ({"redact": "package:function"}, ValueError, "capture_content"),
        ({"capture_content": True, "traces": False}, ValueError, "capture_content"),
        ({"traces": False, "metrics": "off"}, ValueError, "both off"),
        ({"metrics_period_s": 0}, ValueError, "metrics_period_s"),
    ],
)
def test_bad_options_are_refused_at_once(
    options: dict[str, object], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named) as raised:
        OpenTelemetry(**options)  # type: ignore[arg-type]  # wrong on purpose
    assert "SECRET" not in str(raised.value)


def test_without_metrics_nothing_is_summed_up() -> None:
    observer = OpenTelemetry("http://127.0.0.1:9", metrics=False).build()
    try:
        assert not observer.reads_aggregates
    finally:
        observer.close(1.0)
    assert OpenTelemetryObserver.reads_aggregates


def test_headers_come_from_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "headers"
    path.write_text("# of the vendor\n\nAuthorization=Bearer a=b\nx-team = agents\n")
    assert read_headers(str(path)) == {"authorization": "Bearer a=b", "x-team": "agents"}
    assert read_headers("") is None
    path.write_text("a=b\nSECRET\n")
    with pytest.raises(PluginUnusable, match="line 2") as raised:
        read_headers(str(path))
    assert "SECRET" not in str(raised.value)
    path.write_bytes(b"authorization=SECRET\xff")
    with pytest.raises(PluginUnusable, match="no UTF-8 text") as raised:
        read_headers(str(path))
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(PluginUnusable, match=f"cannot be read: .*{tmp_path}"):
        read_headers(str(tmp_path / "none"))


def test_a_process_is_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = process_resource()
    assert mine.attributes["service.name"] == "beam-agents"
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        childs = pool.submit(instance_id).result()
    assert mine.attributes["service.instance.id"] != childs
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=7,service.name=shop")
    named = process_resource()
    assert (named.attributes["service.name"], named.attributes["service.instance.id"]) == ("shop", "7")


def instance_id() -> object:
    return process_resource().attributes["service.instance.id"]


# Sampling


@given(st.integers(1, 2**60), st.sampled_from([0.0, 1.0, 1e-9]) | st.floats(0, 1))
def test_the_share_is_chosen_as_opentelemetry_does(seq: int, ratio: float) -> None:
    record = make_record()
    record.seq = seq
    theirs = TraceIdRatioBased(ratio).should_sample(None, int(record.trace_id, 16), "").decision
    assert Sampling(ratio).keeps(record) == (theirs is Decision.RECORD_AND_SAMPLE)


@pytest.mark.parametrize("sampled", [True, False])
def test_whoever_sent_the_event_decides(*, sampled: bool) -> None:
    record = make_record()
    record.traceparent = format_traceparent("1" * 32, "2" * 16, sampled=sampled)
    assert Sampling(0 if sampled else 1).keeps(record) is sampled
    assert Sampling(0 if sampled else 1, parent_based=False).keeps(record) is not sampled


def test_what_went_wrong_is_kept() -> None:
    assert not worth_keeping(make_record())
    for field, value in (("outcome", "failed"), ("error_type", "ValueError"), ("attempt", 2)):
        record = make_record()
        setattr(record, field, value)
        assert worth_keeping(record)
    for kept, happened in (
        (True, catalogue.EVENT_LONGTERM_UPSERT_STALE),
        (False, catalogue.EVENT_MEMORY_EVICTED),
    ):
        record = make_record()
        record.happened(happened)
        assert worth_keeping(record) is kept


def test_probes_that_succeed_and_timers_that_are_early_have_no_span() -> None:
    probe = Record(catalogue.SPAN_STORE_PROBE, "", "", b"")
    assert not did_something(probe)
    probe.error_type = "StoreUnavailable"
    assert did_something(probe)
    timer = Record(catalogue.SPAN_MEMORY_EXPIRE, "flights", "watcher", b"k")
    timer.measure(catalogue.TIMERS_EARLY, 1)
    assert not did_something(timer)
    timer.measure(catalogue.TTL_WIPES, 1, "empty")
    assert did_something(timer)


# Spans


def test_a_large_activation_keeps_its_first_and_last_steps() -> None:
    record = make_record()
    for number in range(100):
        call = record.begin(catalogue.SPAN_SEARCH_MEMORY, f"{number}")
        record.part_of = call
        record.finish(record.begin(catalogue.SPAN_DB_OPERATION, f"{number}"))
        record.part_of = None
        record.finish(call)
    spans, left_out = spans_of(record, detail=False, max_spans=11)
    assert len(spans) == 11
    assert left_out == 190
    children = spans[1:]
    assert [span.name for span in children[:2] + children[-2:]] == [
        "search_memory 0",
        "0",
        "search_memory 99",
        "99",
    ]
    known = {span.context.span_id for span in spans}
    assert all(span.parent is not None and span.parent.span_id in known for span in children)
    assert children[-1].parent == children[-2].context
    assert len(known) == 11


def test_a_step_that_was_left_behind_ends_with_its_activation() -> None:
    record = make_record()
    record.begin(catalogue.SPAN_CHAT, "small")
    record.end_ns = record.now_ns()
    (_, chat), _ = spans_of(record, detail=False, max_spans=10)
    assert chat.end_ns == record.end_ns


def test_nothing_is_staged_where_nothing_was_saved() -> None:
    record = make_record()
    assert len(spans_of(record, detail=True, max_spans=10)[0]) == 1
    record.moment("longterm.stage", **{ours.KEY_LENGTH: 3, ours.VALUE_BYTES: 5})
    record.end_ns = record.now_ns()
    (_, staged), _ = spans_of(record, detail=True, max_spans=10)
    assert (staged.name, staged.end_ns) == ("longterm.stage", record.end_ns)
    assert staged.attributes == {ours.ROWS: 1, ours.ROWS_BYTES: 5}


def test_all_attributes_are_in_the_catalogue() -> None:
    record = make_record()
    record.outcome, record.reason, record.attempt = "failed", "activation_error", 2
    (root, *_), _ = spans_of(record, detail=False, max_spans=10)
    assert root.attributes.keys() <= set(record.span.attributes)
    assert root.failed


# Metrics


def _point(
    metric_name: str, snapshot: Snapshot, *, exponential: bool
) -> ExponentialHistogramDataPoint | HistogramDataPoint:
    data = metrics_data(snapshot, Resource({}), exponential=exponential)
    (metric,) = [
        metric
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == metric_name
    ]
    (point,) = metric.data.data_points
    return point  # type: ignore[return-value]  # the metric is a histogram


@given(st.data())
def test_an_exponential_histogram_has_each_measurement_near_its_bucket(data: st.DataObject) -> None:
    metric = data.draw(st.sampled_from([each for each in catalogue.METRICS if each.buckets]))
    counts = data.draw(
        st.lists(st.integers(0, 9), min_size=len(metric.buckets) + 1, max_size=len(metric.buckets) + 1)
    )
    labels = tuple((name, "x") for name in ("pipeline", "agent", *metric.labels))
    if metric is catalogue.STORE_OPERATION_DURATION_SECONDS:
        labels = (("backend", "redis"), ("operation", "flush"), ("outcome", "ok"))
    histogram = Histogram(tuple(counts), 1.0, ((0, Exemplar(0.1, "a" * 32, "b" * 16, 3.0)),))
    snapshot = Snapshot((Series(metric, labels, histogram),), 1.0, 2.0)
    point = _point(metric.otel_name, snapshot, exponential=True)
    found = point.positive  # type: ignore[union-attr]  # it is exponential
    assert sum(found.bucket_counts) == point.count == sum(counts)
    assert point.exemplars[0].trace_id == int("a" * 32, 16)
    # Cumulated from below, no measurement is off by more than the bucket that it was counted in.
    for place, bound in enumerate(metric.buckets):
        below = sum(
            count
            for index, count in enumerate(found.bucket_counts, found.offset)
            if 2.0 ** (index + 1) <= bound * 2
        )
        assert below >= sum(counts[: place + 1]) - counts[place]
        assert below <= sum(counts[: place + 2])


def test_a_gauge_has_no_start_and_a_counter_has() -> None:
    labels = (("pipeline", "p"), ("agent", "a"))
    series = (
        Series(catalogue.ACTIVATIONS_IN_FLIGHT, labels, 3),
        Series(catalogue.MEMORY_OVERFLOWS, labels, 2),
    )
    data = metrics_data(Snapshot(series, 1.0, 2.0), Resource({}), exponential=False)
    gauge, counter = data.resource_metrics[0].scope_metrics[0].metrics
    assert (gauge.name, gauge.unit) == ("beam_agents.activations.in.flight", "{item}")
    assert [each.start_time_unix_nano for each in (*gauge.data.data_points, *counter.data.data_points)] == [
        0,
        1_000_000_000,
    ]


# The page


def test_the_page_has_every_option_with_its_default() -> None:
    page = pathlib.Path(__file__).parents[3] / "docs" / "telemetry" / "otlp.md"
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]*)`)? *\|", page.read_text(encoding="utf-8"), re.MULTILINE)
    defaults = {each.name: DEFAULTS.get(each.name, each.default) for each in fields(OpenTelemetry)}
    options = [(name, "" if default == "" else repr(default)) for name, default in defaults.items()]
    assert [row for row in rows if row[0] in dict(options)] == options

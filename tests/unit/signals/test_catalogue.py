from __future__ import annotations

import pickle
import re
from enum import StrEnum

import pytest

from beam_agents.signals import attributes, catalogue, conventions, types
from beam_agents.signals.types import BeamKind, LogEvent, Metric, MetricKind, Reason, SpanName

EVERY_METRIC = pytest.mark.parametrize("metric", catalogue.METRICS, ids=lambda metric: metric.name)
ENTRIES: tuple[Metric | SpanName | LogEvent, ...] = (
    *catalogue.METRICS,
    *catalogue.SPANS,
    *catalogue.EVENTS,
)
UNIT_WORDS = {"s": "seconds", "By": "bytes"}


def collectors_prometheus_name(metric: Metric) -> str:
    """What an OpenTelemetry collector's Prometheus exporter makes of an instrument."""
    tokens = re.split(r"[^a-zA-Z0-9]+", metric.otel_name)
    unit = UNIT_WORDS.get(metric.ucum, "")
    if unit and unit not in tokens:
        tokens.append(unit)
    if metric.ucum == "1" and metric.kind is MetricKind.GAUGE:
        tokens.append("ratio")
    if metric.kind is MetricKind.COUNTER:
        tokens = [word for word in tokens if word != "total"] + ["total"]
    return "_".join(tokens)


def constants(kind: type) -> dict[str, object]:
    return {name: value for name, value in vars(catalogue).items() if isinstance(value, kind)}


def test_every_entry_is_listed_once() -> None:
    for kind, listed in (
        (Metric, catalogue.METRICS),
        (SpanName, catalogue.SPANS),
        (LogEvent, catalogue.EVENTS),
    ):
        assert set(constants(kind).values()) == set(listed)
        assert len({entry.name for entry in listed}) == len(listed)


def test_constants_are_called_as_what_they_are() -> None:
    for name, metric in constants(Metric).items():
        assert isinstance(metric, Metric)
        assert name == metric.name.removesuffix("_total").upper()
    for name, event in constants(LogEvent).items():
        assert isinstance(event, LogEvent)
        assert name == f"EVENT_{event.name.upper()}"


def test_no_two_metrics_share_a_name_in_any_form() -> None:
    beam = [form.name for metric in catalogue.METRICS for form in metric.beam]
    assert len(set(beam)) == len(beam)
    for form in ("prometheus_name", "otel_name"):
        assert len({getattr(metric, form) for metric in catalogue.METRICS}) == len(catalogue.METRICS)


@EVERY_METRIC
def test_names_tell_kind_and_unit(metric: Metric) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.unit in {"seconds", "bytes", "1"}
    words = metric.name.split("_")
    for unit in ("seconds", "bytes"):
        assert (unit in words) == (metric.unit == unit)


@EVERY_METRIC
def test_a_collector_gives_the_prometheus_name_back(metric: Metric) -> None:
    assert collectors_prometheus_name(metric) == metric.prometheus_name


@EVERY_METRIC
def test_buckets_belong_to_histograms_and_rise(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert len(metric.buckets) <= 17
    if metric.name.endswith("_duration_seconds"):
        assert (metric.buckets[0], metric.buckets[-1]) == (0.0001, 60.0)


@EVERY_METRIC
def test_labels_are_known_and_leave_out_what_every_record_has(metric: Metric) -> None:
    known = {label.name for label in catalogue.LABELS}
    assert set(metric.labels) <= known - {"pipeline", "agent", "job", "instance", "entity"}
    assert len(set(metric.labels)) == len(metric.labels)
    assert {label for label, _ in metric.values} <= set(metric.labels)


@EVERY_METRIC
def test_beam_forms_fit_the_metric(metric: Metric) -> None:
    closed = dict(metric.values)
    for form in metric.beam:
        if metric.kind is MetricKind.HISTOGRAM:
            assert form.kind in {BeamKind.DISTRIBUTION, BeamKind.COUNTER}
        elif metric.kind is MetricKind.COUNTER:
            assert form.kind is BeamKind.COUNTER
        else:
            assert form.kind is BeamKind.GAUGE
        timed = metric.unit == "seconds" and form.kind is not BeamKind.COUNTER
        assert form.name.endswith("_ms") == (form.scale == 1000) == timed
        for label, values in form.where:
            assert set(values) <= set(closed[label])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_help_is_a_sentence(entry: Metric | SpanName | LogEvent) -> None:
    assert entry.help.endswith(".")
    assert "|" not in entry.help
    assert entry.help[0].isupper() or entry.help[0].isdigit()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_entries_are_pickled_by_name(entry: Metric | SpanName | LogEvent) -> None:
    assert pickle.loads(pickle.dumps(entry)) is entry  # noqa: S301 - our own bytes


def test_an_unknown_name_is_no_entry() -> None:
    with pytest.raises(KeyError):
        catalogue.lookup("metric", "no_such_metric")


def test_span_names_take_their_target() -> None:
    assert catalogue.SPAN_CHAT.filled("small-1") == "chat small-1"
    assert catalogue.SPAN_MEMORY_COMMIT.filled("") == "memory.commit"
    assert catalogue.SPAN_CHAT.filled("") == "chat"


def test_attribute_keys_are_ours_or_the_conventions() -> None:
    keys = {
        value
        for module in (attributes, conventions)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    for span in catalogue.SPANS:
        assert set(span.attributes) <= keys
        assert len(set(span.attributes)) == len(span.attributes)


def test_conventional_instruments_have_buckets_and_a_unit() -> None:
    fed = {metric.convention for metric in catalogue.METRICS if metric.convention}
    assert fed == set(conventions.BUCKETS) == set(conventions.UNITS)
    for bounds in conventions.BUCKETS.values():
        assert list(bounds) == sorted(set(bounds))
    assert conventions.BUCKETS[conventions.GEN_AI_CLIENT_OPERATION_DURATION][-1] == 81.92
    assert conventions.BUCKETS[conventions.DB_CLIENT_OPERATION_DURATION][-1] == 10.0


def test_every_reason_has_a_help_in_its_order() -> None:
    assert list(catalogue.REASON_HELP) == list(Reason)
    assert list(catalogue.DROP_REASON_HELP) == list(types.DropReason)


def test_closed_sets_are_snake_case() -> None:
    for value in vars(types).values():
        if isinstance(value, type) and issubclass(value, StrEnum):
            assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", member.value) for member in value)

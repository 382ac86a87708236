"""The reference page of all signals, made from the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue
from beam_agents.signals.types import MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from beam_agents.signals.types import BeamMetric, Metric

__all__ = ["render"]

_HEAD: Final = """\
# Signals

Every metric, span and log event, by name. This page is made from the code:
`python -m beam_agents.signals > docs/signals.md`.
"""

_METRICS: Final = f"""\
## Metrics

Prometheus and OpenTelemetry count in each worker process and keep what failed bundles did. Every series has
the labels `pipeline` and `agent`, but for those marked *process*. Beam metrics are in the namespace
`{catalogue.BEAM_NAMESPACE}`, have no labels, hold integers (`*_ms`: milliseconds, half a millisecond rounded
up), and lose what a failed bundle counted.
"""

_SPANS: Final = """\
## Spans

A failed step has status ERROR and `error.type`. No span holds memory values, events, prompts or answers.
"""

_EVENTS: Final = """\
## Log events

One line each. Beside what the table names, a line has `pipeline`, `agent`, `entity` (the key's hash), and
`trace_id` and `span_id` where there is a trace.
"""

_REASONS: Final = """\
## Reasons of errors

The values of the label `reason` of `beam_agents_activation_errors_total`, and of `ActivationError.reason`.
What to do about each: [errors](errors.md).
"""

_DROPS: Final = """\
## Reasons of lost telemetry

The values of the label `reason` of `beam_agents_telemetry_dropped_total` that the runtime counts; a plugin
may count others of its own.
"""


def render() -> str:
    """Return the page, in Markdown."""
    sections = (
        _HEAD,
        _METRICS,
        _table(
            ("Prometheus", "kind", "labels", "OpenTelemetry", "Beam", "what it tells"),
            (_metric_row(metric) for metric in catalogue.METRICS),
        ),
        "### Labels\n",
        _table(
            ("label", "values", "what it tells"),
            (_label_row(label.name, label.help) for label in catalogue.LABELS),
        ),
        "### Buckets\n",
        _table(
            ("Prometheus histogram", "upper bounds"),
            (
                (_code(metric.prometheus_name), ", ".join(f"{bound:.15g}" for bound in metric.buckets))
                for metric in catalogue.METRICS
                if metric.kind is MetricKind.HISTOGRAM
            ),
        ),
        _SPANS,
        _table(
            ("span", "kind", "attributes", "what it covers"),
            (
                (_code(span.name), span.kind.value, _codes(span.attributes), span.help)
                for span in catalogue.SPANS
            ),
        ),
        _EVENTS,
        _table(
            ("event", "severity", "attributes", "when"),
            (
                (_code(event.name), event.severity, _codes(event.attributes), event.help)
                for event in catalogue.EVENTS
            ),
        ),
        _REASONS,
        _table(
            ("reason", "meaning"),
            ((_code(reason.value), text) for reason, text in catalogue.REASON_HELP.items()),
        ),
        _DROPS,
        _table(
            ("reason", "meaning"),
            ((_code(reason.value), text) for reason, text in catalogue.DROP_REASON_HELP.items()),
        ),
    )
    return "\n".join(sections)


def _metric_row(metric: Metric) -> tuple[str, ...]:
    labels = _codes(metric.labels)
    if not metric.per_agent:
        labels = f"*process* {labels}".rstrip()
    otel = f"{_code(metric.otel_name)} ({metric.ucum})"
    if metric.convention:
        otel += f", {_code(metric.convention)}"
    beam = "; ".join(_beam_form(form) for form in metric.beam)
    return _code(metric.prometheus_name), metric.kind.value, labels, otel, beam, metric.help


def _beam_form(form: BeamMetric) -> str:
    where = "; ".join(f"{label}: {', '.join(values)}" for label, values in form.where)
    return f"{_code(form.name)} {form.kind.value}" + (f" ({where})" if where else "")


def _label_row(name: str, text: str) -> tuple[str, ...]:
    values: dict[str, None] = {}
    for metric in catalogue.METRICS:
        for label, closed in metric.values:
            if label == name and label != "reason":
                values.update(dict.fromkeys(each.value for each in closed))
    return _code(name), "see below" if name == "reason" else _codes(values), text


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _code(text: str) -> str:
    return f"`{text}`"


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(_code, texts))

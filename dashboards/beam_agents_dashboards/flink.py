"""Recording rules that give Flink's series of our Beam metrics the names and labels of the workers' own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue
from beam_agents.signals.types import BeamKind, MetricKind, Outcome
from beam_agents_dashboards.rules import Group, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.signals.types import BeamMetric, Metric

__all__ = ["NOTE", "UNKNOWN", "flink_groups", "flink_name"]

UNKNOWN: Final = "unknown"
"""The value of a label that Beam's metrics do not tell; one without a value would match no dashboard."""

NOTE: Final = """\
#
# OPTIONAL. For pipelines on Flink whose workers are not scraped: Flink's PrometheusReporter tells our Beam
# metrics by names of its own; here they get ours, so that dashboards and alerts work, as far as those go.
# - A pipeline of which a worker is scraped, or was in the last ten minutes, is left out, so that nothing
#   counts twice. For that, give RunAgent's `pipeline` and Beam's --job_name the same value, and set
#   filterLabelValueCharacters: false on the reporter.
# - `pipeline` is Flink's job_name, `agent` its operator_name. What Beam has no label for is "unknown".
# - There are no histograms: the reporter exports Beam's distributions as 0. Nor is there what has no Beam
#   metric: stores' health, activations in flight, the age of wedged timers, failed bundles.
# - activations_total{outcome="failed"} is agent_errors, with refused elements and lost suspensions.
"""

_OPERATOR: Final = "flink_taskmanager_job_task_operator_"
_UNALLOWED: Final = re.compile("[^a-zA-Z0-9:_]")
# Without what a restart changes: a counter that begins again is a reset then, and nothing of it is missed.
_SUBTASK: Final = "job, instance, job_name, operator_name, subtask_index"
_SCRAPED: Final = "pipeline:beam_agents_activations_in_flight:scraped10m"

# In Beam's metrics a failed activation is an error record, and nothing else.
_FAILED: Final = "agent_errors"


def flink_name(form: BeamMetric) -> str:
    """Return a Beam metric's name in Flink's reporter, which replaces what Prometheus does not allow."""
    return _OPERATOR + _UNALLOWED.sub("_", f"{catalogue.BEAM_NAMESPACE}.{form.name}")


def flink_groups() -> tuple[Group, ...]:
    """Return the one group: which pipelines are scraped, then a rule per metric and value of its label."""
    scraped = Recording(
        _SCRAPED,
        f"count by (pipeline) (last_over_time({catalogue.ACTIVATIONS_IN_FLIGHT.prometheus_name}[10m]))",
    )
    rules = [rule for metric in catalogue.METRICS for rule in _rules(metric)]
    return (Group("beam-agents-flink-metrics", (scraped, *rules)),)


def _rules(metric: Metric) -> Iterator[Recording]:
    if metric.kind is MetricKind.COUNTER:
        for value, series in _counted(metric):
            yield _recording(metric, series, value)
    elif metric.kind is MetricKind.GAUGE:
        for form in metric.beam:
            # Subtasks of one TaskManager share a worker process, and each tells what the process counts.
            yield _recording(metric, f"max by (job, instance, job_name, operator_name) ({flink_name(form)})")


def _counted(metric: Metric) -> Iterator[tuple[dict[str, str], str]]:
    """Return the parts that a counter's Beam forms divide it into: the label's value, and the series."""
    counters = [form for form in metric.beam if form.kind is BeamKind.COUNTER]
    parts = {form: _covered(metric, form) for form in counters}
    for form in counters:
        whole = parts[form]
        smaller = [other for other in counters if parts[other] < whole]
        rest = [value for value in whole if all(value not in parts[other] for other in smaller)]
        series = _sum(form)
        for other in smaller:
            # What never happened has no series: that is 0.
            series += f"\n- ({_sum(other)}\n  or 0 * {_sum(form)})"
        label = _divided(metric)
        # A form that counts several values, such as errors and timeouts, stands under the first of them.
        yield ({label: next(v for v in _values(metric, label) if v in rest)} if label else {}), series
    if metric is catalogue.ACTIVATIONS:
        failed = next(form for form in catalogue.ACTIVATION_ERRORS.beam if form.name == _FAILED)
        yield {"outcome": Outcome.FAILED.value}, _sum(failed)


def _sum(form: BeamMetric) -> str:
    return f"sum by ({_SUBTASK}) ({flink_name(form)})"


def _divided(metric: Metric) -> str:
    """Return the label by whose values a metric's forms differ; empty for none."""
    return next((label for form in metric.beam for label, _ in form.where), "")


def _values(metric: Metric, label: str) -> tuple[str, ...]:
    return tuple(value.value for value in dict(metric.values)[label])


def _covered(metric: Metric, form: BeamMetric) -> frozenset[str]:
    label = _divided(metric)
    if not label:
        return frozenset()
    return frozenset(dict(form.where).get(label) or _values(metric, label))


def _recording(metric: Metric, series: str, known: dict[str, str] | None = None) -> Recording:
    expression = f'label_replace(\n{series},\n"pipeline", "$1", "job_name", "(.+)")'
    expression = f'label_replace({expression},\n"agent", "$1", "operator_name", "(.+)")'
    labels = dict.fromkeys(metric.labels, UNKNOWN) | (known or {})
    return Recording(
        metric.prometheus_name,
        f"{expression}\nunless on (pipeline) {_SCRAPED}",
        {**labels, "via": "flink"},
    )

"""Recording rules that give Flink's series of our Beam metrics the names and labels of the workers' own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue
from beam_agents.signals.types import BeamKind, CallOutcome, MetricKind, Outcome
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
# - There are no histograms, except how many flushes there were: the reporter exports Beam's distributions as
#   0. Nor is there what has no Beam metric: stores' health, activations in flight, the age of wedged timers.
# - activations_total{outcome="failed"} is agent_errors, with refused elements and lost suspensions.
"""

_OPERATOR: Final = "flink_taskmanager_job_task_operator_"
_UNALLOWED: Final = re.compile("[^a-zA-Z0-9:_]")
# Without what a restart changes: a counter that begins again is a reset then, and nothing of it is missed.
_SUBTASK: Final = "job, instance, job_name, operator_name, subtask_index"
_SCRAPED: Final = "pipeline:beam_agents_activations_in_flight:scraped10m"

# What failed, as Beam counts it: by another metric, which no form of the first repeats.
_FAILURES: Final = {
    catalogue.ACTIVATIONS: replace(
        catalogue.ACTIVATION_ERRORS.beam[0], where=(("outcome", (Outcome.FAILED,)),)
    ),
    catalogue.LONGTERM_FLUSH_DURATION_SECONDS: replace(
        catalogue.LONGTERM_FLUSH_FAILURES.beam[0],
        where=(("outcome", (CallOutcome.ERROR, CallOutcome.TIMEOUT)),),
    ),
}


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
    if metric.kind is MetricKind.GAUGE:
        for form in metric.beam:
            # Subtasks of one TaskManager share a worker process, and each tells what the process counts.
            yield _recording(metric, f"max by (job, instance, job_name, operator_name) ({flink_name(form)})")
        return
    for value, series in _counted(metric):
        yield _recording(metric, series, value)


def _counted(metric: Metric) -> Iterator[tuple[dict[str, str], str]]:
    """Return the parts that a counter's Beam forms divide it into: the label's value, and the series."""
    counters = [form for form in metric.beam if form.kind is BeamKind.COUNTER]
    if metric in _FAILURES:
        counters.append(_FAILURES[metric])
    label = next((label for form in counters for label, _ in form.where), "")
    values = tuple(value.value for value in dict(metric.values)[label]) if label else ()
    parts = {form: frozenset(dict(form.where).get(label) or values) for form in counters}
    for form, whole in parts.items():
        smaller = [other for other, part in parts.items() if part < whole]
        series = _sum(form)
        for other in smaller:
            # What never happened has no series: that is 0.
            series += f"\n- ({_sum(other)}\n  or 0 * {_sum(form)})"
        rest = whole.difference(*(parts[other] for other in smaller))
        # A form that counts several values, such as errors and timeouts, stands under the first of them.
        yield ({label: next(value for value in values if value in rest)} if label else {}), series


def _sum(form: BeamMetric) -> str:
    return f"sum by ({_SUBTASK}) ({flink_name(form)})"


def _recording(metric: Metric, series: str, known: dict[str, str] | None = None) -> Recording:
    expression = f'label_replace(\n{series},\n"pipeline", "$1", "job_name", "(.+)")'
    expression = f'label_replace({expression},\n"agent", "$1", "operator_name", "(.+)")'
    labels = dict.fromkeys(metric.labels, UNKNOWN) | (known or {})
    suffix = "_count" if metric.kind is MetricKind.HISTOGRAM else ""
    return Recording(
        metric.prometheus_name + suffix,
        f"{expression}\nunless on (pipeline) {_SCRAPED}",
        {**labels, "via": "flink"},
    )

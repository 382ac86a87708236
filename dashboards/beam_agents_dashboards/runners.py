"""Optional rules on what runners tell of themselves, by names that are theirs to change."""

from __future__ import annotations

from typing import Final

from beam_agents_dashboards.names import Dashboard
from beam_agents_dashboards.rules import Alert, Group

__all__ = ["FOREIGN_METRICS", "NOTE", "runner_groups"]

NOTE: Final = """\
#
# OPTIONAL. These rules rest on metrics of the runner, not of beam-agents. Load the file only where the
# runner's metrics are scraped: Flink's PrometheusReporter, or prometheus/stackdriver_exporter for Dataflow
# (metric types dataflow.googleapis.com/job and logging.googleapis.com/log_entry_count). Without them its
# rules never fire.
# A job that dies before its worker was scraped shows here and nowhere else.
"""

_FLINK: Final = "flink_jobmanager_job_numRestarts"
_DATAFLOW_ERRORS: Final = "stackdriver_dataflow_step_logging_googleapis_com_log_entry_count"
_DATAFLOW_AGE: Final = "stackdriver_dataflow_job_dataflow_googleapis_com_job_data_watermark_age"

FOREIGN_METRICS: Final = frozenset({_FLINK, _DATAFLOW_ERRORS, _DATAFLOW_AGE})
"""Every metric in these rules."""

_SUMMARY: Final = "Bundles of timers fail again and again."


def runner_groups() -> tuple[Group, ...]:
    """Return the groups, one per runner."""
    flink = Alert(
        "BeamAgentsTimerBundlesFailing",
        pages=True,
        expression=f"sum by (job, job_name) (increase({_FLINK}[5m])) > 0",
        hold_s=420,
        labels={"runner": "flink"},
        summary=_SUMMARY,
        description="Flink job {{ $labels.job_name }} keeps restarting: "
        '{{ $value | printf "%.0f" }} times in 5m. A bundle that fails restarts the whole job.',
        dashboard=Dashboard.EXPIRY,
        variables=(),
    )
    dataflow = Alert(
        "BeamAgentsTimerBundlesFailing",
        pages=True,
        # Dataflow counts no failed bundles. It retries one for ever, logs each failure as an error, and the
        # watermark stays where it is.
        expression=f"max by (job, job_name) (min_over_time({_DATAFLOW_AGE}[5m])) > 600\nand\n"
        f'sum by (job, job_name) (sum_over_time({_DATAFLOW_ERRORS}{{severity="ERROR"}}[5m])) > 0',
        hold_s=300,
        labels={"runner": "dataflow"},
        summary=_SUMMARY,
        description="The watermark of Dataflow job {{ $labels.job_name }} is "
        "{{ $value | humanizeDuration }} old, and its workers log errors.",
        dashboard=Dashboard.EXPIRY,
        variables=(),
    )
    return Group("beam-agents-flink", (flink,)), Group("beam-agents-dataflow", (dataflow,))

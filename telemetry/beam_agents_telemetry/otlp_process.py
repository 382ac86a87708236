"""What the plugin ``otlp`` is in one process: its options, and what the environment adds to them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from beam_agents_telemetry.otlp_console import Both, ConsoleMetrics, ConsoleSpans
from beam_agents_telemetry.otlp_environment import CONSOLE, OTLP, check_files
from beam_agents_telemetry.otlp_export import ExporterSink, MetricSender, process_resource, read_headers
from beam_agents_telemetry.otlp_sampling import Sampling

if TYPE_CHECKING:
    from beam_agents_telemetry.otlp import OpenTelemetry
    from beam_agents_telemetry.otlp_environment import Environment
    from beam_agents_telemetry.otlp_export import MetricSink, SpanSink

__all__ = ["DEFAULTS", "ProcessSetup"]

DEFAULTS: Final = {"sample_ratio": 0.01, "metrics_period_s": 15.0, "timeout_s": 10.0}
"""What options are where neither they nor a variable say anything."""


class ProcessSetup:
    """What options, variables and files say on this worker.

    Attributes:
        resource: What the process is.
        sampling: Which traces are kept.
        metrics_period_s: Seconds between two exports of metrics.
    """

    def __init__(self, options: OpenTelemetry, environment: Environment) -> None:
        check_files(os.environ)
        self._options = options
        self._environment = environment
        self._headers = read_headers(options.headers_file)
        self.resource = process_resource()
        self.sampling = Sampling(
            _first(options.sample_ratio, environment.ratio, "sample_ratio"),
            parent_based=environment.parent_based,
        )
        self.metrics_period_s = _first(
            options.metrics_period_s, environment.metrics_period_s, "metrics_period_s"
        )

    def span_sink(self) -> SpanSink:
        """Make what spans go to."""
        to_console = CONSOLE in self._environment.traces
        console = ConsoleSpans(self.resource) if to_console else None
        if OTLP not in self._environment.traces and console is not None:
            return console
        timeout_s = _first(self._options.timeout_s, self._environment.traces_timeout_s, "timeout_s")
        receiver = ExporterSink(self._options.endpoint, self._headers, timeout_s, self.resource)
        return receiver if console is None else Both(console, receiver)

    def metric_sink(self) -> MetricSink:
        """Make what metrics go to."""
        exponential = self._options.exponential_histograms or self._environment.exponential
        to_console = CONSOLE in self._environment.metrics
        console = ConsoleMetrics(self.resource, exponential=exponential) if to_console else None
        if OTLP not in self._environment.metrics and console is not None:
            return console
        timeout_s = _first(self._options.timeout_s, self._environment.metrics_timeout_s, "timeout_s")
        receiver = MetricSender(
            self._options.endpoint, self._headers, timeout_s, self.resource, exponential=exponential
        )
        return receiver if console is None else Both(console, receiver)


def _first(option: float | None, variable: float | None, name: str) -> float:
    if option is not None:
        return option
    return variable if variable is not None else DEFAULTS[name]

"""What the runtime tells: the catalogue of signals and the observers that receive them.

A telemetry plugin needs nothing but this package::

    @dataclass(frozen=True)
    class Printer:
        name: str = "printer"

        def build(self) -> Observer:
            return PrintingObserver()


    class PrintingObserver(Observer):
        def record(self, record: Record) -> None:
            print(record.agent, record.outcome, record.measurements)
"""

from beam_agents.signals import catalogue
from beam_agents.signals.hub import Telemetry, acquire_hub, initialised, release_hub
from beam_agents.signals.losses import count_lost, dropped
from beam_agents.signals.observer import (
    AttributeValue,
    Happening,
    Observer,
    Record,
    Step,
    TelemetryPlugin,
    Worker,
)
from beam_agents.signals.plugins import resolve_plugins
from beam_agents.signals.types import LogEvent, Metric, MetricKind, Outcome, Reason, SpanKind, SpanName

__all__ = [
    "AttributeValue",
    "Happening",
    "LogEvent",
    "Metric",
    "MetricKind",
    "Observer",
    "Outcome",
    "Reason",
    "Record",
    "SpanKind",
    "SpanName",
    "Step",
    "Telemetry",
    "TelemetryPlugin",
    "Worker",
    "acquire_hub",
    "catalogue",
    "count_lost",
    "dropped",
    "initialised",
    "release_hub",
    "resolve_plugins",
]

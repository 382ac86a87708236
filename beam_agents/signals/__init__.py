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
from beam_agents.signals.aggregates import Exemplar, Histogram
from beam_agents.signals.hub import Telemetry, acquire_hub, initialised, release_hub
from beam_agents.signals.losses import count_lost, dropped, hear_faults, unhear_faults
from beam_agents.signals.observer import (
    AttributeValue,
    Happening,
    Measured,
    Moment,
    Observer,
    Record,
    Step,
    TelemetryPlugin,
    Worker,
)
from beam_agents.signals.plugins import resolve_plugins
from beam_agents.signals.snapshot import Series, Snapshot, take_snapshot
from beam_agents.signals.types import (
    Content,
    LogEvent,
    Metric,
    MetricKind,
    Outcome,
    Reason,
    SpanKind,
    SpanName,
)

__all__ = [
    "AttributeValue",
    "Content",
    "Exemplar",
    "Happening",
    "Histogram",
    "LogEvent",
    "Measured",
    "Metric",
    "MetricKind",
    "Moment",
    "Observer",
    "Outcome",
    "Reason",
    "Record",
    "Series",
    "Snapshot",
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
    "hear_faults",
    "initialised",
    "release_hub",
    "resolve_plugins",
    "take_snapshot",
    "unhear_faults",
]

"""A telemetry plugin that keeps every signal, for tests to ask."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from beam_agents.signals.catalogue import METRICS, SPAN_STORE_PROBE
from beam_agents.signals.observer import Observer
from beam_agents.testing.registry import Shared

if TYPE_CHECKING:
    from beam_agents.signals.observer import Happening, Record, Step, Worker

__all__ = ["RecordingTelemetry"]

_METRICS: Final = frozenset(metric.name for metric in METRICS)


class RecordingTelemetry(Shared, Observer):
    """Keeps every record and bundle of the pipelines that it is given to.

    Attributes:
        records: What ended, in order, retries and failed bundles included.
        probes: The health probes of stores, which come by the clock and not by the events.
        bundles: Bundles that began.
        bundle_failures: (phase, error_type) of each bundle that an exception ended.
    """

    name = "recording"

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.records: list[Record] = []
        self.probes: list[Record] = []
        self.bundles = 0
        self.bundle_failures: list[tuple[str, str]] = []

    def build(self) -> Observer:
        """Return itself."""
        return self

    def bundle_started(self, worker: Worker) -> None:  # noqa: ARG002 - all of them count
        """Count a bundle."""
        with self._lock:
            self.bundles += 1

    def bundle_failed(self, worker: Worker, phase: str, error_type: str) -> None:  # noqa: ARG002 - as above
        """Keep a bundle's failure."""
        with self._lock:
            self.bundle_failures.append((phase, error_type))

    def record(self, record: Record) -> None:
        """Keep a record."""
        with self._lock:
            kept = self.probes if record.span is SPAN_STORE_PROBE else self.records
            kept.append(record)

    def total(self, metric: str, **labels: str) -> float:
        """Return the sum of a metric's values.

        Args:
            metric: The metric's name in Prometheus, without the prefix: ``"activations_total"``.
            labels: Label values that a measurement must have to count.

        Raises:
            ValueError: There is no such metric, or it has no such label.
        """
        return sum(self.values(metric, **labels))

    def values(self, metric: str, **labels: str) -> list[float]:
        """Return a metric's values in order; the arguments are those of :meth:`total`."""
        if metric not in _METRICS:
            raise ValueError(f"there is no metric {metric!r} in the catalogue")
        found: list[float] = []
        for record in self.records:
            for measured, value, own_labels in record.measurements:
                if measured.name != metric:
                    continue
                given = dict(zip(measured.labels, own_labels, strict=True))
                unknown = labels.keys() - given.keys()
                if unknown:
                    known = ", ".join(measured.labels) or "none"
                    raise ValueError(f"{metric} has the labels {known}; not {', '.join(sorted(unknown))}")
                if all(given[label] == wanted for label, wanted in labels.items()):
                    found.append(value)
        return found

    def steps(self, span: str) -> list[Step]:
        """Return the steps of one kind, by the span's name in the catalogue."""
        return [step for record in self.records for step in record.steps if step.span.name == span]

    def happenings(self, event: str) -> list[Happening]:
        """Return the happenings of one kind, by the log event's name."""
        return [each for record in self.records for each in record.happenings if each.event.name == event]

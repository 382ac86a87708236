"""What one run did, counted in this process by a telemetry plugin of the command line's own.

It sees every activation, on every runner that runs the agent in this process, and none where a runner starts
processes of its own.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue
from beam_agents.signals.observer import Observer
from beam_agents.signals.stores import store_table
from beam_agents.signals.types import MetricKind
from beam_agents.signals.wedges import wedge_table

if TYPE_CHECKING:
    from beam_agents.signals.observer import Record, Worker
    from beam_agents.signals.types import Metric

__all__ = ["Tally", "TallyPlugin", "forget_tally", "tally_of"]

_SIGNIFICANT_DIGITS: Final = 3


class Tally:
    """The counts of one run.

    Attributes:
        in_process: Whether an agent came up in this process at all.
        has_store: Whether one of these has a long-term store.
        lines_read: Input lines read so far.
        bytes_read: Input bytes read so far.
        events: Events made of them so far.
        reading_done: Whether the last line has been read.
        watermark_ms: How far event time has come, where events are replayed; None elsewhere.
        largest_memory_bytes: The largest committed working memory.
        repeated_attempts: Activations that this process had seen before: retries of a bundle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._memory_bytes: Counter[int] = Counter()
        self.in_process = False
        self.has_store = False
        self.lines_read = 0
        self.bytes_read = 0
        self.events = 0
        self.reading_done = False
        self.watermark_ms: int | None = None
        self.largest_memory_bytes = 0
        self.repeated_attempts = 0

    def reading(self, lines_read: int, bytes_read: int, events: int, *, done: bool = False) -> None:
        """Note how far the input has been read; totals, so that a repeated reading counts once."""
        self.lines_read, self.bytes_read, self.events = lines_read, bytes_read, events
        self.reading_done = done

    def replaying(self, watermark_ms: int) -> None:
        """Note how far event time has come, in milliseconds since the Unix epoch."""
        self.watermark_ms = watermark_ms

    def add(self, record: Record) -> None:
        """Count what an activation or a timer callback did."""
        with self._lock:
            if record.attempt > 1:
                self.repeated_attempts += 1
            for metric, value, labels in record.measurements:
                if metric.kind is MetricKind.COUNTER:
                    self._counters[metric.name, labels] += int(value)
                elif metric is catalogue.MEMORY_SIZE_BYTES:
                    self._memory_bytes[_rounded(int(value))] += 1
                    self.largest_memory_bytes = max(self.largest_memory_bytes, int(value))

    def total(self, metric: Metric, *labels: str) -> int:
        """Return a counter's sum over all labels, or over those whose first labels are given."""
        with self._lock:
            return sum(
                value
                for (name, own), value in self._counters.items()
                if name == metric.name and own[: len(labels)] == labels
            )

    def total_of(self, metric: Metric, **labels: str) -> int:
        """Return a counter's sum over the series that have these values of its own labels."""
        wanted = [(metric.labels.index(label), value) for label, value in labels.items()]
        with self._lock:
            return sum(
                count
                for (name, own), count in self._counters.items()
                if name == metric.name and all(own[place] == value for place, value in wanted)
            )

    @property
    def event_time(self) -> list[str]:
        """How far event time has come and what came of it, in words; empty where events are not replayed."""
        if self.watermark_ms is None:
            return []
        at = datetime.fromtimestamp(self.watermark_ms / 1_000, UTC)
        return [f"event time {at:%Y-%m-%d %H:%M}", f"{self.total(catalogue.TTL_WIPES):,} keys expired"]

    @property
    def troubles(self) -> list[str]:
        """What keeps the run from getting on, or from keeping what it should, in words; empty for nothing."""
        troubles = [
            f"the {store.backend} store does not answer ({store.error_type})"
            for store in store_table().all()
            if store.up is False
        ]
        if wedged := len(wedge_table()):
            troubles.append(f"{wedged:,} expiring keys wait for the store")
        return troubles

    @property
    def activations(self) -> int:
        """Activations that ended, whatever their outcome."""
        return self.total(catalogue.ACTIVATIONS)

    @property
    def median_memory_bytes(self) -> int:
        """The median of committed working memory over all activations, to three digits; 0 without any."""
        with self._lock:
            sizes = sorted(self._memory_bytes.items())
        seen, half = 0, (sum(count for _, count in sizes) + 1) // 2
        for size, count in sizes:
            seen += count
            if seen >= half:
                return size
        return 0


def _rounded(value: int) -> int:
    """Round to three significant digits, so that a few thousand buckets hold every size there may be."""
    step: int = 10 ** max(0, len(str(value)) - _SIGNIFICANT_DIGITS)
    return (value + step // 2) // step * step


_tallies: dict[str, Tally] = {}
_lock = threading.Lock()


def tally_of(run_id: str) -> Tally:
    """Return this process's tally of a run, made at the first call."""
    with _lock:
        return _tallies.setdefault(run_id, Tally())


def forget_tally(run_id: str) -> None:
    """Let go of a run's tally; whoever holds it keeps it."""
    with _lock:
        _tallies.pop(run_id, None)


@dataclass(frozen=True, slots=True)
class TallyPlugin:
    """The plugin that fills a run's tally.

    Attributes:
        run_id: Which run.
        name: The plugin's name.
    """

    run_id: str
    name: str = "command_line"

    def build(self) -> Observer:
        """Make the observer of this process."""
        return _TallyObserver(tally_of(self.run_id))


class _TallyObserver(Observer):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def start(self, worker: Worker) -> None:
        self._tally.in_process = True
        self._tally.has_store = self._tally.has_store or bool(worker.backend)

    def record(self, record: Record) -> None:
        self._tally.add(record)

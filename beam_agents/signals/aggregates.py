"""The process's own counts: what was measured, summed up once for all plugins that export metrics.

They outlast a failing bundle. A plugin does not feed them; it reads them with
:func:`beam_agents.signals.snapshot.take_snapshot`.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from beam_agents.signals.catalogue import MAX_ERROR_TYPES, OTHER_ERROR_TYPE
from beam_agents.signals.per_process import PerProcess
from beam_agents.signals.types import MetricKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.signals.observer import Measured, Record
    from beam_agents.signals.types import Group, Metric

__all__ = ["ADD_UP_EVERY", "Aggregates", "Exemplar", "Histogram", "Waiting", "process_aggregates"]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One measurement of a bucket, with the trace in which it is explained.

    Attributes:
        value: What was measured.
        trace_id: 32 hex digits.
        span_id: 16 hex digits.
        at_s: When, seconds since the Unix epoch.
    """

    value: float
    trace_id: str
    span_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram's state.

    Attributes:
        counts: Measurements by bucket, not cumulative; the last one is what is above every bound.
        sum: Their sum.
        exemplars: The newest one of each bucket that has any, by the bucket's index.
    """

    counts: tuple[int, ...]
    sum: float
    exemplars: tuple[tuple[int, Exemplar], ...] = ()

    @property
    def count(self) -> int:
        """How many measurements there are."""
        return sum(self.counts)


class _Cell:
    """One series. What is measured waits in a list and is added up in batches, which is cheaper."""

    __slots__ = ("bounds", "counts", "exemplars", "sum", "waiting")

    def __init__(self, metric: Metric) -> None:
        self.waiting: list[float] = []
        self.sum: float = 0
        self.bounds = metric.buckets
        self.counts = [0] * (len(metric.buckets) + 1) if metric.kind is MetricKind.HISTOGRAM else []
        self.exemplars: dict[int, Exemplar] = {}

    def add(self, value: float) -> None:
        """Add a measurement."""
        self.waiting.append(value)
        if len(self.waiting) >= ADD_UP_EVERY:
            self.settle()

    def settle(self) -> None:
        """Add up what waits."""
        waiting = self.waiting
        if not waiting:
            return
        self.sum += sum(waiting)
        if self.counts:
            waiting.sort()
            below = 0
            for index, bound in enumerate(self.bounds):
                place = bisect_right(waiting, bound, below)
                self.counts[index] += place - below
                below = place
            self.counts[-1] += len(waiting) - below
        waiting.clear()

    def read(self) -> float | Histogram:
        """Return its state."""
        self.settle()
        if not self.counts:
            return self.sum
        return Histogram(tuple(self.counts), self.sum, tuple(sorted(self.exemplars.items())))


_Labels: TypeAlias = tuple[str, ...]
_Groups: TypeAlias = "list[tuple[Group, tuple[float, ...]]]"


class Waiting:
    """What one thread's records of one agent measured in groups, before it is added up.

    Its thread alone appends, which takes no lock; whoever reads the aggregates has all of it counted.

    Args:
        pipeline: The pipeline's name.
        agent: The agent's name.

    Attributes:
        pipeline: As given.
        agent: As given.
        rows: The groups of each record.
        counted: How many of them a reader has had counted.
    """

    __slots__ = ("_thread", "agent", "counted", "pipeline", "rows")

    def __init__(self, pipeline: str, agent: str) -> None:
        self.pipeline = pipeline
        self.agent = agent
        self.rows: list[_Groups] = []
        self.counted = 0
        self._thread = threading.current_thread()

    @property
    def abandoned(self) -> bool:
        """Whether its thread has ended."""
        return not self._thread.is_alive()

    def take(self) -> list[Measured]:
        """Return what waits, which waits no longer."""
        measured = _columns(self.rows)
        self.rows.clear()
        self.counted = 0
        return measured


def _columns(rows: list[_Groups]) -> list[Measured]:
    """Return rows by series."""
    by_group: defaultdict[Group, list[tuple[float, ...]]] = defaultdict(list)
    for groups in rows:
        for group, values in groups:
            by_group[group].append(values)
    return [
        (metric, labels, values)
        for group, of_group in by_group.items()
        for (metric, labels), values in zip(group.series, zip(*of_group, strict=True), strict=True)
    ]


_Cells: TypeAlias = "dict[tuple[Metric, _Labels], _Cell]"


ADD_UP_EVERY: Final = 64
"""Records of a thread after which what they measured is added up; so is what is there when somebody reads."""

# Labels whose values come from outside: an author's names, an exception's class. The first so many values of
# a metric's label are kept apart.
_OPEN_LABELS: Final = frozenset({"error_type", "model", "tool"})


class Aggregates:
    """Sums and histograms of everything that records measured. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By (pipeline, agent); its cells by (metric, its own labels): a record's own tuples are looked up as
        # they are.
        self._agents: dict[tuple[str, str], _Cells] = {}
        self._values: dict[tuple[Metric, str], set[str]] = {}
        self._waiting: set[Waiting] = set()
        self.started_s: float = time.time()

    def record(self, record: Record) -> None:
        """Add what a record measured."""
        with self._lock:
            cells = self._of(record.pipeline, record.agent)
            for metric, value, labels in record.measurements:
                if metric.kind is MetricKind.GAUGE:
                    continue
                cell = cells.get((metric, labels)) or self._cell(cells, metric, labels)
                cell.add(value)
                if record.sampled and metric.kind is MetricKind.HISTOGRAM:
                    cell.exemplars[bisect_left(metric.buckets, value)] = Exemplar(
                        value, record.trace_id, record.span_id, record.end_ns / 1e9
                    )

    def watch(self, waiting: Waiting) -> None:
        """Count what waits there whenever somebody reads."""
        with self._lock:
            for each in [each for each in self._waiting if each.abandoned]:
                self._count_waiting(each)
                self._waiting.discard(each)
            self._waiting.add(waiting)

    def unwatch(self, waiting: Waiting) -> None:
        """Count what waits there for the last time."""
        with self._lock:
            self._count_waiting(waiting)
            self._waiting.discard(waiting)

    def settle(self, waiting: Waiting) -> list[Measured]:
        """Add up what waits, which waits no longer, and return all of it. For the thread that appends."""
        with self._lock:
            if waiting.counted:
                self._count_waiting(waiting)
                return waiting.take()
            measured = waiting.take()
            self._add(waiting, measured)
            return measured

    def _count_waiting(self, waiting: Waiting) -> None:
        """Add up what has come since the last time. Its thread may append meanwhile."""
        rows = waiting.rows[waiting.counted :]
        waiting.counted += len(rows)
        self._add(waiting, _columns(rows))

    def _add(self, waiting: Waiting, measured: list[Measured]) -> None:
        cells = self._of(waiting.pipeline, waiting.agent)
        for metric, labels, values in measured:
            cell = self._cell(cells, metric, labels)
            cell.waiting.extend(values)
            cell.settle()

    def _of(self, pipeline: str, agent: str) -> _Cells:
        known = self._agents.get((pipeline, agent))
        if known is None:
            known = self._agents[pipeline, agent] = {}
        return known

    def count(self, metric: Metric, pipeline: str, agent: str, *labels: str) -> None:
        """Add one to a counter."""
        with self._lock:
            self._cell(self._of(pipeline, agent), metric, labels).add(1)

    def read(self) -> Iterator[tuple[Metric, str, str, _Labels, float | Histogram]]:
        """Return (metric, pipeline, agent, labels, state) of everything, of one moment."""
        with self._lock:
            for waiting in self._waiting:
                self._count_waiting(waiting)
            found: dict[tuple[Metric, str, str, _Labels], float | Histogram] = {}
            for (pipeline, agent), cells in self._agents.items():
                for (metric, labels), cell in cells.items():
                    of = (pipeline, agent) if metric.per_agent else ("", "")
                    series = (metric, *of, labels)
                    # What the process has once is kept for each agent, and told as one.
                    found[series] = _sum(found.get(series), cell.read())
        return iter([(*series, state) for series, state in found.items()])

    def _cell(self, cells: _Cells, metric: Metric, labels: _Labels) -> _Cell:
        """Return the cell of a series, made if need be; all that is over a label's bound have one."""
        kept = metric, self._bounded(metric, labels)
        cell = cells.get(kept)
        if cell is None:
            cell = cells[kept] = _Cell(metric)
        return cell

    def _bounded(self, metric: Metric, labels: _Labels) -> _Labels:
        """Return the labels, where what follows the first values of an open one is OTHER_ERROR_TYPE."""
        if _OPEN_LABELS.isdisjoint(metric.labels):
            return labels
        bounded = list(labels)
        for place, name in enumerate(metric.labels):
            if name in _OPEN_LABELS:
                values = self._values.setdefault((metric, name), set())
                if labels[place] not in values:
                    if len(values) >= MAX_ERROR_TYPES:
                        bounded[place] = OTHER_ERROR_TYPE
                    else:
                        values.add(labels[place])
        return tuple(bounded)


def _sum(first: float | Histogram | None, second: float | Histogram) -> float | Histogram:
    if isinstance(first, Histogram) and isinstance(second, Histogram):
        counts = tuple(a + b for a, b in zip(first.counts, second.counts, strict=True))
        newest = dict(first.exemplars)
        for index, exemplar in second.exemplars:
            if index not in newest or newest[index].at_s <= exemplar.at_s:
                newest[index] = exemplar
        return Histogram(counts, first.sum + second.sum, tuple(sorted(newest.items())))
    if isinstance(first, int | float) and isinstance(second, int | float):
        return first + second
    return second


_aggregates = PerProcess(Aggregates)
"""What its parent counted is the parent's to tell."""


def process_aggregates() -> Aggregates:
    """Return this process's counts."""
    return _aggregates.value

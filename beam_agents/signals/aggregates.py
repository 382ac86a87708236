"""The process's own counts: what was measured, summed up once for all plugins that export metrics.

They outlast a failing bundle. A plugin does not feed them; it reads them with
:func:`beam_agents.signals.snapshot.take_snapshot`.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from beam_agents.signals.catalogue import MAX_ERROR_TYPES, OTHER_ERROR_TYPE
from beam_agents.signals.per_process import PerProcess
from beam_agents.signals.types import MetricKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from beam_agents.signals.observer import Record
    from beam_agents.signals.types import Group, Metric

__all__ = ["Aggregates", "Exemplar", "Histogram", "process_aggregates"]


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

    __slots__ = ("add", "bounds", "counts", "exemplars", "sum", "waiting")

    def __init__(self, metric: Metric) -> None:
        self.waiting: list[float] = []
        self.add: Callable[[float], None] = self.waiting.append
        self.sum: float = 0
        self.bounds = metric.buckets
        self.counts = [0] * (len(metric.buckets) + 1) if metric.kind is MetricKind.HISTOGRAM else []
        self.exemplars: dict[int, Exemplar] = {}

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


class _OfAgent:
    """What one agent of one pipeline measured.

    Attributes:
        rows: What waits of each group: its values of each record. Whoever holds no lock may append to one,
            and nothing else.
        cells: Everything else, by (metric, its own labels): a record's own tuples are looked up as they are.
    """

    __slots__ = ("cells", "rows")

    def __init__(self) -> None:
        self.rows: dict[Group, list[tuple[float, ...]]] = {}
        self.cells: dict[tuple[Metric, _Labels], _Cell] = {}


ADD_UP_EVERY: Final = 128
"""Records after which what they measured is added up; so is what is there when somebody reads."""

# Labels whose values come from outside: an author's names, an exception's class. The first so many values of
# a metric's label are kept apart.
_OPEN_LABELS: Final = frozenset({"error_type", "model", "tool"})


class Aggregates:
    """Sums and histograms of everything that records measured. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Added up many at a time: for each activation alone, all of this code and its data would first have
        # to come back into the processor's caches, which takes longer than the work.
        self._waiting = 0
        # By (pipeline, agent).
        self._agents: dict[tuple[str, str], _OfAgent] = {}
        self._values: dict[tuple[Metric, str], set[str]] = {}
        self.started_s: float = time.time()

    def record(self, record: Record) -> None:
        """Add what a record measured."""
        agent = self._agents.get((record.pipeline, record.agent))
        if agent is not None and not record.singles and not record.sampled and len(record.groups) == 1:
            # Most of them. One operation on a list needs no lock, and a reader sees all of it or nothing.
            ((group, values),) = record.groups
            rows = agent.rows.get(group)
            if rows is not None:
                rows.append(values)
                if len(rows) >= ADD_UP_EVERY:
                    with self._lock:
                        self._add_up()
                return
        self._record_all(record)

    def _record_all(self, record: Record) -> None:
        with self._lock:
            agent = self._of(record.pipeline, record.agent)
            for group, values in record.groups:
                agent.rows.setdefault(group, []).append(values)
            cells = agent.cells
            for metric, value, labels in record.singles:
                try:
                    cells[metric, labels].add(value)
                except KeyError:
                    if metric.kind is not MetricKind.GAUGE:
                        self._cell(agent, metric, labels).add(value)
            if record.sampled:
                self._keep_exemplars(agent, record)
            self._waiting += 1
            if self._waiting >= ADD_UP_EVERY:
                self._add_up()

    def _of(self, pipeline: str, agent: str) -> _OfAgent:
        known = self._agents.get((pipeline, agent))
        if known is None:
            known = self._agents[pipeline, agent] = _OfAgent()
        return known

    def _keep_exemplars(self, agent: _OfAgent, record: Record) -> None:
        for metric, value, labels in record.measurements:
            if metric.kind is MetricKind.HISTOGRAM:
                self._cell(agent, metric, labels).exemplars[bisect_left(metric.buckets, value)] = Exemplar(
                    value, record.trace_id, record.span_id, record.end_ns / 1e9
                )

    def _add_up(self) -> None:
        self._waiting = 0
        for agent in self._agents.values():
            for group, rows in agent.rows.items():
                # Others may append meanwhile.
                settled = rows[:]
                # No rows have no columns.
                for (metric, labels), values in zip(group.series, zip(*settled, strict=True), strict=False):
                    self._cell(agent, metric, labels).waiting.extend(values)
                del rows[: len(settled)]
            for cell in agent.cells.values():
                cell.settle()

    def count(self, metric: Metric, pipeline: str, agent: str, *labels: str) -> None:
        """Add one to a counter."""
        with self._lock:
            self._cell(self._of(pipeline, agent), metric, labels).add(1)

    def read(self) -> Iterator[tuple[Metric, str, str, _Labels, float | Histogram]]:
        """Return (metric, pipeline, agent, labels, state) of everything, of one moment."""
        with self._lock:
            self._add_up()
            found: dict[tuple[Metric, str, str, _Labels], float | Histogram] = {}
            for (pipeline, agent), measured in self._agents.items():
                for (metric, labels), cell in measured.cells.items():
                    of = (pipeline, agent) if metric.per_agent else ("", "")
                    series = (metric, *of, labels)
                    # What the process has once is kept for each agent, and told as one.
                    found[series] = _sum(found.get(series), cell.read())
        return iter([(*series, state) for series, state in found.items()])

    def _cell(self, agent: _OfAgent, metric: Metric, labels: _Labels) -> _Cell:
        """Return the cell of a series, made if need be; all that is over a label's bound have one."""
        kept = metric, self._bounded(metric, labels)
        cell = agent.cells.get(kept)
        if cell is None:
            cell = agent.cells[kept] = _Cell(metric)
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

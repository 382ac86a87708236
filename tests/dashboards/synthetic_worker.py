"""A worker that only tells: it has the runtime's own tables and counts, and no pipeline."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from beam_agents.signals import Histogram, catalogue
from beam_agents.signals.aggregates import Aggregates
from beam_agents.signals.observer import Record
from beam_agents.signals.stores import StoreTable
from tests.servers.pages import serving_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.signals import Metric

PIPELINE, AGENT, BACKEND = "flights", "desk", "redis"
_FLUSHES_PER_SCRAPE = 5


class SyntheticWorker:
    """Flushes a few times between two scrapes, to a store that a test may take down.

    Attributes:
        target: Where it is scraped, as host and port.
        wedged_s: For how long an expiry timer has failed; 0 for none.
    """

    def __init__(self) -> None:
        self.target = ""
        self.wedged_s = 0.0
        self._aggregates = Aggregates()
        self._stores = StoreTable()
        self._stores.opened(BACKEND, BACKEND, "redis://host")
        self._up = True

    def set_store(self, *, up: bool) -> None:
        """Take the store down, or bring it back."""
        self._up = up

    def page(self) -> str:
        """Return what is scraped, in Prometheus's text format."""
        self._work()
        lines = [
            line
            for metric, pipeline, agent, labels, state in self._aggregates.read()
            for line in _lines(metric, pipeline, agent, labels, state)
        ]
        gauges: list[tuple[Metric, tuple[str, ...], float]] = [
            (catalogue.BUILD_INFO, ("0", "0"), 1),
            *((catalogue.STORE_UP, (each.backend,), int(bool(each.up))) for each in self._stores.all()),
            (catalogue.ACTIVATIONS_IN_FLIGHT, (), 0),
            (catalogue.EXPIRE_WEDGED_TIMERS, (BACKEND,), int(self.wedged_s > 0)),
            (catalogue.EXPIRE_WEDGED_OLDEST_SECONDS, (BACKEND,), self.wedged_s),
        ]
        for metric, labels, value in gauges:
            lines += _lines(metric, PIPELINE, AGENT, labels, value)
        return "\n".join(lines) + "\n"

    def _work(self) -> None:
        record = Record(catalogue.SPAN_INVOKE_AGENT, PIPELINE, AGENT, b"key")
        outcome = "ok" if self._up else "error"
        for _ in range(_FLUSHES_PER_SCRAPE):
            record.measure(catalogue.LONGTERM_FLUSH_DURATION_SECONDS, 0.002, BACKEND, outcome)
        self._aggregates.record(record)
        if self._up:
            self._stores.answered(BACKEND)
        else:
            self._stores.failed(BACKEND, "StoreUnavailable")


@contextmanager
def working() -> Iterator[SyntheticWorker]:
    """Let a worker be scraped while the block runs."""
    worker = SyntheticWorker()
    with serving_page(worker.page) as port:
        worker.target = f"127.0.0.1:{port}"
        yield worker


def _lines(
    metric: Metric, pipeline: str, agent: str, labels: tuple[str, ...], state: float | Histogram
) -> Iterator[str]:
    pairs = list(zip(metric.labels, labels, strict=True))
    if metric.per_agent:
        pairs += [("pipeline", pipeline), ("agent", agent)]
    name = metric.prometheus_name
    if not isinstance(state, Histogram):
        yield f"{name}{_shown(pairs)} {state}"
        return
    below = 0
    for bound, count in zip((*metric.buckets, "+Inf"), state.counts, strict=True):
        below += count
        yield f"{name}_bucket{_shown([*pairs, ('le', str(bound))])} {below}"
    yield f"{name}_count{_shown(pairs)} {below}"
    yield f"{name}_sum{_shown(pairs)} {state.sum}"


def _shown(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in pairs) + "}"

"""The figures of docs/planning.md that are the same on every machine: measured again, and the page's own."""

from __future__ import annotations

import ast
import asyncio
import gzip
import pathlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from beam_agents import AgentConfig
from beam_agents.memory.stores.inprocess import InProcessAdmin, InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.testing import AgentHarness, event
from beam_agents_telemetry.prometheus import PrometheusMetrics
from tests.benchmarks.workloads import ROW_BYTES, ROWS, remember_and_save
from tests.state.savepoints import start
from tests.telemetry.scraping import endpoint, forget_all, scrape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.memory.stores.contract import StoreRow

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "planning.md"
START_MS = 1_700_000_000_000
KEYS = 50
EVENTS_PER_KEY = 20
"""The ring of 16 items is full by then."""


def page(name: str) -> float:
    """Return the number that the page's example gives a name."""
    code = PAGE.read_text().partition("```python\n")[2].partition("```")[0]
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return float(ast.literal_eval(statement.value))
    raise AssertionError(f"docs/planning.md gives {name} no number")


EVENTS = [
    event(b"job0/key%03d" % key, time_ms=START_MS + number)
    for number in range(EVENTS_PER_KEY)
    for key in range(KEYS)
]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    forget_all()
    forget_rows()
    yield
    forget_all()
    forget_rows()


def config(*telemetry: object) -> AgentConfig:
    return AgentConfig(longterm_memory="memory://", telemetry=telemetry)  # type: ignore[arg-type]  # names and plugins


def rows() -> list[StoreRow]:
    store = InProcessStore(parse_store_uri("memory://"))
    return asyncio.run(InProcessAdmin(store).scan(None, 10_000))


def test_the_state_of_a_key() -> None:
    savepoint = start(remember_and_save, config(), EVENTS, stop=True).savepoint
    sizes = {"control": 0, "memory": 0, "replay": 0}
    for (_, state_id, _, _), value in savepoint.cells.items():
        sizes[state_id] += len(value) // 2
    timers = sum(len(value) // 2 for value in savepoint.timers.values())
    assert sizes["control"] / KEYS == pytest.approx(page("control_bytes"), abs=1)
    assert sizes["memory"] / KEYS == pytest.approx(page("memory_bytes"), abs=1)
    assert timers / KEYS == pytest.approx(page("timer_bytes"), abs=1)
    assert sizes["replay"] == 0


def test_the_rows_of_a_key() -> None:
    assert (page("rows_per_event"), page("value_bytes")) == (ROWS, ROW_BYTES)
    with AgentHarness(remember_and_save, config()) as harness:
        harness.send(*EVENTS)
    stored = rows()
    assert len(stored) == KEYS * ROWS
    sizes = [len(row.entity_key) + len(row.key) + 8 + len(row.rec) + 8 for row in stored]
    assert sum(sizes) / KEYS == pytest.approx(page("stored_bytes"), abs=3)


def test_the_series_of_a_worker() -> None:
    plugin = PrometheusMetrics(port=0)
    with endpoint(plugin) as observer, AgentHarness(remember_and_save, config("beam", plugin)) as harness:
        harness.send(*EVENTS[:KEYS])
        found = scrape(observer.url)
    series = sum(len(samples) for samples in found.samples.values())
    assert series == pytest.approx(page("series_per_worker"), rel=0.1)


@contextmanager
def collector() -> Iterator[tuple[int, list[bytes]]]:
    """Yield a port, and the traces that were posted there."""
    posted: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("/traces"):
                posted.append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, posted
    finally:
        server.shutdown()
        server.server_close()


def test_the_traces_of_an_activation() -> None:
    with collector() as (port, posted):
        plugin = f"otlp?endpoint=http://127.0.0.1:{port}&sample_ratio=1"
        with AgentHarness(remember_and_save, config(plugin)) as harness:
            harness.send(*EVENTS)
    # Of those that came: a busy machine may not send all before its time is up.
    activations = sum(activations_in(body) for body in posted)
    assert activations > len(EVENTS) / 10
    sent = sum(map(len, posted)) / activations
    packed = sum(len(gzip.compress(body)) for body in posted) / activations
    assert sent == pytest.approx(page("trace_bytes"), rel=0.1)
    assert packed == pytest.approx(page("trace_gzip_bytes"), rel=0.2)


def activations_in(body: bytes) -> int:
    """Count an export's activations."""
    found = ExportTraceServiceRequest.FromString(body).resource_spans
    spans = [span for resource in found for scope in resource.scope_spans for span in scope.spans]
    return sum(span.name.startswith("invoke_agent") for span in spans)

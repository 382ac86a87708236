"""What telemetry costs: the same activations with plugins and without; the bare SDK making the same spans."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents_telemetry.otlp import OpenTelemetryObserver
from tests.benchmarks import workloads
from tests.benchmarks.interleaved import Side, Timed, interleave
from tests.servers import hostile, redis
from tests.servers.process import accepts, free_port, server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = [
    "BEAM",
    "BEAM_PROMETHEUS",
    "COMPARISONS",
    "EVERY_TRACE",
    "OFF",
    "PLUGINS",
    "SDK",
    "SOME_TRACES",
    "Comparison",
    "beside",
    "harmed_by",
    "no_op",
    "saving",
]

PROMETHEUS: Final = "prometheus?port=0"
OTLP: Final = "otlp?endpoint=http://127.0.0.1:{port}&sample_ratio={ratio}"
LOGS: Final = "logs?file={folder}/log.jsonl"

OFF: Final = "off"
BEAM: Final = "Beam"
BEAM_PROMETHEUS: Final = "Beam, Prometheus"
SOME_TRACES: Final = "all, traces at 1 %"
EVERY_TRACE: Final = "all, traces at 100 %"

PLUGINS: Final[dict[str, tuple[str, ...]]] = {
    OFF: (),
    BEAM: ("beam",),
    BEAM_PROMETHEUS: ("beam", PROMETHEUS),
    SOME_TRACES: ("beam", PROMETHEUS, LOGS, OTLP.replace("{ratio}", "0.01")),
    EVERY_TRACE: ("beam", PROMETHEUS, LOGS, OTLP.replace("{ratio}", "1")),
}
"""The sets of plugins that are compared, by their names in the report."""

SDK: Final = "the SDK's own spans"
"""The name of its side."""

NO_OPS: Final = 510
"""Activations of a round that do nothing: each has three spans, which are three full requests."""

SAVINGS: Final = 200
"""Activations of a round that save rows."""

SENT_WITHIN_S: Final = 60.0

# Takes whatever is posted and answers at once, as a collector near by would.
_SINK: Final = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.do_POST()

    def log_message(self, *arguments):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Sink).serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Sides that are timed in turn.

    Attributes:
        name: What is compared.
        sides: Yields the sides while a block runs.
        per_round: How many activations each side has in a round.
        rounds: How many rounds there are.
    """

    name: str
    sides: Callable[[], AbstractContextManager[list[Side]]]
    per_round: int
    rounds: int

    def time(self, rounds: int | None = None, per_round: int | None = None) -> Timed:
        """Time the sides, with other numbers of rounds and activations where they are given."""
        with self.sides() as sides, workloads.tracked_by_beam():
            return interleave(sides, rounds=rounds or self.rounds, per_round=per_round or self.per_round)


def no_op(plugins: str) -> str:
    """Return the name of the side that does nothing under a set of plugins."""
    return f"no-op, {plugins}"


def saving(store: str, plugins: str) -> str:
    """Return the name of the side that saves three rows under a set of plugins."""
    return f"3 rows to {store}, {plugins}"


def harmed_by(kind: str) -> str:
    """Return the name of the side whose collector does harm."""
    return f"no-op, every trace, collector {kind}"


def beside(kind: str) -> str:
    """Return the name of the side that is timed in turn with that one: its collector answers at once."""
    return f"no-op, every trace, beside collector {kind}"


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """Where the sides of a comparison run.

    Attributes:
        folder: For files.
        port: The port of a collector that answers at once.
        uri: The long-term store's; None for none.
    """

    folder: pathlib.Path
    port: int
    uri: str | None


@contextmanager
def _surroundings(store: str = "") -> Iterator[_Surroundings]:
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(_sink(folder))
        uri = stack.enter_context(_store(store, folder)) if store else None
        yield _Surroundings(folder, port, uri)


@contextmanager
def _doing_nothing() -> Iterator[list[Side]]:
    """The sets of plugins around an agent that does nothing, and the SDK making as many spans."""
    with _surroundings() as where, ExitStack() as stack:
        sides = [
            stack.enter_context(_under(plugins, no_op(plugins), workloads.do_nothing, where))
            for plugins in PLUGINS
        ]
        yield [*sides, stack.enter_context(_bare_sdk(where))]


@contextmanager
def _saving(store: str) -> Iterator[list[Side]]:
    """The sets of plugins around an agent that saves rows."""
    with _surroundings(store) as where, ExitStack() as stack:
        yield [
            stack.enter_context(_under(plugins, saving(store, plugins), workloads.remember_and_save, where))
            for plugins in PLUGINS
        ]


@contextmanager
def _collectors(kind: str) -> Iterator[list[Side]]:
    """Every trace kept: with a collector that does harm, and with one that answers at once.

    What has not been sent by the end of a side's turn is not counted: some of these never take it.
    """
    with (
        _surroundings() as where,
        _hostile(kind, where.folder) as port,
        _activations(EVERY_TRACE, workloads.do_nothing, where, where.port) as good,
        _activations(EVERY_TRACE, workloads.do_nothing, where, port) as bad,
    ):
        # The others have their sender wait, which takes nothing from the next one.
        settled = {"settle": bad.send} if kind in hostile.ANSWERING else {}
        yield [Side(beside(kind), good.run, good.send), Side(harmed_by(kind), bad.run, **settled)]


@contextmanager
def _under(plugins: str, name: str, agent: object, where: _Surroundings) -> Iterator[Side]:
    """Activations under a set of plugins.

    With every trace they last until all spans are sent. With one trace in a hundred, a request is due every
    two seconds: it does not count.
    """
    with _activations(plugins, agent, where, where.port) as activations:
        if plugins == EVERY_TRACE:
            yield Side(name, activations.run_until_sent)
        else:
            yield Side(name, activations.run, activations.send)


class _Activations:
    """An agent that is driven under plugins."""

    def __init__(self, driver: workloads.Driven) -> None:
        self._driver = driver
        observers = [shared.observer for shared in driver.dofn._worker.telemetry._shared]
        # Not the plugins' own flush: it sends the metrics too, which a worker does every 15 seconds.
        self._queues = [
            each._traces._queue
            for each in observers
            if isinstance(each, OpenTelemetryObserver) and each._traces is not None
        ]

    def run(self, loops: int) -> float:
        return self._driver.run(loops)

    def send(self) -> None:
        """Wait until all spans are sent, or given up."""
        for queue in self._queues:
            assert queue.flush(SENT_WITHIN_S)

    def run_until_sent(self, loops: int) -> float:
        seconds = self.run(loops)
        ended = time.perf_counter()
        self.send()
        return seconds + time.perf_counter() - ended


@contextmanager
def _activations(plugins: str, agent: object, where: _Surroundings, port: int) -> Iterator[_Activations]:
    telemetry = tuple(each.format(port=port, folder=where.folder) for each in PLUGINS[plugins])
    with workloads.driven(agent, telemetry, longterm_memory=where.uri) as driver:
        yield _Activations(driver)


@contextmanager
def _bare_sdk(where: _Surroundings) -> Iterator[Side]:
    """The spans of an activation that does nothing, made with the SDK itself, until all are sent."""
    exporter = OTLPSpanExporter(f"http://127.0.0.1:{where.port}/v1/traces")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=8_192))
    tracer = provider.get_tracer("bench")
    root = {f"beam_agents.attribute{number}": "a value of some length" for number in range(8)}
    step = {"beam_agents.memory.size_bytes": 1, "beam_agents.memory.entries": 1}

    def run(loops: int) -> float:
        started = time.perf_counter()
        for _ in range(loops):
            with tracer.start_as_current_span("invoke_agent bench", attributes=root):
                for name in ("memory.decode", "memory.commit"):
                    tracer.start_span(name, attributes=step).end()
        assert provider.force_flush(int(SENT_WITHIN_S * 1000))
        return time.perf_counter() - started

    yield Side(SDK, run)
    provider.shutdown()


COMPARISONS: Final = (
    Comparison("no-op activations", _doing_nothing, NO_OPS, rounds=100),
    Comparison("3 rows to sqlite", partial(_saving, "sqlite"), SAVINGS, rounds=30),
    Comparison("3 rows to redis", partial(_saving, "redis"), SAVINGS, rounds=40),
    *(
        Comparison(f"collector {kind}", partial(_collectors, kind), NO_OPS, rounds=50)
        for kind in hostile.KINDS
    ),
)


@contextmanager
def _sink(folder: pathlib.Path) -> Iterator[int]:
    port = free_port()
    with server([sys.executable, "-c", _SINK, str(port)], lambda: accepts(port), folder / "sink.log"):
        yield port


@contextmanager
def _hostile(kind: str, folder: pathlib.Path) -> Iterator[int]:
    with hostile.running_aside(kind, folder) as url:
        yield int(url.rpartition(":")[2])


@contextmanager
def _store(kind: str, folder: pathlib.Path) -> Iterator[str]:
    with ExitStack() as stack:
        if kind == "redis":
            uri = stack.enter_context(redis.running(folder))
        else:
            uri = f"sqlite+aiosqlite:///{folder}/longterm.db"
        asyncio.run(_provision(uri))
        yield uri


async def _provision(uri: str) -> None:
    store = open_store(parse_store_uri(uri))
    await open_admin(store).provision()
    await store.close()

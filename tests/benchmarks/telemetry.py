"""What telemetry costs: the same activations with plugins and without; the bare SDK making the same spans."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.uri import parse_store_uri
from tests.benchmarks import workloads
from tests.servers import hostile, redis
from tests.servers.process import accepts, free_port, server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["COLLECTORS", "PLUGINS", "SPANS", "activation", "bare_sdk"]

SPANS: Final = 3
"""Spans of an activation that does nothing: the activation, memory.decode and memory.commit."""

PROMETHEUS: Final = "prometheus?port=0"
OTLP: Final = "otlp?endpoint=http://127.0.0.1:{port}&sample_ratio={ratio}&max_queued_spans=100000"
LOGS: Final = "logs?file={folder}/log.jsonl"

PLUGINS: Final[dict[str, tuple[str, ...]]] = {
    "off": (),
    "Beam": ("beam",),
    "Beam, Prometheus": ("beam", PROMETHEUS),
    "all, traces at 1 %": ("beam", PROMETHEUS, LOGS, OTLP.replace("{ratio}", "0.01")),
    "all, traces at 100 %": ("beam", PROMETHEUS, LOGS, OTLP.replace("{ratio}", "1")),
}
"""The sets of plugins that are compared, by their names in the report."""

COLLECTORS: Final = hostile.KINDS
"""The kinds of collector that do harm."""

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


def activation(agent: object, plugins: str, store: str = "", collector: str = "") -> Callable[[int], float]:
    """Return what drives an agent's DoFn directly under a set of plugins.

    Args:
        agent: The agent.
        plugins: A key of :data:`PLUGINS`.
        store: ``"sqlite"`` or ``"redis"``: the long-term store; empty for none.
        collector: One of the kinds of collector that do harm; empty for one that answers at once.
    """

    def run(loops: int) -> float:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            receiver = _hostile(collector, pathlib.Path(folder)) if collector else _sink(pathlib.Path(folder))
            port = stack.enter_context(receiver)
            telemetry = tuple(each.format(port=port, folder=folder) for each in PLUGINS[plugins])
            uri = stack.enter_context(_store(store, pathlib.Path(folder))) if store else None
            return workloads.activation(agent, telemetry, longterm_memory=uri)(loops)

    return run


def bare_sdk(loops: int) -> float:
    """Make the spans of an activation that does nothing with the SDK itself, and send them in batches."""
    with tempfile.TemporaryDirectory() as folder, _sink(pathlib.Path(folder)) as port:
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{port}/v1/traces")
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=100_000))
        tracer = provider.get_tracer("bench")
        root = {f"beam_agents.attribute{number}": "a value of some length" for number in range(8)}
        step = {"beam_agents.memory.size_bytes": 1, "beam_agents.memory.entries": 1}
        started = time.perf_counter()
        for _ in range(loops):
            with tracer.start_as_current_span("invoke_agent bench", attributes=root):
                for name in ("memory.decode", "memory.commit"):
                    tracer.start_span(name, attributes=step).end()
        elapsed = time.perf_counter() - started
        provider.shutdown()
        return elapsed


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

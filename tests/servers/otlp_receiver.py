"""An OTLP/HTTP receiver that others wrote: oteltap, which prints what it receives as NDJSON."""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tests.servers.process import READY_WITHIN_S, accepts, free_port, server

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str, dict[str, Any]]]
    status: int


class Receiver:
    """What a receiver was sent.

    Attributes:
        endpoint: Its base URL.
    """

    def __init__(self, port: int, log: pathlib.Path) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._log = log
        self._sentinels = 0

    @property
    def text(self) -> str:
        """All that was sent until now, as it was printed."""
        self._sentinels += 1
        name = f"sentinel-{self._sentinels}"
        # What was taken may not be printed yet: but it is once these are, which are sent after it.
        span = Span(name=name, trace_id=bytes(16), span_id=bytes(8))
        spans = ResourceSpans(scope_spans=[ScopeSpans(spans=[span])])
        self._post("traces", ExportTraceServiceRequest(resource_spans=[spans]).SerializeToString())
        metrics = ResourceMetrics(scope_metrics=[ScopeMetrics(metrics=[Metric(name=name, gauge=Gauge())])])
        self._post("metrics", ExportMetricsServiceRequest(resource_metrics=[metrics]).SerializeToString())
        deadline = time.monotonic() + READY_WITHIN_S
        while (text := self._log.read_text()).count(f'"{name}"') < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return text

    def _post(self, signal: str, body: bytes) -> None:
        url, headers = f"{self.endpoint}/v1/{signal}", {"content-type": "application/x-protobuf"}
        assert requests.post(url, body, headers=headers, timeout=READY_WITHIN_S).ok

    @property
    def spans(self) -> list[ReceivedSpan]:
        """The spans, by their start."""
        found = [_span(each) for each in self._lines() if "traceId" in each]
        return sorted(found, key=lambda span: span.start_ns)

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """The newest state of each metric, by name."""
        return {each["name"]: each for each in self._lines() if "unit" in each}

    def points(self, metric: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return (attributes, point) of the newest state of a metric."""
        found = self.metrics[metric]
        kind = next(each for each in ("sum", "gauge", "histogram", "exponentialHistogram") if each in found)
        return [(_attributes(point["attributes"]), point) for point in found[kind]["dataPoints"]]

    def _lines(self) -> list[dict[str, Any]]:
        # The last line may be half written.
        complete = self.text.rpartition("\n")[0]
        found = [json.loads(line) for line in complete.splitlines() if line.startswith("{")]
        return [each for each in found if not each["name"].startswith("sentinel-")]


def _span(line: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        line["name"],
        line["traceId"],
        line["spanId"],
        line["parentSpanId"],
        line["kind"],
        int(line["startTimeUnixNano"]),
        int(line["endTimeUnixNano"]),
        _attributes(line["attributes"]),
        [(each["name"], _attributes(each["attributes"])) for each in line["events"]],
        [(each["traceId"], each["spanId"], _attributes(each["attributes"])) for each in line["links"]],
        line["status"]["code"],
    )


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        ((kind, value),) = pair["value"].items()
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found


@contextmanager
def running(folder: pathlib.Path) -> Iterator[Receiver]:
    """Run a receiver while the block runs."""
    port = free_port()
    log = folder / f"oteltap-{port}.ndjson"
    command = [sys.executable, "-u", "-m", "oteltap", "--port", str(port)]
    with server(command, lambda: accepts(port), log):
        yield Receiver(port, log)

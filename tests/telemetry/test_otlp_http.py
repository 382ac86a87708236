"""How requests are made: TLS that verifies, headers from a file, the standard variables."""

from __future__ import annotations

import json
import ssl
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.signals import initialised, losses
from beam_agents.testing import AgentHarness, event
from beam_agents_telemetry.otlp import OpenTelemetry
from tests.servers import hostile
from tests.servers.certificates import Certificates

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


class Collector(ThreadingHTTPServer):
    """Keeps the path and the headers of each request, and its body."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.bodies: dict[str, bytes] = {}
        self.url = f"https://localhost:{self.server_port}"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)


class _Handler(BaseHTTPRequestHandler):
    server: Collector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.bodies[self.path] = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def certificates(tmp_path: pathlib.Path) -> Certificates:
    return Certificates.write(tmp_path, "localhost")


@pytest.fixture
def collector(certificates: Certificates) -> Iterator[Collector]:
    losses.forget()
    with Collector(certificates) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(10)
    losses.forget()


async def agent(_: AgentContext) -> Complete:
    return Complete()


def run(plugin: OpenTelemetry) -> None:
    with AgentHarness(agent, AgentConfig(telemetry=[plugin])) as harness:
        harness.send(event(b"k", time_ms=1_000))


def test_a_certificate_that_verifies_and_headers_of_a_file(
    collector: Collector, certificates: Certificates, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates.authority))
    headers = tmp_path / "headers"
    headers.write_text("authorization=Bearer token\n")
    run(OpenTelemetry(f"{collector.url}/otlp", str(headers), sample_ratio=1))
    assert losses.dropped() == {}
    assert {path for path, _ in collector.seen} == {"/otlp/v1/traces", "/otlp/v1/metrics"}
    assert all(given["authorization"] == "Bearer token" for _, given in collector.seen)


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_without_options_the_standard_variables_decide(
    collector: Collector, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates.authority))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=agents")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    run(OpenTelemetry(sample_ratio=1))
    assert losses.dropped() == {}
    assert {path for path, _ in collector.seen} == {"/v1/traces", "/v1/metrics"}
    assert all(given["x-team"] == "agents" for _, given in collector.seen)
    assert all(given["content-encoding"] == compression for _, given in collector.seen)
    # Of either form.
    body = zlib.decompress(collector.bodies["/v1/traces"], wbits=zlib.MAX_WBITS | 32)
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == [
        "invoke_agent agent",
        "memory.decode",
        "memory.commit",
    ]


def test_a_certificate_that_does_not_verify_gets_nothing(collector: Collector) -> None:
    run(OpenTelemetry(collector.url, sample_ratio=1, timeout_s=1))
    assert collector.seen == []
    assert losses.dropped()["otlp", "span_export"] == 3
    assert losses.dropped()["otlp", "metric_export"] >= 1


def test_traces_and_metrics_may_go_to_places_of_their_own(
    collector: Collector, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates.authority))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{collector.url}/all/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/spans?of=ours")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-team=tracers")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    run(OpenTelemetry())
    assert losses.dropped() == {}
    assert {(path, given.get("x-team")) for path, given in collector.seen} == {
        ("/spans?of=ours", "tracers"),
        ("/all/v1/metrics", None),
    }


def test_where_it_is_off_no_dashboard_shows_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    config = AgentConfig(telemetry=["beam", OpenTelemetry()])
    with AgentHarness(agent, config) as harness:
        assert harness.send(event(b"k", time_ms=1_000)).errors == []
        states = initialised()
    assert states["beam"] is True
    assert "otlp" not in states
    assert losses.dropped() == {}


@pytest.mark.parametrize(
    ("traces", "metrics", "sent", "printed"),
    [
        ("none", "otlp", {"/v1/metrics"}, set()),
        ("console,otlp", "none", {"/v1/traces"}, {"invoke_agent agent"}),
        ("console", "console", set(), {"invoke_agent agent", "beam_agents.activations"}),
    ],
)
def test_where_signals_go_may_be_set_by_variables(
    traces: str,
    metrics: str,
    sent: set[str],
    printed: set[str],
    collector: Collector,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates.authority))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", traces)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", metrics)
    run(OpenTelemetry(sample_ratio=1))
    assert losses.dropped() == {}
    assert {path for path, _ in collector.seen} == sent
    names = set()
    for line in capfd.readouterr().out.splitlines():
        found = json.loads(line)
        scopes = [
            scope for resource in found.get("resource_metrics", ()) for scope in resource["scope_metrics"]
        ]
        names |= {metric["name"] for scope in scopes for metric in scope["metrics"]} or {found.get("name")}
    assert names & {"invoke_agent agent", "beam_agents.activations"} == printed


def test_a_request_takes_no_longer_than_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    losses.forget()
    with hostile.running("hanging") as hanging:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", hanging.endpoint)
        run(OpenTelemetry(sample_ratio=1))
        # By ten seconds, the default, the close would have given up instead.
        assert losses.dropped().keys() == {("otlp", "span_export"), ("otlp", "metric_export")}
    losses.forget()

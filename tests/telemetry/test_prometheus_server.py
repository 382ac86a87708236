"""Two worker processes, found and scraped by a real Prometheus."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

import beam_agents
from beam_agents.signals.trace import span_id_of, trace_id_of
from beam_agents_telemetry.prometheus import PrometheusMetrics
from tests.servers import prometheus
from tests.servers.certificates import Certificates
from tests.servers.process import free_port, stop, wait_until
from tests.telemetry.scraping import endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

eventually = partial(wait_until, within_s=30)

ROOT = pathlib.Path(beam_agents.__file__).parents[1]
EVENTS = (20, 30)

CONFIGURATION = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}
scrape_configs:
  - job_name: beam-agents
    file_sd_configs:
      - files: ["{folder}/*.json"]
        refresh_interval: 1s
"""


@contextmanager
def worker(port: int, folder: pathlib.Path, events: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.telemetry.scraped_worker", str(port), str(folder), str(events)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ran\n"
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            stop(process)  # type: ignore[arg-type]  # its pipes are text
            pytest.fail("the worker did not end")
        finally:
            process.stdout.close()


def test_two_workers_are_found_scraped_and_forgotten(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "targets"
    folder.mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(prometheus.running(tmp_path, CONFIGURATION.format(folder=folder)))
        port = free_port()
        with ExitStack() as running:
            workers = [running.enter_context(worker(port, folder, events)) for events in EVENTS]
            pids = {str(process.pid) for process in workers}

            # Both took a port of the range, and both are scraped.
            complete = 'beam_agents_activations_total{outcome="complete"}'
            eventually(lambda: len(server.query(f"{complete} > 0")) == 2)
            found = server.query(complete)
            assert {labels["process"] for labels, _ in found} == pids
            assert sorted(value for _, value in found) == sorted(EVENTS)
            assert {labels["pipeline"] for labels, _ in found} == {"harness"}
            assert not [labels for labels, _ in found if any(name.startswith("exported_") for name in labels)]
            up = server.query('up{job="beam-agents"}')
            assert [value for _, value in up] == [1, 1]
            (total,) = server.query("sum(beam_agents_longterm_upserts_total)")
            assert total[1] == sum(EVENTS)
            (flushes,) = server.query(
                'sum(beam_agents_store_operation_duration_seconds_count{operation="flush"})'
            )
            assert flushes[1] == sum(EVENTS)

            # What a name means is known to it too.
            described = server.api("metadata", metric="beam_agents_store_up")["beam_agents_store_up"]
            assert described[0]["type"] == "gauge"
            assert described[0]["help"].startswith("1 if the last health probe")

            # From a bucket to the trace that explains it.
            def exemplars() -> list[dict[str, str]]:
                series = server.api(
                    "query_exemplars",
                    query="beam_agents_activation_duration_seconds_bucket",
                    start=str(time.time() - 600),
                    end=str(time.time() + 600),
                )
                return [exemplar["labels"] for each in series for exemplar in each["exemplars"]]

            eventually(lambda: bool(exemplars()))
            activations = {
                (
                    trace_id_of("harness", b"%d" % (number % 7), number + 1),
                    span_id_of("harness", "agent", b"%d" % (number % 7), number + 1, 1),
                )
                for number in range(max(EVENTS))
            }
            assert {(each["trace_id"], each["span_id"]) for each in exemplars()} <= activations

        # The workers ended: their targets are gone, and with them their series.
        assert list(folder.iterdir()) == []
        eventually(lambda: server.api("targets")["activeTargets"] == [])
        eventually(lambda: server.query(complete) == [])


SECURED = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}
scrape_configs:
  - job_name: beam-agents
    tls_config: {{ca_file: "{authority}"}}
    basic_auth: {{username: prometheus, password_file: "{password}"}}
    file_sd_configs:
      - files: ["{folder}/*.json"]
"""


def test_a_secured_endpoint_is_scraped(tmp_path: pathlib.Path) -> None:
    files = Certificates.write(tmp_path, "localhost")
    folder, password = tmp_path / "targets", tmp_path / "password"
    folder.mkdir()
    password.write_text("hunter2\n")
    plugin = PrometheusMetrics(
        port=0,
        certfile=str(files.certificate),
        keyfile=str(files.key),
        password_file=str(password),
        sd_dir=str(folder),
        advertise="localhost",
    )
    configuration = SECURED.format(authority=files.authority, password=password, folder=folder)
    with endpoint(plugin), prometheus.running(tmp_path, configuration) as server:
        eventually(lambda: bool(server.query("beam_agents_build_info == 1")))
        (target,) = server.api("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert target["scrapeUrl"].startswith("https://localhost:")

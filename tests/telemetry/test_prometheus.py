"""The endpoint, its pages and its files, by HTTP and against prometheus-client's own parsers."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import pathlib
import pickle
import re
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
from dataclasses import dataclass, fields, replace
from functools import partial
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest

import beam_agents
from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm
from beam_agents.errors import ExpireFlushFailed, PluginUnusable
from beam_agents.signals import (
    MetricKind,
    Observer,
    Record,
    Worker,
    acquire_hub,
    catalogue,
    dropped,
    hub,
    initialised,
    release_hub,
    resolve_plugins,
    take_snapshot,
)
from beam_agents.signals.in_flight import in_flight
from beam_agents.signals.stores import store_table
from beam_agents.signals.wedges import wedge_table
from beam_agents.testing import AgentHarness, event
from beam_agents_telemetry import prometheus_status, prometheus_targets
from beam_agents_telemetry.prometheus import PrometheusMetrics
from beam_agents_telemetry.prometheus_server import MAX_CONNECTIONS, BoundedServer
from beam_agents_telemetry.prometheus_targets import Owner, TargetFile, remove_abandoned, this_process
from tests.servers.certificates import Certificates
from tests.servers.process import absent, accepts, free_port, wait_until
from tests.telemetry.scraping import OPENMETRICS, endpoint, forget_all, get, scrape, scrape_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.signals import Metric

eventually = partial(wait_until, within_s=30)

ANY = PrometheusMetrics(port=0)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget_all()
    yield
    assert not [each.name for each in threading.enumerate() if each.name == "beam-agents-prometheus"]
    forget_all()


async def agent(ctx: AgentContext) -> Complete:
    ctx.memory.set("seen", b"1")
    ctx.memory.longterm.save("row", b"value")
    return Complete(b"done")


class Sampling(Observer):
    def activation_started(self, record: Record) -> None:
        record.sampled = True


@dataclass(frozen=True)
class Sampler:
    name: str = "sampler"

    def build(self) -> Observer:
        return Sampling()


def config(*plugins: object) -> AgentConfig:
    return AgentConfig(longterm_memory="memory://", ttl_ms=1_000, telemetry=plugins)  # type: ignore[arg-type]  # plugins


# Configuration


def test_text_and_values_are_one_configuration(tmp_path: pathlib.Path) -> None:
    (named,) = resolve_plugins([f"prometheus?port=9500&ports=3&address=0.0.0.0&sd_dir={tmp_path}"])
    assert named == PrometheusMetrics(port=9500, ports=3, address="0.0.0.0", sd_dir=str(tmp_path))  # noqa: S104 - as text
    assert hash(named) == hash(PrometheusMetrics(port=9500, ports=3, address="0.0.0.0", sd_dir=str(tmp_path)))  # noqa: S104 - as above
    assert pickle.loads(pickle.dumps(named)) == named  # noqa: S301 - our own bytes
    assert resolve_plugins(["prometheus"]) == (PrometheusMetrics(),)
    assert PrometheusMetrics().port == 9464
    assert PrometheusMetrics(address="::0001").address == "::1"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"port": 65_536}, ValueError, "port must be a whole number from 0 to 65,535"),
        ({"address": "localhost:9464"}, ValueError, "address must be an IP address or a host name"),
        ({"address": ""}, ValueError, "address must be"),
        ({"advertise": "http://worker"}, ValueError, "advertise must be"),
        ({"keyfile": "key.pem"}, ValueError, "keyfile needs certfile"),
        ({"client_cafile": "ca.pem"}, ValueError, "client_cafile needs certfile"),
        ({"username": "a:b"}, ValueError, "username must be a text that is not empty and has no colon"),
        ({"username": "grafana"}, ValueError, "username needs password_file"),
    ],
)
def test_bad_options_raise_at_construction(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        PrometheusMetrics(**options)  # type: ignore[arg-type]  # what the test is about


# Metrics


def label_values(metric: Metric) -> tuple[str, ...]:
    closed = dict(metric.values)
    return tuple(next(iter(closed[label])).value if label in closed else "one" for label in metric.labels)


def measure_everything(agent_name: str = "watcher") -> None:
    """Measure each counter and histogram once, in the sampled record of an activation."""
    telemetry = acquire_hub((ANY,))
    worker = Worker("flights", agent_name, "redis")
    telemetry.start(worker)
    telemetry.bundle_started(worker)
    record = Record(catalogue.SPAN_INVOKE_AGENT, "flights", agent_name, b"key")
    record.sampled, record.seq = True, 7
    for metric in catalogue.METRICS:
        if metric.kind is not MetricKind.GAUGE:
            record.measure(metric, 3 if metric.kind is MetricKind.COUNTER else 0.02, *label_values(metric))
    record.end_ns = record.now_ns()
    telemetry.record(record)
    release_hub(telemetry)


def test_both_formats_tell_what_the_snapshot_tells() -> None:
    with endpoint(ANY) as observer:
        measure_everything()
        content_type, _ = get(f"{observer.url}/metrics", OPENMETRICS)
        assert content_type.startswith("application/openmetrics-text; version=1.0.0")
        content_type, _ = get(f"{observer.url}/metrics")
        assert content_type.startswith("text/plain; version=0.0.4")
        for found in (scrape(observer.url), scrape_text(observer.url)):
            snapshot = take_snapshot()
            for series in snapshot.series:
                labels = dict(series.labels)
                name = series.metric.name
                if series.metric.kind is not MetricKind.HISTOGRAM:
                    (sample,) = found.matching(name, **labels)
                    assert sample.value == series.value
                    continue
                assert found.total(f"{name}_count", **labels) == series.value.count  # type: ignore[union-attr]  # a histogram
                assert found.total(f"{name}_sum", **labels) == pytest.approx(series.value.sum)  # type: ignore[union-attr]  # as above
                bounds = [sample.labels["le"] for sample in found.matching(f"{name}_bucket", **labels)]
                assert bounds[-1] == "+Inf"
                assert tuple(map(float, bounds[:-1])) == series.metric.buckets


def test_names_help_and_units_are_the_catalogues() -> None:
    with endpoint(ANY) as observer:
        measure_everything()
        families = scrape(observer.url).families
    for metric in catalogue.METRICS:
        name = metric.prometheus_name.removesuffix("_total")
        family = families.get(name)
        if family is None:
            assert metric.kind is MetricKind.GAUGE, name
            continue
        assert (family.documentation, family.type) == (metric.help, metric.kind.value)
        assert family.unit in {"", metric.unit}
        assert bool(family.unit) == name.endswith(("_seconds", "_bytes")), name


def test_nothing_is_told_of_when_a_series_began() -> None:
    with endpoint(ANY) as observer:
        measure_everything()
        assert not [name for name in scrape(observer.url).samples if name.endswith("_created")]


def test_no_label_is_one_that_prometheus_sets_itself() -> None:
    with endpoint(ANY) as observer:
        measure_everything()
        samples = [each for samples in scrape(observer.url).samples.values() for each in samples]
    theirs = {"job", "instance", "host", "process"}
    assert not [sample for sample in samples if theirs & sample.labels.keys()]


def test_a_sampled_activation_is_its_buckets_exemplar() -> None:
    with endpoint(ANY) as observer:
        measure_everything()
        found = scrape(observer.url)
        record = Record(catalogue.SPAN_INVOKE_AGENT, "flights", "watcher", b"key")
        record.seq = 7
        buckets = found.matching("activation_duration_seconds_bucket", agent="watcher", le="0.025")
        exemplars = [bucket.exemplar for bucket in buckets if bucket.exemplar]
    (exemplar,) = exemplars
    assert exemplar.labels == {"trace_id": record.trace_id, "span_id": record.span_id}
    assert exemplar.value == 0.02


def test_python_and_the_process_are_told_of() -> None:
    with endpoint(ANY) as observer:
        samples = scrape(observer.url).samples
    assert samples["process_resident_memory_bytes"][0].value > 1_000_000
    assert samples["process_start_time_seconds"][0].value > 0
    assert samples["python_gc_collections_total"]
    assert samples["python_info"]


def test_promtool_is_content() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        absent("promtool (Debian's package prometheus)")
    assert promtool is not None
    with endpoint(ANY) as observer:
        measure_everything()
        _, text = get(f"{observer.url}/metrics")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    # The word is what an agent makes, and no type: the name is the documented one.
    assert done.stderr.splitlines() == [
        "beam_agents_summary_bytes_reclaimed_total metric name should not include type 'summary'"
    ]


def test_a_part_can_be_asked_for() -> None:
    with endpoint(ANY) as observer:
        measure_everything()
        _, text = get(f"{observer.url}/metrics?name[]=beam_agents_build_info")
    assert [line.partition("{")[0] for line in text.splitlines() if line[0] != "#"] == [
        "beam_agents_build_info"
    ]


def test_a_scrape_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("sk-secret")

    with endpoint(ANY) as observer:
        monkeypatch.setattr("beam_agents_telemetry.prometheus_families.take_snapshot", fail)
        with pytest.raises(urllib.error.HTTPError) as failed:
            get(f"{observer.url}/metrics")
        assert failed.value.code == 500
        assert b"sk-secret" not in failed.value.read()
        failed.value.close()
    assert dropped() == {("prometheus", "scrape"): 1}


# Pages


def status_of(url: str, method: str = "GET", headers: dict[str, str] | None = None) -> int:
    host, _, rest = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=30)
    connection.request(method, f"/{rest}", headers=headers or {})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def test_other_paths_and_methods_are_refused() -> None:
    with endpoint(ANY) as observer:
        assert status_of(f"{observer.url}/healthz") == 200
        assert get(f"{observer.url}/healthz")[1] == "ok\n"
        for path in ("/admin", "/metrics/", "/../etc/passwd", "/metrics%00"):
            assert status_of(observer.url + path) == 404, path
        for path in ("/", "/metrics", "/healthz"):
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
                assert status_of(observer.url + path, method) == 405, (path, method)
            assert status_of(observer.url + path, "HEAD") == 200
        assert status_of(f"{observer.url}/metrics", "BREW") == 501


def test_the_page_tells_what_is_wrong_and_keys_are_hashed() -> None:
    hostile = '<script>alert("x")</script>'
    with endpoint(ANY) as observer:
        (telemetry := acquire_hub((ANY,))).start(Worker(hostile, hostile, "redis"))
        assert "Nothing is known to be wrong" in get(observer.url)[1]
        store_table().opened("redis", "redis", "redis://user:***@db.example:6379/0")
        store_table().failed("redis", "StoreUnavailable")
        for number in range(prometheus_status.SHOWN + 5):
            wedge_table().failed(
                hostile, hostile, b"customer-%d" % number, backend="redis", error_type="StoreTimeout"
            )
        running = Record(catalogue.SPAN_INVOKE_AGENT, hostile, hostile, b"customer-running")
        in_flight().began(running)
        content_type, page = get(observer.url)
        release_hub(telemetry)
    assert content_type == "text/html; charset=utf-8"
    assert "1 store down · 25 wedged timers" in page
    assert '<td class="bad">DOWN for 0 s</td><td>StoreUnavailable</td><td>never</td>' in page
    assert "redis://user:***@db.example:6379/0" in page
    assert page.count("<td>StoreTimeout</td>") == prometheus_status.SHOWN
    assert "… and 5 more" in page
    assert running.entity in page
    assert "customer" not in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "width=device-width" in page
    assert "src=" not in page
    assert "http://" not in page.replace("redis://", "")


MARKER = "hunter2"


async def leaky(ctx: AgentContext) -> Complete:
    """Put the marker wherever content may be."""
    ctx.memory.set(MARKER, MARKER.encode())
    ctx.memory.longterm.save(MARKER, MARKER.encode())
    if ctx.event == b"save":
        return Complete(MARKER.encode())
    raise ValueError(MARKER)


def test_no_content_is_on_any_page() -> None:
    uri = f"redis://user:{MARKER}@127.0.0.1:{free_port()}/0?operation_timeout_s=0.2&connect_timeout_s=0.2"
    key = MARKER.encode()
    with endpoint(ANY) as observer:
        leaking = AgentConfig(longterm_memory=uri, ttl_ms=1_000, on_expire=FlushToLongterm(), telemetry=[ANY])
        with AgentHarness(leaky, leaking) as harness:
            harness.send(event(key, MARKER.encode(), time_ms=1))
            harness.send(event(key, b"save", time_ms=1))
        kept = replace(leaking, longterm_memory="memory://")
        with AgentHarness(leaky, kept) as harness:
            harness.send(event(key, b"save", time_ms=1))
            state = harness.states[key]
        with AgentHarness(leaky, leaking) as harness:
            harness.put_state(key, state)
            with pytest.raises(ExpireFlushFailed):
                harness.fire_expiry(key, 10_000)
            found = scrape(observer.url)
            pages = [
                get(observer.url)[1],
                get(f"{observer.url}/metrics")[1],
                get(f"{observer.url}/metrics", OPENMETRICS)[1],
            ]
    assert found.total("activation_errors_total", reason="activation_error") == 1
    assert found.total("activation_errors_total", reason="longterm_flush_failed") == 1
    assert found.total("expire_wedged_timers") == 1
    assert "user:***@127.0.0.1" in pages[0]
    assert not [page for page in pages if MARKER in page]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.9, "59 s"), (61, "1 min 1 s"), (7_500, "2 h 5 min"), (90_000, "1 d 1 h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert prometheus_status.age(seconds) == text


# Who may see it


def basic(username: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()}


def test_basic_authentication(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "password"
    file.write_text("crème\n", encoding="utf-8")
    plugin = replace(ANY, username="prom", password_file=str(file))
    assert "crème" not in repr(plugin)
    with endpoint(plugin) as observer:
        for path in ("/", "/metrics"):
            assert status_of(observer.url + path) == 401
            assert status_of(observer.url + path, headers=basic("prom", "crème")) == 200
            for wrong in (basic("prom", "creme"), basic("other", "crème"), basic("prom", ""), basic("", "")):
                assert status_of(observer.url + path, headers=wrong) == 401
            for wrong_form in ("Basic", "Basic %%%", "Bearer x", "Basic cHJvbQ=="):
                assert status_of(observer.url + path, headers={"Authorization": wrong_form}) == 401
        assert status_of(f"{observer.url}/healthz") == 200
        file.write_text("rotated")
        assert status_of(f"{observer.url}/metrics", headers=basic("prom", "rotated")) == 200
        file.unlink()
        assert status_of(f"{observer.url}/metrics", headers=basic("prom", "rotated")) == 401


def test_tls_and_client_certificates(tmp_path: pathlib.Path) -> None:
    files = Certificates.write(tmp_path, "localhost")
    context = ssl.create_default_context(cafile=str(files.authority))
    plugin = replace(ANY, certfile=str(files.certificate), keyfile=str(files.key))
    with endpoint(plugin) as observer:
        assert observer.url.startswith("https://127.0.0.1:")
        url = f"https://localhost:{observer.server.port}"
        # One that never says its part does not hold up the others.
        with socket.create_connection(("127.0.0.1", observer.server.port)):
            assert scrape(url, tls=context).matching("build_info")
        with pytest.raises((urllib.error.URLError, OSError)):
            get(f"http://localhost:{observer.server.port}/metrics")
    with endpoint(replace(plugin, client_cafile=str(files.authority))) as observer:
        url = f"https://localhost:{observer.server.port}"
        with pytest.raises(OSError, match=r"(?i)certificate required|reset|EOF|closed"):
            get(url, tls=context)
        context.load_cert_chain(files.certificate, files.key)
        assert scrape(url, tls=context).matching("build_info")


def test_a_renewed_certificate_is_used(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
    files, renewed = Certificates.write(old, "localhost"), Certificates.write(new, "localhost")
    trusting = [ssl.create_default_context(cafile=str(each.authority)) for each in (files, renewed)]
    with endpoint(replace(ANY, certfile=str(files.certificate), keyfile=str(files.key))) as observer:
        url = f"https://localhost:{observer.server.port}"
        assert scrape(url, tls=trusting[0]).matching("build_info")
        # The certificate comes before its key: in between, the old ones stay in use.
        renewed.certificate.replace(files.certificate)
        assert scrape(url, tls=trusting[0]).matching("build_info")
        assert "the certificate in use stays" in caplog.text
        renewed.key.replace(files.key)
        assert scrape(url, tls=trusting[1]).matching("build_info")
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            get(url, tls=trusting[0])


# Ports and processes


def test_the_next_free_port_is_taken() -> None:
    first = free_port()
    with endpoint(PrometheusMetrics(port=first, ports=0)) as one:
        with endpoint(PrometheusMetrics(port=first, ports=20)) as other:
            assert first < other.server.port <= first + 20
            assert scrape(one.url).matching("build_info")
            assert scrape(other.url).matching("build_info")
        assert not accepts(other.server.port)
    assert not accepts(first)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_every_address_is_that_of_both_families() -> None:
    with endpoint(replace(ANY, address="::")) as observer:
        for host in ("127.0.0.1", "[::1]"):
            assert scrape(f"http://{host}:{observer.server.port}").matching("build_info")
    with endpoint(replace(ANY, address="::1")) as observer:
        assert scrape(observer.url).matching("build_info")
        assert not accepts(observer.server.port)


def test_without_a_free_port_the_plugin_is_lost_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plugin = PrometheusMetrics(port=port, ports=0)
        with AgentHarness(agent, config(plugin)) as harness:
            assert harness.send(event(b"k", time_ms=1)).outputs == [b"done"]
            assert initialised()["prometheus"] is False
    assert dropped() == {("prometheus", "build"): 1}
    (told,) = caplog.messages
    assert "plugin=prometheus reason=build error_type=PluginUnusable problem=no endpoint: " in told
    assert f"no port of {port} to {port} is free on 127.0.0.1; set another port, or more ports" in told


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"certfile": "/nowhere/cert.pem"}, "/nowhere/cert.pem"),
        ({"password_file": "/nowhere/password"}, "/nowhere/password"),
        ({"address": "192.0.2.1"}, "192.0.2.1"),
    ],
)
def test_what_is_missing_on_the_worker_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(PluginUnusable, match=f"^no endpoint: .*{re.escape(named)}"):
        replace(ANY, **options).build()  # type: ignore[arg-type]  # text, as in a URI


def test_an_empty_password_file_lets_nobody_run_open(tmp_path: pathlib.Path) -> None:
    (tmp_path / "password").write_text("\n")
    with pytest.raises(PluginUnusable, match="is empty; write the password into it"):
        replace(ANY, password_file=str(tmp_path / "password")).build()


def test_agents_of_one_process_share_an_endpoint_and_configurations_do_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = (PrometheusMetrics(port=free_port(), ports=0) for _ in range(2))
    with (
        AgentHarness(agent, config(first), name="one") as one,
        AgentHarness(agent, config(first), name="two") as two,
    ):
        assert caplog.messages == []
        with AgentHarness(agent, config(second), name="three") as three:
            for harness in (one, two, three):
                harness.send(event(b"k", time_ms=1))
            for port in (first.port, second.port):
                found = scrape(f"http://127.0.0.1:{port}")
                for name in ("one", "two", "three"):
                    assert found.total("activations_total", agent=name, outcome="complete") == 1
        (told,) = caplog.messages
        assert f":{second.port} and http://127.0.0.1:{first.port} are endpoints of one process" in told
        assert not accepts(second.port)
        assert accepts(first.port)
    assert not accepts(first.port)


def child(queue: multiprocessing.Queue[tuple[int, float, bool]], parents_port: int) -> None:
    """Run an agent in a forked process, with the plugin that its parent has up."""
    with AgentHarness(agent, config(PrometheusMetrics(port=parents_port, ports=20)), name="child") as harness:
        harness.send(event(b"k", time_ms=1))
        (shared,) = [each for each in hub._plugins.values() if each.name == "prometheus"]
        port = shared.observer.server.port  # type: ignore[attr-defined]  # ours
        found = scrape(f"http://127.0.0.1:{port}")
        queue.put((port, found.total("activations_total", outcome="complete"), accepts(parents_port)))


def test_a_forked_process_has_an_endpoint_of_its_own() -> None:
    plugin = PrometheusMetrics(port=free_port(), ports=20)
    with AgentHarness(agent, config(plugin), name="parent") as harness:
        harness.send(event(b"k", time_ms=1), event(b"k", time_ms=2))
        context = multiprocessing.get_context("fork")
        queue: multiprocessing.Queue[tuple[int, float, bool]] = context.Queue()
        process = context.Process(target=child, args=(queue, plugin.port))
        process.start()
        port, counted, parent_listens = queue.get(timeout=60)
        process.join(60)
        assert process.exitcode == 0
        assert port != plugin.port
        assert (counted, parent_listens) == (1, True)
        found = scrape(f"http://127.0.0.1:{plugin.port}")
        assert found.total("activations_total", outcome="complete") == 2
    assert not accepts(plugin.port)


def test_a_forked_process_does_not_keep_the_port() -> None:
    with endpoint(ANY) as observer:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(read, 1)
            os._exit(0)
    try:
        assert not accepts(observer.server.port)
        with socket.create_server(("127.0.0.1", observer.server.port)):
            pass
    finally:
        os.write(write, b"x")
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


# Scrapers that do harm


def test_slow_scrapers_get_a_deadline_and_others_are_served() -> None:
    lost: list[str] = []
    pages = ANY.build()
    server = BoundedServer("127.0.0.1", 0, pages.server.respond, on_lost=lost.append, deadline_s=1.0)
    try:
        url = f"http://127.0.0.1:{server.port}"
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        for each in slow:
            each.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        assert scrape(url).matching("build_info")

        def drip() -> bool:
            for each in slow:
                try:
                    each.sendall(b"x")
                except OSError:
                    return True
            return False

        eventually(drip)
        eventually(lambda: server.connections == 0)
        # They never asked for anything, so that nothing was lost.
        assert lost == []
    finally:
        server.stop(5)
        pages.close(5)
        for each in slow:
            each.close()


def test_who_never_reads_is_cut_off() -> None:
    lost: list[str] = []
    observer = ANY.build()
    respond = observer.server.respond
    server = BoundedServer(
        "127.0.0.1",
        0,
        lambda request: replace(respond(request), body=bytes(50_000_000)),
        on_lost=lost.append,
        deadline_s=1.0,
    )
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            eventually(lambda: server.connections == 1)
            eventually(lambda: server.connections == 0)
        assert lost == ["scrape_deadline"]
    finally:
        server.stop(5)
        observer.close(5)


def test_a_crowd_of_hanging_clients_neither_grows_threads_nor_shuts_prometheus_out() -> None:
    with endpoint(ANY) as observer:
        before = threading.active_count()
        crowd = []
        for _ in range(200):
            crowd.append(socket.create_connection(("127.0.0.1", observer.server.port)))
            assert threading.active_count() - before <= 2 * MAX_CONNECTIONS
        assert scrape(observer.url).total("build_info") == 1
        started_s = time.monotonic()
    # The close is bounded, whoever is connected.
    assert time.monotonic() - started_s < hub.CLOSE_TIMEOUT_S
    assert not any(reason == "scrape_deadline" for _, reason in dropped())
    eventually(lambda: threading.active_count() <= before)
    for client in crowd:
        client.close()


def test_a_hanging_client_does_not_hold_up_the_exit(tmp_path: pathlib.Path) -> None:
    program = textwrap.dedent(
        """
        import socket, sys
        from beam_agents.signals import Worker, acquire_hub
        from beam_agents_telemetry.prometheus import PrometheusMetrics
        plugin = PrometheusMetrics(port=int(sys.argv[1]), ports=0, sd_dir=sys.argv[2])
        acquire_hub((plugin,)).start(Worker("p", "a"))
        clients = [socket.create_connection(("127.0.0.1", plugin.port)) for _ in range(3)]
        clients[0].sendall(b"GET / HT")
        print(len(list(__import__("pathlib").Path(sys.argv[2]).iterdir())))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(free_port()), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "1\n"
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


# Service discovery


def test_the_target_is_written_as_prometheus_wants_it(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "targets"
    with endpoint(replace(ANY, sd_dir=str(folder))) as observer:
        (file,) = folder.iterdir()
        assert file.suffix == ".json"
        assert file.stat().st_mode & 0o777 == 0o644
        assert json.loads(file.read_text()) == [
            {
                "targets": [f"127.0.0.1:{observer.server.port}"],
                "labels": {"host": socket.gethostname(), "process": str(os.getpid())},
            }
        ]
    assert list(folder.iterdir()) == []


def test_what_the_target_is_called(tmp_path: pathlib.Path) -> None:
    me = this_process()
    everywhere = replace(ANY, address="0.0.0.0", sd_dir=str(tmp_path))  # noqa: S104 - what is tested
    for plugin, host in (
        (everywhere, socket.gethostname()),
        (replace(everywhere, advertise="worker-7.example"), "worker-7.example"),
    ):
        with endpoint(plugin) as observer:
            (file,) = tmp_path.iterdir()
            assert json.loads(file.read_text())[0]["targets"] == [f"{host}:{observer.server.port}"]
    target = TargetFile(tmp_path, me, "::1", 9464, tls=True)
    (entry,) = json.loads(target.path.read_text())
    assert entry["targets"] == ["[::1]:9464"]
    assert entry["labels"]["__scheme__"] == "https"


def this_process_of(pid: int) -> Owner:
    me = this_process()
    return replace(me, pid=pid, started=prometheus_targets._started(pid))


def test_files_of_the_dead_are_removed_and_no_others(tmp_path: pathlib.Path) -> None:
    me = this_process()
    assert me.alive
    ended = subprocess.Popen([sys.executable, "-c", ""])
    dead_pid = ended.pid
    ended.wait()
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = this_process_of(living.pid).started
        dead = [
            replace(me, pid=dead_pid),
            # Its id is in use again, by a process that started later.
            replace(me, pid=living.pid, started=started - 100),
        ]
        kept = [
            me,
            replace(me, pid=living.pid, started=started),
            # Nobody here can tell.
            replace(me, host="another.host", pid=dead_pid),
            replace(me, namespace=me.namespace + 1, pid=dead_pid),
        ]
        for owner in (*dead, *kept):
            TargetFile(tmp_path, owner, "127.0.0.1", 9464, tls=False)
        for name in ("other.json", "beam-agents.json", "beam-agents.x.json"):
            (tmp_path / name).write_text("[]")
        removed = remove_abandoned(tmp_path, me)
        assert {int(path.name.split(".")[-4]) for path in removed} == {dead_pid, living.pid}
        assert len(removed) == len(dead)
        assert len(list(tmp_path.iterdir())) == len(kept) + 3
    finally:
        living.communicate(b"\n")


def test_a_process_that_waits_to_be_reaped_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner(socket.gethostname(), 0, process.pid, 1)
    try:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not owner.alive
    finally:
        process.communicate()


def test_a_crash_leaves_a_file_that_the_next_process_removes(tmp_path: pathlib.Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        from beam_agents_telemetry.prometheus import PrometheusMetrics
        PrometheusMetrics(port=0, sd_dir=sys.argv[1]).build()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -9
    (left,) = tmp_path.iterdir()
    with endpoint(replace(ANY, sd_dir=str(tmp_path))):
        (mine,) = tmp_path.iterdir()
        assert mine != left


def test_the_documented_options_are_the_options() -> None:
    page = (pathlib.Path(beam_agents.__file__).parents[1] / "docs/telemetry/prometheus.md").read_text("utf-8")
    documented = dict(re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\|", page, flags=re.MULTILINE))
    assert documented == {each.name: str(each.default) for each in fields(PrometheusMetrics)}

"""No content reaches telemetry: keys, values, prompts, events, passwords, texts of exceptions.

All of them carry one mark here; whatever any plugin shows is searched for it, plain and encoded.
"""

from __future__ import annotations

import base64
import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

import apache_beam as beam
import pytest
import requests
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from beam_agents import (
    AgentConfig,
    AgentContext,
    AgentEnvelope,
    Complete,
    DropOldestCompactor,
    FlushToLongterm,
    LlmRequest,
    LlmResponse,
    RunAgent,
    SummarizeCompactor,
    Suspend,
    Tool,
)
from beam_agents.errors import BundleFailure
from beam_agents.memory.stores.inprocess import forget_rows
from beam_agents.signals import (
    Observer,
    acquire_hub,
    catalogue,
    hub,
    losses,
    release_hub,
    resolve_plugins,
    take_snapshot,
)
from beam_agents.testing import AgentHarness, ScriptedModel, answer, event, run_events
from beam_agents.testing.registry import Shared
from beam_agents_telemetry.logs import StructuredLogs
from beam_agents_telemetry.prometheus import PrometheusObserver
from tests.servers import otlp_receiver
from tests.telemetry import installed
from tests.workers import end_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from beam_agents.signals import Record, TelemetryPlugin
    from beam_agents.wire.beam_agents_pb2 import ActivationError

MARK = "Tr0ub4dor"
TEXT = f"{MARK}&3 d\u00e9j\u00e0 vu/{MARK}"
CONTENT = TEXT.encode()
KEY = b"customer " + CONTENT
BIG = 200_000
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass(frozen=True)
class Surface:
    """Something of a plugin that people see.

    Attributes:
        plugin: The plugin's name.
        read: Returns all of it, from the test's folder and receiver, after the plugin was flushed.
    """

    plugin: str
    read: Callable[[Path, otlp_receiver.Receiver], str]


def page(path: str) -> str:
    """Return a page of this process's endpoint, whatever its status is."""
    (observer,) = (each.built() for each in hub._plugins.values() if each.name == "prometheus")
    assert isinstance(observer, PrometheusObserver)
    return requests.get(observer.url + path, timeout=30).text


SURFACES = [
    Surface("logs", lambda folder, _: (folder / "logs.jsonl").read_text()),
    Surface("otlp", lambda _, receiver: receiver.text),
    Surface("prometheus", lambda *_: "".join(map(page, ("/", "/metrics", "/healthz", "/no-such-page")))),
]
"""One line for each plugin that shows something of its own; Beam metrics have a test below."""


def forms(mark: str) -> dict[str, str]:
    """Return what a mark may look like, by the name of the encoding; to be searched for in lower case."""
    found = {"plain": mark, "reversed": mark[::-1], "hex": mark.encode().hex(), "url": quote(mark)}
    found["escaped"] = "".join(f"%{byte:02x}" for byte in mark.encode())
    for offset in range(3):
        # Wherever it begins within three bytes, the middle of its base64 is the same.
        encoded = base64.b64encode(b"\0" * offset + mark.encode()).decode()
        start = (offset * 8 + 5) // 6
        found[f"base64 at {offset}"] = encoded[start : len(encoded.rstrip("=")) - 2]
    return {name: form.lower() for name, form in found.items()}


def marks_in(text: str) -> list[str]:
    lower = text.lower()
    return [name for name, form in forms(MARK).items() if form in lower]


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text,
        str.upper,
        quote,
        repr,
        lambda text: repr(text.encode()),
        json.dumps,
        lambda text: text.encode().hex(),
        lambda text: text.encode().hex().upper(),
        lambda text: base64.b64encode(text.encode()).decode(),
        lambda text: base64.b64encode(b"1" + text.encode()).decode(),
        lambda text: base64.b64encode(b"12" + text.encode() + b"3").decode(),
        lambda text: base64.urlsafe_b64encode(b"123" + text.encode()).decode(),
    ],
)
def test_the_search_finds_what_it_is_to_find(encode: Callable[[str], str]) -> None:
    assert marks_in("some " + encode(TEXT) + " more")
    assert not marks_in("some " + encode("what is harmless, and long enough to be so") + " more")


# The run


class Keeps(Shared, Observer):
    """Keeps the records, and lets the process sum up what they measure."""

    name = "keeps"
    reads_aggregates: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []

    def build(self) -> Observer:
        return self

    def record(self, record: Record) -> None:
        self.records.append(record)


async def fails_to_look_up(arguments: bytes) -> bytes:
    if arguments.endswith(b"!"):
        raise LookupError(TEXT)
    return arguments


def reply(request: LlmRequest) -> LlmResponse:
    if request.body.endswith(b"!"):
        raise ConnectionError(f"https://user:{TEXT}@provider/?key={MARK}")
    return LlmResponse(b"answer " + request.body, prompt_tokens=3, completion_tokens=2)


async def agent(ctx: AgentContext) -> Complete | Suspend:
    """Do what there is to do, with the mark in all of it."""
    if ctx.snapshot is not None:
        return Complete(ctx.snapshot)
    assert ctx.event is not None
    what = ctx.event.rpartition(b" ")[2].decode()
    memory = ctx.memory
    memory.set(f"key {TEXT}", CONTENT)
    memory.append(f"ring {TEXT}", CONTENT * 20)
    memory.set(f"big {TEXT} {len(memory)}", CONTENT * (BIG // len(CONTENT)))
    match what:
        case "memory":
            return Complete(CONTENT)
        case "save":
            memory.longterm.save(TEXT, CONTENT)
            return Complete(CONTENT)
        case "agent":
            raise ValueError(TEXT)
        case "model":
            await ctx.call_model(LlmRequest("small", CONTENT + b"!"))
        case "tool":
            await ctx.run_tool("look_up", CONTENT + b"!")
        case "overflow":
            memory.set(TEXT, CONTENT * 100_000)
        case "outcome":
            return CONTENT  # type: ignore[return-value]  # the fault
    await ctx.call_model(LlmRequest("small", CONTENT))
    await ctx.run_tool("look_up", CONTENT)
    await memory.longterm.search(f"case {TEXT}", limit=3)
    memory.longterm.save(f"case {TEXT}", CONTENT)
    intent = ctx.act("notify", CONTENT)
    if what == "suspend":
        return Suspend(snapshot=CONTENT, waiting_for=(intent,), output=CONTENT)
    return Complete(CONTENT)


WHAT = (
    *("fine", "agent", "model", "tool", "overflow", "outcome", "suspend"),
    *("fine", "fine", "fine", "fine", "memory", "save", "memory"),
)


def events() -> list[AgentEnvelope]:
    envelopes = []
    for at, what in enumerate(WHAT, 1):
        envelope = event(KEY, f"{TEXT} {what}".encode(), time_ms=1_000 * at, event_id=f"{TEXT} {at}")
        envelope.traceparent = TRACEPARENT if at % 2 else TEXT
        envelopes.append(envelope)
    return envelopes


def summarizer(trigger_bytes: int) -> SummarizeCompactor:
    def extract(response: bytes) -> bytes:
        if trigger_bytes > BIG:
            return response[:9]
        raise KeyError(TEXT)

    return SummarizeCompactor(
        build_request=lambda items, prior: LlmRequest("summarizer", b"".join(items) + (prior or b"")),
        extract_summary=extract,
        source_keys=(f"ring {TEXT}",),
        summary_key=f"summary {TEXT}",
        keep_recent=1,
        trigger_bytes=trigger_bytes,
    )


def config(*telemetry: object, uri: str = "memory://") -> AgentConfig:
    return AgentConfig(
        provider_factory=ScriptedModel(reply),
        compactor=DropOldestCompactor(),
        summarizer=summarizer(3 * BIG),
        tools=[Tool("look_up", fails_to_look_up)],
        longterm_memory=uri,
        on_expire=FlushToLongterm(key=f"memory of {TEXT}"),
        ttl_ms=60_000,
        telemetry=telemetry,  # type: ignore[arg-type]  # plugins
    )


def drive(configured: AgentConfig) -> list[ActivationError]:
    """Run everything, expiry included; return the error records."""
    errors: list[ActivationError] = []
    raised: list[str] = []
    with AgentHarness(agent, configured, name="agent") as harness:
        for envelope in events():
            emitted = harness.send(envelope)
            errors += emitted.errors
            for intent in emitted.intents[:1]:
                errors += harness.send(answer(intent, CONTENT, time_ms=30_000)).errors
        for _ in range(2):
            try:
                errors += harness.advance_watermark(10**9).errors
            except BundleFailure as error:
                raised.append(f"{error} {error!r}")
                errors += harness.send(event(KEY, CONTENT, time_ms=31_000)).errors
    assert marks_in(" ".join(raised)) == []
    return errors


def outage_uri(password: str) -> str:
    """Return the URI of a store that nobody serves."""
    return f"redis://worker:{password}@127.0.0.1:1/0?connect_timeout_s=1"


@dataclass
class Seen:
    """What a run showed.

    Attributes:
        texts: By where it was seen.
        errors: The error records.
        records: What was told to plugins.
    """

    texts: dict[str, str]
    errors: list[ActivationError]
    records: list[Record]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("privacy")
    with otlp_receiver.running(folder) as receiver:
        yield see(folder, receiver)


def see(folder: Path, receiver: otlp_receiver.Receiver) -> Seen:
    keeps = Keeps()
    port = int(receiver.endpoint.rpartition(":")[2])
    plugins: tuple[TelemetryPlugin, ...] = (
        *(installed.make_plugin(name, folder, port) for name in installed.NAMES if name != "beam"),
        keeps,
    )
    said = _Said()
    root = logging.getLogger()
    root.addHandler(said)
    telemetry = acquire_hub(plugins)
    try:
        losses.count_lost("some plugin", "record", "ValueError")
        errors = drive(config(*plugins))
        failing = replace(config(*plugins), summarizer=summarizer(BIG // 2))
        errors += drive(failing)
        errors += drive(config(*plugins, uri=outage_uri(quote(TEXT, safe=""))))
        telemetry.flush(30.0)
        texts = {surface.plugin: surface.read(folder, receiver) for surface in SURFACES}
        snapshot = take_snapshot()
    finally:
        release_hub(telemetry)
        root.removeHandler(said)
        forget_rows()
        losses.forget()
    texts["snapshot"] = "\n".join(
        f"{series.metric.name} {series.labels} {series.value}" for series in snapshot.series
    )
    texts["log"] = "\n".join(said.lines)
    return Seen(texts, errors, keeps.records)


class _Said(logging.Handler):
    """Keeps what anybody logs, tracebacks included."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def test_the_run_does_all_that_it_is_to_show(seen: Seen) -> None:
    reasons = {error.reason for error in seen.errors}
    assert reasons >= {
        "activation_error",
        "memory_overflow",
        "invalid_outcome",
        "summary_failed",
        "longterm_read_failed",
        "longterm_flush_failed",
    }
    happened = {happening.event for record in seen.records for happening in record.happenings}
    assert happened >= {
        catalogue.EVENT_ACTIVATION_FAILED,
        catalogue.EVENT_MEMORY_EVICTED,
        catalogue.EVENT_MEMORY_OVERFLOW,
        catalogue.EVENT_SUMMARY_FAILED,
        catalogue.EVENT_STORE_DOWN,
        catalogue.EVENT_LONGTERM_FLUSH_FAILED,
        catalogue.EVENT_EXPIRE_WEDGED,
    }
    spans = {step.span for record in seen.records for step in record.steps}
    assert spans >= {
        catalogue.SPAN_CHAT,
        catalogue.SPAN_EXECUTE_TOOL,
        catalogue.SPAN_MEMORY_COMPACT,
        catalogue.SPAN_MEMORY_SUMMARIZE,
        catalogue.SPAN_SEARCH_MEMORY,
        catalogue.SPAN_UPSERT_MEMORY,
    }
    assert all(marks_in(error.entity_key.decode()) for error in seen.errors)


def test_every_installed_plugin_is_searched() -> None:
    shown = {surface.plugin for surface in SURFACES} | {"beam"}
    assert shown == set(installed.NAMES), "give each plugin a line in SURFACES"


@pytest.mark.parametrize("surface", [*(each.plugin for each in SURFACES), "snapshot"])
def test_no_plugin_shows_content(seen: Seen, surface: str) -> None:
    text = seen.texts[surface]
    assert len(text) > 500
    assert marks_in(text) == []


def test_the_programs_own_log_shows_no_content(seen: Seen) -> None:
    assert marks_in(seen.texts["log"]) == []


def test_error_records_hold_no_content_but_the_key_and_the_events_id(seen: Seen) -> None:
    for error in seen.errors:
        told = type(error)()
        told.CopyFrom(error)
        told.ClearField("entity_key")
        told.ClearField("event_id")
        assert marks_in(str(told)) == []
        assert marks_in(told.SerializeToString().decode("latin-1")) == []


def test_what_plugins_are_told_holds_no_content_but_the_key(seen: Seen) -> None:
    assert len(seen.records) > 30
    for record in seen.records:
        told = [
            (record.pipeline, record.agent, record.entity, record.outcome, record.reason, record.error_type),
            (record.trace_id, record.span_id, record.link, record.parent),
            [(metric.name, value, labels) for metric, value, labels in record.measurements],
            [
                (step.span.filled(step.target), step.target, step.attributes, step.error_type)
                for step in record.steps
            ],
            [(happening.event.name, dict(happening.attributes)) for happening in record.happenings],
            [(moment.name, dict(moment.attributes)) for moment in record.moments],
        ]
        assert marks_in(repr(told)) == []


def test_beam_metrics_hold_no_content() -> None:
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    pairs = [(each.entity_key, each) for each in events()]
    created = pipeline | beam.Create(pairs).with_output_types(tuple[bytes, AgentEnvelope])
    _ = created | RunAgent(agent, config=config("beam"))
    result = pipeline.run()
    result.wait_until_finish()
    forget_rows()
    text = repr(result.metrics().query(MetricsFilter().with_namespace(catalogue.BEAM_NAMESPACE)))
    assert "agent_errors" in text
    assert marks_in(text) == []


def test_a_run_on_a_runner_prints_no_content(capfd: pytest.CaptureFixture[str]) -> None:
    run = run_events(agent, events(), config=config(StructuredLogs()))
    end_workers()
    forget_rows()
    assert run.errors
    captured = capfd.readouterr()
    assert "activation_failed" in captured.err
    assert marks_in(captured.out + captured.err) == []


def test_a_uri_that_is_refused_is_not_shown() -> None:
    for uri in (
        f"redis://u:{MARK}@host:port/0",
        f"nosuch://u:{MARK}@host/0",
        f"redis://u:{MARK}@host/0?x={MARK}",
    ):
        with pytest.raises(ValueError, match="longterm_memory") as caught:
            AgentConfig(longterm_memory=uri)
        assert marks_in(str(caught.value)) == []


@pytest.mark.parametrize("name", installed.NAMES)
def test_a_plugins_options_are_not_shown(name: str) -> None:
    for text in (f"{name}?{MARK}", f"{name}?no_such_option={MARK}", f"{name}://u:{MARK}@host"):
        with pytest.raises(ValueError, match="telemetry") as caught:
            resolve_plugins([text])
        assert marks_in(str(caught.value)) == []


def test_keys_are_shown_where_the_operator_asks_for_them_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    drive(config(StructuredLogs(file=path, show_keys=True)))
    forget_rows()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    shown = [line.pop("entity_key") for line in lines if "entity_key" in line]
    assert set(shown) == {KEY.decode()}
    assert marks_in(json.dumps(lines)) == []

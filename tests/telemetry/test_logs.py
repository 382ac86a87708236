"""The plugin ``logs``: what its lines say, where they go, and that nothing waits for them."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import pytest
import structlog

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.signals import (
    Record,
    acquire_hub,
    catalogue,
    count_lost,
    dropped,
    losses,
    release_hub,
    resolve_plugins,
)
from beam_agents.testing import AgentHarness, event
from beam_agents_telemetry import log_repeats
from beam_agents_telemetry.log_repeats import Repeats
from beam_agents_telemetry.log_writer import FileTarget, LineWriter
from beam_agents_telemetry.logs import StructuredLogs
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from beam_agents_telemetry.log_writer import Line

eventually = partial(wait_until, within_s=30)

KEY = b"customer-17"


@pytest.fixture(autouse=True)
def _no_losses_left() -> Iterator[None]:
    losses.forget()
    yield
    losses.forget()
    left = [each.name for each in threading.enumerate() if each.name.startswith("beam-agents-logs")]
    assert left == []


async def agent(ctx: AgentContext) -> Complete:
    if ctx.event == b"fail":
        raise LookupError("sk-secret")
    return Complete(ctx.event or b"")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def record(key: bytes = KEY, name: str = "agent") -> Record:
    made = Record(catalogue.SPAN_INVOKE_AGENT, "pipeline", name, key)
    made.seq = 7
    return made


def failed(key: bytes = KEY, *, error_type: str = "LookupError", name: str = "agent") -> Record:
    made = record(key, name)
    made.happened(
        catalogue.EVENT_ACTIVATION_FAILED, reason="activation_error", error_type=error_type, seq=7, attempt=1
    )
    return made


def test_a_happening_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    config = AgentConfig(telemetry=[StructuredLogs(file=path)])
    with AgentHarness(agent, config) as harness:
        harness.send(event(KEY, b"fine", time_ms=1), event(KEY, b"fail", time_ms=2))
        (told,) = [each for each in harness.signals.records if each.happenings]
    (line,) = lines(path)
    (happening,) = told.happenings
    at = datetime.fromisoformat(str(line.pop("timestamp")))
    assert at.tzinfo == UTC
    assert abs(at.timestamp() - happening.at_ns / 1e9) < 2e-6
    assert line == {
        "level": "error",
        "event": "activation_failed",
        "pipeline": "harness",
        "agent": "agent",
        "entity": told.entity,
        "trace_id": told.trace_id,
        "span_id": told.span_id,
        "attempt": 1,
        "reason": "activation_error",
        "error_type": "LookupError",
        "seq": 2,
    }


def test_time_level_and_event_come_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    observer = StructuredLogs(file=path).build()
    observer.record(failed())
    observer.close(5.0)
    assert path.read_text().startswith('{"timestamp": "')
    assert list(lines(path)[0])[:3] == ["timestamp", "level", "event"]


@pytest.mark.parametrize("event_of", catalogue.EVENTS, ids=lambda each: each.name)
def test_every_event_of_the_catalogue_is_written_with_all_it_carries(
    tmp_path: Path, event_of: catalogue.LogEvent
) -> None:
    path = tmp_path / "log"
    observer = StructuredLogs(file=path).build()
    made = record()
    made.happened(event_of, **dict.fromkeys(event_of.attributes, 3))
    observer.record(made)
    observer.close(5.0)
    (line,) = lines(path)
    assert line["event"] == event_of.name
    assert line["level"] == event_of.severity
    assert line["entity"] == made.entity
    for attribute in event_of.attributes:
        assert line[attribute] == 3


def test_a_probe_is_of_no_agent_key_or_trace(tmp_path: Path) -> None:
    path = tmp_path / "log"
    observer = StructuredLogs(file=path).build()
    probe = Record(catalogue.SPAN_STORE_PROBE, "", "", b"")
    probe.happened(catalogue.EVENT_STORE_DOWN, backend="redis", error_type="StoreUnavailable")
    observer.record(probe)
    observer.close(5.0)
    (line,) = lines(path)
    assert line.keys() == {"timestamp", "level", "event", "backend", "error_type"}


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("info", ["store_recovered", "longterm_upsert_stale", "store_down"]),
        ("WARNING", ["longterm_upsert_stale", "store_down"]),
        ("error", ["store_down"]),
    ],
)
def test_the_level(tmp_path: Path, level: str, written: list[str]) -> None:
    path = tmp_path / "log"
    observer = StructuredLogs(file=path, level=level).build()
    made = record()
    made.happened(catalogue.EVENT_STORE_RECOVERED, backend="redis", down_seconds=1.0)
    made.happened(catalogue.EVENT_LONGTERM_UPSERT_STALE, backend="redis", rows=1, seq=2)
    made.happened(catalogue.EVENT_STORE_DOWN, backend="redis", error_type="E")
    observer.record(made)
    observer.close(5.0)
    assert [line["event"] for line in lines(path)] == written


def test_keys_are_shown_only_on_demand(tmp_path: Path) -> None:
    hidden, shown = tmp_path / "hidden", tmp_path / "shown"
    keys = (KEY, b"\xff\x00", b"k" * 1_000)
    for config in (StructuredLogs(file=hidden), StructuredLogs(file=shown, show_keys="true")):
        observer = config.build()
        for key in keys:
            observer.record(failed(key))
        observer.close(5.0)
    assert not any("entity_key" in line for line in lines(hidden))
    assert [line["entity_key"] for line in lines(shown)] == ["customer-17", "\\xff\x00", "k" * 200 + "…"]


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_streams(capfd: pytest.CaptureFixture[str], stream: str) -> None:
    observer = StructuredLogs(stream=stream).build()
    observer.record(failed())
    observer.close(5.0)
    captured = capfd.readouterr()
    assert (
        json.loads(getattr(captured, "err" if stream == "stderr" else "out"))["event"] == "activation_failed"
    )
    assert (captured.out if stream == "stderr" else captured.err) == ""


def test_a_stream_that_has_no_descriptor(capsys: pytest.CaptureFixture[str]) -> None:
    observer = StructuredLogs().build()
    observer.record(failed())
    observer.close(5.0)
    assert json.loads(capsys.readouterr().err)["event"] == "activation_failed"


def test_no_stream_at_all_is_counted_and_told_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    observer = StructuredLogs().build()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        observer.record(failed())
        observer.flush(5.0)
        observer.close(5.0)
    assert dropped() == {("logs", "write"): 1}
    assert "telemetry_plugin_failed plugin=logs reason=write error_type=OSError" in caplog.text


# Repeats


def test_repeats_are_held_back_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    observer = StructuredLogs(file=path, repeats=2).build()
    for _ in range(10):
        observer.record(failed())
    observer.record(failed(error_type="KeyError"))
    observer.record(failed(name="another"))
    observer.close(5.0)
    told = lines(path)
    assert [(line["agent"], line["error_type"]) for line in told if "held_back" not in line] == [
        ("agent", "LookupError"),
        ("agent", "LookupError"),
        ("agent", "KeyError"),
        ("another", "LookupError"),
    ]
    (summary,) = [line for line in told if "held_back" in line]
    del summary["timestamp"]
    assert summary == {
        "level": "error",
        "event": "activation_failed",
        "pipeline": "pipeline",
        "agent": "agent",
        "error_type": "LookupError",
        "reason": "activation_error",
        "held_back": 8,
        "window_s": 60.0,
    }


def test_what_was_held_back_is_told_when_the_window_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    observer = StructuredLogs(file=path, repeats=1, window_s=0.05).build()
    try:
        observer.record(failed())
        observer.record(failed())
        eventually(lambda: path.exists() and "held_back" in path.read_text())
    finally:
        observer.close(5.0)
    assert sum(int(str(line.get("held_back", 1))) for line in lines(path)) == 2


def test_repeats_by_the_clock() -> None:
    now = [0.0]
    repeats = Repeats(2, 10.0, clock=lambda: now[0])
    kind = (("event", "a"),)
    assert repeats.wait_s() is None
    assert [repeats.passes(kind) for _ in range(5)] == [True, True, False, False, False]
    now[0] = 4.0
    assert repeats.wait_s() == 6.0
    assert repeats.held_back() == []
    now[0] = 10.0
    assert repeats.wait_s() == 0.0
    # The next window opens although nobody has asked about the last.
    assert repeats.passes(kind)
    assert repeats.held_back() == [(kind, 3)]
    assert repeats.passes(kind)
    assert not repeats.passes(kind)
    assert repeats.held_back(everything=True) == [(kind, 1)]
    assert repeats.wait_s() is None


def test_all_lines_pass_where_nothing_is_to_be_held_back() -> None:
    repeats = Repeats(0, 10.0)
    assert all(repeats.passes((("event", "a"),)) for _ in range(100))
    assert repeats.wait_s() is None


def test_kinds_are_bounded() -> None:
    repeats = Repeats(1, 10.0, clock=lambda: 0.0)
    kinds = [(("event", "a"), ("error_type", str(number))) for number in range(3 * log_repeats.MAX_WINDOWS)]
    passed = sum(repeats.passes(kind) for kind in kinds)
    assert passed == log_repeats.MAX_WINDOWS + 1
    held = dict(repeats.held_back(everything=True))
    assert held == {(("event", "a"),): len(kinds) - passed}


# Faults of plugins


def test_a_plugins_fault_is_a_line_and_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    count_lost("earlier", "build", "ValueError")
    assert len(caplog.records) == 1
    observer = StructuredLogs(file=path).build()
    count_lost("otlp", "record", "ZeroDivisionError")
    count_lost("otlp", "record", "ZeroDivisionError")
    count_lost("otlp", "queue_full")
    observer.close(5.0)
    assert len(caplog.records) == 1
    told = [(line["event"], line["plugin"], line["reason"], line["error_type"]) for line in lines(path)]
    assert told == [
        ("telemetry_plugin_failed", "earlier", "build", "ValueError"),
        ("telemetry_plugin_failed", "otlp", "record", "ZeroDivisionError"),
    ]
    count_lost("later", "record", "ValueError")
    assert len(caplog.records) == 2


# Beside an application's own logs


def test_an_applications_logging_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, logging.root.manager.disable
    seen: list[object] = []

    def watching(_logger: object, _method: str, fields: dict[str, object]) -> dict[str, object]:
        seen.append(fields)
        raise structlog.DropEvent

    with structlog.testing.capture_logs() as captured:
        structlog.configure(processors=[watching], cache_logger_on_first_use=True)
        configured = structlog.get_config()
        structlog.contextvars.bind_contextvars(request="sk-secret")
        try:
            observer = StructuredLogs(file=path).build()
            observer.record(failed())
            observer.close(5.0)
            assert structlog.get_config() == configured
        finally:
            structlog.contextvars.clear_contextvars()
            structlog.reset_defaults()
    assert (seen, captured) == ([], [])
    assert (root.handlers, root.level, logging.root.manager.disable) == (handlers, level, disabled)
    assert len(lines(path)) == 1
    assert "request" not in lines(path)[0]
    assert capfd.readouterr() == ("", "")


# Nothing waits


class Stuck:
    """A target that takes nothing until it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.released = threading.Event()
        self.written: list[bytes] = []
        self.closed = threading.Event()

    def write(self, data: bytes, give_up: Callable[[], bool]) -> None:  # noqa: ARG002 - a disk asks nobody
        self.asked.set()
        self.released.wait()
        self.written.append(data)

    def close(self) -> None:
        self.closed.set()


class Nothing:
    def due(self, *, everything: bool) -> list[Line]:  # noqa: ARG002 - nothing ever is
        return []

    def wait_s(self) -> None:
        return None


def test_a_target_that_hangs_costs_lines_and_no_time() -> None:
    target = Stuck()
    writer = LineWriter("logs", target, lambda line: str(line["n"]).encode(), Nothing(), size=3)
    try:
        writer.put({"n": 0})
        assert target.asked.wait(30)
        for number in range(1, 10):
            writer.put({"n": number})
        assert dropped() == {("logs", "queue_full"): 6}
        assert not writer.flush(0.01)
        writer.close(0.1)
        assert dropped() == {("logs", "queue_full"): 6, ("logs", "closed"): 3}
        writer.put({"n": 11})
        assert dropped()["logs", "closed"] == 4
    finally:
        target.released.set()
    assert target.closed.wait(30)
    assert target.written == [b"0"]
    eventually(lambda: not any(each.name == "beam-agents-logs-writer" for each in threading.enumerate()))


def test_a_full_pipe_costs_lines_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        observer = StructuredLogs(repeats=0).build()
        for _ in range(12_000):
            observer.record(failed())
        eventually(lambda: ("logs", "queue_full") in dropped())
        observer.close(0.5)
        monkeypatch.undo()
    with os.fdopen(reading) as pipe:
        written = pipe.read()
    lost = sum(dropped().values())
    whole = [line for line in written.splitlines(keepends=True) if line.endswith("\n")]
    assert all(json.loads(line)["event"] == "activation_failed" for line in whole)
    assert len(whole) + lost == 12_000
    assert len(whole) > 100


def test_a_pipe_that_nobody_reads_any_more_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        observer = StructuredLogs().build()
        observer.record(failed())
        observer.close(5.0)
        monkeypatch.undo()
    assert dropped() == {("logs", "write"): 1}


def test_a_file_that_cannot_be_written_is_counted_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "log"
    observer = StructuredLogs(file=path).build()
    observer.record(failed())
    observer.flush(5.0)
    path.parent.mkdir()
    observer.record(failed())
    observer.close(5.0)
    assert dropped() == {("logs", "write"): 1}
    assert [line["event"] for line in lines(path)][-1] == "activation_failed"


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    observer = StructuredLogs(file=path).build()
    observer.record(failed())
    observer.flush(5.0)
    path.rename(old)
    observer.record(failed(error_type="KeyError"))
    observer.close(5.0)
    assert [line["error_type"] for line in lines(old)] == ["LookupError"]
    assert [line["error_type"] for line in lines(path)] == ["KeyError"]


def test_a_line_after_a_torn_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = FileTarget(str(tmp_path / "log"))
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", refuse)
        return write(descriptor, data[:5])

    def refuse(descriptor: int, data: bytes) -> int:  # noqa: ARG001 - as the system's
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        target.write(b"first line\n", lambda: False)
    monkeypatch.setattr(os, "write", write)
    target.write(b"second\n", lambda: False)
    target.write(b"third\n", lambda: False)
    target.close()
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\nthird\n"


# Processes

PROGRAM = """
import os, sys
from beam_agents.signals import Record, Worker, acquire_hub, catalogue
from beam_agents_telemetry.logs import StructuredLogs

hub = acquire_hub([StructuredLogs({options})])
worker = Worker("pipeline", "agent")
hub.start(worker)

def fail(error_type):
    record = Record(catalogue.SPAN_INVOKE_AGENT, "pipeline", "agent", b"k")
    record.happened(catalogue.EVENT_ACTIVATION_FAILED, reason="activation_error", error_type=error_type)
    hub.record(record)

{body}
"""


def run_program(body: str, options: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(options=options, body=body)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )


def test_what_is_queued_and_held_back_is_written_at_exit() -> None:
    done = run_program("for _ in range(100): fail('E')")
    # Beam has things to say as it is imported.
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert len(told) == 6
    assert told[-1]["held_back"] == 95


def test_a_forked_child_writes_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    body = """
fail("Parent")
hub.flush(5)
child = os.fork()
hub.bundle_started(worker)
fail("Child" if child == 0 else "ParentAfter")
hub.flush(5)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    run_program(body, f"file={str(path)!r}")
    assert sorted(str(line["error_type"]) for line in lines(path)) == ["Child", "Parent", "ParentAfter"]


def test_a_reader_that_never_reads_does_not_keep_the_process() -> None:
    # More than a pipe holds, and nobody reads it.
    program = PROGRAM.format(options="repeats=0", body="for _ in range(2000): fail('E')")
    reading, writing = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-c", program], stderr=writing, timeout=120, check=False)
        assert done.returncode == 0
    finally:
        os.close(writing)
        os.close(reading)


# Configuration


@pytest.mark.parametrize(
    ("text", "plugin"),
    [
        ("logs", StructuredLogs()),
        ("logs?stream=STDOUT&level=Error", StructuredLogs(stream="stdout", level="error")),
        ("logs?file=/var/log/a%26b", StructuredLogs(file="/var/log/a&b")),
        (
            "logs?show_keys=TRUE&repeats=7&window_s=2",
            StructuredLogs(show_keys=True, repeats=7, window_s=2.0),
        ),
    ],
)
def test_options(text: str, plugin: StructuredLogs) -> None:
    (resolved,) = resolve_plugins([text])
    assert resolved == plugin
    assert hash(resolved) == hash(plugin)
    assert pickle.loads(pickle.dumps(resolved)) == plugin  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("logs?stream=sk-secret", "stream must be one of stderr, stdout, not a text of 9 characters"),
        ("logs?level=sk-secret", "level must be one of info, warning, error, not a text of 9 characters"),
        ("logs?repeats=-1", "repeats must be a whole number from 0 to 1,000,000; this one is not"),
        ("logs?file=/", "file must be the path of a file; of a folder, add the file's name"),
        ("logs?file=a&stream=stdout", "file and stream go not together: give one of them"),
    ],
)
def test_a_bad_option_is_told_early_and_without_its_value(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"AgentConfig\.telemetry: plugin 'logs'") as caught:
        AgentConfig(telemetry=[text])
    assert told in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_agents_of_one_process_share_a_writer(tmp_path: Path) -> None:
    first, second = (acquire_hub([StructuredLogs(file=tmp_path / "log")]) for _ in range(2))
    try:
        first.record(failed())
        second.record(failed(error_type="KeyError"))
        first.flush(5.0)
        assert len(lines(tmp_path / "log")) == 2
        assert sum(each.name == "beam-agents-logs-writer" for each in threading.enumerate()) == 1
    finally:
        release_hub(first)
        release_hub(second)

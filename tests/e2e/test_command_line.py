"""The installed command over real files, in processes of its own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.servers.process import free_port

AGENTS = '''
import json
import os
import re
import shlex
from beam_agents import AgentConfig, Complete, RunAgent

class Base(BaseException):
    pass

async def count(ctx):
    """Count a key's events; fail, ask for a tool or answer in other bytes where the event says so."""
    event = json.loads(ctx.event)
    if event.get("do") == "fail":
        raise KeyError("s3cr3t")
    if event.get("do") == "act":
        ctx.act("mail", b'{"to": "x"}')
    if event.get("do") == "bytes":
        return Complete(b"\\xff")
    if event.get("do") == "exit":
        os._exit(9)
    if event.get("do") == "base":
        raise Base("s3cr3t")
    n = int(ctx.memory.get("n") or b"0") + 1
    ctx.memory.set("n", str(n).encode())
    return Complete(json.dumps({"key": ctx.entity_key.decode(), "n": n, "i": event["i"]}).encode())

class Unpicklable:
    def __reduce__(self):
        raise OSError("cannot travel")

    async def __call__(self, ctx):
        return Complete()

unpicklable = Unpicklable()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "their_agents.py").write_text(AGENTS)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "beam_agents.cli", *arguments]


def run(
    folder: Path, *more: str, stdin: bytes = b"", events: str = "events.jsonl"
) -> subprocess.CompletedProcess[bytes]:
    arguments = ("run", "--agent", "their_agents:count", "--events", events, "--key", "id", "--time", "at")
    environment = os.environ | {"COLUMNS": "120"}
    return subprocess.run(
        command(*arguments, "--out", "out.jsonl", *more),
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        check=False,
    )


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def event(key: str, i: int, **more: object) -> bytes:
    return json.dumps({"id": key, "at": 1_356_998_400_000 + i, "i": i, **more}).encode()


def mixed() -> bytes:
    rows = [event("ab"[i % 2], i) for i in range(10)]
    rows[3:3] = [b"nonsense s3cr3t", b"", event("", 99)]
    rows += [event("a", 10, do="fail"), event("a", 11, do="act"), event("b", 12, do="bytes"), event("a", 13)]
    return b"\n".join(rows)


def check_mixed(folder: Path, label: str) -> None:
    outputs = lines(folder / "out.jsonl")
    by_key = {key: [line for line in outputs if line.get("key") == key] for key in "ab"}
    assert [line["i"] for line in by_key["a"]] == [0, 2, 4, 6, 8, 11, 13]
    assert [line["n"] for line in by_key["a"]] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["i"] for line in by_key["b"]] == [1, 3, 5, 7, 9]
    assert {"output_base64": "/w=="} in outputs
    assert len(outputs) == 13
    errors = lines(folder / "out.jsonl.errors.jsonl")
    assert Counter(line["reason"] for line in errors) == {"malformed_line": 2, "activation_error": 1}
    assert {(line["file"], line["line"]) for line in errors if "line" in line} == {
        (label, 4),
        (label, 6),
        (label, 14),
    }
    (failed,) = (line for line in errors if line["reason"] == "activation_error")
    assert failed["entity_key"] == "a"
    assert failed["event_time_ms"] == 1_356_998_400_010
    assert "KeyError" in str(failed["detail"])
    assert "s3cr3t" not in (folder / "out.jsonl.errors.jsonl").read_text()


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner"])
def test_a_file_with_everything_in_it(folder: Path, runner: str) -> None:
    (folder / "events.jsonl").write_bytes(mixed())
    done = run(folder, "--runner", runner, "--intents", "intents.jsonl")
    assert done.returncode == 0, done.stderr
    check_mixed(folder, "events.jsonl")
    (intent,) = lines(folder / "intents.jsonl")
    assert (intent["tool"], intent["arguments"], intent["entity_key"]) == ("mail", {"to": "x"}, "a")
    table = " ".join(done.stdout.decode().split())
    for row in ("lines read │ 17", "malformed lines │ 2", "activations │ 14", "complete │ 13", "failed │ 1"):
        assert row in table
    assert b"events.jsonl:4: not JSON" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"s3cr3t" not in done.stdout + done.stderr
    names = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert names == {
        "their_agents.py",
        "events.jsonl",
        "out.jsonl",
        "out.jsonl.errors.jsonl",
        "intents.jsonl",
    }


def test_standard_input_with_strict(folder: Path) -> None:
    done = run(folder, "--strict", events="-", stdin=mixed())
    assert done.returncode == 1
    check_mixed(folder, "standard input")
    assert b"NOT written (see --intents)" in done.stdout


def test_csv(folder: Path) -> None:
    (folder / "events.csv").write_text("id,at,i\na,1970-01-01T00:00:01Z,1\na,2000\nb,1356998401000,3\n")
    done = run(folder, events="events.csv")
    assert done.returncode == 0, done.stderr
    assert lines(folder / "out.jsonl") == [{"key": "a", "n": 1, "i": "1"}, {"key": "b", "n": 1, "i": "3"}]
    (error,) = lines(folder / "out.jsonl.errors.jsonl")
    assert error == {
        "reason": "malformed_line",
        "file": "events.csv",
        "line": 3,
        "detail": "2 fields, and the header has 3",
    }


def test_worker_processes_of_the_runner_import_the_agent_too(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "their_agents.py").rename(folder / "elsewhere" / "their_agents.py")
    (folder / "events.jsonl").write_bytes(mixed())
    options = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    done = run(folder, "--agent", "elsewhere/their_agents.py:count", "--", *options)
    assert done.returncode == 0, done.stderr
    check_mixed(folder, "events.jsonl")
    assert b"not counted: the runner used other processes" in done.stdout


def test_a_failing_pipeline_leaves_the_files_of_the_last_run(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1))
    (folder / "out.jsonl").write_text("earlier")
    done = run(folder, "--agent", "their_agents:unpicklable")
    assert done.returncode == 1
    assert b"the pipeline failed; no output was written" in done.stderr
    assert b"Traceback" not in done.stderr
    assert (folder / "out.jsonl").read_text() == "earlier"
    names = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert names == {"their_agents.py", "events.jsonl", "out.jsonl"}


RUN = ("run", "--agent", "their_agents:count", "--key", "id", "--time", "at", "--out", "out.jsonl")


def left(folder: Path) -> set[str]:
    """What there is beside the agents."""
    return {path.name for path in folder.iterdir()} - {"__pycache__", "their_agents.py", "tmp"}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_behind(folder: Path, number: signal.Signals, status: int) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1))
    (folder / "their_agents.py").write_text(
        AGENTS.replace(
            "n = int(", 'print("running", flush=True); await __import__("asyncio").sleep(20); n = int('
        )
    )
    (folder / "tmp").mkdir()
    with (
        (folder / "events.jsonl").open("rb") as stdin,
        subprocess.Popen(
            command(*RUN, "--events", "-"),
            cwd=folder,
            env=os.environ | {"TMPDIR": str(folder / "tmp")},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == status, stderr
    assert b"interrupted; no output was written" in stderr
    assert left(folder) == {"events.jsonl"}
    assert not [path for path in (folder / "tmp").iterdir() if path.name.startswith((".", "beam-agents"))]


def test_an_interrupt_before_the_run_begins(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1))
    (folder / "slow.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    arguments = ("run", "--agent", "slow:agent", *RUN[3:], "--events", "events.jsonl")
    with subprocess.Popen(
        command(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.splitlines()[-1] == b"beam-agents: interrupted"
    assert b"Traceback" not in stderr


def test_an_interrupt_while_standard_input_is_read(folder: Path) -> None:
    (folder / "tmp").mkdir()
    with subprocess.Popen(
        command(*RUN, "--events", "-"),
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(event("a", 1))
        process.stdin.flush()
        while not list((folder / "tmp").glob("beam-agents-*/input-0")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        told = process.stderr.read()
        assert process.wait(timeout=60) == 130
    assert b"interrupted; no output was written" in told
    assert not list((folder / "tmp").glob("beam-agents-*"))
    assert left(folder) == set()


SIGNALLED = """
import os, signal
from pathlib import Path
from beam_agents.cli import app
from beam_agents.cli.staging import StagedFile

def signal_at(name, count):
    before = getattr(StagedFile, name)
    calls = []
    def call(self, *arguments):
        calls.append(self)
        if len(calls) == count:
            os.kill(os.getpid(), signal.{signal})
        return before(self, *arguments)
    setattr(StagedFile, name, call)

signal_at({method!r}, {count})
app.main()
"""


@pytest.mark.parametrize(
    ("number", "method", "count"),
    [
        ("SIGINT", "assemble", 2),
        ("SIGTERM", "assemble", 3),
        ("SIGINT", "rename", 1),
        ("SIGTERM", "rename", 2),
    ],
)
def test_an_interrupt_at_the_end_replaces_all_files_or_none(
    folder: Path, number: str, method: str, count: int
) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1, do="act"))
    outputs = ("out.jsonl", "errors", "intents")
    for name in outputs:
        (folder / name).write_text("earlier")
    code = SIGNALLED.format(signal=number, method=method, count=count)
    more = ("--events", "events.jsonl", "--errors", "errors", "--intents", "intents")
    done = subprocess.run(
        [sys.executable, "-c", code, *RUN, *more], cwd=folder, capture_output=True, check=False
    )
    now = {(folder / name).read_text() == "earlier" for name in outputs}
    assert done.returncode == {"SIGINT": 130, "SIGTERM": 143}[number], done.stderr
    if method == "assemble":
        assert now == {True}
        assert b"interrupted; no output was written" in done.stderr
    else:
        assert now == {False}
        assert b"interrupted; the output was written" in done.stderr
    assert left(folder) == {"events.jsonl", *outputs}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_what_is_full_replaces_nothing(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1))
    (folder / "errors").write_text("earlier")
    done = run(folder, "--out", "/dev/full", "--errors", "errors")
    assert done.returncode == 1
    assert done.stderr.endswith(
        b"beam-agents: '/dev/full' cannot be written: No space left on device; no output was written\n"
    )
    assert b"Traceback" not in done.stderr
    assert (folder / "errors").read_text() == "earlier"
    assert left(folder) == {"events.jsonl", "errors"}


def test_outputs_to_a_device_a_pipe_and_a_link(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1, do="act"))
    (folder / "link").symlink_to("errors.jsonl")
    done = run(folder, "--out", "/dev/stdout", "--errors", "link", "--intents", "/dev/null")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b'{"key": "a", "n": 1, "i": 1}\n')
    assert Path("/dev/null").is_char_device()
    assert left(folder) == {"events.jsonl", "link", "errors.jsonl"}


@pytest.mark.parametrize("name", ["/proc/out.jsonl", "/sys/out.jsonl"])
def test_a_folder_that_takes_no_files(folder: Path, name: str) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1))
    done = run(folder, "--out", name)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"Invalid value for --out" in done.stderr


def test_events_of_a_pipe(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(mixed())
    words = shlex.join(command(*RUN))
    done = subprocess.run(
        ["bash", "-c", f"{words} --events <(cat events.jsonl)"], cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    label = str(lines(folder / "out.jsonl.errors.jsonl")[0]["file"])
    assert label.startswith("/dev/fd/")
    check_mixed(folder, label)


def test_standard_input_that_is_closed(folder: Path) -> None:
    words = shlex.join(command(*RUN, "--events", "-"))
    done = subprocess.run(["bash", "-c", f"{words} <&-"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 2
    assert b"standard input is closed" in done.stderr
    assert b"Traceback" not in done.stderr


SAVING = """
from beam_agents import AgentConfig, Complete, FlushToLongterm

config = AgentConfig(on_expire=FlushToLongterm(), ttl_ms=1_000, longterm_memory="memory://")

async def save(ctx):
    ctx.memory.set("seen", b"1")
    ctx.memory.longterm.save("row", ctx.event)
    return Complete(b"saved")
"""


def test_a_long_term_store_of_the_environment(folder: Path) -> None:
    (folder / "their_agents.py").write_text(SAVING)
    uri = f"sqlite+aiosqlite:///{folder}/longterm.db"
    provisioned = subprocess.run(
        command("store", "provision", uri), cwd=folder, capture_output=True, check=False
    )
    assert provisioned.returncode == 0, provisioned.stderr
    (folder / "events.jsonl").write_bytes(b"\n".join((event("a", 1_000), event("b", 2_000), event("a", 900))))
    arguments = ("run", "--agent", "their_agents:save", "--config", "their_agents:config", "--key", "id")
    done = subprocess.run(
        command(
            *arguments,
            *("--time", "at", "--out", "out.jsonl", "--events", "events.jsonl"),
            *("--longterm-memory", "env:STORE"),
        ),
        cwd=folder,
        env=os.environ | {"STORE": uri},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = {
        cells[0].strip(): cells[1].strip()
        for line in done.stdout.decode().splitlines()
        if len(cells := line.strip("│").split("│")) == 2
    }
    assert table["long-term rows written"] == "5"
    assert table["long-term rows refused as stale"] == "0"
    assert table["expired keys whose memory was written"] == "2"


def test_a_store_that_is_away_at_the_end_is_named(folder: Path) -> None:
    (folder / "their_agents.py").write_text(
        SAVING.replace('ctx.memory.longterm.save("row", ctx.event)', "pass")
    )
    (folder / "events.jsonl").write_bytes(event("a", 1_000))
    uri = f"redis://127.0.0.1:{free_port()}/0?connect_timeout_s=0.2&operation_timeout_s=0.2"
    done = subprocess.run(
        command(
            *("run", "--agent", "their_agents:save", "--config", "their_agents:config", "--key", "id"),
            *("--time", "at", "--out", "out.jsonl", "--events", "events.jsonl", "--longterm-memory", uri),
        ),
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    told = done.stderr.decode()
    assert "ExpireFlushFailed: " in told
    assert "StoreUnavailable" in told
    assert "redis" in told


def test_no_text_of_what_an_agent_raises_is_shown(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(b"\n".join((event("a", 1, do="fail"), event("b", 2, do="base"))))
    done = run(folder)
    assert done.returncode in (0, 1)
    assert b"Traceback" not in done.stderr
    assert b"s3cr3t" not in done.stdout + done.stderr


def test_wrong_arguments(folder: Path) -> None:
    (folder / "events.jsonl").write_bytes(event("a", 1))
    done = run(folder, "--key", "tail")
    assert done.returncode == 2
    assert b"none of the first rows has the field 'tail'" in done.stderr
    assert b"Traceback" not in done.stderr
    assert not (folder / "out.jsonl").exists()


def test_the_script_is_installed() -> None:
    script = Path(sys.executable).with_name("beam-agents")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("beam-agents ")


def test_the_example_in_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "json", "console", "json", "json", "console"]
    agent, events, shell, outputs, errors = (content for _, content in blocks[:5])
    (tmp_path / "agents.py").write_text(agent)
    (tmp_path / "events.jsonl").write_text(events)
    words = shlex.split(shell)
    assert words[:2] == ["$", "beam-agents"]
    done = subprocess.run(command(*words[2:]), cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted((tmp_path / "counts.jsonl").read_text().splitlines()) == sorted(outputs.splitlines())
    assert (tmp_path / "counts.jsonl.errors.jsonl").read_text() == errors

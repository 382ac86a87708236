"""The units for one machine: systemd takes them, and what they start works as the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.deploy.checks import DOCS, check_prometheus
from tests.servers.process import absent, wait_until

UNITS = DOCS / "systemd"
PROGRAM = Path(sys.executable).with_name("beam-agents")
AGENT = """\
import asyncio
from beam_agents import Complete

async def count_orders(ctx):
    ctx.memory.longterm.save("orders", b"1")
    await asyncio.sleep(float(ctx.event.decode().partition('"wait": ')[2].rstrip("}") or 0))
    return Complete(b"{}")
"""


def setting(unit: str, key: str) -> str:
    text = (UNITS / unit).read_text().replace("\\\n", "")
    return re.findall(rf"^{key}=(.*)$", text, flags=re.MULTILINE)[-1]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder that stands for the machine's root."""
    for folder in ("srv/beam-agents", "var/lib/beam-agents", "run/beam-agents/run"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "srv/beam-agents/orders.py").write_text(AGENT)
    return tmp_path


def start(machine: Path, key: str) -> subprocess.Popen[bytes]:
    """Start a command of the unit, with the paths of this machine."""
    words = shlex.split(setting("beam-agents-run.service", key))
    assert words[0] == "/srv/beam-agents/.venv/bin/beam-agents"
    words = [re.sub(r"(^|=)/(var|run)/", rf"\1{machine}/\2/", word) for word in words[1:]]
    return subprocess.Popen(
        [PROGRAM, *words],
        cwd=machine / "srv/beam-agents",
        env=os.environ | {"STORE": f"sqlite+aiosqlite:///{machine}/memory.sqlite"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output.decode()


def events(machine: Path, line: str) -> None:
    (machine / "var/lib/beam-agents/events.jsonl").write_text(line + "\n")


def in_flight(machine: Path) -> str:
    """Return what the run tells of its activations in flight; empty while it tells nothing."""
    for target in (machine / "run/beam-agents/run").glob("*.json"):
        (where,) = json.loads(target.read_text())[0]["targets"]
        with urllib.request.urlopen(
            f"http://{where}/metrics?name[]=beam_agents_activations_in_flight"
        ) as page:
            return str(page.read().decode())
    return ""


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("beam-agents-*")))
def test_systemd_takes_the_unit(unit: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        absent("systemd-analyze (Debian's package systemd)")
    for path in UNITS.glob("beam-agents-*"):
        text = re.sub(r"/srv/beam-agents/\.venv/bin/[\w-]+", "/bin/true", path.read_text())
        (tmp_path / path.name).write_text(text)
    command = ("systemd-analyze", "verify", "--man=no", str(tmp_path / unit))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_prometheus_takes_its_file(tmp_path: Path) -> None:
    check_prometheus(UNITS / "prometheus.yml", tmp_path)
    (job,) = yaml.safe_load((UNITS / "prometheus.yml").read_text())["scrape_configs"]
    (discovery,) = job["file_sd_configs"]
    for unit in ("beam-agents-run.service", "beam-agents-stream.service"):
        assert f"/run/{setting(unit, 'RuntimeDirectory')}/*.json" in discovery["files"]
    folder = setting("beam-agents-run.service", "RuntimeDirectory")
    assert f"sd_dir=/run/{folder}" in setting("beam-agents-run.service", "ExecStart")


def test_the_commands_of_a_night(machine: Path) -> None:
    code, output = end(start(machine, "ExecStartPre"))
    assert code == 1, output
    assert "provision" in output
    store = f"sqlite+aiosqlite:///{machine}/memory.sqlite"
    subprocess.run((PROGRAM, "store", "provision", store), check=True, capture_output=True)
    assert end(start(machine, "ExecStartPre"))[0] == 0

    events(machine, '{"customer": "ada", "at": "2024-05-01T10:00:00Z"}')
    code, output = end(start(machine, "ExecStart"))
    assert code == 0, output
    assert (machine / "var/lib/beam-agents/out.jsonl").read_text() == "{}\n"
    # The process has taken its target away.
    assert list((machine / "run/beam-agents/run").iterdir()) == []

    events(machine, '{"customer_id": "ada", "at": "2024-05-01T10:00:00Z"}')
    assert end(start(machine, "ExecStart"))[0] == int(
        setting("beam-agents-run.service", "RestartPreventExitStatus")
    )


def test_a_stop_is_no_failure_and_leaves_the_files_of_the_last_run(machine: Path) -> None:
    store = f"sqlite+aiosqlite:///{machine}/memory.sqlite"
    subprocess.run((PROGRAM, "store", "provision", store), check=True, capture_output=True)
    out = machine / "var/lib/beam-agents/out.jsonl"
    out.write_text("of the last run\n")
    events(machine, '{"customer": "ada", "at": "2024-05-01T10:00:00Z", "wait": 25}')
    process = start(machine, "ExecStart")
    wait_until(lambda: " 1.0" in in_flight(machine), "the activation ran")
    process.send_signal(signal.SIGTERM)
    code, output = end(process)
    assert code == int(setting("beam-agents-run.service", "SuccessExitStatus")), output
    assert out.read_text() == "of the last run\n"
    assert list((machine / "run/beam-agents/run").iterdir()) == []

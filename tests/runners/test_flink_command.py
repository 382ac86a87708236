"""``make flink``'s program: a cluster that is there until it is told to end, and then is gone."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import httpx
import psutil
import pytest

from tests.servers.flink import sdk_of_flink
from tests.servers.process import wait_until

pytestmark = pytest.mark.xdist_group("flink")

ROOT = pathlib.Path(__file__).parents[2]


def processes_of(folder: pathlib.Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
    ]


def test_what_it_started_ends_with_it(tmp_path: pathlib.Path) -> None:
    python, _ = sdk_of_flink()
    said = tmp_path / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.flink"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: "--runner flink" in said.read_text() or process.poll() is not None, "it is up", 300
        )
        text = said.read_text()
        assert process.poll() is None, text
        address = text.partition("Flink: ")[2].split()[0]
        assert httpx.get(f"{address}/overview", timeout=30).json()["taskmanagers"] == 1
        assert f"{python} -m beam_agents.cli run --runner flink" in text
        assert len(processes_of(tmp_path)) >= 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, said.read_text()
    finally:
        process.kill()
    wait_until(lambda: not processes_of(tmp_path), "all of it is gone", 30)
    assert [each.name for each in tmp_path.iterdir()] == ["said"]

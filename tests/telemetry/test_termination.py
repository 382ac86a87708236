"""A worker that SIGTERM ends has told all that it knew, and ends as it would have without telemetry."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.servers import hostile, otlp_receiver
from tests.servers.process import READY_WITHIN_S

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = pathlib.Path(__file__).with_name("terminated_worker.py")
KILLED = -signal.SIGTERM


@contextmanager
def worker(who: str, where: str, endpoint: str, folder: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(WORKER), who, where, endpoint, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> int:
    """Wait until the agent is up; return the process in which it is."""
    assert process.stdout is not None
    word, _, pid = process.stdout.readline().partition(" ")
    assert word == "ready"
    return int(pid)


def failures(folder: pathlib.Path) -> int:
    """Return how many activations the log tells of as failed, those that were held back included."""
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    return sum(line.get("held_back", 1) for line in lines if line["event"] == "activation_failed")


@pytest.mark.parametrize(
    ("who", "where", "told", "status"),
    [
        ("nobody", "main", [], KILLED),
        ("nobody", "thread", [], KILLED),
        ("nobody", "fork", [f"child {KILLED}", "end"], 0),
        ("nobody", "multiprocessing", [f"child {KILLED}", "end"], 0),
        ("leaves", "main", ["handled"], 7),
        ("notes", "fork", ["handled", "child 0", "end"], 0),
        ("leaves later", "main", ["handled"], 7),
        ("chains later", "main", ["handled"], KILLED),
        ("chains later, in a hurry", "main", ["handled"], KILLED),
        ("chains between", "thread", ["handled"], KILLED),
    ],
)
def test_telemetry_is_flushed_and_the_signal_does_what_it_did(
    who: str, where: str, told: list[str], status: int, tmp_path: pathlib.Path
) -> None:
    with (
        otlp_receiver.running(tmp_path) as receiver,
        worker(who, where, receiver.endpoint, tmp_path) as process,
    ):
        pid = ready(process)
        mine = f"*.{pid}.*.json"
        assert len(list(tmp_path.glob(mine))) == 1
        os.kill(pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=READY_WITHIN_S)
        assert (output.splitlines(), process.returncode) == (told, status)
        assert [span.name for span in receiver.spans if span.name.startswith("invoke_agent")] == [
            "invoke_agent agent"
        ] * 3
        points = receiver.points("beam_agents.activations")
        assert sum(int(point["asInt"]) for _, point in points) == 3
    assert failures(tmp_path) >= 3
    assert not list(tmp_path.glob(mine))


def test_a_child_of_multiprocessing_has_told_all_at_its_end(tmp_path: pathlib.Path) -> None:
    with (
        otlp_receiver.running(tmp_path) as receiver,
        worker("nobody", "child that fails", receiver.endpoint, tmp_path) as process,
    ):
        ready(process)
        output, _ = process.communicate(timeout=READY_WITHIN_S)
        assert (output.splitlines(), process.returncode) == (["child 1", "end"], 0)
        assert len([span for span in receiver.spans if span.name.startswith("invoke_agent")]) == 3
    assert failures(tmp_path) == 3
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("where", ["activation that waits", "activation that computes"])
def test_what_a_handler_raises_in_the_middle_of_an_activation_ends_the_program(
    where: str, tmp_path: pathlib.Path
) -> None:
    with (
        otlp_receiver.running(tmp_path) as receiver,
        worker("leaves", where, receiver.endpoint, tmp_path) as process,
    ):
        os.kill(ready(process), signal.SIGTERM)
        output, _ = process.communicate(timeout=READY_WITHIN_S)
        assert (output.splitlines(), process.returncode) == (["handled"], 7)
        (failed,) = [span for span in receiver.spans if span.name.startswith("invoke_agent")]
        assert failed.attributes["error.type"] == "SystemExit"
    assert not list(tmp_path.glob("*.json"))


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: pathlib.Path) -> None:
    with worker("ignored", "main", "http://127.0.0.1:9", tmp_path) as process:
        os.kill(ready(process), signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)


@pytest.mark.parametrize("who", ["nobody", "leaves"])
def test_a_collector_that_hangs_holds_up_the_end_within_a_bound(who: str, tmp_path: pathlib.Path) -> None:
    with (
        hostile.running("hanging") as collector,
        worker(who, "main", collector.endpoint, tmp_path) as process,
    ):
        pid = ready(process)
        started_s = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        process.communicate(timeout=READY_WITHIN_S)
        assert process.returncode == {"nobody": KILLED, "leaves": 7}[who]
        # 1 s before the handler, 5 s to close, and the store's; a machine under load takes longer.
        assert time.monotonic() - started_s < 20
    assert not list(tmp_path.glob("*.json"))


def test_who_does_not_want_to_wait_sends_it_again(tmp_path: pathlib.Path) -> None:
    with (
        hostile.running("hanging") as collector,
        worker("nobody", "main", collector.endpoint, tmp_path) as process,
    ):
        pid = ready(process)
        while process.poll() is None:
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.01)
        assert process.returncode == KILLED

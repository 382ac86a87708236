from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import create_runner

from beam_agents.cli.runners import RunnerError, check_portable_runner, keep_order
from tests.servers.prism import process_options
from tests.servers.process import free_port

if TYPE_CHECKING:
    from pathlib import Path


def process(config: str) -> list[str]:
    return ["--environment_type=PROCESS", f"--environment_config={config}"]


WORKER = process_options()


def check(runner: str, *options: str) -> None:
    check_portable_runner(create_runner(runner), PipelineOptions(list(options)))


@pytest.mark.parametrize(
    ("runner", "options", "why"),
    [
        ("portable", [], "give --job_endpoint=HOST:PORT"),
        ("prism", ["--job_endpoint=localhost"], "--job_endpoint: 'localhost' is not HOST:PORT"),
        ("prism", ["--job_endpoint=localhost:x"], "--job_endpoint: 'localhost:x' is not HOST:PORT"),
        ("prism", ["--prism_location=/nowhere/prism"], "--prism_location: there is no file '/nowhere/prism'"),
        ("flink", ["--flink_job_server_jar=/nowhere.jar"], "there is no file '/nowhere.jar'"),
        ("flink", ["--flink_master=a:b:c", "--flink_submit_uber_jar"], "'a:b:c' is not HOST:PORT"),
        ("prism", ["--environment_type=PROCESS"], "--environment_config: None is not {"),
        ("prism", process("[]"), "--environment_config: '\\[]' is not {"),
        ("prism", process("{"), "--environment_config: '{' is not {"),
        ("prism", process('{"command": "/nowhere"}'), "there is no program '/nowhere' to start workers with"),
        (
            "prism",
            [*WORKER, "--save_main_session"],
            "^--save_main_session: beam-agents-worker installs nothing",
        ),
        ("prism", [*WORKER, "--extra_package=a", "--setup_file=b"], "^--setup_file, --extra_packages: "),
    ],
)
def test_what_is_missing_is_named(
    runner: str, options: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "java").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError, match=why.replace("(", r"\(")):
        check(runner, *options)


@pytest.mark.parametrize(
    ("runner", "streams"), [("flink", True), ("portable", True), ("prism", False), ("FnApiRunner", False)]
)
def test_a_job_that_may_go_to_flink_is_no_batch(runner: str, *, streams: bool) -> None:
    options = PipelineOptions([])
    keep_order(create_runner(runner), options)
    assert bool(options.view_as(StandardOptions).streaming) is streams


@pytest.mark.parametrize("option", ["--job_endpoint", "--flink_master"])
def test_an_endpoint_where_nothing_listens(option: str) -> None:
    where = f"127.0.0.1:{free_port()}"
    options = [f"{option}={where}", "--flink_submit_uber_jar"]
    with pytest.raises(RunnerError, match=rf"{option}: nothing answers at '{where}' \(Connection refused\)"):
        check("flink", *options)


def test_flink_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError, match="no java on the PATH"):
        check("flink")


def test_what_is_there_is_let_pass(tmp_path: Path) -> None:
    binary = tmp_path / "prism"
    binary.touch()
    check("FnApiRunner")
    check("prism")
    check("prism", f"--prism_location={binary}", *WORKER)
    check("prism", "--prism_location=https://example.org/prism.zip")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        check("portable", f"--job_endpoint=localhost:{port}", *WORKER)
        check("flink", f"--flink_master=http://127.0.0.1:{port}", "--flink_submit_uber_jar")

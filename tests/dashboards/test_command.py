"""``beam-agents dashboards``."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from beam_agents.cli.app import app
from beam_agents_dashboards import Settings, files
from beam_agents_dashboards.shipped import shipped
from tests.dashboards.synthetic_worker import working
from tests.servers import prometheus
from tests.servers.pages import serving_page
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["dashboards", *words])


def test_export_writes_what_the_settings_make(tmp_path: Path) -> None:
    done = call("export", str(tmp_path), "--only", "prometheus", "--set", "slo=0.99", "for_scale=2")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"6 files are in {tmp_path}\n"
    assert "runbook_url is not set: links lead to https://docs.example.com/" in done.stderr
    assert (
        "dashboard_url is not set: links lead to http://localhost:3000; --set dashboard_url=" in done.stderr
    )
    built = files("prometheus", Settings(flush_slo=0.99, activation_slo=0.99, for_scale=2))
    assert {
        path.relative_to(tmp_path / "prometheus").as_posix(): path.read_text()
        for path in (tmp_path / "prometheus").rglob("*")
    } == built


def test_export_of_all_has_the_runbooks_and_nothing_to_say_where_links_are_set(tmp_path: Path) -> None:
    urls = ("runbook_url=https://wiki.example.org/r", "dashboard_url=https://grafana.example.org")
    done = call("export", str(tmp_path), *(word for url in urls for word in ("--set", url)))
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == {"compose", "grafana", "prometheus", "runbooks"}
    compose = (tmp_path / "compose" / "compose.yaml").read_text()
    assert compose == (shipped("compose") / "compose.yaml").read_text()
    pages = {path.name: path.read_text() for path in (tmp_path / "runbooks").iterdir()}
    assert pages == {path.name: path.read_text() for path in shipped("runbooks").glob("*.md")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "x", "--set", "slo=2"], "a share between 0 and 1 is needed"),
        (["export", "x", "--set", "slo=0.9", "colour=red"], "there is no such setting"),
        (["export", "--set", "slo=0.9"], "Missing argument"),
        (["export", "slo=0.9"], "one folder is needed, not none"),
        (["export", "x", "y"], "one folder is needed, not ['x', 'y']"),
        (["check", "slo"], "a value is needed"),
        (["export", "x", "--set", "colour=red"], "there is no such setting"),
        (["export", "x", "--only", "graphite"], "'graphite' is none of"),
        (["check", "--prometheus", "host:9090"], "an http or https URL is needed"),
    ],
)
def test_wrong_arguments(words: list[str], said: str) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert said in done.output


def test_export_to_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("export", str(tmp_path / "file"), "--only", "prometheus")
    assert done.exit_code == 1
    assert "Not a directory" in done.output


def test_check_finds_nothing_in_what_ships() -> None:
    done = call("check", "--only", "prometheus")
    assert done.exit_code == 0, done.output
    assert done.output == "49 queries: all are sound\n"


def test_check_of_a_server_that_is_away() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        done = call("check", "--only", "prometheus", "--prometheus", f"http://me:secret@127.0.0.1:{port}")
    assert done.exit_code == 1
    assert f"http://127.0.0.1:{port} does not answer: " in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize("answer", [b"[]", b"{}", b"<html>", b'{"status": "error", "error": "no"}'])
def test_check_of_a_server_that_is_no_prometheus(answer: bytes) -> None:
    with serving_page(answer.decode) as port:
        done = call("check", "--prometheus", f"http://127.0.0.1:{port}")
    assert done.exit_code == 1
    assert f"beam-agents: http://127.0.0.1:{port} " in done.output
    assert "Traceback" not in done.output


def test_check_tells_what_has_no_data_and_why(tmp_path: Path) -> None:
    with working() as worker:
        (tmp_path / "workers.json").write_text(json.dumps([{"targets": [worker.target]}]))
        built = files("prometheus", Settings())
        for name, text in built.items():
            (tmp_path / name).write_text(text)
        scraping = built["prometheus.example.yml"].replace("15s", "1s")
        scraping = scraping.replace("/run/beam-agents/*.json", str(tmp_path / "workers.json"))
        with prometheus.running(tmp_path, scraping) as server:
            wait_until(
                lambda: bool(
                    server.query("slo:beam_agents_activations:objective")
                    and server.query("beam_agents_store_up")
                ),
                "a rule and a worker have data",
            )
            done = call("check", "--only", "prometheus", "--prometheus", server.url)
    assert done.exit_code == 0, done.output
    shown = dict(line.split(": ", 1) for line in done.output.splitlines() if ": " in line)
    assert "beam_agents_store_up" not in shown
    overflows = shown["beam_agents_memory_overflows_total"]
    assert overflows == "no worker has told it: Writes that were refused at the hard cap."
    assert shown["flink_jobmanager_job_numRestarts"].startswith("optional: ")
    assert "    asked for by BeamAgentsMemoryOverflow\n" in done.output

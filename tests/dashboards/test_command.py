"""``beam-agents dashboards``."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from beam_agents.cli.app import app
from beam_agents_dashboards import Settings, files
from tests.dashboards.synthetic_worker import working
from tests.servers import prometheus
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["dashboards", *words])


def test_export_writes_what_the_settings_make(tmp_path: Path) -> None:
    done = call("export", str(tmp_path), "--only", "prometheus", "--set", "slo=0.99", "--set", "for_scale=2")
    assert done.exit_code == 0, done.output
    assert done.output == f"5 files are in {tmp_path}\n"
    built = files("prometheus", Settings(flush_slo=0.99, activation_slo=0.99, for_scale=2))
    assert {
        path.relative_to(tmp_path / "prometheus").as_posix(): path.read_text()
        for path in (tmp_path / "prometheus").rglob("*")
    } == built


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "x", "--set", "slo=2"], "a share between 0 and 1 is needed"),
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
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = call("check", "--only", "prometheus", "--prometheus", url)
    assert done.exit_code == 1
    assert f"{url}: it does not answer: " in done.output


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

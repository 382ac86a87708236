"""Arguments, and what becomes of wrong ones: nothing is run and nothing is written."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from beam_agents.cli import run as module
from beam_agents.cli.app import app
from beam_agents.cli.interrupts import Terminated
from beam_agents.cli.job import JobFailed, JobResult
from beam_agents.cli.row_format import RowFormat
from beam_agents.cli.staging import OutputError
from beam_agents.cli.tally import Tally
from beam_agents.memory.compaction import DropOldestCompactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typer.testing import Result

    from beam_agents.cli.job import Job

AGENTS = """
from beam_agents import AgentConfig, Complete

async def agent(ctx):
    return Complete(ctx.event)

def not_async(ctx):
    return Complete(ctx.event)

class Callable:
    async def __call__(self, ctx):
        return Complete(ctx.event)

instance = Callable()
config = AgentConfig(ttl_ms=5, max_tokens_per_activation=6, telemetry=())
number = 7

def provider():
    raise NotImplementedError
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # What the command sets for its own process is put back.
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    before = set(sys.modules)
    (tmp_path / "agents_of_the_app_test.py").write_text(AGENTS)
    (tmp_path / "events.jsonl").write_text('{"id": "a", "at": 1}\n')
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "events.csv").write_text("id,at\na,1\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What would have been run."""
    taken: list[Job] = []

    def take(job: Job, _watch: object) -> JobResult:
        taken.append(job)
        assert all(os.path.isfile(source.path) for source in job.inputs)  # noqa: PTH113 - the paths are text
        return result_of()

    monkeypatch.setattr(module, "run_job", take)
    return taken


def result_of(**errors: int) -> JobResult:
    from collections import Counter  # noqa: PLC0415 - one use

    return JobResult(
        tally=Tally(),
        outputs=0,
        errors=Counter(errors),
        intents=0,
        first_malformed=("f:3: not JSON",),
        wall_s=1,
    )


DEFAULTS = {
    "--agent": "agents_of_the_app_test:agent",
    "--events": "events.jsonl",
    "--key": "id",
    "--time": "at",
    "--out": "out.jsonl",
}


def invoke(*more: str, without: str = "", **changed: str) -> Result:
    options = DEFAULTS | {"--" + name: value for name, value in changed.items()}
    arguments = [part for name, value in options.items() if name != without for part in (name, value)]
    return CliRunner().invoke(app, ["run", *arguments, *more])


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"beam-agents {version('beam-agents')}\n"


def test_without_arguments_the_help_is_shown() -> None:
    assert "run" in CliRunner().invoke(app, []).output


@pytest.mark.usefixtures("folder")
class TestWhatIsRun:
    def test_defaults(self, jobs: list[Job], folder: Path) -> None:
        result = invoke()
        assert result.exit_code == 0, result.output
        (job,) = jobs
        assert job.agent.__name__ == "agent"
        assert [source.label for source in job.inputs] == ["events.jsonl"]
        assert job.row_format is RowFormat.JSONL
        assert (job.fields.key, job.fields.time, job.fields.payload, job.fields.event_id) == (
            "id",
            "at",
            None,
            None,
        )
        assert job.errors.resolve() == folder / "out.jsonl.errors.jsonl"
        assert job.intents is None
        assert (job.runner, job.options) == ("FnApiRunner", ())
        assert job.config.ttl_ms == 3_600_000

    def test_files_of_one_kind_decide_the_format(self, jobs: list[Job]) -> None:
        assert invoke(events="events.csv").exit_code == 0
        assert jobs[0].row_format is RowFormat.CSV

    def test_the_format_can_be_said(self, jobs: list[Job]) -> None:
        assert invoke("--format", "csv", "--events", "events.csv", without="--events").exit_code == 0
        assert jobs[0].row_format is RowFormat.CSV

    def test_several_files_keep_their_order(self, jobs: list[Job], folder: Path) -> None:
        (folder / "more.jsonl").write_text('{"id": "b", "at": 2}\n')
        assert invoke("--events", "more.jsonl", "--events", "events.jsonl", without="--events").exit_code == 0
        assert [source.label for source in jobs[0].inputs] == ["more.jsonl", "events.jsonl"]

    def test_options_of_the_configuration(self, jobs: list[Job]) -> None:
        more = (
            *("--ttl", "2d", "--activation-timeout", "500ms", "--suspension-timeout", "15m"),
            *(
                "--runner",
                "BundleBasedDirectRunner",
                "--max-future-skew",
                "6h",
                "--max-tokens",
                "17",
                "--compactor",
                "1000",
            ),
            *("--provider", "agents_of_the_app_test:provider", "--telemetry", "beam"),
            *("--payload", "id", "--event-id", "at", "--intents", "intents.jsonl", "--errors", "e"),
        )
        result = invoke(*more)
        assert result.exit_code == 0, result.output
        config = jobs[0].config
        assert config.ttl_ms == 172_800_000
        assert config.activation_timeout_s == 0.5
        assert config.suspension_timeout_ms == 900_000
        assert config.max_future_skew_ms == 21_600_000
        assert config.max_tokens_per_activation == 17
        assert config.compactor == DropOldestCompactor(target_bytes=1000)
        assert config.provider_factory is not None
        assert config.provider_factory.__name__ == "provider"
        assert len(config.telemetry) == 1
        assert (jobs[0].fields.payload, jobs[0].fields.event_id) == ("id", "at")
        assert (str(jobs[0].intents), str(jobs[0].errors)) == ("intents.jsonl", "e")

    def test_no_compactor(self, jobs: list[Job]) -> None:
        assert invoke("--no-compactor").exit_code == 0
        assert jobs[0].config.compactor is None

    def test_options_override_a_configuration(self, jobs: list[Job]) -> None:
        assert invoke("--ttl", "9s", config="agents_of_the_app_test:config").exit_code == 0
        config = jobs[0].config
        assert (config.ttl_ms, config.max_tokens_per_activation, config.telemetry) == (9_000, 6, ())

    def test_an_agent_may_be_an_object(self, jobs: list[Job]) -> None:
        assert invoke(agent="agents_of_the_app_test.py:instance").exit_code == 0
        assert type(jobs[0].agent).__name__ == "Callable"

    def test_beam_options_follow_two_dashes(self, jobs: list[Job]) -> None:
        result = invoke("--", "--direct_num_workers=2", "--streaming")
        assert result.exit_code == 0, result.output
        assert jobs[0].options == ("--direct_num_workers=2", "--streaming")

    @pytest.mark.usefixtures("jobs")
    def test_beam_options_that_beam_does_not_know_are_named(self) -> None:
        result = invoke("--", "--direct_num_wokers=2")
        assert result.exit_code == 0
        assert "does not know direct_num_wokers" in result.output


@pytest.mark.usefixtures("folder", "jobs")
class TestWhatIsRefused:
    @pytest.mark.parametrize("option", DEFAULTS)
    def test_what_is_missing(self, option: str) -> None:
        assert option in refused(invoke(without=option))

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"agent": "no_such_module:agent"}, "no module 'no_such_module'"),
            ({"agent": "agents_of_the_app_test:nobody"}, "no attribute 'nobody'"),
            ({"agent": "agents_of_the_app_test"}, "MODULE:NAME"),
            ({"agent": "agents_of_the_app_test:not_async"}, "must be an async function (async def)"),
            ({"agent": "agents_of_the_app_test:number"}, "must be an async function (async def), not int"),
            ({"events": "missing.jsonl"}, "there is no file 'missing.jsonl'"),
            ({"events": "."}, "'.' is a folder"),
            ({"events": "x" * 256}, "cannot be read: File name too long"),
            ({"events": "loop"}, "'loop' cannot be read: Too many levels of symbolic links"),
            ({"out": "loop"}, "'loop' cannot be written: Too many levels of symbolic links"),
            ({"out": "x" * 256}, "cannot be written: File name too long"),
            ({"errors": "x" * 256}, "cannot be written: File name too long"),
            ({"out": "/dev/null"}, "Invalid value for --errors: give it as well"),
            ({"suspension-timeout": "15m"}, "give --runner=BundleBasedDirectRunner"),
            ({"suspension-timeout": "15m", "runner": "DirectRunner"}, "--runner=BundleBasedDirectRunner"),
            ({"key": "tail"}, "none of the first rows has the field 'tail' (--key); their fields: id, at"),
            ({"time": "when"}, "none of the first rows has the field 'when'"),
            ({"payload": "body"}, "none of the first rows has the field 'body'"),
            ({"events": "events.csv", "key": "tail"}, "its header, of 2 columns, lacks 'tail' (--key)"),
            ({"out": "no/folder/out.jsonl"}, "there is no folder"),
            ({"out": "."}, "is a folder"),
            ({"out": "events.jsonl"}, "is the file of --events, too"),
            ({"errors": "out.jsonl"}, "is the file of --out, too"),
            ({"intents": "out.jsonl"}, "is the file of --out, too"),
            ({"errors": "no/folder/e"}, "there is no folder"),
            ({"format": "xml"}, "xml"),
            ({"ttl": "90"}, "90s, 15m, 6h or 2d"),
            ({"ttl": "0s"}, "Invalid value for --ttl: AgentConfig.ttl_ms must be from 1"),
            ({"activation-timeout": "x"}, "90s, 15m, 6h or 2d"),
            (
                {"activation-timeout": "0s"},
                "Invalid value for --activation-timeout: AgentConfig.activation_timeout_s",
            ),
            ({"max-tokens": "0"}, "Invalid value for --max-tokens: AgentConfig.max_tokens_per_activation"),
            ({"max-tokens": "many"}, "integer"),
            ({"compactor": "0"}, "DropOldestCompactor.target_bytes"),
            (
                {"provider": "agents_of_the_app_test:number"},
                "Invalid value for --provider: AgentConfig.provider_factory",
            ),
            ({"telemetry": "no_such_plugin"}, "no_such_plugin"),
            (
                {"telemetry": "logs?level=loud"},
                "refused its options: level must be one of info, warning, error, not a text of 4",
            ),
            ({"telemetry": "logs?colour=red"}, "plugin 'logs' has no option 'colour'; there: file, stream"),
            ({"telemetry": "logs?level"}, "plugin 'logs' has an option that is not written option=value"),
            ({"config": "agents_of_the_app_test:number"}, "must be an AgentConfig, not int"),
            ({"runner": "NoSuchRunner"}, "'NoSuchRunner' cannot be had from Beam"),
            ({"runner": "no.such.Runner"}, "cannot be had from Beam"),
        ],
    )
    def test_what_cannot_be(self, changed: dict[str, str], message: str, jobs: list[Job]) -> None:
        assert message in refused(invoke(**changed))
        assert not jobs

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (("--compactor", "5", "--no-compactor"), "--no-compactor"),
            (("--events", "events.csv"), "both JSONL and CSV"),
            (("--events", "-", "--events", "-"), "standard input can be read once"),
            (("more.jsonl",), "'more.jsonl' belongs to no option"),
            (("--", "--runner=DirectRunner"), "before the --"),
            (("--no-such-option",), "--no-such-option"),
            (
                ("--", "--direct_num_workers=abc"),
                "Invalid value for BEAM_OPTIONS: argument --direct_num_workers",
            ),
        ],
    )
    def test_what_does_not_go_together(self, more: tuple[str, ...], message: str, jobs: list[Job]) -> None:
        told = refused(invoke(*more))
        assert message in told
        assert "usage:" not in told  # Beam's own, of all its options
        assert not jobs

    def test_a_folder_that_may_not_be_written_to(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "closed").mkdir(mode=0o500)
        if os.geteuid() == 0:
            # Root may write anywhere: the operating system's answer is stood in for.
            monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
        assert "may not be written to" in refused(invoke(out="closed/out.jsonl"))


@pytest.mark.usefixtures("folder")
class TestHowItEnds:
    @staticmethod
    def ending(monkeypatch: pytest.MonkeyPatch, end: Callable[[], JobResult]) -> None:
        monkeypatch.setattr(module, "run_job", lambda _job, _watch: end())

    def test_errors_alone_are_no_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ending(monkeypatch, lambda: result_of(malformed_line=3, activation_error=1))
        result = invoke()
        assert result.exit_code == 0
        assert "f:3: not JSON\nand 2 more malformed lines" in result.output
        for row in ("malformed lines", "activation_error"):
            assert row in result.output

    def test_with_strict_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ending(monkeypatch, lambda: result_of(malformed_line=1))
        result = invoke("--strict")
        assert result.exit_code == 1
        assert "out.jsonl.errors.jsonl" in result.output

    def test_strict_without_errors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ending(monkeypatch, result_of)
        assert invoke("--strict").exit_code == 0

    def test_a_failing_pipeline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail() -> JobResult:
            raise JobFailed from RuntimeError(
                "Traceback (most recent call last):\n"
                '  File "/a/their.py", line 7, in agent\n'
                '    raise their.Error("x")\n'
                "their.Error: s3cr3t\nmore: s3cr3t [while running 'Activate']\n"
            )

        self.ending(monkeypatch, fail)
        result = invoke()
        assert result.exit_code == 1
        assert "no output was written. their.Error at their.py:7 in the step Activate\n" in result.output
        assert "Traceback" not in result.output
        assert "s3cr3t" not in result.output

    def test_a_disk_that_is_full_while_the_pipeline_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail() -> JobResult:
            raise JobFailed from RuntimeError(
                "OSError: [Errno 28] No space left on device [while running 'x']"
            )

        self.ending(monkeypatch, fail)
        result = invoke()
        assert result.exit_code == 1
        assert "no output was written. There is no space left on the disk." in result.output

    def test_a_disk_that_is_full_at_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail() -> JobResult:
            raise OutputError(Path("out.jsonl"), OSError(errno.ENOSPC, "x"))

        self.ending(monkeypatch, fail)
        result = invoke()
        assert result.exit_code == 1
        assert result.output == (
            "beam-agents: 'out.jsonl' cannot be written: No space left on device; no output was written\n"
        )

    def test_a_terminated_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def terminate() -> JobResult:
            raise Terminated

        self.ending(monkeypatch, terminate)
        result = invoke()
        assert result.exit_code == 143
        assert "no output was written" in result.output

    def test_a_failing_pipeline_with_verbose(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail() -> JobResult:
            try:
                raise OSError("disk full")  # noqa: TRY301 - as a runner does
            except OSError as error:
                raise JobFailed from error

        self.ending(monkeypatch, fail)
        result = invoke("--verbose")
        assert result.exit_code == 1
        assert "Traceback" in result.output

    def test_an_interrupted_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt() -> JobResult:
            raise KeyboardInterrupt

        self.ending(monkeypatch, interrupt)
        result = invoke()
        assert result.exit_code == 130
        assert "no output was written" in result.output


def test_events_that_are_no_json_at_all_are_still_a_run(folder: Path, jobs: list[Job]) -> None:
    (folder / "events.jsonl").write_text(json.dumps("x") + "\n")
    assert invoke().exit_code == 0
    assert len(jobs) == 1

"""``beam-agents run``: what the command does with its arguments."""

from __future__ import annotations

import io
import logging
import os
import stat
import traceback
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import typer
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import SwitchingDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import create_runner
from rich.console import Console

from beam_agents.cli.durations import parse_duration_ms
from beam_agents.cli.failures import class_and_place, hide_exception_texts, is_full_disk
from beam_agents.cli.inputs import STANDARD_INPUT, SpoolError, check_events, opened
from beam_agents.cli.interrupts import exit_code, interruptible
from beam_agents.cli.job import Job, JobFailed, run_job
from beam_agents.cli.lines import MALFORMED_LINE
from beam_agents.cli.progress import progress_on
from beam_agents.cli.report import result_table
from beam_agents.cli.row_format import RowFormat
from beam_agents.cli.rows import Fields, InputError, check_fields
from beam_agents.cli.runners import RunnerError, check_portable_runner
from beam_agents.cli.staging import OutputError, StagedFile, is_streamed
from beam_agents.cli.store_session import uri_text
from beam_agents.cli.targets import TargetError, load_target
from beam_agents.config import AgentConfig, is_async_callable
from beam_agents.memory.compaction import DropOldestCompactor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.cli.job import JobResult
    from beam_agents.runtime.activation import AgentFunction

__all__ = ["check_runner", "configure_logging", "duration_ms", "report_failure", "run_files"]

_log = logging.getLogger(__name__)

_OPTION_OF: Final = {
    "ttl_ms": "--ttl",
    "suspension_timeout_ms": "--suspension-timeout",
    "max_future_skew_ms": "--max-future-skew",
    "activation_timeout_s": "--activation-timeout",
    "max_tokens_per_activation": "--max-tokens",
    "compactor": "--compactor",
    "provider_factory": "--provider",
    "telemetry": "--telemetry",
    "longterm_memory": "--longterm-memory",
}
"""Which option sets which field of AgentConfig."""


def run_files(
    *,
    agent: str,
    events: list[str],
    key: str,
    time: str,
    out: Path,
    row_format: RowFormat | None,
    errors: Path | None,
    intents: Path | None,
    payload: str | None,
    event_id: str | None,
    config: str | None,
    ttl: str | None,
    activation_timeout: str | None,
    suspension_timeout: str | None,
    max_future_skew: str | None,
    max_tokens: int | None,
    compactor: int | None,
    no_compactor: bool,
    provider: str | None,
    longterm_memory: str | None,
    telemetry: list[str] | None,
    runner: str,
    strict: bool,
    verbose: bool,
    beam_options: Sequence[str],
) -> None:
    """Do what ``beam-agents run`` is asked for; its arguments are the command's.

    Raises:
        typer.BadParameter: An argument is wrong.
        typer.Exit: The run failed or was interrupted, with the exit code.
    """
    said = Console(stderr=True)
    configure_logging(verbose=verbose)
    overrides = _overrides(
        {
            "ttl_ms": ("--ttl", ttl),
            "suspension_timeout_ms": ("--suspension-timeout", suspension_timeout),
            "max_future_skew_ms": ("--max-future-skew", max_future_skew),
        },
        activation_timeout=activation_timeout,
        max_tokens=max_tokens,
        compactor=compactor,
        no_compactor=no_compactor,
        provider=provider,
        telemetry=telemetry,
        longterm_memory=longterm_memory,
    )
    function = _load_agent(agent)
    errors_path = errors if errors is not None else Path(f"{out}.errors.jsonl")
    paths = {"--out": out, "--errors": errors_path} | ({"--intents": intents} if intents is not None else {})
    _check_events(events)
    _check_outputs(paths, events, errors)
    configured = _configured(config, overrides)
    check_runner(runner, beam_options, configured)
    result: JobResult | None = None
    try:
        with interruptible(), opened(events) as inputs:
            job = Job(
                agent=function,
                config=configured,
                inputs=inputs,
                row_format=row_format if row_format is not None else _format_of(events),
                fields=Fields(key, time, payload, event_id),
                out=out,
                errors=errors_path,
                intents=intents,
                runner=runner,
                options=tuple(beam_options),
            )
            _check_inputs(job)
            total_bytes = sum(Path(source.path).stat().st_size for source in inputs)
            result = run_job(job, progress_on(said, total_bytes))
    except JobFailed as failure:
        report_failure(failure, verbose=verbose)
        raise typer.Exit(1) from failure
    except (OutputError, SpoolError) as error:
        typer.echo(f"beam-agents: {error}; no output was written", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as interrupt:
        written = "the output was written" if result is not None else "no output was written"
        typer.echo(f"beam-agents: interrupted; {written}", err=True)
        raise typer.Exit(exit_code(interrupt)) from None
    _report_malformed(result)
    Console().print(result_table(job, result))
    if strict and result.errors:
        typer.echo(f"beam-agents: --strict, and there are errors: see {errors_path}", err=True)
        raise typer.Exit(1)


def configure_logging(*, verbose: bool) -> None:
    """Keep Beam's log quiet, or not."""
    # Beam logs a failure's traceback by itself; what there is to say is said at the end.
    logging.getLogger("apache_beam").setLevel(logging.INFO if verbose else logging.CRITICAL)
    if verbose:
        logging.basicConfig(level=logging.INFO)
    else:
        # What the agent's code raises may hold an event's content: no text of it is shown unasked.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
        # Prism's log, with what its workers print; Beam sets the level when it starts Prism.
        prism = logging.getLogger("PrismJobServer")
        prism.propagate = False
        prism.addHandler(logging.NullHandler())
        hide_exception_texts()


def report_failure(failure: JobFailed, *, verbose: bool) -> None:
    """Say on standard error why a pipeline failed."""
    cause = failure.__cause__
    if verbose and cause is not None:
        traceback.print_exception(cause)
    if cause is None:
        shown = ""
    elif is_full_disk(cause):
        shown = " There is no space left on the disk."
    else:
        shown = f" {class_and_place(cause)}"
    typer.echo(f"beam-agents: the pipeline failed; no output was written.{shown}", err=True)
    if not verbose:
        typer.echo("beam-agents: --verbose shows the traceback", err=True)


def _report_malformed(result: JobResult) -> None:
    for report in result.first_malformed:
        typer.echo(report, err=True)
    more = result.errors[MALFORMED_LINE] - len(result.first_malformed)
    if more:
        typer.echo(f"and {more:,} more malformed lines", err=True)


def _overrides(
    durations: dict[str, tuple[str, str | None]],
    *,
    activation_timeout: str | None,
    max_tokens: int | None,
    compactor: int | None,
    no_compactor: bool,
    provider: str | None,
    telemetry: list[str] | None,
    longterm_memory: str | None,
) -> dict[str, object]:
    """Return the fields of AgentConfig that were given on the command line."""
    given: dict[str, object] = {
        field: duration_ms(option, text) for field, (option, text) in durations.items() if text is not None
    }
    if activation_timeout is not None:
        given["activation_timeout_s"] = duration_ms("--activation-timeout", activation_timeout) / 1000
    if max_tokens is not None:
        given["max_tokens_per_activation"] = max_tokens
    if compactor is not None and no_compactor:
        raise typer.BadParameter("it goes not with --no-compactor", param_hint="--compactor")
    if no_compactor:
        given["compactor"] = None
    elif compactor is not None:
        try:
            given["compactor"] = DropOldestCompactor(target_bytes=compactor)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="--compactor") from error
    if provider is not None:
        given["provider_factory"] = _load("--provider", provider)
    if telemetry:
        given["telemetry"] = tuple(telemetry)
    if longterm_memory is not None:
        given["longterm_memory"] = uri_text(longterm_memory, "--longterm-memory")
    return given


def duration_ms(option: str, text: str) -> int:
    """Return the milliseconds of a duration that an option was given.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _configured(target: str | None, overrides: dict[str, object]) -> AgentConfig:
    base = AgentConfig() if target is None else _load("--config", target)
    if not isinstance(base, AgentConfig):
        raise typer.BadParameter(
            f"{target!r} must be an AgentConfig, not {type(base).__name__}", param_hint="--config"
        )
    # One by one, so that what is refused is known.
    for field, value in overrides.items():
        try:
            base = replace(base, **{field: value})  # type: ignore[arg-type]  # AgentConfig checks its fields itself
        except (ImportError, TypeError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint=_OPTION_OF[field]) from error
    return base


def _load(option: str, target: str) -> object:
    try:
        return load_target(target)
    except TargetError as error:
        _log.info("%s %r cannot be loaded", option, target, exc_info=error.__cause__)
        raise typer.BadParameter(str(error), param_hint=option) from error


def _load_agent(target: str) -> AgentFunction:
    function = _load("--agent", target)
    if not callable(function) or not is_async_callable(function):
        raise typer.BadParameter(
            f"{target!r} must be an async function (async def), not {type(function).__name__}",
            param_hint="--agent",
        )
    return cast("AgentFunction", function)


def _check_events(events: Sequence[str]) -> None:
    try:
        check_events(events)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--events") from error


def _check_outputs(paths: dict[str, Path], events: Sequence[str], errors: Path | None) -> None:
    taken = {os.path.realpath(name): "--events" for name in events if name != STANDARD_INPUT}
    for option, path in paths.items():
        try:
            if path.is_dir():
                raise typer.BadParameter(f"{str(path)!r} is a folder", param_hint=option)
            streamed = is_streamed(path)
        except OSError as error:
            raise typer.BadParameter(
                f"{str(path)!r} cannot be written: {os.strerror(error.errno or 0)}", param_hint=option
            ) from error
        if streamed:
            if option == "--out" and errors is None:
                raise typer.BadParameter(
                    f"give it as well: {str(path)!r} is no file that another can be beside",
                    param_hint="--errors",
                )
            if not os.access(path, os.W_OK):
                raise typer.BadParameter(f"{str(path)!r} may not be written to", param_hint=option)
            if stat.S_ISCHR(path.stat().st_mode):
                continue  # any number of outputs may go to /dev/null
        else:
            _check_folder(Path(os.path.realpath(path)).parent, option)
            _try_output(path, option)
        other = taken.setdefault(os.path.realpath(path), option)
        if other != option:
            raise typer.BadParameter(f"{str(path)!r} is the file of {other}, too", param_hint=option)


def _check_folder(parent: Path, option: str) -> None:
    if not parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(parent)!r}", param_hint=option)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"the folder {str(parent)!r} may not be written to", param_hint=option)


def _try_output(path: Path, option: str) -> None:
    try:
        with StagedFile(path):
            pass
    except OutputError as error:
        # A full disk is no wrong argument: the run says so.
        if not error.is_full:
            raise typer.BadParameter(str(error), param_hint=option) from error


def _beam_options(options: Sequence[str]) -> PipelineOptions:
    """Parse Beam's options; what its parser prints is put in one line."""
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            flags = PipelineOptions(list(options))
            flags.get_all_options()
    except SystemExit as error:
        lines = printed.getvalue().strip().splitlines() or ["they cannot be parsed"]
        raise typer.BadParameter(
            lines[-1].partition("error: ")[2] or lines[-1], param_hint="BEAM_OPTIONS"
        ) from error
    return flags


def check_runner(runner: str, options: Sequence[str], config: AgentConfig) -> None:
    """Refuse a runner that cannot be had, or cannot do what the configuration asks for, and wrong options.

    Raises:
        typer.BadParameter: That is so.
    """
    if options and not options[0].startswith("-"):
        raise typer.BadParameter(
            f"{options[0]!r} belongs to no option; give --events once for each file, "
            "and Beam's options after a --"
        )
    if any(option.split("=")[0] == "--runner" for option in options):
        raise typer.BadParameter("give it before the --", param_hint="--runner")
    flags = _beam_options(options)
    known, given = flags.get_all_options(), flags.get_all_options(retain_unknown_options=True)
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        typer.echo(f"beam-agents: Beam's Python SDK does not know {', '.join(unknown)}", err=True)
    try:
        made = create_runner(runner)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(
            f"{runner!r} cannot be had from Beam: {str(error).splitlines()[0]}", param_hint="--runner"
        ) from error
    try:
        check_portable_runner(made, flags)
    except RunnerError as error:
        raise typer.BadParameter(str(error), param_hint=f"--runner {runner}") from error
    if config.suspension_timeout_ms is not None and isinstance(made, FnApiRunner | SwitchingDirectRunner):
        raise typer.BadParameter(
            f"{runner} fires timers of processing time at once, so that every suspension would time out: "
            "give --runner=BundleBasedDirectRunner",
            param_hint="--suspension-timeout",
        )


def _format_of(events: Sequence[str]) -> RowFormat:
    formats = {RowFormat.CSV if name.lower().endswith(".csv") else RowFormat.JSONL for name in events}
    if len(formats) > 1:
        raise typer.BadParameter("the files look like both JSONL and CSV; say which", param_hint="--format")
    return formats.pop()


def _check_inputs(job: Job) -> None:
    for source in job.inputs:
        try:
            check_fields(source, job.row_format, job.fields)
        except (InputError, OSError) as error:
            raise typer.BadParameter(str(error), param_hint="--events") from error

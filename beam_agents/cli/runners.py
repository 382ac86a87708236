"""What a portable runner needs before a job can go to it, checked before any of it is begun."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PortableOptions,
    PrismRunnerOptions,
    SetupOptions,
    StandardOptions,
)
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES, FlinkRunner
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.portability.prism_runner import PrismRunner

from beam_agents.cli.sdk_worker import WORKER_PROGRAM

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import PipelineRunner

__all__ = ["RunnerError", "check_portable_runner", "keep_order"]

_CONNECT_WITHIN_S: Final = 5.0
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_STAGING: Final = ("requirements_file", "setup_file", "extra_packages", "save_main_session")


class RunnerError(Exception):
    """A runner cannot be had as it was asked for; the text says which of Beam's options is wrong, and how."""


def check_portable_runner(runner: PipelineRunner, options: PipelineOptions) -> None:
    """Check that what the options name is there: the endpoint, the binary, the master, the worker's program.

    Runners leave a job hanging whose worker cannot start.

    Args:
        runner: Any runner; one that is not portable needs nothing.
        options: Beam's options, as they were given.

    Raises:
        RunnerError: Something is missing.
    """
    if not isinstance(runner, PortableRunner):
        return
    endpoint: str | None = options.view_as(PortableOptions).job_endpoint
    if endpoint is not None:
        _check_listens("--job_endpoint", endpoint, "the runner's job server")
    elif isinstance(runner, PrismRunner):
        _check_file("--prism_location", options.view_as(PrismRunnerOptions).prism_location)
    elif isinstance(runner, FlinkRunner):
        _check_flink(options.view_as(FlinkRunnerOptions))
    else:
        raise RunnerError(
            "this runner is a job server that runs already: give --job_endpoint=HOST:PORT after the --"
        )
    if options.view_as(PortableOptions).environment_type == "PROCESS":
        _check_process(options, here=endpoint is None or _parts(endpoint)[0] in _THIS_MACHINE)


def keep_order(runner: PipelineRunner, options: PipelineOptions) -> None:
    """Have the runner process a key's rows in the order in which they are read.

    Flink sorts a batch job's rows by their keys, and those of one key come in any order
    (https://nightlies.apache.org/flink/flink-docs-release-1.19/docs/dev/datastream/execution_mode/).

    Args:
        runner: Any runner.
        options: Its options, which are changed for Flink, and for a job server, which may be Flink's.
    """
    if isinstance(runner, PortableRunner) and not isinstance(runner, PrismRunner):
        options.view_as(StandardOptions).streaming = True


def _check_process(options: PipelineOptions, *, here: bool) -> None:
    """Check what the runner starts as a worker.

    Args:
        options: Beam's options.
        here: Whether the runner starts it on this machine.
    """
    given: str | None = options.view_as(PortableOptions).environment_config
    try:
        config = json.loads(given or "")
    except ValueError:
        config = None
    command = config.get("command") if isinstance(config, dict) else None
    if not isinstance(command, str) or not command:
        raise RunnerError(
            f'--environment_config: {given!r} is not {{"command": "/path/to/beam-agents-worker"}}, which '
            "--environment_type=PROCESS needs"
        )
    if here and shutil.which(command) is None:
        raise RunnerError(f"--environment_config: there is no program {command!r} to start workers with")
    setup = options.view_as(SetupOptions)
    staging = [f"--{name}" for name in _STAGING if getattr(setup, name)]
    if Path(command).name == WORKER_PROGRAM and staging:
        raise RunnerError(
            f"{', '.join(staging)}: {WORKER_PROGRAM} installs nothing; install it on the workers' host"
        )


def _check_flink(options: FlinkRunnerOptions) -> None:
    if not options.flink_submit_uber_jar or options.flink_master in MAGIC_HOST_NAMES:
        if shutil.which("java") is None:
            raise RunnerError(
                "Beam's job server for Flink runs on Java, and there is no java on the PATH: install one, or "
                "give --job_endpoint=HOST:PORT of a job server that runs already"
            )
        _check_file("--flink_job_server_jar", options.flink_job_server_jar)
    if options.flink_master not in MAGIC_HOST_NAMES:
        _check_listens("--flink_master", options.flink_master, "Flink's REST API")


def _check_file(option: str, path: str | None) -> None:
    """Check a file that an option names; a URL is Beam's to load."""
    if path is not None and "://" not in path and not Path(path).is_file():
        raise RunnerError(f"{option}: there is no file {path!r}")


def _check_listens(option: str, endpoint: str, what: str) -> None:
    host, port = _parts(endpoint)
    if host is None or port is None:
        raise RunnerError(f"{option}: {endpoint!r} is not HOST:PORT")
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_WITHIN_S):
            pass
    except OSError as error:
        raise RunnerError(
            f"{option}: nothing answers at {endpoint!r} ({error.strerror or type(error).__name__}); "
            f"{what} must run before the job is submitted"
        ) from error


def _parts(endpoint: str) -> tuple[str | None, int | None]:
    """Return host and port of HOST:PORT or of a URL; None for what it does not have."""
    parts = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
    try:
        return parts.hostname, parts.port
    except ValueError:
        return None, None

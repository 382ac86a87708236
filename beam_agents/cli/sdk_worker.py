"""``beam-agents-worker``: one SDK worker as a process of its own, as any portable runner starts one.

A runner with ``--environment_type=PROCESS`` starts the command with ``--id`` and ``--provision_endpoint``,
once for each worker that it wants on the host. The rest is asked of the runner.

The process that the runner knows is a small one, whose child does the work. Runners end workers with SIGKILL
(Prism at the end of each job, Flink when a worker does not end in time), which nobody can answer; the child
is told by SIGTERM that its parent is gone, flushes its telemetry, takes its file of scrape targets away, and
ends.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    import grpc
    from apache_beam.portability.api.beam_provision_api_pb2 import ProvisionInfo

__all__ = ["PROVISION_WITHIN_S", "WORKER_PROGRAM", "main", "provided"]

WORKER_PROGRAM: Final = "beam-agents-worker"
"""The name under which it is installed."""
PATIENCE_S: Final = 8.0
"""How long the child may take to end after SIGTERM: longer than its telemetry takes at the most."""
CONNECTION_ENDS_WITHIN_S: Final = 1.0
"""How long the runner may take to find that a killed child's connection is closed."""
PROVISION_WITHIN_S: Final = 60.0
"""How long the runner may take to say what it provides."""
_PR_SET_PDEATHSIG: Final = 1
_PARENT: Final = "BEAM_AGENTS_WORKER_PARENT"
"""The variable that tells the child that it is one, and whose."""
_SUBMISSION_LIST: Final = "submission_environment_dependencies.txt"
"""A list of what was installed where the job was submitted, which Beam stages for information."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one worker until the runner, or a signal, ends it; the entry point of ``beam-agents-worker``.

    Raises:
        SystemExit: With the exit code of the worker; 2 where an argument is wrong.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(given)
    parent = os.environ.pop(_PARENT, None)
    if parent is None:
        sys.exit(_supervise(given))
    _end_with(int(parent))
    _work(options)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=WORKER_PROGRAM, description="Runs one SDK worker of a Beam runner.")
    # Prism puts the id in quotes, which no shell takes away.
    parser.add_argument("--id", required=True, type=lambda text: text.strip("'"), help="the worker's id")
    parser.add_argument(
        "--provision_endpoint", required=True, metavar="HOST:PORT", help="where to ask for the rest"
    )
    # Some runners give these as well; the provision service names them, too.
    for name in ("logging", "artifact", "control"):
        parser.add_argument(
            f"--{name}_endpoint", default="", metavar="HOST:PORT", help="instead of the one provided"
        )
    return parser.parse_args(arguments)


def _supervise(arguments: Sequence[str]) -> int:
    """Run the child, hand signals on to it, and return its exit code."""
    child = subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-m", "beam_agents.cli.sdk_worker", *arguments],
        env={**os.environ, _PARENT: str(os.getpid())},
    )

    def hand_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)
        # One that hangs is not left behind; a runner does not wait for ever, either.
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)

    def lose_patience(_number: int, _frame: FrameType | None) -> None:
        child.kill()

    signal.signal(signal.SIGALRM, lose_patience)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    code = child.wait()
    if code >= 0:
        return code
    # Prism fails a worker's job when it finds the connection closed, and leaves it hanging when it is told
    # first that the process has ended.
    time.sleep(CONNECTION_ENDS_WITHIN_S)
    # As a shell has it: 128 and the number of the signal.
    return 128 - code


def _end_with(parent: int) -> None:
    """Have the system send this process SIGTERM when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)


def _work(options: argparse.Namespace) -> None:
    """Ask the runner what it provides, and be its worker until it closes the control connection."""
    # Beam reads it when it is imported.
    os.environ["WORKER_ID"] = options.id
    from apache_beam.runners.worker import sdk_worker_main  # noqa: PLC0415 - the parent does without

    from beam_agents.signals.hub import watch_from_start  # noqa: PLC0415 - the parent does without

    watch_from_start()
    info = provided(options.id, options.provision_endpoint)
    control = options.control_endpoint or info.control_endpoint.url
    if staged := _staged(info):
        why = (
            f"{WORKER_PROGRAM}: the job stages {', '.join(staged)}, which a worker that is a process does "
            "not install: install it on the worker's host, and leave out --requirements_file, --setup_file, "
            "--extra_package and --save_main_session"
        )
        _refuse_work(options.id, control, why)
        sys.exit(why)
    os.environ.update(_environment(options.logging_endpoint, control, info))
    sdk_worker_main.main([])


def provided(worker_id: str, endpoint: str, within_s: float = PROVISION_WITHIN_S) -> ProvisionInfo:
    """Ask the runner what a worker is to work on.

    Args:
        worker_id: The worker's id, as the runner gave it.
        endpoint: HOST:PORT of the runner's provision service, which may come up while this waits.
        within_s: How long.

    Raises:
        SystemExit: It did not answer.
    """
    import grpc  # noqa: PLC0415 - the parent does without
    from apache_beam.portability.api import beam_provision_api_pb2 as messages  # noqa: PLC0415 - the parent does without
    from apache_beam.portability.api import beam_provision_api_pb2_grpc as services  # noqa: PLC0415 - the parent does without

    request = messages.GetProvisionInfoRequest()
    with _channel(worker_id, endpoint) as channel:
        stub = services.ProvisionServiceStub(channel)
        try:
            return stub.GetProvisionInfo(request, timeout=within_s, wait_for_ready=True).info
        except grpc.RpcError as error:
            sys.exit(
                f"{WORKER_PROGRAM}: the runner's provision service at {endpoint!r} does not answer "
                f"({error.code().name})"
            )


@contextmanager
def _channel(worker_id: str, endpoint: str) -> Iterator[grpc.Channel]:
    """Open a channel that tells the runner which worker calls."""
    import grpc  # noqa: PLC0415 - the parent does without
    from apache_beam.runners.worker.worker_id_interceptor import WorkerIdInterceptor  # noqa: PLC0415 - the parent does without

    with grpc.insecure_channel(endpoint) as channel:
        yield grpc.intercept_channel(channel, WorkerIdInterceptor(worker_id))


def _staged(info: ProvisionInfo) -> list[str]:
    """Return the names of what the job brings; a process takes what is installed on its host."""
    from apache_beam.portability.api import beam_runner_api_pb2 as messages  # noqa: PLC0415 - the parent does without

    roles = (
        messages.ArtifactStagingToRolePayload.FromString(dependency.role_payload)
        for dependency in info.dependencies
    )
    return sorted({role.staged_name for role in roles} - {_SUBMISSION_LIST})


def _refuse_work(worker_id: str, endpoint: str, why: str) -> None:
    """Answer whatever the runner asks for with an error, until it has failed the job and hangs up.

    A worker that only ended would leave the job hanging on a runner that waits for it, as Prism does.
    """
    import grpc  # noqa: PLC0415 - the parent does without
    from apache_beam.portability.api import beam_fn_api_pb2 as messages  # noqa: PLC0415 - the parent does without
    from apache_beam.portability.api import beam_fn_api_pb2_grpc as services  # noqa: PLC0415 - the parent does without

    answers: SimpleQueue[messages.InstructionResponse] = SimpleQueue()
    with _channel(worker_id, endpoint) as channel, suppress(grpc.RpcError):
        for request in services.BeamFnControlStub(channel).Control(iter(answers.get, None)):
            answers.put(messages.InstructionResponse(instruction_id=request.instruction_id, error=why))


def _environment(logging_url: str, control_url: str, info: ProvisionInfo) -> dict[str, str]:
    """Return the variables that Beam's own worker reads, as its container's start program sets them."""
    from apache_beam.portability.api import endpoints_pb2  # noqa: PLC0415 - the parent does without
    from google.protobuf import json_format, text_format  # noqa: PLC0415 - the parent does without

    logging = endpoints_pb2.ApiServiceDescriptor(url=logging_url or info.logging_endpoint.url)
    control = endpoints_pb2.ApiServiceDescriptor(url=control_url)
    environment = {
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "LOGGING_API_SERVICE_DESCRIPTOR": text_format.MessageToString(logging),
        "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(control),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    if info.status_endpoint.url:
        environment["STATUS_API_SERVICE_DESCRIPTOR"] = text_format.MessageToString(info.status_endpoint)
    return environment


if __name__ == "__main__":
    main()

"""Servers as child processes: on loopback, on a free port, ready before they are used, stopped and reaped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator, Mapping, Sequence

READY_WITHIN_S = 60.0


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Tell whether something listens on a port of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(
    condition: Callable[[], bool], what: str = "the condition came true", within_s: float = READY_WITHIN_S
) -> None:
    """Wait for a condition to come true.

    Args:
        condition: Asked again and again.
        what: What it means, for the failure's text.
        within_s: How long to wait.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"it never came to be that {what}"
        time.sleep(0.01)


def is_ready(url: str) -> bool:
    """Tell whether a server of the Prometheus family says that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as response:  # noqa: S310 - our own server
            return bool(response.status == 200)
    except OSError:
        return False


def in_ci() -> bool:
    """Tell whether this is CI, where nothing may be skipped."""
    return os.environ.get("CI") == "true"


def absent(what: str) -> NoReturn:
    """Skip the test because a server is not installed; in CI, fail it."""
    unavailable(f"{what} is not installed")


def unavailable(why: str) -> NoReturn:
    """Skip the test because this machine can't do what it needs; in CI, fail it."""
    if in_ci():
        pytest.fail(f"{why}, and in CI nothing may be skipped")
    pytest.skip(why)


@contextmanager
def server(
    command: Sequence[str],
    ready: Callable[[], bool],
    log: pathlib.Path,
    *,
    environment: Mapping[str, str] | None = None,
    stop_signal: int = signal.SIGTERM,
    user: str | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server while the block runs.

    Args:
        command: What starts it, in the foreground.
        ready: Tells whether it answers.
        log: Where its output goes; shown if it does not come up.
        environment: Variables beside this process's own.
        stop_signal: What ends it in good order.
        user: Who it runs as; this process's user by default.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **(environment or {})}, user=user
        )
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} did not come up:\n{log.read_text(errors='replace')[-2_000:]}")
            time.sleep(0.02)
        yield process
    finally:
        stop(process, stop_signal)


def stop(process: subprocess.Popen[bytes], stop_signal: int = signal.SIGTERM) -> None:
    """End a process and reap it, whatever state it is in."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.send_signal(stop_signal)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()

"""What tests of all servers share: waiting, and what is to be done where a server is missing."""

from __future__ import annotations

import os
import pathlib
import socket
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from beam_agents.demo.outage.servers import READY_WITHIN_S, free_port, server, stop

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "READY_WITHIN_S",
    "absent",
    "accepts",
    "free_port",
    "in_ci",
    "parent_of",
    "server",
    "stop",
    "unavailable",
    "wait_until",
]


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


def parent_of(pid: int) -> int:
    """Return the process that has started a process, on Linux.

    Raises:
        OSError: It has ended. No number stands for that: to kill process 0 is to kill one's own group.
    """
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


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

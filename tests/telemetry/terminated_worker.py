"""A process of a test that is sent SIGTERM while its agent is up and its telemetry has something to send.

Arguments: who handles SIGTERM, where the agent runs, a receiver's endpoint, and a folder for log and target.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.signals import termination
from beam_agents.testing import AgentHarness, event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import FrameType

came = threading.Event()


def tell(what: str) -> None:
    print(what, flush=True)  # noqa: T201 - tells the test


async def agent(_: AgentContext) -> Complete:
    raise ValueError


def config(endpoint: str, folder: str) -> AgentConfig:
    """Have everything wait for the end: the last spans, and the count of lines that were held back."""
    return AgentConfig(
        telemetry=[
            f"logs?file={folder}/log&repeats=1&window_s=3600",
            f"otlp?endpoint={endpoint}&batch_delay_s=60&metrics_period_s=3600",
            f"prometheus?port=0&sd_dir={folder}",
        ]
    )


def work(endpoint: str, folder: str, late: Callable[[], object] = lambda: None) -> None:
    with AgentHarness(agent, config(endpoint, folder)) as harness:
        late()
        for number in range(3):
            harness.send(event(b"ada", time_ms=number + 1))
        tell(f"ready {os.getpid()}")
        while not came.wait(0.01):
            pass


async def waits(ctx: AgentContext) -> Complete:
    await asyncio.sleep(0)
    if ctx.event == b"stay":
        tell(f"ready {os.getpid()}")
        await asyncio.sleep(600)
    return Complete()


async def computes(ctx: AgentContext) -> Complete:
    if ctx.event == b"stay":
        tell(f"ready {os.getpid()}")
        while not came.is_set():
            pass
    return Complete()


def in_activation(
    activation: Callable[[AgentContext], Awaitable[Complete]], endpoint: str, folder: str
) -> None:
    """Be in the middle of an activation; those before tell whether such begin on this thread."""
    with AgentHarness(activation, config(endpoint, folder)) as harness:
        for number, what in enumerate((b"go", b"go", b"stay"), 1):
            harness.send(event(b"ada", what, time_ms=number))


def leave(_number: int, _frame: FrameType | None) -> None:
    tell("handled")
    sys.exit(7)


def note(_number: int, _frame: FrameType | None) -> None:
    tell("handled")
    came.set()


def chain() -> None:
    """Install a handler that calls the one that was there."""
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: FrameType | None) -> None:
        tell("handled")
        if callable(before):
            before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)


def in_thread(endpoint: str, folder: str) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def installed() -> None:
        """Wait until the main thread has installed what another thread asked it for."""
        while signal.getsignal(signal.SIGTERM) is before:
            time.sleep(0.01)

    thread = threading.Thread(target=work, args=(endpoint, folder, installed), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)


def in_fork(endpoint: str, folder: str) -> None:
    """Fork where the parent has been up and is still: the child has its own telemetry."""
    with AgentHarness(agent, config("http://127.0.0.1:9", folder)):
        child = os.fork()
        if child == 0:
            work(endpoint, folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    tell(f"child {os.waitstatus_to_exitcode(status)}")


def in_child_that_fails(endpoint: str, folder: str) -> None:
    """Leave the agent as a runner leaves it whose pipeline fails."""
    child = multiprocessing.get_context("fork").Process(target=fail, args=(endpoint, folder))
    child.start()
    child.join()
    tell(f"child {child.exitcode}")


def fail(endpoint: str, folder: str) -> None:
    harness = AgentHarness(agent, config(endpoint, folder))
    harness.__enter__()
    for number in range(3):
        harness.send(event(b"ada", time_ms=number + 1))
    tell(f"ready {os.getpid()}")
    raise ValueError


def in_multiprocessing(endpoint: str, folder: str) -> None:
    with AgentHarness(agent, config("http://127.0.0.1:9", folder)):
        child = multiprocessing.get_context("fork").Process(target=work, args=(endpoint, folder))
        child.start()
        child.join()
    tell(f"child {child.exitcode}")


def main(who: str, where: str, endpoint: str, folder: str) -> None:
    if who == "ignored":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if who == "leaves":
        signal.signal(signal.SIGTERM, leave)
    if who == "notes":
        signal.signal(signal.SIGTERM, note)
    if who == "chains between":
        with AgentHarness(agent, config("http://127.0.0.1:9", folder)):
            chain()
    if who.endswith("in a hurry"):
        # As where telemetry takes longer than the main thread waits for it.
        termination.PATIENCE_S = 0.0  # type: ignore[misc]  # for this
    late = {
        "leaves later": lambda: signal.signal(signal.SIGTERM, leave),
        "chains later": chain,
        "chains later, in a hurry": chain,
    }.get(who)
    if late is not None:
        work(endpoint, folder, late)
    else:
        {
            "main": work,
            "thread": in_thread,
            "fork": in_fork,
            "multiprocessing": in_multiprocessing,
            "child that fails": in_child_that_fails,
            "activation that waits": partial(in_activation, waits),
            "activation that computes": partial(in_activation, computes),
        }[where](endpoint, folder)
    tell("end")


if __name__ == "__main__":
    main(*sys.argv[1:])

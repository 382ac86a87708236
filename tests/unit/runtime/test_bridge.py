from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time

import pytest

from beam_agents.runtime import bridge as module
from beam_agents.runtime.bridge import AsyncBridge, DeadlineExceeded, on_loop_thread, shared_bridge


@pytest.fixture
def bridge() -> object:
    made = AsyncBridge()
    yield made
    made.close()


def test_a_coroutine_that_waits_for_nothing_stays_on_the_calling_thread(bridge: AsyncBridge) -> None:
    async def where() -> tuple[int, asyncio.AbstractEventLoop, str]:
        task = asyncio.current_task()
        assert task is not None
        return threading.get_ident(), asyncio.get_running_loop(), task.get_name()

    ident, loop, _ = bridge.run(where())
    assert ident == threading.get_ident()
    assert loop is bridge.loop


def test_what_waits_goes_on_on_the_loops_thread(bridge: AsyncBridge) -> None:
    async def where() -> tuple[int, int]:
        before = threading.get_ident()
        await asyncio.sleep(0)
        return before, threading.get_ident()

    before, after = bridge.run(where())
    assert before == threading.get_ident() != after


def test_results_and_exceptions_come_back(bridge: AsyncBridge) -> None:
    async def fails(*, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise LookupError

    for waits in (False, True):
        with pytest.raises(LookupError):
            bridge.run(fails(waits=waits))


def test_tasks_that_a_coroutine_starts_run(bridge: AsyncBridge) -> None:
    ran = threading.Event()

    async def child() -> None:
        await asyncio.sleep(0)
        ran.set()

    async def parent() -> asyncio.Task[None]:
        return asyncio.create_task(child())

    task = bridge.run(parent())
    assert ran.wait(10)
    del task


def test_gather_timeouts_and_locks_work_in_it(bridge: AsyncBridge) -> None:
    async def work() -> list[int]:
        lock = asyncio.Lock()

        async def one(number: int) -> int:
            async with lock, asyncio.timeout(10):
                await asyncio.sleep(0.001)
                return number

        return list(await asyncio.gather(*(one(number) for number in range(10))))

    assert bridge.run(work()) == list(range(10))


def test_the_callers_context_variables_are_seen(bridge: AsyncBridge) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")

    async def read() -> str:
        await asyncio.sleep(0)
        return variable.get()

    assert bridge.run(read()) == "set"


def test_what_takes_too_long_is_cancelled(bridge: AsyncBridge) -> None:
    cleaned = threading.Event()

    async def sleeps() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            cleaned.set()

    with pytest.raises(DeadlineExceeded, match="was cancelled"):
        bridge.run(sleeps(), 0.02)
    assert cleaned.is_set()


def test_what_ignores_its_cancellation_is_left_behind(
    bridge: AsyncBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANCEL_GRACE_S", 0.02)
    release = threading.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                continue
        raise LookupError

    with pytest.raises(DeadlineExceeded, match="left behind"):
        bridge.run(stubborn(), 0.02)
    release.set()
    assert bridge.run(asyncio.sleep(0.01, "alive")) == "alive"


def test_what_blocks_past_its_bound_fails_when_it_ends(bridge: AsyncBridge) -> None:
    async def blocks() -> str:
        time.sleep(0.05)  # noqa: ASYNC251 - the fault
        return "too late"

    with pytest.raises(DeadlineExceeded, match="blocked its thread"):
        bridge.run(blocks(), 0.01)


def test_a_blocked_loop_is_told_to_who_waits_for_it(
    bridge: AsyncBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_AFTER_S", 0.01)
    blocking, release = threading.Event(), threading.Event()

    async def blocks() -> None:
        await asyncio.sleep(0)
        blocking.set()
        release.wait(10)

    stalls: list[str] = []
    future = bridge.submit(blocks())
    assert blocking.wait(10)
    threading.Timer(0.05, release.set).start()
    assert bridge.run(asyncio.sleep(0, "done"), on_stall=lambda: stalls.append("stalled")) == "done"
    assert stalls == ["stalled"]
    future.result(10)


def test_many_threads_share_the_loop(bridge: AsyncBridge) -> None:
    counter = 0

    async def add(number: int) -> int:
        nonlocal counter
        # Between two waits nothing else of the loop runs: no update is lost without a lock.
        seen = counter
        counter = seen + 1
        if number % 3 == 0:
            await asyncio.sleep(0)
        return number

    def work(results: list[int]) -> None:
        results.extend(bridge.run(add(number)) for number in range(500))

    results: list[list[int]] = [[] for _ in range(8)]
    threads = [threading.Thread(target=work, args=(each,)) for each in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each == list(range(500)) for each in results)
    assert counter == 4_000


def test_running_on_the_loop_itself_is_refused(bridge: AsyncBridge) -> None:
    async def inner() -> None:
        bridge.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="await it"):
        bridge.run(inner())


def test_a_thread_with_a_loop_of_its_own_may_use_it(bridge: AsyncBridge) -> None:
    async def outer() -> str:
        return bridge.run(asyncio.sleep(0, "inner"))

    assert asyncio.run(outer()) == "inner"


def test_close_cancels_what_runs_and_ends_the_thread() -> None:
    bridge = AsyncBridge()
    future = bridge.submit(asyncio.sleep(3_600))
    bridge.close()
    assert bridge.closed
    assert future.cancelled()
    bridge.close()


def test_one_bridge_serves_a_process_and_a_fork_has_its_own() -> None:
    assert shared_bridge() is shared_bridge()
    # In a process of its own: the test run has threads that must not be forked.
    program = """
import asyncio, os
from beam_agents.runtime.bridge import shared_bridge
parent = shared_bridge()
assert parent.run(asyncio.sleep(0.001, "parent")) == "parent"
child = os.fork()
if child == 0:
    bridge = shared_bridge()
    ok = bridge is not parent and bridge.run(asyncio.sleep(0.001, "child")) == "child"
    os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert parent.run(asyncio.sleep(0.001, "parent")) == "parent"
"""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


def test_a_coroutine_may_start_on_the_loops_thread(bridge: AsyncBridge) -> None:
    async def where() -> tuple[int, int]:
        before = threading.get_ident()
        await asyncio.sleep(0)
        return before, threading.get_ident()

    before, after = bridge.run(where(), inline=False)
    assert before == after != threading.get_ident()
    with pytest.raises(LookupError):
        bridge.run(fails_at_once(), inline=False)
    with pytest.raises(DeadlineExceeded):
        bridge.run(asyncio.sleep(3_600), 0.01, inline=False)


async def fails_at_once() -> None:
    raise LookupError


@pytest.mark.parametrize("inline", [True, False])
def test_how_the_first_step_ended_is_told(bridge: AsyncBridge, inline: bool) -> None:  # noqa: FBT001 - a parameter
    told: list[bool] = []
    bridge.run(asyncio.sleep(0), inline=inline, on_first_step=told.append)

    async def at_once() -> None:
        pass

    bridge.run(at_once(), inline=inline, on_first_step=told.append)
    assert told == [False, True]


def test_a_coroutine_can_go_on_on_the_loops_thread(bridge: AsyncBridge) -> None:
    async def where() -> tuple[int, int]:
        before = threading.get_ident()
        await on_loop_thread()
        return before, threading.get_ident()

    before, after = bridge.run(where())
    assert before == threading.get_ident() != after
    before, after = bridge.run(where(), inline=False)
    assert before == after
    assert asyncio.run(where())[0] == threading.get_ident()


def test_a_loop_that_is_blocked_when_a_coroutine_is_to_start_there_is_told(
    bridge: AsyncBridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_AFTER_S", 0.01)
    release = threading.Event()
    bridge.loop.call_soon_threadsafe(release.wait, 10)
    threading.Timer(0.05, release.set).start()
    stalls: list[str] = []
    assert (
        bridge.run(asyncio.sleep(0, "done"), on_stall=lambda: stalls.append("stalled"), inline=False)
        == "done"
    )
    assert stalls == ["stalled"]

"""What both Google Cloud stores do when their server fails, and with their clients."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from beam_agents.errors import StoreError, StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores import google_cloud
from beam_agents.memory.stores.contract import MemoryStore, StoreRow, encode_record
from beam_agents.memory.stores.google_cloud import ErrorTexts, worst
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import AsyncBridge
from beam_agents.signals.types import UpsertResult
from tests.servers import bigtable, firestore
from tests.servers.half_open import half_open_proxy
from tests.servers.process import accepts, free_port

if TYPE_CHECKING:
    import pathlib

Run = Callable[..., Any]

BACKENDS = {
    "bigtable": (bigtable.emulator, bigtable.EMULATOR_HOST, "bigtable://beam-agents-tests/instance/faults"),
    "firestore": (firestore.emulator, firestore.EMULATOR_HOST, "firestore://beam-agents-tests/faults"),
}
SHORT = "?operation_timeout_s=0.7"
LONG = "?operation_timeout_s=60"
"""Where no timeout is wanted: an emulator answers slowly at first, or beside other tests."""


def row(key: str, seq: int = 1, value: bytes = b"value") -> StoreRow:
    return StoreRow(b"entity", key, seq, encode_record(value, seq, seq), seq)


class Emulator:
    """An emulator that can be stopped, killed and started again at the same port."""

    def __init__(self, backend: str, folder: pathlib.Path) -> None:
        self._emulator, self.variable, self.uri = BACKENDS[backend]
        self._folder = folder
        self._running = ExitStack()
        self.port = free_port()
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        self.process = self._running.enter_context(self._emulator(self._folder, self.port))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        # Until all of its threads have stopped.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="module", params=BACKENDS)
def shared_emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulator]:
    emulator = Emulator(request.param, tmp_path_factory.mktemp(request.param))
    emulator.start()
    yield emulator
    emulator.close()


@pytest.fixture
def emulator(shared_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """An emulator that is up, and that this process's clients find."""
    if not accepts(shared_emulator.port):
        shared_emulator.start()
    monkeypatch.setenv(shared_emulator.variable, f"127.0.0.1:{shared_emulator.port}")
    return shared_emulator


@pytest.fixture
def opened(emulator: Emulator, run: Run) -> Iterator[Callable[..., MemoryStore]]:
    """Open provisioned stores, with the query that is given, and close them at the end."""
    stores: list[MemoryStore] = []

    def open_provisioned(query: str = LONG) -> MemoryStore:
        store = open_store(emulator.uri + query)
        run(open_admin(store).provision())
        stores.append(store)
        return store

    yield open_provisioned
    for store in stores:
        run(store.close())


async def until_it_answers(call: Callable[[], Any]) -> Any:
    """Call until it is answered: a channel may be backing off, an emulator slow."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except (StoreUnavailable, StoreTimeout):
                await asyncio.sleep(0.02)


def calls(store: MemoryStore) -> list[Callable[[], Any]]:
    return [
        lambda: store.load(b"entity", "k"),
        lambda: store.search(b"entity", "", 10),
        lambda: store.save_many([row("k", 5)]),
        lambda: store.save_many([row(f"k{index}", 5) for index in range(40)]),
        store.ping,
    ]


def test_a_frozen_server_is_a_timeout_and_then_it_goes_on(
    emulator: Emulator, opened: Callable[..., MemoryStore], run: Run
) -> None:
    patient, store = opened(), opened(SHORT)
    assert run(patient.save_many([row("frozen", 3)])) == [UpsertResult.APPLIED]
    run(until_it_answers(store.ping))
    emulator.freeze()
    try:
        for call in calls(store):
            with pytest.raises(StoreTimeout) as caught:
                run(call())
            assert caught.value.backend == store.backend
            assert caught.value.cause_type
    finally:
        emulator.process.send_signal(signal.SIGCONT)
    assert run(until_it_answers(lambda: store.save_many([row("k", 6)]))) == [UpsertResult.APPLIED]
    # A write that timed out may have been made, but never over a newer one.
    assert run(patient.load(b"entity", "k")) == row("k", 6)
    assert run(patient.load(b"entity", "frozen")) == row("frozen", 3)


def test_a_killed_server_is_unavailable_and_the_same_store_finds_the_next_one(
    emulator: Emulator, opened: Callable[..., MemoryStore], run: Run
) -> None:
    store = opened()
    run(store.save_many([row("k", 1)]))
    emulator.kill()
    for call in calls(store):
        with pytest.raises(StoreUnavailable) as caught:
            run(call())
        assert caught.value.cause_type
    emulator.start()
    # An emulator forgets its rows, and Bigtable's its tables.
    run(open_admin(store).provision())
    run(until_it_answers(store.ping))
    assert run(store.save_many([row("k", 1)])) == [UpsertResult.APPLIED]
    assert run(store.load(b"entity", "k")) == row("k", 1)


def test_a_half_open_connection_is_thrown_away_after_one_timeout(
    emulator: Emulator, opened: Callable[..., MemoryStore], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = opened()
    run(direct.save_many([row("half", 4)]))
    with half_open_proxy(emulator.port) as proxy:
        monkeypatch.setenv(emulator.variable, f"127.0.0.1:{proxy.port}")
        store = open_store(emulator.uri + "?operation_timeout_s=5")
        assert run(until_it_answers(lambda: store.load(b"entity", "half"))) == row("half", 4)
        before = proxy.connections
        proxy.silence()

        async def several() -> list[object]:
            return await asyncio.gather(
                *(store.load(b"entity", "half") for _ in range(5)), return_exceptions=True
            )

        assert {type(outcome) for outcome in run(several())} == {StoreTimeout}
        assert run(store.load(b"entity", "half")) == row("half", 4)
        assert proxy.connections > before
        run(store.close())


def test_no_task_and_no_socket_is_left_after_close(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = AsyncBridge()

    async def others() -> set[str]:
        return {repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    with half_open_proxy(emulator.port) as proxy:
        monkeypatch.setenv(emulator.variable, f"127.0.0.1:{proxy.port}")
        store = open_store(emulator.uri + LONG)
        bridge.run(open_admin(store).provision(), 60)
        bridge.run(store.save_many([row(f"k{index}") for index in range(50)]), 60)
        bridge.run(store.search(b"entity", "", 10), 60)
        assert proxy.open
        bridge.run(store.close(), 60)
        bridge.run(store.close(), 60)

        async def until_released() -> None:
            # gRPC closes sockets on threads of its own.
            async with asyncio.timeout(30):
                while proxy.open:  # noqa: ASYNC110 - no event tells it
                    await asyncio.sleep(0.01)

        bridge.run(until_released(), 60)
        assert bridge.run(others(), 60) == set()
    bridge.close()


def test_another_loop_gets_a_client_of_its_own(opened: Callable[..., MemoryStore], run: Run) -> None:
    store = opened()
    run(store.save_many([row("loops", 2)]))
    second = AsyncBridge()
    assert second.run(store.load(b"entity", "loops"), 60) == row("loops", 2)
    second.run(store.close(), 60)
    second.close()


def in_a_child(work: Callable[[AsyncBridge], str]) -> str:
    """Run something in a forked child, and return what it returned; a child that hangs is killed."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Later versions of Python warn of a fork beside threads, which is the point.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        answer = "nothing"
        try:
            answer = work(AsyncBridge())
        except BaseException as error:  # noqa: BLE001 - the parent tells
            answer = repr(error)
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    watchdog = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
    watchdog.start()
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    watchdog.cancel()
    return answer


def test_a_child_of_a_process_that_used_grpc_is_told_so_at_once(
    opened: Callable[..., MemoryStore], run: Run
) -> None:
    store = opened()
    run(store.save_many([row("fork", 2)]))

    def work(bridge: AsyncBridge) -> str:
        try:
            bridge.run(store.load(b"entity", "fork"), 50)
        except StoreRejected as error:
            bridge.run(store.close(), 50)
            return error.problem
        return "it worked"

    assert in_a_child(work) == google_cloud._FORK_PROBLEM
    assert run(store.load(b"entity", "fork")) == row("fork", 2)


FORKING_PROGRAM = """
import os, sys
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import AsyncBridge

def use(store):
    bridge = AsyncBridge()
    row = StoreRow(b"entity", "child", 2, encode_record(b"v", 2, 2), 2)
    bridge.run(open_admin(store).provision(), 50)
    bridge.run(store.save_many([row]), 50)
    same = bridge.run(store.load(b"entity", "child"), 50) == row
    bridge.run(store.close(), 50)
    bridge.close()
    return same

store = open_store(sys.argv[1])
pid = os.fork()
if pid == 0:
    os._exit(0 if use(store) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_store_that_was_opened_before_a_fork_and_used_after_it_works(emulator: Emulator) -> None:
    """In a process of its own: this one has used gRPC in other tests."""
    command = [sys.executable, "-W", "ignore", "-c", FORKING_PROGRAM, emulator.uri + LONG]
    done = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_missing_credentials_are_named(
    backend: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    _, variable, uri = BACKENDS[backend]
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    store = open_store(uri)
    for call in calls(store):
        with pytest.raises(StoreRejected, match="Application Default Credentials") as caught:
            run(call())
        assert str(tmp_path) not in str(caught.value)
    run(store.close())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_search_for_credentials_that_does_not_end_is_given_up(
    backend: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, variable, uri = BACKENDS[backend]
    monkeypatch.delenv(variable, raising=False)
    found = threading.Event()

    def search() -> None:
        found.wait(60)
        raise auth.DefaultCredentialsError

    monkeypatch.setattr(google_cloud, "_default_credentials", search)
    store = open_store(uri + SHORT)
    with pytest.raises(StoreRejected, match="Application Default Credentials"):
        run(store.ping())
    found.set()
    run(store.close())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (api.ServiceUnavailable("secret"), StoreUnavailable),
        (api.TooManyRequests("secret"), StoreUnavailable),
        (api.InternalServerError("secret"), StoreUnavailable),
        (api.Aborted("secret"), StoreUnavailable),
        (api.RetryError("secret", ValueError("secret")), StoreUnavailable),
        (ConnectionRefusedError("secret"), StoreUnavailable),
        (auth.TransportError("secret"), StoreUnavailable),
        (api.DeadlineExceeded("secret"), StoreTimeout),
        (TimeoutError("secret"), StoreTimeout),
        (api.NotFound("secret"), StoreRejected),
        (api.PermissionDenied("secret"), StoreRejected),
        (api.Unauthenticated("secret"), StoreRejected),
        (api.InvalidArgument("secret"), StoreRejected),
        (api.FailedPrecondition("secret"), StoreRejected),
        (auth.RefreshError("secret"), StoreRejected),
    ],
)
def test_errors_are_told_by_type_and_without_their_text(
    raised: Exception, expected: type[StoreError]
) -> None:
    texts = ErrorTexts("bigtable", {api.ClientError: "a problem"})
    error = texts.translate(raised, "load")
    assert type(error) is expected
    assert error.cause_type == type(raised).__name__
    assert "secret" not in str(error)
    if isinstance(raised, api.ClientError) and isinstance(error, StoreRejected):
        assert error.problem == "a problem"


def test_of_several_errors_the_one_that_no_retry_mends_is_raised() -> None:
    transient, lasting = StoreTimeout("bigtable", "flush"), StoreRejected("bigtable", "flush")
    assert worst([transient, lasting]) is lasting
    assert worst([transient]) is transient

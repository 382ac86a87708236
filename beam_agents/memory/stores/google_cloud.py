"""What the two Google Cloud stores share: the client's life, deadlines, credentials, and errors by type."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import google.auth
import grpc
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from beam_agents.errors import StoreError, StoreRejected, StoreTimeout, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from google.auth.credentials import Credentials

__all__ = ["FAILURES", "ClientSlot", "ErrorTexts", "claim_grpc", "deadline", "find_credentials", "worst"]

C = TypeVar("C")

CLOSE_WITHIN_S: Final = 2.0
"""How long closing a client may take before it is left to the garbage collector."""

_UNAVAILABLE: Final = (
    api.ServiceUnavailable,
    api.InternalServerError,
    api.BadGateway,
    api.TooManyRequests,
    api.Aborted,
    api.Cancelled,
    api.RetryError,
    auth.TransportError,
    OSError,
)
_TIMEOUT: Final = (api.GatewayTimeout, TimeoutError)
FAILURES: Final = (api.GoogleAPIError, auth.GoogleAuthError, grpc.RpcError, OSError)
"""What the clients raise, TimeoutError included; anything else is a fault of ours."""

_CREDENTIALS_PROBLEM: Final = (
    "no Application Default Credentials were found: run `gcloud auth application-default login`, set "
    "GOOGLE_APPLICATION_CREDENTIALS to a key file, or give the worker a service account"
)


@dataclass(frozen=True, slots=True)
class ErrorTexts:
    """What a store says of the client's exceptions.

    Attributes:
        backend: The backend's label.
        problems: What is wrong and what would mend it, by the exception's class or a base of it.
    """

    backend: str
    problems: Mapping[type[Exception], str]

    def translate(self, error: Exception, operation: str) -> StoreError:
        """Return the project's error for one of the client's."""
        name = type(error).__name__
        if isinstance(error, grpc.RpcError):
            error = api.from_grpc_error(error)
        if isinstance(error, _TIMEOUT):
            return StoreTimeout(self.backend, operation, name)
        if isinstance(error, _UNAVAILABLE):
            return StoreUnavailable(self.backend, operation, name)
        if isinstance(error, auth.GoogleAuthError):
            return StoreRejected(self.backend, operation, name, problem=_CREDENTIALS_PROBLEM)
        problems = (self.problems[base] for base in type(error).__mro__ if base in self.problems)
        return StoreRejected(self.backend, operation, name, problem=next(problems, ""))


@asynccontextmanager
async def deadline(texts: ErrorTexts, operation: str, seconds: float) -> AsyncIterator[None]:
    """Bound what is awaited in the block, and turn the client's exceptions into the project's.

    Raises:
        StoreTimeout: The seconds passed, or the client's own bound did.
        StoreUnavailable: The service could not be reached, or is overloaded.
        StoreRejected: It refused.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except FAILURES as error:
        # Without the cause, whose text may name keys.
        raise texts.translate(error, operation) from None


def worst(errors: Sequence[StoreError]) -> StoreError:
    """Return the error to raise for several: one that a retry does not mend goes first."""
    return min(errors, key=lambda error: error.transient)


async def find_credentials(texts: ErrorTexts, operation: str, within_s: float) -> Credentials:
    """Return Application Default Credentials.

    The search asks the metadata server, which takes long where there is none: it runs on a thread, and is
    given up in time.

    Raises:
        StoreRejected: There are none, or none were found in time.
    """
    try:
        async with asyncio.timeout(within_s):
            return await asyncio.to_thread(_default_credentials)
    except (auth.GoogleAuthError, TimeoutError) as error:
        raise StoreRejected(
            texts.backend, operation, type(error).__name__, problem=_CREDENTIALS_PROBLEM
        ) from None


def _default_credentials() -> Credentials:
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    return credentials


_grpc_pid: int | None = None
"""The process that first made a client; a forked child inherits it."""

_FORK_PROBLEM: Final = (
    "this process was forked from one that had used gRPC, which does not work in it: start worker processes "
    "anew (spawn), or fork before the first call to a store"
)


def claim_grpc(texts: ErrorTexts, operation: str) -> None:
    """Call this before a client is made: it fails in a child where gRPC waits for threads that are not there.

    That the parent had closed its clients does not help: gRPC ends its threads later, and a child that was
    forked before that crashes.

    Raises:
        StoreRejected: The parent had made a client when this process was forked.
    """
    global _grpc_pid  # noqa: PLW0603 - one per process is the point
    if _grpc_pid is None:
        _grpc_pid = os.getpid()
    elif _grpc_pid != os.getpid():
        raise StoreRejected(texts.backend, operation, problem=_FORK_PROBLEM)


@dataclass(slots=True, eq=False)
class _Held(Generic[C]):
    """A client, how many calls use it, and whether new ones may."""

    client: C
    calls: int = 0
    retired: bool = False


@dataclass(slots=True, eq=False)
class _Home(Generic[C]):
    """The process and loop that clients belong to."""

    pid: int
    loop: asyncio.AbstractEventLoop
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    held: _Held[C] | None = None


class ClientSlot(Generic[C]):
    """One client, made inside the first call and shared by those that follow.

    A client belongs to the event loop that made it: on another loop, the next call makes a new one, and the
    garbage collector closes the old one. It belongs to its process, too: see :func:`claim_grpc`. After a
    timeout a client is retired, because its connection may be half open: it is closed when the last of its
    calls has ended, and the next call makes a new one.
    """

    def __init__(self, make: Callable[[str], Awaitable[C]], close: Callable[[C], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._home: _Home[C] | None = None
        self._inherited: list[_Home[C]] = []

    @asynccontextmanager
    async def call(self, texts: ErrorTexts, operation: str, seconds: float) -> AsyncIterator[C]:
        """Lend the client to the block, under :func:`deadline`."""
        held: _Held[C] | None = None
        try:
            async with deadline(texts, operation, seconds):
                held = await self._take(texts, operation)
                yield held.client
        except StoreTimeout:
            if held is not None:
                self._retire(held)
            raise
        finally:
            if held is not None:
                held.calls -= 1
                await self._close_if_done(held)

    async def close(self) -> None:
        """Close the client, or leave that to the last call that uses it. A second call does nothing."""
        held = self._here().held
        if held is not None:
            self._retire(held)
            await self._close_if_done(held)

    def _here(self) -> _Home[C]:
        pid, loop = os.getpid(), asyncio.get_running_loop()
        home = self._home
        if home is not None and home.pid == pid and home.loop is loop:
            return home
        if home is not None and home.pid != pid:
            # Kept for ever: to destroy a parent's channel in a child waits for threads that it has not.
            self._inherited.append(home)
        self._home = home = _Home(pid, loop)
        return home

    async def _take(self, texts: ErrorTexts, operation: str) -> _Held[C]:
        home = self._here()
        held = home.held
        if held is None:
            async with home.lock:
                if home.held is None:
                    claim_grpc(texts, operation)
                    home.held = _Held(await self._make(operation))
                held = home.held
        held.calls += 1
        return held

    def _retire(self, held: _Held[C]) -> None:
        held.retired = True
        home = self._here()
        if home.held is held:
            home.held = None

    async def _close_if_done(self, held: _Held[C]) -> None:
        if not held.retired or held.calls:
            return
        held.retired = False
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._close(held.client)
        except TimeoutError:
            return

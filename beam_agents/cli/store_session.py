"""Stores as the operator's commands use them: named by a URI, opened on a loop, failing with one line."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import typer
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from beam_agents.errors import StoreError
from beam_agents.memory.stores.guarded import GuardedStore, RetryPolicy
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.runtime.bridge import CANCEL_GRACE_S, shared_bridge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from beam_agents.memory.stores.contract import RowId, StoreAdmin, StoreRow
    from beam_agents.memory.stores.uri import StoreUri
    from beam_agents.signals.types import UpsertResult

__all__ = ["INTERRUPTED", "ONE_ATTEMPT", "OpenStore", "complain", "opened", "read_uri", "run_on_loop"]

T = TypeVar("T")

INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C ended."""

FROM_ENVIRONMENT: Final = "env:"
"""What comes before the name of the environment's variable that holds the URI."""

ONE_ATTEMPT: Final = RetryPolicy(attempts=1)
_RETRIED: Final = RetryPolicy()


def uri_text(text: str, argument: str) -> str:
    """Return an argument as it is, or what is in the variable that it names as ``env:NAME``.

    Args:
        text: The argument.
        argument: Its name, for the message.

    Raises:
        typer.BadParameter: The environment has no such variable.
    """
    if not text.startswith(FROM_ENVIRONMENT):
        return text
    name = text.removeprefix(FROM_ENVIRONMENT)
    if name not in os.environ:
        raise typer.BadParameter(
            f"the environment has no variable {name!r}; export it with the store's URI in it",
            param_hint=argument,
        )
    return os.environ[name]


def read_uri(text: str, argument: str = "URI") -> StoreUri:
    """Return the URI that an argument is, or names as ``env:NAME``.

    Args:
        text: The argument.
        argument: Its name, for the message.

    Raises:
        typer.BadParameter: It is no store's URI, or the environment has no such variable.
    """
    try:
        return parse_store_uri(uri_text(text, argument))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=argument) from error


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store with both of its sides. A failure's notes name the store it is of.

    Attributes:
        store: The side that the runtime uses, with retries.
        admin: The operator's side, without.
        policy: How often a call is tried.
    """

    store: GuardedStore
    admin: StoreAdmin
    policy: RetryPolicy

    @property
    def uri(self) -> StoreUri:
        """What it was opened with."""
        return self.store.uri

    async def call(self, made: Awaitable[T]) -> T:
        """Await a call of one of the sides."""
        try:
            return await made
        except StoreError as error:
            error.add_note(f"the store is {self.uri.redacted}")
            raise

    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        """Upsert rows under the guard."""
        return await self.call(self.store.save_many(rows))

    async def scan(self, after: RowId | None, limit: int, entity_key: bytes | None) -> list[StoreRow]:
        """Return the next rows after a place, of one entity or of all."""
        return await self._retried(lambda: self.admin.scan(after, limit, entity_key=entity_key))

    async def delete(self, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have their seq; return how many went, at least."""
        return await self._retried(lambda: self.admin.delete(rows))

    async def pages(
        self, limit: int, entity_key: bytes | None, after: RowId | None = None
    ) -> AsyncIterator[list[StoreRow]]:
        """Yield all rows after a place in pages of up to ``limit``."""
        while rows := await self.scan(after, limit, entity_key):
            yield rows
            after = rows[-1].row_id

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        # Tenacity awaits what is declared async, and takes the coroutine of any other callable for a result.
        async def once() -> T:
            return await self.call(attempt())

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.transient),
            stop=stop_after_attempt(self.policy.attempts),
            wait=wait_random_exponential(
                multiplier=self.policy.first_delay_s, max=self.policy.longest_delay_s
            ),
            reraise=True,
        )
        return await retrying(once)


@asynccontextmanager
async def opened(uri: StoreUri, policy: RetryPolicy = _RETRIED) -> AsyncIterator[OpenStore]:
    """Open a store for the block. Nothing is connected before the first call.

    Raises:
        typer.BadParameter: The backend's client library is not installed; the message names the extra.
    """
    try:
        store = open_store(uri)
    except ImportError as error:
        raise typer.BadParameter(str(error), param_hint="URI") from error
    try:
        yield OpenStore(GuardedStore(store, policy=policy), open_admin(store), policy)
    finally:
        await store.close()


def run_on_loop(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine on the process's event loop; say what failed in one line.

    The loop stays open: a client's threads may have something to tell it after a store was closed.

    Raises:
        typer.Exit: With 1 after a store's failure, with 130 after Ctrl-C.
    """
    bridge = shared_bridge()
    tasks: list[asyncio.Task[object]] = []
    ended = threading.Event()

    async def watched() -> T:
        tasks.extend(task for task in (asyncio.current_task(),) if task is not None)
        try:
            return await work
        finally:
            ended.set()

    try:
        return bridge.submit(watched()).result()
    except StoreError as error:
        complain("; ".join([str(error), *dict.fromkeys(getattr(error, "__notes__", ()))]))
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        # The task, not the future: Ctrl-C may come while the future is made.
        for task in tasks:
            bridge.loop.call_soon_threadsafe(task.cancel)
            ended.wait(CANCEL_GRACE_S)
        complain("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def complain(text: str) -> None:
    """Say on standard error what is wrong."""
    typer.echo(f"beam-agents: {text}", err=True)

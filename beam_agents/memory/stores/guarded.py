"""A store as the runtime uses it: transient failures are tried again, and each call is told to a callback."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from beam_agents.errors import StoreError, StoreTimeout
from beam_agents.memory.stores.contract import MemoryStore, StoreRow
from beam_agents.signals.types import CallOutcome, StoreOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from beam_agents.signals.types import UpsertResult

__all__ = ["GuardedStore", "OnCall", "RetryPolicy", "StoreCall"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long a call is tried.

    Attributes:
        attempts: Attempts in all.
        first_delay_s: Upper bound of the wait before the second attempt. The bound doubles each time, and
            the wait is a random part of it, so that workers do not come back all at once.
        longest_delay_s: What the bound does not exceed.
        budget: What all attempts and waits may take together, in ``operation_timeout_s`` of the store's URI.
    """

    attempts: int = 3
    first_delay_s: float = 0.05
    longest_delay_s: float = 1.0
    budget: float = 2.0

    def delay_s(self, failures: int, fraction: float) -> float | None:
        """Return how long to wait after a number of failed attempts, or None for no further attempt.

        Args:
            failures: Attempts that have failed.
            fraction: Which part of the longest wait to take, from 0 to 1.
        """
        if failures >= self.attempts:
            return None
        return float(fraction * min(self.longest_delay_s, self.first_delay_s * 2 ** (failures - 1)))


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call as its caller saw it, with all attempts.

    Attributes:
        backend: The store's label.
        operation: What was asked.
        outcome: How it ended; a call that was cancelled counts as timed out.
        error_type: The class of what it raised in the end; empty for none.
        retries: The class of what each attempt raised that another followed.
        rows: Rows that were sent, or that came back.
        bytes: Bytes of their records.
        started_ns: When it began, by ``time.perf_counter_ns``.
        ended_ns: When it ended, likewise.
    """

    backend: str
    operation: StoreOperation
    outcome: CallOutcome
    error_type: str
    retries: tuple[str, ...]
    rows: int
    bytes: int
    started_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ns - self.started_ns) / 1e9


OnCall: TypeAlias = "Callable[[StoreCall], None]"
"""Is told each call on the event loop's thread, after its end; it must neither block nor raise."""


def _untold(call: StoreCall) -> None:
    """Tell nobody."""


_DEFAULT_POLICY: Final = RetryPolicy()


class GuardedStore(MemoryStore):
    """Another store, with retries and a report of each call.

    A call that fails raises the last attempt's error, which tells the number of attempts.
    """

    def __init__(
        self, store: MemoryStore, on_call: OnCall = _untold, *, policy: RetryPolicy = _DEFAULT_POLICY
    ) -> None:
        super().__init__(store.uri)
        self.limits = store.limits
        self._store = store
        self._on_call = on_call
        self._policy = policy

    def observed(self, on_call: OnCall) -> GuardedStore:
        """Return the same store with another callback, for one activation, say. Close one of them only."""
        return GuardedStore(self._store, on_call, policy=self._policy)

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        return await self._call(
            StoreOperation.LOAD,
            lambda: self._store.load(entity_key, key),
            lambda row: [] if row is None else [row],
        )

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first ``limit`` rows whose key begins with ``prefix``, by the key's bytes."""
        return await self._call(
            StoreOperation.SEARCH,
            lambda: self._store.search(entity_key, prefix, limit),
            lambda rows: rows,
        )

    async def save_many(
        self, rows: Sequence[StoreRow], *, operation: StoreOperation = StoreOperation.FLUSH
    ) -> list[UpsertResult]:
        """Upsert rows under the guard, and tell each one's result in their order.

        Args:
            rows: Each row id at most once.
            operation: What the report calls it: a flush, or one on expiry.
        """
        return await self._call(operation, lambda: self._store.save_many(rows), sent=rows)

    async def ping(self) -> None:
        """Ask for a sign of life."""
        await self._call(StoreOperation.PING, self._store.ping)

    async def close(self) -> None:
        """Close the store. A second call does nothing."""
        await self._store.close()

    async def _call(
        self,
        operation: StoreOperation,
        attempt: Callable[[], Awaitable[T]],
        received: Callable[[T], Sequence[StoreRow]] | None = None,
        sent: Sequence[StoreRow] = (),
    ) -> T:
        retries: list[str] = []
        rows, outcome, error_type = sent, CallOutcome.ERROR, ""
        started_ns = time.perf_counter_ns()
        try:
            result = await self._retried(operation, attempt, retries)
            outcome = CallOutcome.OK
            if received is not None:
                rows = received(result)
        except BaseException as error:
            error_type = type(error).__name__
            if isinstance(error, (StoreTimeout, asyncio.CancelledError)):
                outcome = CallOutcome.TIMEOUT
            raise
        else:
            return result
        finally:
            call = StoreCall(
                self.backend,
                operation,
                outcome,
                error_type,
                tuple(retries),
                len(rows),
                sum(len(row.rec) for row in rows),
                started_ns,
                time.perf_counter_ns(),
            )
            self._on_call(call)

    async def _retried(
        self, operation: StoreOperation, attempt: Callable[[], Awaitable[T]], retries: list[str]
    ) -> T:
        """Make attempts until one succeeds, fails for good, or the policy ends it.

        A loop of its own, because a retry library took a third of the time of a small flush.
        """
        budget_s = self._policy.budget * self.uri.options.operation_timeout_s
        ends_s = time.monotonic() + budget_s
        bound = asyncio.timeout(budget_s)
        try:
            async with bound:
                while True:
                    try:
                        return await attempt()
                    except StoreError as error:
                        error.attempts = len(retries) + 1
                        delay_s = self._policy.delay_s(error.attempts, random.random())  # noqa: S311 - no secret
                        if not error.transient or delay_s is None or time.monotonic() + delay_s >= ends_s:
                            raise
                        retries.append(type(error).__name__)
                    await asyncio.sleep(delay_s)
        except TimeoutError as error:
            if not bound.expired():
                raise
            cause = type(error).__name__
            raise StoreTimeout(self.backend, operation.value, cause, len(retries) + 1) from None

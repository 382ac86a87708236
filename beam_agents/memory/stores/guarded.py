"""A store as the runtime uses it: transient failures are tried again, and each call is told to a callback."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from beam_agents.errors import StoreError, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.contract import MemoryStore, StoreRow
from beam_agents.signals.stores import store_table
from beam_agents.signals.types import CallOutcome, StoreOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from beam_agents.signals.types import UpsertResult

__all__ = ["GuardedStore", "OnCall", "RetryPolicy", "StoreAttempt", "StoreCall"]

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


class StoreAttempt(NamedTuple):
    """One attempt at a call.

    Attributes:
        started_ns: When it began, by ``time.perf_counter_ns``.
        ended_ns: When it ended, likewise.
        error_type: The class of what it raised; empty for none.
    """

    started_ns: int
    ended_ns: int
    error_type: str


class StoreCall(NamedTuple):
    """One call as its caller saw it, with all attempts.

    Attributes:
        backend: The store's label.
        operation: What was asked.
        outcome: How it ended; a call that was cancelled counts as timed out.
        error_type: The class of what it raised in the end; empty for none.
        attempts: What was tried, in order; each but the last one failed, and was tried again.
        down_for_s: How long the store had not answered until this call was, in seconds; None if it had.
        went_down: Whether this call is the first one that a store which had answered did not answer.
        rows: Rows that were sent, or that came back.
        bytes: Bytes of their records.
        started_ns: When it began, by ``time.perf_counter_ns``.
        ended_ns: When it ended, likewise.
    """

    backend: str
    operation: StoreOperation
    outcome: CallOutcome
    error_type: str
    attempts: tuple[StoreAttempt, ...]
    rows: int
    bytes: int
    started_ns: int
    ended_ns: int
    down_for_s: float | None = None
    went_down: bool = False

    @property
    def retries(self) -> tuple[str, ...]:
        """The class of what each attempt raised that another followed."""
        return tuple(each.error_type for each in self.attempts[:-1])

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ns - self.started_ns) / 1e9


OnCall: TypeAlias = "Callable[[StoreCall], None]"
"""Is told each call on the event loop's thread, after its end; it must neither block nor raise."""


def _untold(call: StoreCall) -> None:
    """Tell nobody."""


_DEFAULT_POLICY: Final = RetryPolicy()
_ONCE: Final = RetryPolicy(attempts=1)


class GuardedStore(MemoryStore):
    """Another store, with retries and a report of each call.

    A call that fails raises the last attempt's error, which tells the number of attempts. A flush on expiry
    gets one attempt while the store is known to be down: its timer comes again, and what the waits between
    attempts take is taken from all keys of the bundle.
    """

    def __init__(
        self, store: MemoryStore, on_call: OnCall = _untold, *, policy: RetryPolicy = _DEFAULT_POLICY
    ) -> None:
        super().__init__(store.uri)
        self.limits = store.limits
        self._store = store
        self._on_call = on_call
        self._policy = policy

    def observed(self, on_call: OnCall, *, policy: RetryPolicy | None = None) -> GuardedStore:
        """Return the same store with another callback, for one activation, say. Close one of them only.

        Args:
            on_call: Is told each call.
            policy: How its calls are tried; None for this one's policy.
        """
        return GuardedStore(self._store, on_call, policy=policy or self._policy)

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
        attempts: list[StoreAttempt] = []
        rows, outcome, error_type = sent, CallOutcome.ERROR, ""
        down_for_s: float | None = None
        went_down = False
        started_ns = time.perf_counter_ns()
        try:
            result = await self._retried(operation, attempt, attempts)
            outcome = CallOutcome.OK
            down_for_s = store_table().answered(self.uri)
            if received is not None:
                rows = received(result)
        except BaseException as error:
            error_type = type(error).__name__
            if isinstance(error, (StoreTimeout, asyncio.CancelledError)):
                outcome = CallOutcome.TIMEOUT
            if isinstance(error, (StoreTimeout, StoreUnavailable)):
                # What it rejects, it has answered; a call that was cancelled tells nothing.
                went_down = store_table().failed(self.uri, error_type)
            raise
        else:
            return result
        finally:
            call = StoreCall(
                self.backend,
                operation,
                outcome,
                error_type,
                tuple(attempts),
                len(rows),
                sum(len(row.rec) for row in rows),
                started_ns,
                time.perf_counter_ns(),
                down_for_s,
                went_down,
            )
            self._on_call(call)

    async def _retried(
        self,
        operation: StoreOperation,
        attempt: Callable[[], Awaitable[T]],
        attempts: list[StoreAttempt],
    ) -> T:
        """Make attempts until one succeeds, fails for good, or the policy ends it.

        A loop of its own, because a retry library took a third of the time of a small flush.
        """
        hurried = operation is StoreOperation.EXPIRE_FLUSH and store_table().is_down(self.uri)
        policy = _ONCE if hurried else self._policy
        ends_s = time.monotonic() + policy.budget * self.uri.options.operation_timeout_s
        try:
            # A store bounds each attempt itself. A second deadline is for what follows; around the first it
            # would take a tenth of the time of a small flush.
            return await self._tried(attempt, attempts)
        except StoreError as error:
            delay_s = _delay_s(policy, error, attempts, ends_s)
        bound = asyncio.timeout(ends_s - time.monotonic())
        try:
            async with bound:
                while True:
                    await asyncio.sleep(delay_s)
                    try:
                        return await self._tried(attempt, attempts)
                    except StoreError as error:
                        delay_s = _delay_s(policy, error, attempts, ends_s)
        except TimeoutError as error:
            if not bound.expired():
                raise
            cause = type(error).__name__
            raise StoreTimeout(self.backend, operation.value, cause, len(attempts)) from None

    async def _tried(self, attempt: Callable[[], Awaitable[T]], attempts: list[StoreAttempt]) -> T:
        """Make one attempt and note it."""
        started_ns, error_type = time.perf_counter_ns(), ""
        try:
            return await attempt()
        except BaseException as error:
            error_type = type(error).__name__
            raise
        finally:
            attempts.append(StoreAttempt(started_ns, time.perf_counter_ns(), error_type))


def _delay_s(policy: RetryPolicy, error: StoreError, attempts: list[StoreAttempt], ends_s: float) -> float:
    """Return how long to wait after an attempt's failure; raise it if it was the last."""
    error.attempts = len(attempts)
    delay_s = policy.delay_s(error.attempts, random.random())  # noqa: S311 - no secret
    if not error.transient or delay_s is None or time.monotonic() + delay_s >= ends_s:
        raise error
    return delay_s

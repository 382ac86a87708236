"""Retries, and what is told of a call, with a store that fails on command and with the in-process one."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest

from beam_agents.errors import StoreError, StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.memory.stores.guarded import GuardedStore, RetryPolicy, StoreCall
from beam_agents.memory.stores.inprocess import InProcessStore, forget_rows
from beam_agents.memory.stores.uri import StoreOptions, StoreUri
from beam_agents.signals import stores
from beam_agents.signals.stores import StoreTable
from beam_agents.signals.types import CallOutcome, StoreOperation, UpsertResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

AT_ONCE = RetryPolicy(first_delay_s=0.0)


def row(key: str = "k", seq: int = 1, value: bytes = b"value") -> StoreRow:
    return StoreRow(b"e", key, seq, encode_record(value, seq, seq), seq)


class FailingStore(InProcessStore):
    """Raises what it is given, one per attempt, and then works. ``None`` is an attempt that never ends."""

    def __init__(self, *failures: BaseException | None, operation_timeout_s: float = 5.0) -> None:
        super().__init__(
            StoreUri("inprocess", "memory", options=StoreOptions(operation_timeout_s=operation_timeout_s))
        )
        self.failures = list(failures)
        self.attempts = 0
        self.waiting = asyncio.Event()

    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        self.attempts += 1
        if self.failures:
            failure = self.failures.pop(0)
            if failure is None:
                self.waiting.set()
                await asyncio.Event().wait()
            else:
                raise failure
        return await super().save_many(rows)


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("inprocess", "flush", "ConnectionError")


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    forget_rows()
    yield
    forget_rows()


@pytest.fixture
def calls() -> list[StoreCall]:
    return []


@pytest.fixture
def guarded(calls: list[StoreCall]) -> Callable[..., GuardedStore]:
    def guard(store: InProcessStore, policy: RetryPolicy = AT_ONCE) -> GuardedStore:
        return GuardedStore(store, calls.append, policy=policy)

    return guard


@pytest.mark.parametrize("operation", [StoreOperation.FLUSH, StoreOperation.EXPIRE_FLUSH])
def test_while_the_store_is_down_an_expiring_key_gets_one_attempt(
    guarded: Callable[..., GuardedStore], operation: StoreOperation, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = StoreTable()
    monkeypatch.setattr(stores._table, "value", table)
    backend = FailingStore(*(unavailable() for _ in range(4)))
    table.opened(backend.uri, "inprocess", "memory://")
    store = guarded(backend)

    async def use() -> None:
        with pytest.raises(StoreUnavailable, match="after 3 attempts"):
            await store.save_many([row()], operation=operation)
        assert table.is_down(backend.uri)
        if operation is StoreOperation.EXPIRE_FLUSH:
            with pytest.raises(StoreUnavailable):
                await store.save_many([row()], operation=operation)
            assert backend.attempts == 4
        # What a caller waits for is tried as before, and so is expiry once the store has answered.
        await store.save_many([row()], operation=operation)
        assert backend.attempts == 5
        assert not table.is_down(backend.uri)
        backend.failures = [unavailable()]
        await store.save_many([row()], operation=operation)
        assert backend.attempts == 7

    asyncio.run(use())


def test_each_call_is_told_once(guarded: Callable[..., GuardedStore], calls: list[StoreCall]) -> None:
    store = guarded(FailingStore())
    rows = [row("a"), row("b", value=b"longer value")]
    size = sum(len(each.rec) for each in rows)

    async def use() -> None:
        assert await store.save_many(rows) == [UpsertResult.APPLIED] * 2
        await store.save_many(rows[:1], operation=StoreOperation.EXPIRE_FLUSH)
        assert await store.load(b"e", "a") == rows[0]
        assert await store.load(b"e", "missing") is None
        assert await store.search(b"e", "", 10) == rows
        await store.ping()
        await store.close()

    asyncio.run(use())
    first = len(rows[0].rec)
    assert [(call.operation.value, call.rows, call.bytes) for call in calls] == [
        ("flush", 2, size),
        ("expire_flush", 1, first),
        ("load", 1, first),
        ("load", 0, 0),
        ("search", 2, size),
        ("ping", 0, 0),
    ]
    assert {(call.backend, call.outcome, call.error_type, call.retries) for call in calls} == {
        ("inprocess", CallOutcome.OK, "", ())
    }
    times = [at for call in calls for at in (call.started_ns, call.ended_ns)]
    assert times == sorted(times)
    assert all(call.seconds == (call.ended_ns - call.started_ns) / 1e9 for call in calls)


def test_transient_failures_are_tried_again(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    failing = FailingStore(unavailable(), StoreTimeout("inprocess", "flush", "TimeoutError"))
    assert asyncio.run(guarded(failing).save_many([row()])) == [UpsertResult.APPLIED]
    assert failing.attempts == 3
    (call,) = calls
    assert (call.outcome, call.error_type) == (CallOutcome.OK, "")
    assert call.retries == ("StoreUnavailable", "StoreTimeout")


@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (unavailable(), CallOutcome.ERROR),
        (StoreTimeout("inprocess", "flush", "TimeoutError"), CallOutcome.TIMEOUT),
    ],
    ids=["unavailable", "timeout"],
)
def test_the_last_error_tells_the_attempts(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall], last: StoreError, outcome: CallOutcome
) -> None:
    failing = FailingStore(unavailable(), unavailable(), last, unavailable())
    with pytest.raises(type(last)) as caught:
        asyncio.run(guarded(failing).save_many([row()]))
    assert caught.value is last
    assert (caught.value.attempts, failing.attempts) == (3, 3)
    assert "after 3 attempts" in str(pickle.loads(pickle.dumps(caught.value)))  # noqa: S301 - its own bytes
    (call,) = calls
    assert (call.outcome, call.error_type) == (outcome, type(last).__name__)
    assert call.retries == ("StoreUnavailable", "StoreUnavailable")


@pytest.mark.parametrize(
    "failure",
    [StoreRejected("inprocess", "flush", problem="no such table"), ValueError("a fault of the store's own")],
    ids=lambda failure: type(failure).__name__,
)
def test_what_would_fail_again_is_not_tried_again(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall], failure: Exception
) -> None:
    failing = FailingStore(failure)
    with pytest.raises(type(failure)) as caught:
        asyncio.run(guarded(failing).save_many([row()]))
    assert caught.value is failure
    assert failing.attempts == 1
    (call,) = calls
    assert (call.outcome, call.error_type, call.retries) == (CallOutcome.ERROR, type(failure).__name__, ())


def test_a_rejection_after_a_retry_tells_both(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    failing = FailingStore(unavailable(), StoreRejected("inprocess", "flush", problem="no such table"))
    with pytest.raises(StoreRejected) as caught:
        asyncio.run(guarded(failing).save_many([row()]))
    assert (caught.value.attempts, calls[0].retries) == (2, ("StoreUnavailable",))


def test_the_budget_ends_an_attempt_that_does_not_end_itself(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    failing = FailingStore(unavailable(), None, operation_timeout_s=0.05)
    with pytest.raises(StoreTimeout) as caught:
        asyncio.run(guarded(failing).save_many([row()]))
    assert (caught.value.operation, caught.value.attempts) == ("flush", 2)
    (call,) = calls
    assert (call.outcome, call.error_type) == (CallOutcome.TIMEOUT, "StoreTimeout")
    assert call.retries == ("StoreUnavailable",)


def test_no_attempt_is_made_that_the_budget_has_no_time_for(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    """The error of the attempt that was made is told, not a timeout of the wait."""
    failing = FailingStore(unavailable(), operation_timeout_s=5.0)
    policy = RetryPolicy(budget=0.0)
    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(guarded(failing, policy).save_many([row()]))
    assert (caught.value.attempts, failing.attempts, calls[0].retries) == (1, 1, ())


def test_a_timeout_of_the_store_itself_is_not_taken_for_the_budgets(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    failure = TimeoutError("a fault of the store's own")
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(guarded(FailingStore(failure)).save_many([row()]))
    assert caught.value is failure
    assert calls[0].outcome is CallOutcome.ERROR


def test_a_cancelled_call_is_told_as_timed_out_and_stays_cancelled(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    async def cancel() -> None:
        failing = FailingStore(None)
        task = asyncio.ensure_future(guarded(failing).save_many([row()]))
        await failing.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert failing.attempts == 1

    asyncio.run(cancel())
    (call,) = calls
    assert (call.outcome, call.error_type) == (CallOutcome.TIMEOUT, "CancelledError")


def test_a_cancelled_wait_makes_no_further_attempt(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    async def cancel() -> None:
        failing = FailingStore(unavailable(), operation_timeout_s=3600)
        store = guarded(failing, RetryPolicy(first_delay_s=1e6, longest_delay_s=3600))
        task = asyncio.ensure_future(store.save_many([row()]))
        while not failing.attempts:  # noqa: ASYNC110 - one turn of the loop is what is awaited
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert failing.attempts == 1

    asyncio.run(cancel())
    assert calls[0].outcome is CallOutcome.TIMEOUT


def test_each_observer_is_told_its_own_calls(
    guarded: Callable[..., GuardedStore], calls: list[StoreCall]
) -> None:
    theirs: list[StoreCall] = []
    store = guarded(FailingStore())
    other = store.observed(theirs.append)

    async def use() -> None:
        await other.save_many([row()])
        assert await store.load(b"e", "k") == row()

    asyncio.run(use())
    assert [call.operation for call in theirs] == [StoreOperation.FLUSH]
    assert [call.operation for call in calls] == [StoreOperation.LOAD]


def test_the_wait_doubles_up_to_its_bound_and_is_a_part_of_it() -> None:
    policy = RetryPolicy(attempts=6, first_delay_s=0.1, longest_delay_s=0.5)
    assert [policy.delay_s(failures, 1.0) for failures in range(1, 7)] == [0.1, 0.2, 0.4, 0.5, 0.5, None]
    assert policy.delay_s(3, 0.0) == 0.0
    assert policy.delay_s(3, 0.25) == 0.1


def test_it_has_the_others_limits_and_address() -> None:
    inner = FailingStore()
    assert GuardedStore(inner).limits == inner.limits
    assert GuardedStore(inner).uri is inner.uri

from __future__ import annotations

import pytest

from beam_agents.signals.stores import StoreHealth, StoreTable


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> StoreTable:
    table = StoreTable(clock=clock)
    table.opened("uri", "redis", "redis://***@host")
    return table


def test_nothing_is_known_before_the_first_call(table: StoreTable) -> None:
    assert table.all() == [StoreHealth("redis", "redis://***@host")]


def test_it_is_down_from_its_first_failure_to_its_next_answer(table: StoreTable, clock: Clock) -> None:
    assert table.answered("uri") is None
    assert not table.is_down("uri")
    assert table.failed("uri", "StoreTimeout")
    assert table.is_down("uri")
    clock.now_s += 10
    assert not table.failed("uri", "StoreUnavailable")
    (known,) = table.all()
    assert (known.up, known.last_success_s, known.down_since_s) == (False, 1_000.0, 1_000.0)
    assert known.error_type == "StoreUnavailable"
    clock.now_s += 5
    assert table.answered("uri") == 15.0
    assert not table.is_down("uri")
    (known,) = table.all()
    assert (known.up, known.last_success_s, known.down_since_s, known.error_type) == (True, 1_015.0, 0.0, "")
    assert table.answered("uri") is None


def test_how_long_ago_it_failed_and_how(table: StoreTable, clock: Clock) -> None:
    assert not table.failed_within("uri", 10, "StoreTimeout")
    table.failed("uri", "StoreTimeout")
    clock.now_s += 10
    assert table.failed_within("uri", 10, "StoreTimeout")
    assert not table.failed_within("uri", 10, "StoreUnavailable")
    clock.now_s += 1
    assert not table.failed_within("uri", 10, "StoreTimeout")
    table.failed("uri", "StoreTimeout")
    assert table.failed_within("uri", 10, "StoreTimeout")
    table.answered("uri")
    assert not table.failed_within("uri", 10, "StoreTimeout")
    assert not table.failed_within("other", 10, "StoreTimeout")


def test_one_that_never_answered_is_news_too(table: StoreTable) -> None:
    assert table.failed("uri", "StoreUnavailable")


def test_a_store_that_the_process_does_not_use_is_not_there(table: StoreTable) -> None:
    assert table.answered("other") is None
    assert not table.is_down("other")
    assert not table.failed("other", "StoreUnavailable")
    table.closed("uri")
    assert not table.failed("uri", "StoreUnavailable")
    assert table.all() == []


def test_opening_it_again_forgets_nothing(table: StoreTable) -> None:
    table.failed("uri", "StoreUnavailable")
    table.opened("uri", "redis", "redis://***@host")
    assert table.all()[0].up is False

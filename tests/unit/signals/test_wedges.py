from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from beam_agents.errors import hash_entity_key
from beam_agents.signals.wedges import SIGHT_S, WedgeTable

if TYPE_CHECKING:
    from beam_agents.signals import wedges


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> WedgeTable:
    return WedgeTable(clock=clock, size=3)


def fail(table: WedgeTable, key: bytes, error_type: str = "StoreUnavailable") -> wedges.Wedge:
    return table.failed("p", "a", key, backend="redis", error_type=error_type)


def test_a_timer_is_wedged_from_its_first_failure_to_its_success(table: WedgeTable, clock: Clock) -> None:
    assert fail(table, b"k").attempts == 1
    clock.now_s += 30
    told = fail(table, b"k", "StoreTimeout")
    assert (told.attempts, told.age_s, told.error_type) == (2, 30.0, "StoreTimeout")
    clock.now_s += 5
    (wedge,) = table.wedged()
    assert (wedge.entity, wedge.attempts, wedge.age_s) == (hash_entity_key(b"k"), 2, 35.0)
    ended = table.ended("p", "a", b"k")
    assert ended is not None
    assert (ended.attempts, ended.age_s) == (2, 35.0)
    assert table.wedged() == []
    assert table.ended("p", "a", b"k") is None
    assert table.lost_sight() == {}


def test_timers_of_other_agents_are_others(table: WedgeTable) -> None:
    fail(table, b"k")
    assert table.ended("p", "b", b"k") is None
    assert table.ended("q", "a", b"k") is None
    assert len(table) == 1


def test_the_oldest_comes_first(table: WedgeTable, clock: Clock) -> None:
    for key in (b"1", b"2"):
        fail(table, key)
        clock.now_s += 10
    fail(table, b"1")
    assert [wedge.age_s for wedge in table.wedged()] == [20.0, 10.0]


def test_what_is_not_seen_for_long_is_lost_from_sight_and_counted(table: WedgeTable, clock: Clock) -> None:
    fail(table, b"1")
    clock.now_s += SIGHT_S - 1
    fail(table, b"2")
    assert len(table.wedged()) == 2
    clock.now_s += 1
    assert [wedge.entity for wedge in table.wedged()] == [hash_entity_key(b"2")]
    assert table.lost_sight() == {("p", "a", "redis"): 1}
    # It comes back as a new one.
    assert fail(table, b"1").attempts == 1


def test_the_table_is_bounded_and_what_it_forgets_is_counted(table: WedgeTable) -> None:
    for key in (b"1", b"2", b"3", b"1", b"4"):
        fail(table, key)
    assert {wedge.entity for wedge in table.wedged()} == set(map(hash_entity_key, (b"1", b"3", b"4")))
    assert table.lost_sight() == {("p", "a", "redis"): 1}

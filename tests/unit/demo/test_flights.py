from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from beam_agents.demo.flights import MONTH_PREFIX, PROFILE, WORKING_MEMORY, flights_config, watch_aircraft
from beam_agents.memory.stores.contract import decode_record
from beam_agents.memory.stores.inprocess import InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.runtime.bridge import shared_bridge
from beam_agents.testing import AgentHarness, FailOnce, event, run_events

if TYPE_CHECKING:
    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

DAY_MS = 86_400_000
JANUARY_MS = 1_356_998_400_000  # 2013-01-01T00:00:00Z
CONFIG = flights_config("memory://")
AIRCRAFT = b"N1"


@pytest.fixture(autouse=True)
def empty_store() -> None:
    forget_rows()


def stored() -> dict[str, bytes]:
    """The values of the aircraft's rows."""
    store = InProcessStore(parse_store_uri("memory://"))
    found = shared_bridge().run(store.search(AIRCRAFT, "", 100), 10, inline=False)
    return {row.key: decode_record(row).value for row in found}


def flight(day: int, delay: int | None) -> AgentEnvelope:
    """A flight on a day of January or, from 32 on, of February."""
    month, day_of_month = (1, day) if day <= 31 else (2, day - 31)
    body = {
        "tailnum": AIRCRAFT.decode(),
        "scheduled": f"2013-{month:02}-{day_of_month:02}T00:00:00Z",
        "carrier": "UA",
        "flight": "15",
        "origin": "EWR",
        "dest": "SFO",
        "dep_time": "NA" if delay is None else "700",
        "dep_delay": "NA" if delay is None else str(delay),
    }
    at_ms = JANUARY_MS + (day - 1) * DAY_MS
    return event(AIRCRAFT, json.dumps(body).encode(), time_ms=at_ms, event_id=f"{day}")


def totals(departures: int, cancellations: int, delay: int, worst: int | None) -> dict[str, int | None]:
    return {
        "departures": departures,
        "cancellations": cancellations,
        "delay_minutes": delay,
        "worst_delay_minutes": worst,
    }


LATE = [flight(day, 70) for day in range(1, 9)]
AGAIN = [flight(45, 80), flight(46, None), flight(47, -5)]


def test_totals_and_months() -> None:
    with AgentHarness(watch_aircraft, CONFIG) as harness:
        emitted = harness.send(*LATE, *AGAIN)
    assert not emitted.errors
    assert {key: json.loads(value) for key, value in stored().items()} == {
        PROFILE: totals(10, 1, 635, 80),
        f"{MONTH_PREFIX}2013-01": totals(8, 0, 560, 70),
        f"{MONTH_PREFIX}2013-02": totals(2, 1, 75, 80),
    }
    assert [json.loads(output)["alert"] for output in emitted.outputs] == [False] * 7 + [True] + [False] * 3


def test_an_aircraft_that_expired_goes_on_from_what_outlasted_it() -> None:
    with AgentHarness(watch_aircraft, CONFIG) as harness:
        awake = harness.send(*LATE, *AGAIN)
    rows = stored()
    forget_rows()
    with AgentHarness(watch_aircraft, CONFIG) as harness:
        before = harness.send(*LATE)
        harness.advance_watermark(JANUARY_MS + 40 * DAY_MS)
        assert not harness.states
        assert WORKING_MEMORY in stored()
        after = harness.send(*AGAIN)
    assert before.outputs + after.outputs == awake.outputs
    assert {key: value for key, value in stored().items() if key != WORKING_MEMORY} == rows


@pytest.mark.parametrize("step", ["flush", "commit", "expire"])
def test_a_retried_bundle_counts_no_flight_twice(step: str) -> None:
    run_events(watch_aircraft, [*LATE, *AGAIN], config=CONFIG)
    rows = stored()
    assert WORKING_MEMORY in rows
    forget_rows()
    fault = FailOnce(step)
    run_events(watch_aircraft, [*LATE, *AGAIN], config=CONFIG, faults=[fault])
    assert fault.raised
    assert stored() == rows

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from beam_agents.runtime.lifetime import MAX_SEQ, advance_clock, event_clock_ms, is_in_future, next_seq
from beam_agents.wire.beam_agents_pb2 import ControlState

TIMES_MS = st.integers(0, 253_402_300_799_999)
EVENT_TIMES_MS = st.none() | TIMES_MS


@given(st.lists(EVENT_TIMES_MS, max_size=30))
def test_seq_increases_strictly_and_is_never_behind_the_event(times_ms: list[int | None]) -> None:
    seq = 0
    for time_ms in times_ms:
        following = next_seq(seq, time_ms)
        assert following > seq
        assert following >= (time_ms or 0)
        assert following <= MAX_SEQ
        seq = following


@given(st.lists(EVENT_TIMES_MS, min_size=1, max_size=30))
def test_a_new_life_is_ahead_of_every_earlier_one_once_its_events_are_newer(
    times_ms: list[int | None],
) -> None:
    seq = 0
    for time_ms in times_ms:
        seq = next_seq(seq, time_ms)
    assert next_seq(0, seq + 1) > seq


@given(st.lists(EVENT_TIMES_MS, max_size=30), st.integers(1, 10**9))
def test_neither_clock_nor_expiry_goes_back(times_ms: list[int | None], ttl_ms: int) -> None:
    control = ControlState()
    for time_ms in times_ms:
        clock_ms, expires_at_ms = control.clock_ms, control.expires_at_ms
        now_ms = event_clock_ms(control, time_ms)
        advance_clock(control, time_ms, ttl_ms)
        assert control.clock_ms == max(clock_ms, now_ms)
        assert control.expires_at_ms == max(expires_at_ms, now_ms + ttl_ms)
        assert control.expires_at_ms >= control.clock_ms + ttl_ms


@given(TIMES_MS, TIMES_MS, st.integers(0, 10**9))
def test_only_what_is_ahead_by_more_than_the_skew_is_in_the_future(
    event_ms: int, wall_ms: int, skew_ms: int
) -> None:
    assert is_in_future(event_ms, wall_ms, skew_ms) == (event_ms > wall_ms + skew_ms)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.cli.durations import MAX_MS, parse_duration_ms, shown_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("6h", 21_600_000), ("2d", 172_800_000), ("0s", 0)],
)
def test_units(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "90", "s", "1.5h", "-3s", "2w", "1h30m", "1 h", "٣s", "9" * 16 + "s"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 15m, 6h or 2d"):
        parse_duration_ms(text)


def test_what_no_calendar_holds_is_refused() -> None:
    assert parse_duration_ms("365000d") == MAX_MS
    for text in ("365001d", f"{MAX_MS + 1}ms", "999999999999999d"):
        with pytest.raises(ValueError, match="at most 365000d"):
            parse_duration_ms(text)


@given(st.integers(0, 365_000))
def test_larger_units_are_multiples_of_smaller_ones(count: int) -> None:
    assert parse_duration_ms(f"{count}s") == 1_000 * parse_duration_ms(f"{count}ms")
    assert parse_duration_ms(f"{count}d") == 24 * parse_duration_ms(f"{count}h")


@pytest.mark.parametrize(
    ("duration_ms", "shown"),
    [
        (0, "0s"),
        (999, "0s"),
        (59_000, "59s"),
        (60_000, "1m 0s"),
        (3_600_000 + 61_000, "1h 1m"),
        (2 * 86_400_000 + 3 * 3_600_000, "2d 3h"),
        (-301_000, "-5m 1s"),
    ],
)
def test_durations_for_people(duration_ms: int, shown: str) -> None:
    assert shown_duration(duration_ms) == shown

from __future__ import annotations

import pytest

from tests.benchmarks.ratios import Ratio, compare

RATIO = Ratio("with it", "with", "without", 1.5)


def test_what_was_timed_in_turn_is_compared_round_by_round() -> None:
    # The machine was ten times as slow in one round, on both sides; the medians' ratio would be 3.
    in_turn = {"with": [3.0, 1.2, 15.0], "without": [1.0, 1.0, 10.0]}
    compared = compare(RATIO, in_turn, {})
    assert compared.ratio == 1.5
    assert compared.quartiles == pytest.approx((1.35, 2.25))
    assert compared.verdict == "met"


def test_what_was_timed_apart_has_medians_alone() -> None:
    compared = compare(RATIO, {}, {"with": [3.2, 9.0, 3.0], "without": [2.0, 1.0, 7.0]})
    assert compared.ratio == 1.6
    assert compared.quartiles is None
    assert compared.verdict == "missed"


@pytest.mark.parametrize("in_turn", [True, False])
def test_what_is_taken_off_is_taken_off_the_numerator(in_turn: bool) -> None:  # noqa: FBT001 - a case
    ratio = Ratio("what it adds", "with", "other", less="without")
    seconds = {"with": [6.0, 6.0], "without": [2.0, 2.0], "other": [8.0, 8.0]}
    compared = compare(ratio, seconds if in_turn else {}, {} if in_turn else seconds)
    assert compared.ratio == 0.5
    assert compared.verdict == ""


def test_what_was_not_timed_is_named() -> None:
    with pytest.raises(KeyError, match="without"):
        compare(RATIO, {"with": [1.0]}, {"with": [1.0]})

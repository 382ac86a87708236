"""Timings put into ratios, each beside its goal."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Compared", "Ratio", "compare"]

Seconds: TypeAlias = "Mapping[str, Sequence[float]]"
"""By the name of what was timed: each time that it took."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two things compared.

    Attributes:
        what: What the comparison shows.
        numerator: The name of what was timed.
        denominator: Another's.
        goal: The ratio should not be above it; None for no goal.
        less: What is taken off the numerator; empty for nothing.
    """

    what: str
    numerator: str
    denominator: str
    goal: float | None = None
    less: str = ""

    @property
    def names(self) -> frozenset[str]:
        """What it needs to have been timed."""
        return frozenset({self.numerator, self.denominator, self.less} - {""})

    @property
    def formula(self) -> str:
        """How it is worked out, in words."""
        numerator = f"({self.numerator} - {self.less})" if self.less else self.numerator
        return f"{numerator} ÷ {self.denominator}"


@dataclass(frozen=True, slots=True)
class Compared:
    """What came of a comparison.

    Attributes:
        ratio: The median of the rounds' ratios, or the ratio of two medians.
        quartiles: The first and the third quartile of the rounds' ratios; None where there are no rounds.
        verdict: Whether the goal is met; empty for no goal.
    """

    ratio: float
    quartiles: tuple[float, float] | None
    verdict: Literal["met", "missed", ""]


def compare(ratio: Ratio, in_turn: Seconds, apart: Seconds) -> Compared:
    """Work out a ratio.

    Args:
        ratio: Which.
        in_turn: What was timed side by side, for each round: each round has a ratio of its own.
        apart: What was timed in processes of its own: only the medians can be compared.

    Raises:
        KeyError: Something of it was not timed.
    """
    quartiles = None
    if ratio.names <= in_turn.keys():
        denominators = in_turn[ratio.denominator]
        less = in_turn[ratio.less] if ratio.less else [0.0] * len(denominators)
        each = [
            (above - taken_off) / below
            for above, taken_off, below in zip(in_turn[ratio.numerator], less, denominators, strict=True)
        ]
        first, value, third = statistics.quantiles(each, n=4, method="inclusive")
        quartiles = first, third
    else:
        medians = {name: statistics.median(apart[name]) for name in ratio.names}
        value = (medians[ratio.numerator] - medians.get(ratio.less, 0.0)) / medians[ratio.denominator]
    if ratio.goal is None:
        return Compared(value, quartiles, "")
    return Compared(value, quartiles, "met" if value <= ratio.goal else "missed")

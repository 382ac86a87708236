"""Things timed in turn, a little of each at a time: the machine's other work falls on all of them alike."""

from __future__ import annotations

import gc
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Load", "Side", "Timed", "interleave"]

Load: TypeAlias = tuple[float, float, float]
"""The machine's load averages over 1, 5 and 15 minutes."""

WARM_UP_ROUNDS: Final = 2
SEED: Final = 1


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Side:
    """One of the things that are compared.

    Attributes:
        name: What it is called.
        run: Does it so many times and returns the seconds.
        settle: Waits for what it left for its threads to do, which would fall on the next one; not timed.
    """

    name: str
    run: Callable[[int], float]
    settle: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Timed:
    """What they took.

    Attributes:
        seconds: By the side's name, for each round, the seconds that one time took.
        load_before: The machine's load at the start.
        load_after: The machine's load at the end; this program is part of it.
    """

    seconds: dict[str, list[float]]
    load_before: Load
    load_after: Load


def interleave(sides: Sequence[Side], *, rounds: int, per_round: int) -> Timed:
    """Time each side once in every round, in an order that changes from round to round, the same in each run.

    Args:
        sides: What is compared.
        rounds: How many are kept; some come before them.
        per_round: How often each side does in a round what it does.
    """
    load_before = os.getloadavg()
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    order = random.Random(SEED)
    gc.collect()
    for number in range(-WARM_UP_ROUNDS, rounds):
        for side in order.sample(sides, len(sides)):
            took = side.run(per_round) / per_round
            side.settle()
            if number >= 0:
                seconds[side.name].append(took)
    return Timed(seconds, load_before, os.getloadavg())

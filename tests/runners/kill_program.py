"""What the programs that kill have in common: their options, and what they print."""

from __future__ import annotations

import argparse
import pathlib
import random
import tempfile
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from tests.runners.stores import SERVERS, running_store

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from enum import Enum

__all__ = ["kill_program"]

VictimT = TypeVar("VictimT", bound="Enum")
VictimT_contra = TypeVar("VictimT_contra", bound="Enum", contravariant=True)


class _Kills(Protocol[VictimT_contra]):
    counts: Counter[str]

    def run(self, victims: Sequence[VictimT_contra]) -> None: ...


def kill_program(
    program: str,
    description: str | None,
    victims: type[VictimT],
    begin: Callable[[pathlib.Path, str, random.Random, int, float], AbstractContextManager[_Kills[VictimT]]],
    *,
    kills: int,
    events: int,
    rate: float,
) -> None:
    """Read the command line, kill as it says over a store of its own, and print the seed and the counts.

    Args:
        program: The module's name.
        description: What it does.
        victims: Whom it may kill; each of them as often as any other.
        begin: Has all that is killed run, of a folder, a store, what chooses moments, events and their rate.
        kills: How many there are where the command line says nothing.
        events: Likewise.
        rate: Likewise.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--store", choices=[*SERVERS], default="redis")
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--events", type=int, default=events)
    parser.add_argument("--rate", type=float, default=rate)
    given = parser.parse_args()
    print(f"{given.store}: seed {given.seed}, {given.kills} kills", flush=True)  # noqa: T201 - what this is for
    rng = random.Random(given.seed)
    chosen = [*victims] * -(-given.kills // len(victims))
    rng.shuffle(chosen)
    with tempfile.TemporaryDirectory(prefix="beam-agents-kills-") as name:
        folder = pathlib.Path(name)
        with (
            running_store(given.store, folder) as uri,
            begin(folder, uri, rng, given.events, given.rate) as run,
        ):
            started = time.monotonic()
            try:
                run.run(chosen[: given.kills])
            finally:
                took_s = time.monotonic() - started
                print(f"{given.store}: {took_s:.0f} s, {dict(run.counts)}")  # noqa: T201 - as above

"""Durations as the command line takes them."""

from __future__ import annotations

import itertools
import re
from typing import Final

__all__ = ["parse_duration_ms", "shown_duration"]

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_MS: Final = 365_000 * _UNIT_MS["d"]
_DURATION: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as ``90s``, ``15m``, ``6h``, ``2d`` or ``500ms``.

    Raises:
        ValueError: The text is no whole number with one of these units, or longer than a thousand years.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no duration: write a whole number and its unit, such as 90s, 15m, 6h or 2d"
        )
    duration_ms = int(match[1]) * _UNIT_MS[match[2]]
    if duration_ms > MAX_MS:
        raise ValueError(f"{text!r} is too long: at most {MAX_MS // _UNIT_MS['d']}d, a thousand years")
    return duration_ms


def shown_duration(duration_ms: int) -> str:
    """Return milliseconds for people, in the two largest units: ``2d 3h``, ``15m 0s``, ``4s``, ``-5m 1s``."""
    sign, left = ("-", -duration_ms) if duration_ms < 0 else ("", duration_ms)
    units = ("d", "h", "m", "s")
    for unit, smaller in itertools.pairwise(units):
        count, rest = divmod(left, _UNIT_MS[unit])
        if count:
            return f"{sign}{count}{unit} {rest // _UNIT_MS[smaller]}{smaller}"
    return f"{sign}{left // _UNIT_MS['s']}s"

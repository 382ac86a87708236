"""Numbers as Grafana shows them: in the unit's own steps, with few digits."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["shown"]

_TIMES: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS: Final = ("", " K", " Mil", " Bil", " Tri")
_PER_SECOND: Final = {"ops": "ops/s", "rowsps": "rows/s"}
_MAX_DECIMALS: Final = 6


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """Return a number for a person.

    Args:
        value: The number.
        unit: As Grafana calls it; one that is not known here is put behind the number as it is.
        decimals: Digits after the point; None for as many as three digits need.
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    match unit:
        case "s":
            text = _time(value, decimals)
        case "bytes":
            text = _stepped(value, 1024.0, _BYTES, decimals, " ")
        case "Bps":
            text = _stepped(value, 1024.0, _BYTES, decimals, " ") + "/s"
        case "percentunit":
            text = _digits(100 * value, decimals) + " %"
        case "none":
            text = _digits(value, decimals)
        case "short" | "":
            text = _stepped(value, 1000.0, _COUNTS, decimals, "")
        case _:
            text = f"{_stepped(value, 1000.0, _COUNTS, decimals, '')} {_PER_SECOND.get(unit, unit)}"
    return text


def _time(value: float, decimals: int | None) -> str:
    size = abs(value)
    if size == 0:
        return "0 s"
    for step, name in _TIMES:
        if size >= step:
            # A day and more than an hour are told to a digit, what is smaller as its unit allows.
            return f"{_digits(value / step, decimals if step <= 1 else None)} {name}"
    return f"{_digits(value / 1e-6, decimals)} µs"


def _stepped(value: float, base: float, names: tuple[str, ...], decimals: int | None, space: str) -> str:
    size, place = abs(value), 0
    while size >= base and place < len(names) - 1:
        size /= base
        place += 1
    number = _digits(value / base**place, decimals if place == 0 else None)
    return f"{number}{space}{names[place]}"


def _digits(value: float, decimals: int | None) -> str:
    """Return a number with ``decimals`` digits after the point, or with three that tell something."""
    if decimals is not None:
        # A small count must not be rounded to none.
        text = f"{value:.{decimals}f}"
        return text if float(text) or not value else _digits(value, None)
    if value == 0:
        return "0"
    wanted = 2 - math.floor(math.log10(abs(value)))
    text = f"{value:.{min(max(wanted, 0), _MAX_DECIMALS)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""Colours by the names that Grafana gives them, and a palette in which none looks like an alarm."""

from __future__ import annotations

from typing import Final

__all__ = ["GRID", "INK", "MUTED", "color", "palette", "step_color"]

INK: Final = "#1f2328"
MUTED: Final = "#656d76"
GRID: Final = "#e4e7eb"

_NAMED: Final = {
    "red": "#c4162a",
    "orange": "#e0700a",
    "yellow": "#c99400",
    "green": "#2f8132",
    "blue": "#1f60c4",
    "purple": "#7c35a3",
    "text": INK,
}
_PALETTE: Final = (
    "#1f60c4",
    "#7c35a3",
    "#0b8b8f",
    "#b5830b",
    "#5c7f1f",
    "#8a5a44",
    "#4f6d8f",
    "#a8479b",
    "#3b8f5c",
)


def color(name: str) -> str:
    """Return a colour by Grafana's name, or what CSS would make of it."""
    return _NAMED.get(name, name)


def palette(place: int) -> str:
    """Return the colour of a series by its place."""
    return _PALETTE[place % len(_PALETTE)]


def step_color(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    """Return the name of the colour that thresholds give a value; ``text`` where there are none."""
    found = "text"
    for bound, name in steps:
        if value >= bound:
            found = name
    return found

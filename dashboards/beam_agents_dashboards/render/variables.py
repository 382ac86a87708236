"""Grafana's variables in a query, replaced by their values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Window", "filled", "window"]

_VARIABLE: Final = re.compile(r"\$(?:\{(?P<braced>\w+)(?::\w+)?\}|(?P<plain>\w+))")
_POINTS: Final = 400
_STEPS_S: Final = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
    86400,
)


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is shown.

    Attributes:
        start_s: From when, seconds since the Unix epoch.
        end_s: Until when.
        step_s: Time from one point to the next.
        rate_s: ``$__rate_interval``: over what time a rate is taken.
    """

    start_s: float
    end_s: float
    step_s: float
    rate_s: float


def window(start_s: float, end_s: float, scrape_s: float) -> Window:
    """Return the window from one moment to another, with the steps that Grafana would take."""
    least = max((end_s - start_s) / _POINTS, scrape_s)
    step_s = float(next((each for each in _STEPS_S if each >= least), math.ceil(least)))
    # On whole steps: the same time gives the same points.
    end_s = math.floor(end_s / step_s) * step_s
    return Window(start_s, end_s, step_s, max(step_s + scrape_s, 4 * scrape_s))


def filled(expr: str, values: Mapping[str, str], shown: Window) -> str:
    """Return a query with its variables replaced. One that is not known stays, and Prometheus refuses it."""
    times = {
        "__interval": shown.step_s,
        "__rate_interval": shown.rate_s,
        "__range": shown.end_s - shown.start_s,
    }
    known = {**values, **{name: f"{max(1, math.ceil(seconds))}s" for name, seconds in times.items()}}
    return _VARIABLE.sub(lambda found: known.get(found["braced"] or found["plain"], found[0]), expr)

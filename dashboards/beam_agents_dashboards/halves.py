"""The halves of the bundle: what goes to Grafana and what goes to Prometheus."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from beam_agents_dashboards.names import Query
    from beam_agents_dashboards.settings import Settings

__all__ = ["HALVES", "files", "queries"]

HALVES: Final[dict[str, str]] = {
    "grafana": "beam_agents_dashboards.grafana_files",
    "prometheus": "beam_agents_dashboards.prometheus_files",
}
"""By name: the module that builds the half, with ``files(settings)`` and ``queries(settings)``."""


def files(half: str, settings: Settings) -> dict[str, str]:
    """Return a half's files: text by path, below the folder that is named as the half is.

    Raises:
        KeyError: There is no such half.
    """
    build = cast("Callable[[Settings], dict[str, str]]", import_module(HALVES[half]).files)
    return build(settings)


def queries(half: str, settings: Settings) -> Iterable[Query]:
    """Return every query that a half's files ask.

    Raises:
        KeyError: There is no such half.
    """
    build = cast("Callable[[Settings], Iterable[Query]]", import_module(HALVES[half]).queries)
    return build(settings)

"""The six dashboards for Grafana 11 and later, and their JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from beam_agents_dashboards.grafana import activations, expiry, memory, overview, stores, workers
from beam_agents_dashboards.grafana.frame import build

if TYPE_CHECKING:
    from beam_agents_dashboards.settings import Settings

__all__ = ["dashboards"]

_PAGES: Final = (overview.page, stores.page, memory.page, expiry.page, activations.page, workers.page)


def dashboards(settings: Settings) -> dict[str, str]:
    """Return the dashboards' JSON by their file's name."""
    built = [build(make(settings), settings) for make in _PAGES]
    return {f"{each.uid}.json": json.dumps(each, cls=JSONEncoder, indent=2) + "\n" for each in built}

"""What goes to Grafana."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from beam_agents_dashboards.grafana import dashboards
from beam_agents_dashboards.grafana_check import dashboard_queries
from beam_agents_dashboards.render.model import read_board
from beam_agents_dashboards.shipped import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents_dashboards.names import Query
    from beam_agents_dashboards.settings import Settings

__all__ = ["files", "queries"]


def files(settings: Settings) -> dict[str, str]:
    """Return the files of the folder ``grafana``, text by path: the dashboards and what provisions them."""
    folder = shipped("grafana")
    provisioning = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.glob("provisioning/*/*.yaml"))
    }
    return {**dashboards(settings), **provisioning}


def queries(settings: Settings) -> Iterator[Query]:
    """Return the query of every panel and annotation, with variables as the dashboards open."""
    return dashboard_queries(read_board(json.loads(text)) for text in dashboards(settings).values())

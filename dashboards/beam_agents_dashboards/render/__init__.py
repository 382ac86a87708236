"""Draws dashboards without Grafana: from their own JSON and a live Prometheus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from beam_agents_dashboards.render.model import read_board
from beam_agents_dashboards.render.page import draw_page
from beam_agents_dashboards.render.picture import PictureError, find_browser, take_picture
from beam_agents_dashboards.render.prometheus import Prometheus, PrometheusError
from beam_agents_dashboards.render.variables import Window, window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = [
    "PictureError",
    "Prometheus",
    "PrometheusError",
    "Window",
    "find_browser",
    "render",
    "window",
]


def render(
    dashboards: Mapping[str, str], url: str, folder: Path, shown: Window, browser: str | None
) -> Iterator[Path]:
    """Write each dashboard's page, and its picture if there is a browser; return each file as it is written.

    Args:
        dashboards: Their JSON, by file name.
        url: Where Prometheus is.
        folder: Where the files go; made where missing.
        shown: The time that is shown.
        browser: The path of a Chromium; None for no pictures.

    Raises:
        PrometheusError: Prometheus does not answer.
        PictureError: The browser made no picture.
        OSError: A file can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with Prometheus(url) as prometheus:
        for name, text in dashboards.items():
            html, height_px = draw_page(read_board(json.loads(text)), prometheus, shown, url)
            page = folder / name.replace(".json", ".html")
            page.write_text(html, encoding="utf-8")
            yield page
            if browser is not None:
                picture = page.with_suffix(".png")
                take_picture(browser, page, picture, height_px)
                yield picture

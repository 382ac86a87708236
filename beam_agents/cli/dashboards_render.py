"""``beam-agents dashboards render``: the dashboards as pages and pictures, without Grafana."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from beam_agents.cli.durations import parse_duration_ms

if TYPE_CHECKING:
    from beam_agents_dashboards import Settings

__all__ = ["parse_moment", "render", "show_empty_panels"]


def render(
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Where Prometheus is, such as http://127.0.0.1:9090.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go; made where missing.")],
    *,
    start: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="From when: an age such as 3h, or an ISO 8601 time."),
    ] = "3h",
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Until when, likewise.")] = "0s",
    scrape_interval: Annotated[
        str, typer.Option(metavar="DURATION", help="How often Prometheus scrapes the workers.")
    ] = "15s",
    dashboards: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the dashboards' JSON is; those that ship with this package."),
    ] = None,
    pictures: Annotated[
        bool, typer.Option(help="Make a PNG of each page too, if there is a Chromium.")
    ] = True,
) -> None:
    """Draw each dashboard from a live Prometheus, as a page of HTML that needs nothing else, and as a PNG.

    Times without a zone are UTC. Exit codes: 0 done; 1 Prometheus does not answer, or a file can't be
    written; 2 wrong arguments.
    """
    try:
        from beam_agents_dashboards.render import (  # noqa: PLC0415 - an extra, and slow to import
            PictureError,
            PrometheusError,
            find_browser,
            render,
            window,
        )
        from beam_agents_dashboards.shipped import shipped  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed: pip install 'beam-agents[dashboards]'")

    now_s = time.time()
    start_s, end_s = _moment(start, now_s, "--from"), _moment(end, now_s, "--to")
    if start_s >= end_s:
        raise typer.BadParameter("it must be before --to", param_hint="--from")
    try:
        scrape_s = parse_duration_ms(scrape_interval) / 1_000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--scrape-interval") from error
    if not scrape_s:
        raise typer.BadParameter("it must be more than 0", param_hint="--scrape-interval")
    browser = find_browser() if pictures else None
    if pictures and browser is None:
        typer.echo("beam-agents: no pictures: there is no Chromium on the path", err=True)
    try:
        folder = shipped("grafana") if dashboards is None else dashboards
        found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
        if not found:
            raise typer.BadParameter(f"there is no dashboard (*.json) in {folder}", param_hint="--dashboards")
        for path in render(found, prometheus, out, window(start_s, end_s, scrape_s), browser):
            typer.echo(path)
    except (PrometheusError, PictureError, OSError) as error:
        _fail(str(error))


def show_empty_panels(settings: Settings, url: str) -> None:
    """Print which panels would be empty over the last hour, and why.

    Raises:
        typer.Exit: Prometheus does not answer.
    """
    from beam_agents_dashboards.grafana import dashboards  # noqa: PLC0415 - an extra, and slow to import
    from beam_agents_dashboards.grafana_check import panels_without_data  # noqa: PLC0415 - as above
    from beam_agents_dashboards.render import Prometheus, PrometheusError, window  # noqa: PLC0415 - as above
    from beam_agents_dashboards.render.model import read_board  # noqa: PLC0415 - as above

    now_s = time.time()
    boards = [read_board(json.loads(text)) for text in dashboards(settings).values()]
    try:
        with Prometheus(url) as prometheus:
            found = list(panels_without_data(boards, prometheus, window(now_s - 3_600, now_s, 15)))
    except PrometheusError as error:
        _fail(str(error))
    total = sum(bool(panel.targets) for board in boards for panel in board.panels)
    typer.echo(f"{len(found)} of {total} panels have no data in the last hour{':' if found else ''}")
    for each in found:
        typer.echo(f"{each.place}: {each.why}")


def parse_moment(text: str, now_s: float) -> float:
    """Return a moment in seconds since the Unix epoch: an age such as ``3h``, or an ISO 8601 time.

    Raises:
        ValueError: The text is neither.
    """
    try:
        return now_s - parse_duration_ms(text) / 1_000
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no time: write an age such as 3h, or 2026-01-31T12:00:00 (UTC, or with a zone)"
        ) from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _moment(text: str, now_s: float, option: str) -> float:
    try:
        at_s = parse_moment(text, now_s)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if not 0 <= at_s <= math.ceil(now_s) + 1:
        raise typer.BadParameter(f"{text} is before 1970 or in the future", param_hint=option)
    return at_s


def _fail(problem: str) -> NoReturn:
    typer.echo(f"beam-agents: {problem}", err=True)
    raise typer.Exit(1)

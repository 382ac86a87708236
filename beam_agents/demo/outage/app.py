"""``python -m beam_agents.demo.outage``: an outage of Redis, and who is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from beam_agents.demo.data import FlightsMissing, flights_archive
from beam_agents.demo.outage.play import Acts, Unexpected, play
from beam_agents.demo.outage.servers import ServerFailed, ServerMissing
from beam_agents_dashboards.render import find_browser

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import JustifyMethod

    from beam_agents.demo.outage.play import Play

__all__ = ["demo_outage"]

_NAME_WIDTH: Final = 8
"""So wide are the names of the demonstration, which are not to be broken on a terminal of 80."""


def demo_outage(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = Path("run/outage"),
    *,
    pictures: Annotated[bool, typer.Option(help="Make a PNG of each dashboard too.")] = True,
) -> None:
    """Stop Redis under a pipeline over flights, and see who is told what by Prometheus and Alertmanager."""
    browser = find_browser() if pictures else None
    if pictures and browser is None:
        typer.echo("beam-agents: no pictures: there is no Chromium on the path", err=True)
    try:
        flights_archive()
        found = play(out, Acts(), browser, typer.echo)
    except (FlightsMissing, ServerMissing) as missing:
        typer.echo(f"beam-agents: {missing}", err=True)
        raise typer.Exit(2) from missing
    except (ServerFailed, Unexpected, OSError) as error:
        typer.echo(f"beam-agents: {error}; logs are in {out / 'servers'}", err=True)
        raise typer.Exit(1) from error
    Console().print(_table(found))
    typer.echo(f"what the webhook was told: {out / 'alerts.jsonl'}")
    typer.echo(f"the dashboards during the outage: {out / 'dashboards'}")


def _table(found: Play) -> Table:
    table = Table(title="Who was told what", title_justify="left")
    for head in ("alert", "severity", "about", "came", "ended"):
        justify: JustifyMethod = "right" if head in {"came", "ended"} else "left"
        table.add_column(
            head,
            justify=justify,
            overflow="fold",
            no_wrap=head in {"alert", "severity"},
            min_width=_NAME_WIDTH if head == "about" else None,
        )
    for row in _rows(found):
        table.add_row(*row)
    table.caption = "came after Redis was stopped, ended after it was started again"
    table.caption_justify = "left"
    return table


def _rows(found: Play) -> Iterator[tuple[str, ...]]:
    seen: list[Mapping[str, str]] = []
    for fired in found.told:
        # An alert is told again when another joins its group.
        if fired.status != "firing" or fired.labels in seen:
            continue
        seen.append(fired.labels)
        ended = next(
            each for each in reversed(found.told) if each.labels == fired.labels and each.status == "resolved"
        )
        about = " ".join(
            fired.labels[name] for name in ("pipeline", "agent", "backend", "window") if name in fired.labels
        )
        yield (
            fired.name,
            fired.labels["severity"],
            about,
            f"{fired.at_s - found.stopped_s:.0f} s",
            f"{ended.at_s - found.back_s:.0f} s",
        )

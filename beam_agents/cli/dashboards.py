"""``beam-agents dashboards …``: dashboards, rules and alerts for an operator's own servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from beam_agents.cli.dashboards_render import render, show_empty_panels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents_dashboards import Settings
    from beam_agents_dashboards.live import Missing

__all__ = ["dashboards_app"]

_SHOWN_PLACES: Final = 3
"""Rules or panels that are named beside a metric without data."""
_PAIR: Final = re.compile(r"\w+=")

dashboards_app = typer.Typer(
    help="Export and check the dashboards, recording rules and alerts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Only: TypeAlias = Annotated[
    str | None, typer.Option("--only", metavar="HALF", help="One half alone: grafana or prometheus.")
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, such as slo=0.999, pipeline=REGEX or for_scale=0.5. More may follow: --set "
        "slo=0.999 job=REGEX. A wrong key names them all.",
    ),
]
More: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="More settings.", show_default=False)
]


@dashboards_app.callback()
def _top() -> None:
    """Export and check the dashboards, recording rules and alerts."""


dashboards_app.command()(render)

# The package of dashboards is imported in the commands: no run of a pipeline needs it.


@dashboards_app.command()
def export(
    operands: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR",
            help="Where the files go; made where missing. NAME=… is a setting; ./NAME=… a folder.",
        ),
    ],
    *,
    only: Only = None,
    settings: Set = None,
) -> None:
    """Write the files, built with the settings, the runbooks, and a compose file that starts it all.

    Files of the same names are replaced. With --only it is that half alone. A link that is not set is told.

    Exit codes: 0 done; 1 they can't be written; 2 wrong arguments.
    """
    from beam_agents_dashboards import files  # noqa: PLC0415 - see above

    more = [each for each in operands if _PAIR.match(each)]
    folders = [each for each in operands if not _PAIR.match(each)]
    if len(folders) != 1:
        raise typer.BadParameter(f"one folder is needed, not {folders or 'none'}", param_hint="DIR")
    folder = Path(folders[0])
    parsed, halves = _settings(settings, more), _halves(only)
    try:
        texts = {f"{half}/{name}": text for half in halves for name, text in files(half, parsed).items()}
        if only is None:
            texts |= _shipped_texts("runbooks", ".md") | _shipped_texts("compose", ".yaml")
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"beam-agents: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{len(texts)} files are in {folder}")
    for key in ("runbook_url", "dashboard_url"):
        if getattr(parsed, key) == getattr(type(parsed)(), key):
            typer.echo(
                f"beam-agents: {key} is not set: links lead to {getattr(parsed, key)}; --set {key}=…",
                err=True,
            )


@dashboards_app.command()
def check(
    *,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Tell what this Prometheus has no data for, and why."),
    ] = None,
    only: Only = None,
    settings: Set = None,
    more: More = None,
) -> None:
    """Check that every query parses and asks for what the catalogue of signals has.

    Metrics without data are shown, and are no failure: what never happened has none.

    Exit codes: 0 nothing is wrong; 1 a query is, or Prometheus can't be asked; 2 wrong arguments.
    """
    from beam_agents_dashboards import queries  # noqa: PLC0415 - see above

    if prometheus is not None and not prometheus.startswith(("http://", "https://")):
        raise typer.BadParameter("an http or https URL is needed", param_hint="--prometheus")
    parsed, halves = _settings(settings, more), _halves(only)
    try:
        from beam_agents_dashboards.check import problems  # noqa: PLC0415 - needs the extra
        from beam_agents_dashboards.live import missing  # noqa: PLC0415 - as above
        from beam_agents_dashboards.render import Prometheus, PrometheusError  # noqa: PLC0415 - as above
    except ImportError as error:
        typer.echo(
            f"beam-agents: {error.name} is not installed: pip install 'beam-agents[dashboards]'", err=True
        )
        raise typer.Exit(1) from error

    asked = [query for half in halves for query in queries(half, parsed)]
    wrong = [(query.place, problem) for query in asked for problem in problems(query.expression)]
    for place, problem in wrong:
        typer.echo(f"beam-agents: {place}: {problem}", err=True)
    typer.echo(f"{len(asked)} queries: {f'{len(wrong)} problems' if wrong else 'all are sound'}")
    if prometheus is not None and not wrong:
        try:
            with Prometheus(prometheus) as server:
                _show_missing(missing(server, asked))
            if "grafana" in halves:
                show_empty_panels(parsed, prometheus)
        except PrometheusError as error:
            typer.echo(f"beam-agents: {error}", err=True)
            raise typer.Exit(1) from error
    if wrong:
        raise typer.Exit(1)


def _shipped_texts(name: str, suffix: str) -> dict[str, str]:
    """Return what no setting changes, by the path under the export's folder."""
    from beam_agents_dashboards.shipped import shipped  # noqa: PLC0415 - see above

    return {
        f"{name}/{page.name}": page.read_text(encoding="utf-8")
        for page in sorted(shipped(name).glob(f"*{suffix}"))
    }


def _settings(*given: Sequence[str] | None) -> Settings:
    from beam_agents_dashboards import SettingsError, parse_settings  # noqa: PLC0415 - see above

    try:
        return parse_settings(pair for pairs in given for pair in pairs or ())
    except SettingsError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error


def _halves(only: str | None) -> tuple[str, ...]:
    from beam_agents_dashboards import HALVES  # noqa: PLC0415 - see above

    if only is None:
        return tuple(HALVES)
    if only not in HALVES:
        raise typer.BadParameter(f"{only!r} is none of {', '.join(HALVES)}", param_hint="--only")
    return (only,)


def _show_missing(found: Sequence[Missing]) -> None:
    if not found:
        typer.echo("all of them have data")
        return
    typer.echo(f"{len(found)} metrics have no data:")
    for each in found:
        shown = ", ".join(each.places[:_SHOWN_PLACES])
        more = len(each.places) - _SHOWN_PLACES
        typer.echo(f"{each.metric}: {each.reason}")
        typer.echo(f"    asked for by {shown}" + (f" and {more} more" if more > 0 else ""))

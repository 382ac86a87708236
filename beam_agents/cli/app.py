"""``beam-agents``: the commands and their arguments."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import Annotated

import typer

from beam_agents.cli.dashboards import dashboards_app
from beam_agents.cli.imports import importing_beam
from beam_agents.cli.interrupts import exit_code
from beam_agents.cli.row_format import RowFormat  # noqa: TC001 - as above
from beam_agents.cli.store import store_app
from beam_agents.cli.telemetry import telemetry_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="beam-agents",
    help="Run AI agents as keyed, stateful, fault-tolerant steps of an Apache Beam pipeline.",
    add_completion=False,
    no_args_is_help=True,
    # Plain text: an error stays on one line, whatever the terminal's width, and can be searched for.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


app.add_typer(store_app, name="store")
app.add_typer(telemetry_app, name="telemetry")
app.add_typer(dashboards_app, name="dashboards")


def main() -> None:
    """Run the command line; the entry point of the ``beam-agents`` script."""
    app()


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - Typer calls it so
    if wanted:
        typer.echo(f"beam-agents {version('beam-agents')}")
        raise typer.Exit


@app.callback()
def _top(
    *,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Run AI agents as keyed, stateful, fault-tolerant steps of an Apache Beam pipeline."""


@app.command(context_settings={"allow_extra_args": True}, options_metavar="[OPTIONS] [-- BEAM_OPTIONS]")
def run(
    ctx: typer.Context,
    agent: Annotated[
        str,
        typer.Option(
            metavar="MODULE:NAME",
            help="The agent: an async function, as MODULE:NAME or path/to/file.py:NAME.",
        ),
    ],
    events: Annotated[
        list[str],
        typer.Option(
            metavar="FILE",
            help="A file or pipe of events, one a row; - for standard input. Repeat it for several.",
        ),
    ],
    key: Annotated[str, typer.Option(metavar="FIELD", help="The field with the entity's key.")],
    time: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="The field with the event's time: ISO 8601 (UTC without a zone) or epoch milliseconds.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where outputs go, as JSONL.")],
    *,
    row_format: Annotated[
        RowFormat | None,
        typer.Option(
            "--format",
            help="What the files hold.  [default: csv for .csv, jsonl otherwise]",
            show_default=False,
        ),
    ] = None,
    errors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where errors and malformed lines go, as JSONL.  [default: --out's name and .errors.jsonl]",
        ),
    ] = None,
    intents: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where intents go, as JSONL. Without it they are only counted."),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="The field that becomes the event.  [default: the whole row, as JSON]"
        ),
    ] = None,
    event_id: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field with the event's id.  [default: FILE:LINE]")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME", help="An AgentConfig to start from; the options below override it."
        ),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long a key lives after its newest event: 90s, 15m, 6h, 2d."
        ),
    ] = None,
    activation_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long one activation may take.")
    ] = None,
    suspension_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long a suspension may wait. Needs --runner=BundleBasedDirectRunner."
        ),
    ] = None,
    max_future_skew: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How far an event's time may be ahead of this machine's clock."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that one activation may use.")
    ] = None,
    compactor: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES", help="Bytes that evicting the oldest entries brings a full memory down to."
        ),
    ] = None,
    no_compactor: Annotated[
        bool, typer.Option("--no-compactor", help="Evict nothing: a full memory fails the activation.")
    ] = False,
    provider: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FACTORY", help="What makes the model's client: a function without arguments."
        ),
    ] = None,
    longterm_memory: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="The long-term store: its URI, or env:NAME of the variable that holds it."
        ),
    ] = None,
    telemetry: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME?OPTION=VALUE",
            help="A telemetry plugin (see beam-agents telemetry list). Repeat it for several.",
        ),
    ] = None,
    runner: Annotated[
        str,
        typer.Option(
            metavar="RUNNER",
            help="FnApiRunner, BundleBasedDirectRunner, prism, flink, portable, or another of Beam's. "
            "It reads and writes the files, so these must be where its workers are.",
        ),
    ] = "FnApiRunner",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when there is any error.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show Beam's own log, and the traceback of a failure.")
    ] = False,
) -> None:
    """Run an agent over files of events.

    Each row of the files, JSON objects one a line or CSV with a header, is one event. Rows of one key are
    processed in the order of the files. What is no event is reported with file and line, goes to the errors
    file, and the run goes on.

    Output files are written complete, and all of them, or not at all. Symbolic links are followed; devices
    and pipes are written to as they are. Options for Beam itself follow a --.

    Exit codes: 0 done; 1 the run failed, or there were errors and --strict was given; 2 wrong arguments;
    130 and 143 ended by SIGINT and SIGTERM.
    """
    try:
        # Beam takes two seconds to import; the other commands, and --help, do without.
        with importing_beam():
            from beam_agents.cli.run import run_files  # noqa: PLC0415 - as above

        run_files(
            agent=agent,
            events=events,
            key=key,
            time=time,
            out=out,
            row_format=row_format,
            errors=errors,
            intents=intents,
            payload=payload,
            event_id=event_id,
            config=config,
            ttl=ttl,
            activation_timeout=activation_timeout,
            suspension_timeout=suspension_timeout,
            max_future_skew=max_future_skew,
            max_tokens=max_tokens,
            compactor=compactor,
            no_compactor=no_compactor,
            provider=provider,
            longterm_memory=longterm_memory,
            telemetry=telemetry,
            runner=runner,
            strict=strict,
            verbose=verbose,
            beam_options=ctx.args,
        )
    except KeyboardInterrupt as interrupt:
        # Before the run began, or after it: in between, it says itself what became of the output.
        typer.echo("beam-agents: interrupted", err=True)
        raise typer.Exit(exit_code(interrupt)) from None

"""Runs the demo: the flights through the agent, and a table of what it found."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console

from beam_agents.cli.app import configure_logging, report_failure
from beam_agents.cli.job import Job, JobFailed, run_job
from beam_agents.cli.lines import MALFORMED_LINE
from beam_agents.cli.progress import progress_on
from beam_agents.cli.report import new_table, result_table
from beam_agents.cli.rows import Fields, Input, RowFormat
from beam_agents.cli.staging import OutputError, StagedFile, publish
from beam_agents.demo.data import FlightsMissing, flights_archive, write_flights
from beam_agents.demo.flights import CONFIG, LIMIT_MINUTES, RECENT_LEGS, watch_aircraft

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Aircraft", "Findings", "demo", "findings", "main"]

DEFAULT_ROWS: Final = 20_000
SHOWN_AIRCRAFT: Final = 5


@dataclass(frozen=True, slots=True)
class Aircraft:
    """One aircraft's statistics after its last flight.

    Attributes:
        tail_number: Which aircraft.
        departures: Flights that left.
        cancellations: Flights that never did.
        delay_minutes: The sum of its departure delays; early departures count as negative.
        worst_delay_minutes: The largest of them; None without a departure.
        legs_in_summary: Departures that are in its memory as part of the summary alone.
        alerts: How often its delays got out of hand.
    """

    tail_number: str
    departures: int
    cancellations: int
    delay_minutes: int
    worst_delay_minutes: int | None
    legs_in_summary: int
    alerts: int

    @property
    def mean_delay_minutes(self) -> float:
        """The mean departure delay; 0 without a departure."""
        return self.delay_minutes / self.departures if self.departures else 0.0


@dataclass(slots=True)
class Findings:
    """What the agents found.

    Attributes:
        aircraft: By tail number.
        no_tail_number: Rows that name no aircraft, so that no agent saw them.
    """

    aircraft: dict[str, Aircraft] = field(default_factory=dict)
    no_tail_number: int = 0

    @property
    def worst(self) -> list[Aircraft]:
        """The aircraft with enough departures to be judged, from the largest mean delay down."""
        judged = (each for each in self.aircraft.values() if each.departures >= RECENT_LEGS)
        return sorted(judged, key=lambda each: (-each.mean_delay_minutes, each.tail_number))


def main() -> None:
    """Run ``python -m beam_agents.demo``."""
    typer.run(demo)


def demo(
    rows: Annotated[str, typer.Option(metavar="N|all", help="How many flights, from the first.")] = str(
        DEFAULT_ROWS
    ),
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = Path("run/flights"),
    *,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Beam's own log.")] = False,
) -> None:
    """Run an agent for each aircraft over the flights that left New York in 2013."""
    configure_logging(verbose=verbose)
    if rows != "all" and not (rows.isdecimal() and int(rows) > 0):
        raise typer.BadParameter(f"{rows!r} is neither a positive number nor all", param_hint="--rows")
    job = _job(out)
    source = Path(job.inputs[0].path)
    try:
        flights_archive()
        out.mkdir(parents=True, exist_ok=True)
        write_flights(source, None if rows == "all" else int(rows))
        result = run_job(job, progress_on(Console(stderr=True), source.stat().st_size))
    except FlightsMissing as missing:
        typer.echo(f"beam-agents: {missing}", err=True)
        raise typer.Exit(2) from missing
    except OutputError as error:
        typer.echo(f"beam-agents: {error}; no output was written", err=True)
        raise typer.Exit(1) from error
    except JobFailed as failure:
        report_failure(failure, verbose=verbose)
        raise typer.Exit(1) from failure
    found = findings(job.out, job.errors, out / "alerts.jsonl")
    console = Console()
    console.print(result_table(job, result))
    console.print(_table(found, out / "alerts.jsonl"))
    if result.errors.total() > found.no_tail_number:
        typer.echo(f"beam-agents: there were errors; see {job.errors}", err=True)
        raise typer.Exit(1)


def _job(out: Path) -> Job:
    """Return the demo's run over ``flights.csv`` in a folder, where all its files go."""
    return Job(
        agent=watch_aircraft,
        config=CONFIG,
        inputs=(Input(str(out / "flights.csv"), "flights.csv"),),
        row_format=RowFormat.CSV,
        fields=Fields(key="tailnum", time="scheduled"),
        out=out / "statistics.jsonl",
        errors=out / "errors.jsonl",
    )


def findings(statistics: Path, errors: Path, alerts: Path) -> Findings:
    """Read what the agents wrote, and write the lines that are alerts to a file of their own."""
    found = Findings()
    alerts_of: Counter[str] = Counter()
    with StagedFile(alerts) as staged:
        with statistics.open("rb") as lines, Path(staged.shard_prefix).open("wb") as alert_lines:
            for line in lines:
                status = json.loads(line)
                tail_number = status["aircraft"]
                if status["alert"]:
                    alerts_of[tail_number] += 1
                    alert_lines.write(line)
                # A later line of the same aircraft has seen more flights, and takes the place of this one.
                found.aircraft[tail_number] = Aircraft(
                    tail_number=tail_number,
                    departures=status["departures"],
                    cancellations=status["cancellations"],
                    delay_minutes=status["delay_minutes"],
                    worst_delay_minutes=status["worst_delay_minutes"],
                    legs_in_summary=status["legs_in_summary"],
                    alerts=alerts_of[tail_number],
                )
        staged.assemble()
        publish([staged])
    with errors.open("rb") as lines:
        found.no_tail_number = sum(json.loads(line)["reason"] == MALFORMED_LINE for line in lines)
    return found


def _table(found: Findings, alerts: Path) -> Table:
    table = new_table("What the agents found")
    aircraft = found.aircraft.values()
    departures = sum(each.departures for each in aircraft)
    cancellations = sum(each.cancellations for each in aircraft)
    rows = departures + cancellations + found.no_tail_number
    table.add_row("flights", f"{rows:,}")
    table.add_row("  departures", f"{departures:,}")
    table.add_row("  cancellations (never departed)", f"{cancellations:,}")
    table.add_row("  no tail number (errors.jsonl)", f"{found.no_tail_number:,}")
    table.add_row("aircraft", f"{len(aircraft):,}")
    table.add_row("departures folded into summaries", f"{sum(each.legs_in_summary for each in aircraft):,}")
    table.add_row(f"alerts in {alerts}", f"{sum(each.alerts for each in aircraft):,}")
    table.add_row("aircraft with an alert", f"{sum(each.alerts > 0 for each in aircraft):,}")
    table.caption = f"alert: mean delay of the last {RECENT_LEGS} departures over {LIMIT_MINUTES} minutes"
    table.caption_justify = "left"
    for place, each in enumerate(found.worst[:SHOWN_AIRCRAFT], 1):
        table.add_row(
            f"worst aircraft {place}: {each.tail_number}",
            f"{each.mean_delay_minutes:.1f} min (mean of {each.departures})",
        )
    return table

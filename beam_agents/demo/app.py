"""Runs the demo: the flights through the agent, and a table of what it found."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from beam_agents.cli.job import Job, JobFailed, run_job
from beam_agents.cli.lines import MALFORMED_LINE
from beam_agents.cli.progress import progress_on
from beam_agents.cli.report import new_table, result_table
from beam_agents.cli.row_format import RowFormat
from beam_agents.cli.rows import Fields, Input
from beam_agents.cli.run import check_runner, configure_logging, duration_ms, report_failure
from beam_agents.cli.staging import OutputError, StagedFile, publish
from beam_agents.config import AgentConfig
from beam_agents.demo.data import FlightsMissing, flights_archive, write_flights
from beam_agents.demo.flights import LIMIT_MINUTES, PROFILE, RECENT_LEGS, flights_config, watch_aircraft
from beam_agents.demo.replay import check_replay_runner, check_speed, replayed
from beam_agents.demo.store import (
    command_line,
    count_rows,
    provision_store,
    publish_store,
    sqlite_uri,
    store_in_use,
)
from beam_agents.signals import catalogue
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table

    from beam_agents.cli.job import JobResult
    from beam_agents.cli.tally import Tally
    from beam_agents.demo.store import StoredRows

__all__ = ["Aircraft", "Findings", "command", "findings", "flights_job", "main"]

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
    command()()


def command() -> typer.Typer:
    """Return the command."""
    made = typer.Typer(add_completion=False)
    # What comes after a -- is Beam's.
    made.command(context_settings={"allow_extra_args": True})(demo)
    return made


def demo(
    ctx: typer.Context,
    rows: Annotated[str, typer.Option(metavar="N|all", help="How many flights, from the first.")] = str(
        DEFAULT_ROWS
    ),
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")] = Path("run/flights"),
    replay_speed: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Let flights come in by a clock that runs N times as fast as this machine's."
        ),
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="When an aircraft expires. [default: 30d]")
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(
            metavar="RUNNER",
            help="Beam's name of it; Beam's options come after a --. "
            "[default: FnApiRunner; prism with --replay-speed]",
        ),
    ] = None,
    *,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show Beam's own log.")] = False,
) -> None:
    """Run an agent for each aircraft over the flights that left New York in 2013."""
    configure_logging(verbose=verbose)
    if rows != "all" and not (rows.isdecimal() and int(rows) > 0):
        raise typer.BadParameter(f"{rows!r} is neither a positive number nor all", param_hint="--rows")
    chosen = _change_of_job(replay_speed, ttl, runner, ctx.args)
    alerts, memory = out / "alerts.jsonl", out / "memory.sqlite"
    source = out / "flights.csv"
    result: JobResult | None = None
    try:
        flights_archive()
        out.mkdir(parents=True, exist_ok=True)
        write_flights(source, None if rows == "all" else int(rows), in_order=replay_speed is not None)
        with StagedFile(memory) as staged:
            # A store of the run's own: rows of an earlier one would be news of the same flights.
            in_use = sqlite_uri(store_in_use(staged))
            provision_store(in_use)
            job = chosen(flights_job(out, in_use))
            result = run_job(job, progress_on(Console(stderr=True), source.stat().st_size))
            publish_store(staged, memory)
            found = findings(job.out, job.errors, alerts)
    except FlightsMissing as missing:
        typer.echo(f"beam-agents: {missing}", err=True)
        raise typer.Exit(2) from missing
    except OutputError as error:
        typer.echo(f"beam-agents: {error}{'; no output was written' if result is None else ''}", err=True)
        raise typer.Exit(1) from error
    except JobFailed as failure:
        report_failure(failure, verbose=verbose)
        raise typer.Exit(1) from failure
    uri = sqlite_uri(memory)
    console = Console()
    console.print(result_table(job, result))
    console.print(_table(found, alerts))
    console.print(_store_table(memory, count_rows(uri), result.tally))
    # No part of the table, which would fold them: they are there to be copied.
    typer.echo(f"to list the rows: {command_line('store', 'ls', uri)}")
    if found.worst:
        entity = found.worst[0].tail_number
        get = command_line("store", "get", uri, "--entity", entity, "--key", PROFILE, "--show-values")
        typer.echo(f"to see one of them: {get}")
    if result.errors.total() > found.no_tail_number:
        typer.echo(f"beam-agents: there were errors; see {job.errors}", err=True)
        raise typer.Exit(1)


@contextmanager
def _refusing(option: str) -> Iterator[None]:
    """Say of what is wrong which option it is."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _change_of_job(
    replay_speed: float | None, ttl: str | None, runner: str | None, beam_options: Sequence[str]
) -> Callable[[Job], Job]:
    """Return what makes the demo's run the one that is asked for.

    Raises:
        typer.BadParameter: It is asked for what cannot be.
    """
    ttl_ms = None if ttl is None else duration_ms("--ttl", ttl)
    if ttl_ms == 0:
        raise typer.BadParameter("it must be longer than nothing", param_hint="--ttl")
    name = runner if runner is not None else "FnApiRunner" if replay_speed is None else "prism"
    check_runner(name, beam_options, AgentConfig())
    if replay_speed is not None:
        with _refusing("--replay-speed"):
            check_speed(replay_speed)
        with _refusing("--runner"):
            check_replay_runner(name)

    def change(job: Job) -> Job:
        config = job.config if ttl_ms is None else replace(job.config, ttl_ms=ttl_ms)
        changed = replace(job, config=config, runner=name, options=tuple(beam_options))
        return changed if replay_speed is None else replayed(changed, replay_speed)

    return change


def flights_job(out: Path, longterm_memory: str) -> Job:
    """Return the demo's run over a folder's ``flights.csv``, with its files in that folder.

    Args:
        out: The folder.
        longterm_memory: The URI of a store that has been provisioned.
    """
    return Job(
        agent=watch_aircraft,
        config=flights_config(longterm_memory),
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
    last: dict[str, dict[str, Any]] = {}
    with StagedFile(alerts) as staged:
        with statistics.open("rb") as lines, Path(staged.shard_prefix).open("wb") as alert_lines:
            for line in lines:
                status = json.loads(line)
                tail_number = status["aircraft"]
                if status["alert"]:
                    alerts_of[tail_number] += 1
                    alert_lines.write(line)
                # The line that has seen most flights is the last, wherever the runner put it.
                if tail_number not in last or _flights(status) > _flights(last[tail_number]):
                    last[tail_number] = status
        staged.assemble()
        publish([staged])
    for tail_number, status in last.items():
        found.aircraft[tail_number] = Aircraft(
            tail_number=tail_number,
            departures=status["departures"],
            cancellations=status["cancellations"],
            delay_minutes=status["delay_minutes"],
            worst_delay_minutes=status["worst_delay_minutes"],
            legs_in_summary=status["legs_in_summary"],
            alerts=alerts_of[tail_number],
        )
    with errors.open("rb") as lines:
        found.no_tail_number = sum(json.loads(line)["reason"] == MALFORMED_LINE for line in lines)
    return found


def _flights(status: dict[str, Any]) -> int:
    seen: int = status["departures"] + status["cancellations"]
    return seen


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


def _store_table(memory: Path, rows: StoredRows, tally: Tally) -> Table:
    table = new_table(f"What outlasts the run, in {memory}")
    table.add_row("rows of totals, one for each aircraft", f"{rows.profiles:,}")
    table.add_row("rows of totals, one for each aircraft and month", f"{rows.months:,}")
    table.add_row("working memories of aircraft that expired", f"{rows.working_memories:,}")
    applied, stale = (
        tally.total(catalogue.LONGTERM_UPSERTS, "sqlite", result.value)
        for result in (UpsertResult.APPLIED, UpsertResult.STALE)
    )
    table.add_row("upserts that the store applied", f"{applied:,}")
    table.add_row("stale upserts, which it refused", f"{stale:,}")
    return table

"""The table at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from beam_agents.cli.lines import MALFORMED_LINE
from beam_agents.signals import catalogue
from beam_agents.signals.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.cli.job import Job, JobResult
    from beam_agents.cli.tally import Tally

__all__ = ["new_table", "result_table"]


def new_table(title: str) -> Table:
    """Return an empty table in the command line's look."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    return table


def result_table(job: Job, result: JobResult) -> Table:
    """Return the table of what a run did."""
    table = new_table("What happened")
    for name, value in _rows(job, result):
        table.add_row(name, value)
    return table


def _rows(job: Job, result: JobResult) -> Iterator[tuple[str, str]]:
    tally = result.tally
    if tally.reading_done:
        yield "lines read", f"{tally.lines_read:,}"
    yield "malformed lines", f"{result.errors[MALFORMED_LINE]:,}"
    if tally.in_process or not (result.outputs or result.errors):
        yield from _activation_rows(tally)
    else:
        yield "activations", "not counted: the runner used other processes"
    yield f"outputs in {job.out}", f"{result.outputs:,}"
    yield f"errors in {job.errors}", f"{result.errors.total():,}"
    for reason, count in sorted(result.errors.items()):
        yield f"  {reason}", f"{count:,}"
    if job.intents is not None:
        yield f"intents in {job.intents}", f"{result.intents:,}"
    elif result.intents:
        yield "intents, NOT written (see --intents)", f"{result.intents:,}"
    if tally.in_process:
        yield from _detail_rows(tally)
    yield "wall time", f"{result.wall_s:.1f} s"
    if tally.events:
        yield "events per second", f"{tally.events / result.wall_s:,.0f}"


def _activation_rows(tally: Tally) -> Iterator[tuple[str, str]]:
    yield "activations", f"{tally.activations:,}"
    for outcome in Outcome:
        yield f"  {outcome.value}", f"{tally.total(catalogue.ACTIVATIONS, outcome.value):,}"
    if tally.repeated_attempts:
        yield "  of these repeated attempts", f"{tally.repeated_attempts:,}"


def _detail_rows(tally: Tally) -> Iterator[tuple[str, str]]:
    yield "memory of a key, median", f"{tally.median_memory_bytes:,} bytes"
    yield "memory of a key, largest", f"{tally.largest_memory_bytes:,} bytes"
    yield "evictions", f"{tally.total(catalogue.COMPACTION_EVICTIONS):,}"
    yield "evicted bytes", f"{tally.total(catalogue.COMPACTION_EVICTED_BYTES):,}"
    yield "summaries", f"{tally.total(catalogue.SUMMARIES, 'ok'):,}"
    failed = tally.total(catalogue.SUMMARIES) - tally.total(catalogue.SUMMARIES, "ok")
    if failed:
        yield "summaries that failed", f"{failed:,}"
    yield "model calls", f"{tally.total(catalogue.MODEL_CALLS):,}"
    yield "keys that expired", f"{tally.total(catalogue.TTL_WIPES):,}"
    if tally.has_store:
        yield from _store_rows(tally)


def _store_rows(tally: Tally) -> Iterator[tuple[str, str]]:
    yield "long-term rows written", f"{tally.total_of(catalogue.LONGTERM_UPSERTS, result='applied'):,}"
    yield "long-term rows refused as stale", f"{tally.total_of(catalogue.LONGTERM_UPSERTS, result='stale'):,}"
    flushed = tally.total_of(catalogue.TTL_WIPES, flushed="true")
    yield "expired keys whose memory was written", f"{flushed:,}"
    for name, metric in (
        ("flushes that failed", catalogue.LONGTERM_FLUSH_FAILURES),
        ("expiry timers set again", catalogue.EXPIRE_REARMS),
        ("store calls tried again", catalogue.STORE_RETRIES),
    ):
        if count := tally.total(metric):
            yield name, f"{count:,}"

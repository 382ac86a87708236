from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

from rich.console import Console

from beam_agents.cli.job import Job, JobResult
from beam_agents.cli.report import result_table
from beam_agents.cli.row_format import RowFormat
from beam_agents.cli.rows import Fields
from beam_agents.cli.tally import Tally
from beam_agents.config import AgentConfig
from beam_agents.runtime.outcomes import Complete
from beam_agents.signals import catalogue
from beam_agents.signals.observer import Record


async def agent(_ctx: object) -> Complete:
    return Complete()


def shown(tally: Tally, *, intents: Path | None = None, errors: Counter[str] | None = None) -> dict[str, str]:
    job = Job(
        agent=agent,
        config=AgentConfig(telemetry=()),
        inputs=(),
        row_format=RowFormat.JSONL,
        fields=Fields("id", "at"),
        out=Path("o"),
        errors=Path("e"),
        intents=intents,
    )
    result = JobResult(
        tally=tally, outputs=3, errors=errors or Counter(), intents=4, first_malformed=(), wall_s=2.0
    )
    console = Console(file=io.StringIO(), width=100)
    table = result_table(job, result)
    table.box = None
    table.title = None
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return {
        name.strip(): value.strip() for name, _, value in (line.strip().partition("  ") for line in lines)
    }


def busy_tally() -> Tally:
    tally = Tally()
    tally.in_process = True
    tally.reading(1_002, 10, 1_000, done=True)
    record = Record(catalogue.SPAN_INVOKE_AGENT, "p", "a", b"k")
    record.attempt = 2
    record.measure(catalogue.ACTIVATIONS, 1, "complete")
    record.measure(catalogue.COMPACTION_EVICTIONS, 5)
    record.measure(catalogue.COMPACTION_EVICTED_BYTES, 6_000)
    record.measure(catalogue.SUMMARIES, 1, "ok")
    record.measure(catalogue.SUMMARIES, 1, "not_smaller")
    record.measure(catalogue.MODEL_CALLS, 1, "m", "ok")
    record.measure(catalogue.MEMORY_SIZE_BYTES, 1_024)
    tally.add(record)
    return tally


def test_every_number_is_there() -> None:
    rows = shown(busy_tally(), errors=Counter(malformed_line=2, activation_error=7))
    assert rows == {
        "lines read": "1,002",
        "malformed lines": "2",
        "activations": "1",
        "complete": "1",
        "suspend": "0",
        "failed": "0",
        "of these repeated attempts": "1",
        "outputs in o": "3",
        "errors in e": "9",
        "activation_error": "7",
        "malformed_line": "2",
        "intents, NOT written (see --intents)": "4",
        "memory of a key, median": "1,020 bytes",
        "memory of a key, largest": "1,024 bytes",
        "evictions": "5",
        "evicted bytes": "6,000",
        "summaries": "1",
        "summaries that failed": "1",
        "model calls": "1",
        "keys that expired": "0",
        "wall time": "2.0 s",
        "events per second": "500",
    }


def test_written_intents_name_their_file() -> None:
    rows = shown(busy_tally(), intents=Path("i"))
    assert rows["intents in i"] == "4"
    assert "intents, NOT written (see --intents)" not in rows


def test_what_was_not_counted_here_is_not_shown_as_zero() -> None:
    rows = shown(Tally())
    assert rows["activations"] == "not counted: the runner used other processes"
    assert "model calls" not in rows
    assert "lines read" not in rows

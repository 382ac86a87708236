"""One run: files in, an agent on an embedded runner, files out."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.io.textio import WriteToText
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.runner import PipelineState

from beam_agents.cli.interrupts import interruptible, uninterrupted
from beam_agents.cli.lines import (
    MALFORMED_LINE,
    error_line,
    intent_line,
    located_error_line,
    malformed_line,
    output_line,
)
from beam_agents.cli.rows import LineReader, Malformed, read_rows
from beam_agents.cli.runners import keep_order
from beam_agents.cli.staging import StagedFile, publish
from beam_agents.cli.tally import TallyPlugin, forget_tally, tally_of
from beam_agents.transform import RunAgent
from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from apache_beam.pvalue import DoOutputsTuple, PBegin, PCollection

    from beam_agents.cli.row_format import RowFormat
    from beam_agents.cli.rows import Fields, Input
    from beam_agents.cli.tally import Tally
    from beam_agents.config import AgentConfig
    from beam_agents.runtime.activation import AgentFunction

    Source: TypeAlias = beam.PTransform[PBegin, DoOutputsTuple]

__all__ = ["EVENTS", "MALFORMED", "Job", "JobFailed", "JobResult", "run_job"]

_T = TypeVar("_T")

EVENTS: Final = "events"
MALFORMED: Final = "malformed"
"""The outputs of what reads a job's rows: events, and lines of the errors file."""
_REPORT_EVERY: Final = 256
"""Rows between two notes of how far reading is."""
_WINDOW_S: Final = 86_400
"""Seconds of event time of which an unbounded run's lines are one shard."""
_FIRST_MALFORMED: Final = 5
"""How many malformed lines a result names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run.

    Attributes:
        agent: The agent.
        config: How it runs; the run adds its own tally to the telemetry.
        inputs: The files, read one after the other.
        row_format: What they hold.
        fields: What their fields mean.
        out: Where outputs go.
        errors: Where errors and malformed lines go.
        intents: Where intents go; None: they are only counted.
        runner: Beam's name of the runner. It must run on this machine: files are read and written locally.
        options: Further pipeline options, such as ``("--direct_num_workers=2",)``.
        source: Makes, of the run's id, what reads the rows in place of ``inputs`` and has the outputs EVENTS
            and MALFORMED; it may be unbounded. None: the files are read from beginning to end.
    """

    agent: AgentFunction
    config: AgentConfig
    inputs: tuple[Input, ...]
    row_format: RowFormat
    fields: Fields
    out: Path
    errors: Path
    intents: Path | None = None
    runner: str = "FnApiRunner"
    options: tuple[str, ...] = ()
    source: Callable[[str], Source] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a run did.

    Attributes:
        tally: What was counted while it ran.
        outputs: Lines of the output file.
        errors: Lines of the errors file, by reason.
        intents: Intents, written or not.
        first_malformed: The first malformed lines, as ``file:line: what is wrong``.
        wall_s: Seconds from start to end.
    """

    tally: Tally
    outputs: int
    errors: Counter[str]
    intents: int
    first_malformed: tuple[str, ...]
    wall_s: float


class JobFailed(Exception):
    """The pipeline failed; no output file was written. The cause is the runner's exception."""


def run_job(job: Job, watch: Callable[[Tally], AbstractContextManager[None]]) -> JobResult:
    """Run a job to its end and write its files.

    Args:
        job: What to run.
        watch: Shows the tally while the pipeline runs.

    Raises:
        JobFailed: The pipeline failed. Files of the same names from earlier are as they were.
        KeyboardInterrupt: It was interrupted. Files are as they were, too.
        OutputError: An output file cannot be written. Files are as they were.
    """
    run_id = uuid.uuid4().hex
    tally = tally_of(run_id)
    started = time.perf_counter()
    summary = _ErrorsSummary()
    output_lines = intent_lines = 0
    published = False
    try:
        with ExitStack() as staged:
            out, errors, intents = (
                staged.enter_context(StagedFile(path)) for path in (job.out, job.errors, job.intents)
            )
            with interruptible() as was_interrupted, watch(tally):
                _run_pipeline(job, run_id, (out, errors, intents), was_interrupted)
            intent_lines = intents.assemble()
            errors.assemble(summary.add)
            output_lines = out.assemble()
            # First what may fail or wait: nothing is replaced by then.
            for file in (intents, errors, out):
                file.stream()
            with uninterrupted():
                publish((intents, errors, out))
                published = True
    except KeyboardInterrupt:
        # Once the files are in their places the run is done; whoever handles signals knows that one came.
        if not published:
            raise
    finally:
        forget_tally(run_id)
    return JobResult(
        tally=tally,
        outputs=output_lines,
        errors=summary.reasons,
        intents=intent_lines,
        first_malformed=tuple(summary.first_malformed),
        wall_s=time.perf_counter() - started,
    )


class _ErrorsSummary:
    """What the lines of an errors file come to."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.first_malformed: list[str] = []

    def add(self, line: bytes) -> None:
        error = json.loads(line)
        self.reasons[error["reason"]] += 1
        if error["reason"] == MALFORMED_LINE and len(self.first_malformed) < _FIRST_MALFORMED:
            self.first_malformed.append(f"{error['file']}:{error['line']}: {error['detail']}")


def _run_pipeline(
    job: Job,
    run_id: str,
    files: tuple[StagedFile, StagedFile, StagedFile],
    was_interrupted: Callable[[], bool],
) -> None:
    options = PipelineOptions([f"--runner={job.runner}", *job.options])
    try:
        pipeline = beam.Pipeline(options=options)
        keep_order(pipeline.runner, pipeline.options)
        _build(pipeline, job, run_id, *files)
        state = pipeline.run().wait_until_finish()
    except BaseException as error:
        # An agent may raise anything, KeyboardInterrupt and SystemExit too.
        if isinstance(error, KeyboardInterrupt) and was_interrupted():
            raise
        raise JobFailed from error
    if state != PipelineState.DONE:
        raise JobFailed from RuntimeError(f"the pipeline ended as {state}")


def _build(
    pipeline: beam.Pipeline,
    job: Job,
    run_id: str,
    out: StagedFile,
    errors: StagedFile,
    intents: StagedFile,
) -> None:
    config = replace(job.config, telemetry=(*job.config.telemetry, TallyPlugin(run_id)))
    rows = pipeline | "Read" >> (_ReadFiles(job, run_id) if job.source is None else job.source(run_id))
    rows[EVENTS].element_type = tuple[bytes, AgentEnvelope]
    rows[MALFORMED].element_type = bytes
    results = rows[EVENTS] | "RunAgent" >> RunAgent(job.agent, config=config)
    # Without ids of their own, events have their places as ids: see rows.
    make_error_line = error_line if job.fields.event_id is not None else located_error_line
    failed = _map("ErrorLines", make_error_line, results.errors)
    all_errors = (rows[MALFORMED], failed) | "AllErrors" >> beam.Flatten()
    _write("Out", _map("OutputLines", output_line, results.output), out)
    _write("Errors", all_errors, errors)
    _write("Intents", _map("IntentLines", intent_line, results.intents), intents)


def _map(name: str, make_line: Callable[[_T], bytes], collection: PCollection[_T]) -> PCollection[bytes]:
    lines: PCollection[bytes] = collection | name >> beam.Map(make_line)
    return lines


def _write(name: str, lines: PCollection[bytes], staged: StagedFile) -> None:
    lines.element_type = bytes
    # What is unbounded is written window by window; their names are in the order of their times.
    window_s = None if lines.is_bounded else _WINDOW_S
    lines | f"Write{name}" >> WriteToText(
        staged.shard_prefix, coder=BytesCoder(), triggering_frequency=window_s
    )


class _ReadFiles(beam.PTransform["PBegin", "DoOutputsTuple"]):
    def __init__(self, job: Job, run_id: str) -> None:
        super().__init__()
        self._read = _ReadRows(job.inputs, job.row_format, job.fields, run_id)

    def expand(self, begin: PBegin) -> DoOutputsTuple:
        # One element stands for all files, so that rows are read in order.
        read = beam.ParDo(self._read).with_outputs(MALFORMED, main=EVENTS)
        rows: DoOutputsTuple = begin | beam.Impulse() | read
        return rows


class _ReadRows(beam.DoFn):
    """Reads all files' rows: events, and lines of the errors file."""

    def __init__(self, inputs: tuple[Input, ...], row_format: RowFormat, fields: Fields, run_id: str) -> None:
        self._inputs = inputs
        self._row_format = row_format
        self._fields = fields
        self._run_id = run_id

    def process(self, _element: bytes) -> Iterator[tuple[bytes, AgentEnvelope] | TaggedOutput[str, bytes]]:
        tally = tally_of(self._run_id)
        lines_before = bytes_before = events = rows = 0
        for source in self._inputs:
            with open(source.path, "rb") as file:  # noqa: PTH123 - a plain path, as it was given
                lines = LineReader(file)
                for row in read_rows(lines, source.label, self._row_format, self._fields):
                    rows += 1
                    if rows % _REPORT_EVERY == 0:
                        tally.reading(lines_before + lines.number, bytes_before + lines.bytes_read, events)
                    if isinstance(row, Malformed):
                        yield TaggedOutput(MALFORMED, malformed_line(row))
                    else:
                        events += 1
                        yield row.entity_key, row
                lines_before += lines.number
                bytes_before += lines.bytes_read
        tally.reading(lines_before, bytes_before, events, done=True)

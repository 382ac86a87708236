"""Events as they came in, at a chosen speed: an unbounded source, whose watermark moves while it waits.

A file of events in the order of their times is read to its end once, along a clock of its own: the replay's
clock starts at the first event's time and runs ``speed`` times as fast as the wall clock. An event is out
when the clock has reached its time. The watermark is the clock, but never later than the next event: so what
waits for event time (an expiry) happens in the quiet between two events, and no event is late.

Where the source is: a range of lines that are still to come, which the runner keeps. A job that goes on from
a checkpoint goes on with the next line. The clock has not stood still meanwhile: what became due is out at
once, as with any source that has a backlog.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import create_runner
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Duration, Timestamp

from beam_agents.cli.job import EVENTS, MALFORMED
from beam_agents.cli.lines import malformed_line
from beam_agents.cli.row_format import RowFormat
from beam_agents.cli.rows import LineReader, Malformed, Place, read_rows
from beam_agents.cli.tally import tally_of
from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from apache_beam.pvalue import DoOutputsTuple, PBegin
    from apache_beam.runners.sdf_utils import RestrictionTrackerView

    from beam_agents.cli.job import Job
    from beam_agents.cli.rows import Fields

__all__ = ["Clock", "Replay", "ReplayRows", "check_replay_runner", "check_speed", "replayed"]

Row: TypeAlias = AgentEnvelope | Malformed

TICK_S: Final = 0.25
"""The longest that the source waits before it moves the watermark again, in seconds of the wall clock."""
ROWS_PER_BUNDLE: Final = 500
"""After so many rows the source lets its bundle commit, however many more are due."""
HEADER: Final = 1
"""The line that has the columns' names."""

# Beam puts the real thing in the place of these defaults; the casts tell so to the type checker.
# The DoFn is its own provider of restrictions.
_TRACKER: Final = cast("RestrictionTrackerView", beam.DoFn.RestrictionParam())
_WATERMARK: Final = cast(
    "ManualWatermarkEstimator",
    beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
)


@dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed, and how fast.

    Attributes:
        path: A CSV file with a header, in the order of its events' times, each row on a line of its own. A
            row out of order is late: it is out with the row before it.
        label: What reports call it.
        fields: What its fields mean.
        speed: Seconds of event time in a second of the wall clock.

    Raises:
        ValueError: The speed is none.
    """

    path: str
    label: str
    fields: Fields
    speed: float

    def __post_init__(self) -> None:
        check_speed(self.speed)


def check_speed(speed: float) -> None:
    """Refuse a speed that no clock can have.

    Raises:
        ValueError: It is one.
    """
    if not (math.isfinite(speed) and speed > 0):
        raise ValueError(f"a replay's speed is a finite number above 0, not {speed:g}")


def check_replay_runner(name: str) -> None:
    """Refuse a runner that takes no heed of when things are due.

    Beam's own in Python run what a source defers at once, or fail; FnApiRunner fires the timers of event time
    before the watermark is there, or holds everything back until the source has ended.

    Args:
        name: The name of a runner that can be had.

    Raises:
        ValueError: It is one.
    """
    if not isinstance(create_runner(name), PortableRunner):
        raise ValueError(  # noqa: TRY004 - it is the runner that does not fit
            f"{name} takes no heed of when an event is due, or of the watermark: "
            "give a portable runner, such as prism"
        )


def replayed(job: Job, speed: float) -> Job:
    """Return a job over one file with its events replayed.

    Args:
        job: The job; its runner must be a portable one.
        speed: Seconds of event time in a second of the wall clock.

    Raises:
        ValueError: The speed is none.
    """
    (source,) = job.inputs
    return replace(job, source=partial(ReplayRows, Replay(source.path, source.label, job.fields, speed)))


@dataclass(frozen=True, slots=True)
class Clock:
    """The replay's clock.

    Attributes:
        started_s: When the replay began, in seconds since the Unix epoch.
        first_ms: What it showed then: the first event's time.
        speed: Seconds of event time in a second of the wall clock.
    """

    started_s: float
    first_ms: int
    speed: float

    def shows_ms(self, wall_s: float) -> int:
        """Return the event time that it shows at a time of the wall clock."""
        return self.first_ms + math.floor((wall_s - self.started_s) * self.speed * 1_000)

    def waits_s(self, event_ms: int, wall_s: float) -> float:
        """Return how long it takes from then until an event is due; 0 for one that is."""
        due_s = self.started_s + (event_ms - self.first_ms) / 1_000 / self.speed
        return max(0.0, due_s - wall_s)


@dataclass(frozen=True, slots=True)
class Lines:
    """Where the lines of a file begin.

    Attributes:
        offsets: By line, from 0: in bytes from the beginning; and the file's length as the last.
        first_ms: The time of the first event; 0 for a file without any.
        events: By line, from 0: 1 for one that was read and is an event. The only part that changes.
    """

    offsets: tuple[int, ...]
    first_ms: int
    events: bytearray

    @property
    def rows(self) -> OffsetRange:
        """The numbers of the lines that have rows."""
        return OffsetRange(HEADER + 1, max(HEADER, len(self.offsets) - 1) + 1)


def lines_of(replay: Replay) -> Lines:
    """Return where the lines of a file begin; it is read through at the first call of a process.

    Raises:
        OSError: It cannot be read.
    """
    stat = Path(replay.path).stat()
    return _lines_of(replay, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _lines_of(replay: Replay, _size: int, _mtime_ns: int) -> Lines:
    offsets = [0]
    with Path(replay.path).open("rb") as file:
        for line in file:
            offsets.append(offsets[-1] + len(line))
        file.seek(0)
        rows = read_rows(LineReader(file), replay.label, RowFormat.CSV, replay.fields)
        first_ms = next((row.event_time_ms for row in rows if isinstance(row, AgentEnvelope)), 0)
    return Lines(tuple(offsets), first_ms, bytearray(len(offsets)))


class ReplayRows(beam.PTransform["PBegin", "DoOutputsTuple"]):
    """Makes of a file two unbounded collections; its runner must pass :func:`check_replay_runner`.

    They are ``EVENTS``, of tuple[bytes, AgentEnvelope], which RunAgent takes, and ``MALFORMED``, the lines of
    an errors file.

    Args:
        replay: What is replayed, and how fast.
        run_id: Whose tally is told how far it is.
    """

    def __init__(self, replay: Replay, run_id: str) -> None:
        super().__init__()
        self._replay = replay
        self._run_id = run_id

    def expand(self, begin: PBegin) -> DoOutputsTuple:  # noqa: D102 - Beam's own
        # The clock starts on the worker: a job may take long to come there.
        started = begin | beam.Impulse() | "StartClock" >> beam.Map(lambda _: time.time())
        rows = started | "Replay" >> beam.ParDo(_ReplayLines(self._replay, self._run_id))
        # A step of its own: Beam takes what a source puts out beside its main output for bounded.
        told: DoOutputsTuple = rows | "TellApart" >> beam.ParDo(_tell_apart).with_outputs(
            MALFORMED, main=EVENTS
        )
        return told


def _tell_apart(row: Row) -> Iterator[tuple[bytes, AgentEnvelope] | TaggedOutput[str, bytes]]:
    if isinstance(row, Malformed):
        yield TaggedOutput(MALFORMED, malformed_line(row))
    else:
        yield row.entity_key, row


class _ReplayLines(beam.DoFn, RestrictionProvider):
    """Replays lines from a range of them; the element is when the clock was started."""

    def __init__(self, replay: Replay, run_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Beam's own
        self._replay = replay
        self._run_id = run_id

    def initial_restriction(self, _started_s: float) -> OffsetRange:
        return lines_of(self._replay).rows

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, _started_s: float, restriction: OffsetRange) -> int:
        size: int = restriction.size()
        return size

    def truncate(self, _started_s: float, _restriction: OffsetRange) -> None:
        """Put out nothing more where a job is drained."""

    @beam.DoFn.unbounded_per_element()  # type: ignore[untyped-decorator]  # Beam's own
    def process(
        self,
        started_s: float,
        tracker: RestrictionTrackerView = _TRACKER,
        watermark: ManualWatermarkEstimator = _WATERMARK,
    ) -> Iterator[TimestampedValue[Row]]:
        lines = lines_of(self._replay)
        clock = Clock(started_s, lines.first_ms, self._replay.speed)
        tally = tally_of(self._run_id)
        _advance(watermark, lines.first_ms)
        rows = self._rows_from(lines, tracker.current_restriction().start)
        for put_out, (number, row) in enumerate(rows):
            now_s, wait_s = time.time(), 0.0
            if isinstance(row, AgentEnvelope):
                _advance(watermark, min(clock.shows_ms(now_s), row.event_time_ms))
                wait_s = clock.waits_s(row.event_time_ms, now_s)
            if wait_s > 0 or put_out == ROWS_PER_BUNDLE:
                tally.replaying(watermark.current_watermark().micros // 1_000)
                tracker.defer_remainder(Duration(min(wait_s, TICK_S)))
                return
            if not tracker.try_claim(number):
                return
            lines.events[number] = isinstance(row, AgentEnvelope)
            tally.reading(number, lines.offsets[number], lines.events.count(1))
            yield TimestampedValue(row, _time_of(row, watermark))
        tracker.try_claim(tracker.current_restriction().stop)
        tally.reading(len(lines.offsets) - 1, lines.offsets[-1], lines.events.count(1), done=True)

    def _rows_from(self, lines: Lines, first: int) -> Iterator[tuple[int, Row]]:
        """Return the rows from a line on, with the numbers of their lines."""
        with Path(self._replay.path).open("rb") as file:
            reader = LineReader(file, after_header=Place(first, lines.offsets[first - 1]))
            for row in read_rows(reader, self._replay.label, RowFormat.CSV, self._replay.fields):
                yield reader.number, row


def _advance(watermark: ManualWatermarkEstimator, to_ms: int) -> None:
    """Move the watermark on; never back, as for a row out of order."""
    to, reached = Timestamp(micros=to_ms * 1_000), watermark.current_watermark()
    if reached is None or to > reached:
        watermark.set_watermark(to)


def _time_of(row: Row, watermark: ManualWatermarkEstimator) -> Timestamp:
    """Return a row's time; for one that is no event, that of the watermark."""
    if isinstance(row, AgentEnvelope):
        return Timestamp(micros=row.event_time_ms * 1_000)
    reached: Timestamp = watermark.current_watermark()
    return reached

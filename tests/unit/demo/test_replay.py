"""The replay's source by itself: its clock, its ranges of lines, its watermark, whatever the runner does."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
from apache_beam.internal import pickler
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator
from apache_beam.runners.sdf_utils import RestrictionTrackerView, ThreadsafeRestrictionTracker
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.cli.rows import Fields, Malformed
from beam_agents.cli.tally import forget_tally, tally_of
from beam_agents.demo import replay as module
from beam_agents.demo.data import COLUMNS, write_flights
from beam_agents.demo.replay import Clock, Replay, ReplayRows, check_replay_runner, check_speed
from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from apache_beam.transforms.window import TimestampedValue

FIELDS = Fields(key="id", time="at")
FIRST_MS = 1_400_000_000_000
STARTED_S = 1_000.0
RUN_ID = "of this test"


@pytest.fixture(autouse=True)
def _no_tally() -> Iterator[None]:
    yield
    forget_tally(RUN_ID)


def file_of(folder: Path, rows: Sequence[tuple[str, int]]) -> str:
    """Write rows of an id and of milliseconds since the first event."""
    path = folder / "events.csv"
    lines = [f"{key},{FIRST_MS + after_ms}\n" for key, after_ms in rows]
    path.write_text("".join(["id,at\n", *lines]), encoding="utf-8")
    return str(path)


@dataclass
class Wall:
    """A wall clock that stands still until it is set."""

    now_s: float = STARTED_S

    def time(self) -> float:
        return self.now_s


@dataclass
class Piece:
    """A range of lines that a runner holds, with its watermark, and what has come of it."""

    rows: OffsetRange
    watermark: ManualWatermarkEstimator = field(default_factory=lambda: ManualWatermarkEstimator(None))
    seen: list[TimestampedValue[AgentEnvelope | Malformed]] = field(default_factory=list)
    ended: bool = False


class Runner:
    """Drives the source as a runner does, one range of lines at a time."""

    def __init__(self, path: str, speed: float = 1.0) -> None:
        self.dofn = module._ReplayLines(Replay(path, "events.csv", FIELDS, speed), RUN_ID)
        self.pieces = [Piece(self.dofn.initial_restriction(STARTED_S))]
        self.delay_s: float | None = None

    def run(self, piece: Piece, split_after: int | None = None) -> None:
        """Let it put out what is due; keep what it defers, and what a split takes off after some rows."""
        tracker = ThreadsafeRestrictionTracker(self.dofn.create_tracker(piece.rows))
        source = self.dofn.process(STARTED_S, RestrictionTrackerView(tracker), piece.watermark)
        for count, value in enumerate(source, 1):
            piece.seen.append(value)
            if count == split_after and (split := tracker.try_split(0.5)) is not None:
                self.pieces.append(Piece(split[1]))
        tracker.check_done()
        deferred = tracker.deferred_status()
        self.delay_s = None if deferred is None else deferred[1].micros / 1_000_000
        piece.ended = deferred is None
        if deferred is not None:
            # What a runner keeps between two bundles is the range and the watermark, as bytes.
            piece.rows = pickle.loads(pickle.dumps(deferred[0]))  # noqa: S301 - of our own
            piece.watermark = ManualWatermarkEstimator(piece.watermark.get_estimator_state())

    @property
    def keys(self) -> list[str]:
        """What has come, piece by piece."""
        return [shown(value.value) for piece in self.pieces for value in piece.seen]


def shown(row: AgentEnvelope | Malformed) -> str:
    return f"line {row.line}" if isinstance(row, Malformed) else f"{row.entity_key.decode()} {row.event_id}"


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(module, "time", wall)
    return wall


def watermark_ms(piece: Piece) -> int:
    """How far the watermark is behind the first event."""
    reached: int = piece.watermark.current_watermark().micros // 1_000
    return reached - FIRST_MS


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), float("-inf")])
def test_a_speed_that_is_none(speed: float) -> None:
    with pytest.raises(ValueError, match=r"a replay's speed is a finite number above 0, not"):
        check_speed(speed)
    with pytest.raises(ValueError, match="finite number above 0"):
        Replay("events.csv", "events.csv", FIELDS, speed)


@pytest.mark.parametrize("name", ["FnApiRunner", "BundleBasedDirectRunner", "DirectRunner"])
def test_runners_that_take_no_heed_of_time(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} takes no heed of when an event is due"):
        check_replay_runner(name)
    check_replay_runner("prism")
    check_replay_runner("FlinkRunner")


@given(st.floats(0.01, 1e6), st.integers(0, 10**9))
def test_an_event_is_due_when_the_clock_shows_its_time(speed: float, after_ms: int) -> None:
    clock = Clock(STARTED_S, FIRST_MS, speed)
    wait_s = clock.waits_s(FIRST_MS + after_ms, STARTED_S)
    # To the millisecond, and to what a float of today's seconds can tell of a fast clock.
    slack_ms = 1 + speed * 0.001
    assert abs(clock.shows_ms(STARTED_S + wait_s) - FIRST_MS - after_ms) <= slack_ms
    assert clock.waits_s(FIRST_MS + after_ms, STARTED_S + wait_s + 1) == 0


def test_events_come_when_they_are_due_and_the_watermark_moves_between_them(
    tmp_path: Path, wall: Wall
) -> None:
    runner = Runner(file_of(tmp_path, [("a", 0), ("b", 10_000), ("c", 10_000), ("d", 30_000)]), speed=10.0)
    (piece,) = runner.pieces
    runner.run(piece)
    assert runner.keys == ["a events.csv:2"]
    assert (watermark_ms(piece), runner.delay_s) == (0, pytest.approx(module.TICK_S, abs=0.2))
    wall.now_s += 0.875
    runner.run(piece)
    assert (runner.keys, watermark_ms(piece)) == (["a events.csv:2"], 8_750)
    assert runner.delay_s == pytest.approx(0.125, abs=0.12)
    wall.now_s += 0.125
    runner.run(piece)
    assert runner.keys[1:] == ["b events.csv:3", "c events.csv:4"]
    wall.now_s += 1.5
    runner.run(piece)
    assert (len(runner.keys), watermark_ms(piece), piece.ended) == (3, 25_000, False)
    # Long away, as from a checkpoint: what became due is out at once, and no event is late.
    wall.now_s += 3_600
    runner.run(piece)
    assert runner.keys[3:] == ["d events.csv:5"]
    assert (watermark_ms(piece), piece.ended) == (30_000, True)
    assert [value.timestamp.micros // 1_000 - FIRST_MS for value in piece.seen] == [0, 10_000, 10_000, 30_000]
    tally = tally_of(RUN_ID)
    assert (tally.lines_read, tally.events, tally.reading_done) == (5, 4, True)
    assert tally.watermark_ms == FIRST_MS + 25_000


def test_a_bundle_ends_after_some_rows_though_more_are_due(
    tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_PER_BUNDLE", 3)
    runner = Runner(file_of(tmp_path, [(str(number), number) for number in range(7)]))
    wall.now_s += 10
    sizes = []
    while not runner.pieces[0].ended:
        runner.run(runner.pieces[0])
        sizes.append(len(runner.keys))
    assert sizes == [3, 6, 7]
    assert runner.delay_s is None


def test_rows_that_are_no_events_come_with_those_around_them(tmp_path: Path, wall: Wall) -> None:
    runner = Runner(file_of(tmp_path, [("", 0), ("a", 0), ("", 5_000), ("b", 5_000), ("late", 1_000)]))
    runner.run(runner.pieces[0])
    assert runner.keys == ["line 2", "a events.csv:3", "line 4"]
    wall.now_s += 5
    runner.run(runner.pieces[0])
    assert runner.keys[3:] == ["b events.csv:5", "late events.csv:6"]
    assert runner.pieces[0].ended
    assert watermark_ms(runner.pieces[0]) == 5_000
    assert tally_of(RUN_ID).events == 3


@pytest.mark.parametrize("text", ["id,at\n", "id,at"])
def test_a_file_without_rows_ends_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(text)
    runner = Runner(str(path))
    assert runner.pieces[0].rows.size() == 0
    runner.run(runner.pieces[0])
    assert runner.pieces[0].ended
    assert runner.keys == []


def test_a_drained_job_gets_no_more(tmp_path: Path) -> None:
    runner = Runner(file_of(tmp_path, [("a", 0)]))
    assert runner.dofn.truncate(STARTED_S, runner.pieces[0].rows) is None
    assert runner.dofn.restriction_size(STARTED_S, runner.pieces[0].rows) == 1


@given(
    gaps=st.lists(st.integers(0, 20_000), min_size=1, max_size=40),
    steps=st.lists(st.tuples(st.floats(0, 15), st.integers(0, 5), st.integers(0, 3)), max_size=25),
)
def test_whatever_a_runner_does_each_row_comes_once_and_none_is_late(
    tmp_path_factory: pytest.TempPathFactory,
    gaps: list[int],
    steps: list[tuple[float, int, int]],
) -> None:
    at = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    rows = [(f"k{number}" if number % 7 else "", after_ms) for number, after_ms in enumerate(at)]
    wall = Wall()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", wall)
        runner = Runner(file_of(tmp_path_factory.mktemp("events"), rows), speed=5.0)
        for wait_s, split_after, which in [*steps, (1e6, 0, 0)]:
            wall.now_s += wait_s
            chosen = [runner.pieces[which % len(runner.pieces)]] if wait_s < 1e6 else [*runner.pieces]
            for piece in chosen:
                if piece.ended:
                    continue
                before, seen = piece.watermark.current_watermark(), len(piece.seen)
                runner.run(piece, split_after)
                assert before is None or before <= piece.watermark.current_watermark()
                events = [each for each in piece.seen[seen:] if isinstance(each.value, AgentEnvelope)]
                assert all(before is None or before <= each.timestamp for each in events)
                assert all(
                    (each.timestamp.micros / 1_000 - events_from(rows)) / 5_000
                    <= wall.now_s - STARTED_S + 1e-6
                    for each in events
                )
        for piece in runner.pieces:
            while not piece.ended:
                runner.run(piece)
    numbers = [int(key.rpartition(":")[2].removeprefix("line ")) for key in runner.keys]
    assert sorted(numbers) == list(range(2, len(rows) + 2))


def events_from(rows: list[tuple[str, int]]) -> float:
    """When the clock starts: at the first row that is an event."""
    return FIRST_MS + next((after_ms for key, after_ms in rows if key), 0)


def test_what_a_job_carries_to_its_workers_can_be_pickled(tmp_path: Path) -> None:
    replay = Replay(file_of(tmp_path, [("a", 0)]), "events.csv", FIELDS, 60.0)
    dofn = pickler.loads(pickler.dumps(module._ReplayLines(replay, RUN_ID)))
    assert dofn.initial_restriction(STARTED_S) == OffsetRange(2, 3)
    assert pickle.loads(pickle.dumps(partial(ReplayRows, replay))).args == (replay,)  # noqa: S301 - of our own


def test_flights_in_the_order_of_their_departures(tmp_path: Path) -> None:
    as_they_are, in_order = tmp_path / "as they are", tmp_path / "in order"
    assert write_flights(as_they_are, 2_000) == write_flights(in_order, 2_000, in_order=True) == 2_000
    first, *lines = as_they_are.read_text().splitlines()
    ordered = in_order.read_text().splitlines()
    place = COLUMNS.index("scheduled")
    assert ordered == [first, *sorted(lines, key=lambda line: line.split(",")[place])] != [first, *lines]

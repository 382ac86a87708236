"""Every number of the demo against pandas, which knows nothing of agents, on the same rows."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd
import pytest

from beam_agents import restore_working_memory
from beam_agents.cli.job import run_job
from beam_agents.demo.app import flights_job
from beam_agents.demo.data import COLUMNS, flights_archive, write_flights
from beam_agents.demo.store import provision_store, sqlite_uri
from beam_agents.memory import WorkingMemory
from beam_agents.memory.stores.contract import decode_record
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import shared_bridge

if TYPE_CHECKING:
    from pathlib import Path

    from beam_agents.memory.stores.contract import MemoryRecord, StoreRow

# The least that has all there is to see: gaps, alerts, summaries.
ROWS = 12_000
RECENT = 8
LIMIT = 60


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """The first rows of the original file."""
    return pd.read_csv(flights_archive(), nrows=ROWS, dtype={"tailnum": str})


class Run(NamedTuple):
    """A run of the demo.

    Attributes:
        out: Its folder.
        table: The tables that it printed, as one mapping.
        commands: The commands that it named.
    """

    out: Path
    table: dict[str, str]
    commands: list[str]


def run_demo(out: Path, rows: int) -> Run:
    done = subprocess.run(
        [sys.executable, "-m", "beam_agents.demo", "--rows", str(rows), "--out", str(out)],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    table = re.findall(r"^│ +(.+?) +│ +(.+?) +│$", done.stdout, flags=re.MULTILINE)
    assert len(dict(table)) == len(table)
    return Run(out, dict(table), re.findall(r"^to .+?: (.+)$", done.stdout, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_demo(tmp_path_factory.mktemp("flights") / "of 2013", ROWS)


def expected_statistics(flights: pd.DataFrame, by: str | list[str] = "tailnum") -> pd.DataFrame:
    """The statistics over the flights of each aircraft, or other group, with and without departure."""
    delays = flights.groupby(by)["dep_delay"]
    return pd.DataFrame(
        {
            "departures": delays.count(),
            "cancellations": delays.size() - delays.count(),
            "delay_minutes": delays.sum().astype(int),
            "worst_delay_minutes": delays.max(),
        }
    )


def expected_alerts(flights: pd.DataFrame) -> set[tuple[str, str]]:
    """The alerts: (aircraft, scheduled departure) of each crossing of the limit, from below."""
    departed = flights[flights["dep_delay"].notna() & flights["tailnum"].notna()].copy()
    by_aircraft = departed.groupby("tailnum")["dep_delay"]
    departed["late"] = by_aircraft.transform(lambda delays: delays.rolling(RECENT).mean()) > LIMIT
    departed["before"] = departed.groupby("tailnum")["late"].shift(fill_value=False)
    crossing = departed[departed["late"] & ~departed["before"]]
    return set(zip(crossing["tailnum"], scheduled(crossing), strict=True))


class Long(NamedTuple):
    """What a store should have of an aircraft.

    Attributes:
        rows: The profile and the months, by key: their totals.
        legs: The departures, oldest first.
        seq: The seq of its last activation.
    """

    rows: dict[str, dict[str, int | None]]
    legs: list[dict[str, object]]
    seq: int


def expected_longterm(flights: pd.DataFrame) -> dict[str, Long]:
    known = flights[flights["tailnum"].notna()].assign(scheduled=scheduled(flights))
    known["key"] = "month/" + known["scheduled"].str.slice(0, 7)
    # An event's seq is its time where that is ahead, else one more than the seq before.
    times = pd.to_datetime(known["scheduled"]).dt.tz_localize(None) - pd.Timestamp(0)
    known["lead"] = times // pd.Timedelta(milliseconds=1) - known.groupby("tailnum").cumcount()
    found = {}
    for aircraft, own in known.groupby("tailnum"):
        found[str(aircraft)] = Long({}, [], int(own["lead"].max()) + len(own) - 1)
    for part in (known.assign(key="profile"), known):
        statistics = expected_statistics(part, ["tailnum", "key"]).astype(object)
        for (aircraft, key), totals in statistics.to_dict("index").items():
            found[aircraft].rows[key] = {
                name: None if pd.isna(total) else int(total) for name, total in totals.items()
            }
    for leg in known[known["dep_delay"].notna()].to_dict("records"):
        found[leg["tailnum"]].legs.append(
            {
                "flight": f"{leg['carrier']}{leg['flight']}",
                "route": f"{leg['origin']}-{leg['dest']}",
                "scheduled": leg["scheduled"],
                "delay_minutes": int(leg["dep_delay"]),
            }
        )
    return found


def store_rows(store: Path) -> list[StoreRow]:
    async def read() -> list[StoreRow]:
        opened = open_store(sqlite_uri(store))
        rows = await open_admin(opened).scan(None, 1_000_000)
        await opened.close()
        return rows

    return shared_bridge().run(read(), 60, inline=False)


def longterm(store: Path) -> dict[str, dict[str, MemoryRecord]]:
    """What a store has: by aircraft and key."""
    found: dict[str, dict[str, MemoryRecord]] = {}
    for row in store_rows(store):
        found.setdefault(row.entity_key.decode(), {})[row.key] = decode_record(row)
    return found


def check_longterm(store: Path, flights: pd.DataFrame) -> None:
    """Check every row of a store, and that there are no others."""
    found, wanted = longterm(store), expected_longterm(flights)
    assert set(found) == set(wanted)
    for aircraft, want in wanted.items():
        records = found[aircraft]
        demoted = records.pop("working_memory")
        memory = WorkingMemory(None)
        assert restore_working_memory(memory, demoted.value) == len(memory)
        assert {key: json.loads(record.value) for key, record in records.items()} == want.rows
        for key, record in records.items():
            assert memory.get(key) == record.value
        check_legs(memory, want.legs)
        # Both are of the aircraft's last activation.
        assert records["profile"].seq == demoted.seq == want.seq


def check_legs(memory: WorkingMemory, legs: list[dict[str, Any]]) -> None:
    kept = [json.loads(item) for item in memory.ring("legs")]
    folded = legs[: len(legs) - len(kept)]
    assert folded + kept == legs
    assert len(kept) >= min(RECENT, len(legs))
    if folded:
        delays = [leg["delay_minutes"] for leg in folded]
        assert json.loads(memory.get("summary", b"")) == {
            "legs": len(folded),
            "delay_minutes": sum(delays),
            "worst_delay_minutes": max(delays),
            "until": folded[-1]["scheduled"],
        }
    else:
        assert "summary" not in memory
    recent = [leg["delay_minutes"] for leg in legs[-RECENT:]]
    assert ("late" in memory) == (len(recent) == RECENT and sum(recent) / RECENT > LIMIT)


def scheduled(flights: pd.DataFrame) -> pd.Series[str]:
    times = pd.to_datetime(flights["time_hour"]) + pd.to_timedelta(flights["minute"], unit="min")
    return times.dt.strftime("%Y-%m-%dT%H:%M:%SZ")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_what_happened(run: Run, flights: pd.DataFrame) -> None:
    out, table, _ = run
    missing = int(flights["tailnum"].isna().sum())
    events = f"{ROWS - missing:,}"
    assert missing > 0
    assert table["lines read"] == f"{ROWS + 1:,}"
    assert table["malformed lines"] == table["malformed_line"] == f"{missing:,}"
    assert table["activations"] == table["complete"] == events
    assert table["suspend"] == table["failed"] == "0"
    assert table[f"outputs in {out}/statistics.jsonl"] == events
    assert table[f"errors in {out}/errors.jsonl"] == f"{missing:,}"
    assert table["keys that expired"] == f"{flights['tailnum'].nunique():,}"
    # One call folds legs into one summary; retries would be answered from the replay cache.
    assert table["model calls"] == table["summaries"] != "0"


def test_what_the_agents_found(run: Run, flights: pd.DataFrame) -> None:
    out, table, _ = run
    known = flights[flights["tailnum"].notna()]
    statistics = expected_statistics(known)
    alerts = expected_alerts(flights)
    assert alerts
    assert table["flights"] == f"{ROWS:,}"
    assert table["departures"] == f"{known['dep_time'].notna().sum():,}"
    assert table["cancellations (never departed)"] == f"{known['dep_time'].isna().sum():,}"
    assert table["no tail number (errors.jsonl)"] == f"{flights['tailnum'].isna().sum():,}"
    assert table["aircraft"] == f"{len(statistics):,}"
    assert table[f"alerts in {out}/alerts.jsonl"] == f"{len(alerts):,}"
    assert table["aircraft with an alert"] == f"{len({aircraft for aircraft, _ in alerts}):,}"
    judged = statistics[statistics["departures"] >= RECENT].reset_index()
    judged["mean"] = judged["delay_minutes"] / judged["departures"]
    worst = judged.sort_values(["mean", "tailnum"], ascending=[False, True]).head(5)
    for place, row in enumerate(worst.itertuples(), 1):
        assert (
            table[f"worst aircraft {place}: {row.tailnum}"]
            == f"{row.mean:.1f} min (mean of {row.departures})"
        )


def test_each_aircraft(run: Run, flights: pd.DataFrame) -> None:
    last = {line["aircraft"]: line for line in lines(run.out / "statistics.jsonl")}
    found = pd.DataFrame(last.values()).set_index("aircraft").sort_index()
    wanted = expected_statistics(flights)
    assert list(found.index) == list(wanted.index)
    for column in ("departures", "cancellations", "delay_minutes"):
        assert found[column].tolist() == wanted[column].tolist()
    worst = found["worst_delay_minutes"].astype(float)
    assert worst.fillna(-999).tolist() == wanted["worst_delay_minutes"].fillna(-999).tolist()
    # What was folded into summaries and what was not is all there is.
    assert (found["legs_in_memory"] + found["legs_in_summary"] == found["departures"]).all()
    assert found["legs_in_summary"].max() > 0
    assert (
        int(run.table["departures folded into summaries"].replace(",", "")) == found["legs_in_summary"].sum()
    )


def test_each_alert(run: Run, flights: pd.DataFrame) -> None:
    alerts = lines(run.out / "alerts.jsonl")
    assert {(line["aircraft"], line["scheduled"]) for line in alerts} == expected_alerts(flights)
    assert all(line["late"] and line["recent_delay_minutes"] > RECENT * LIMIT for line in alerts)


def test_each_gap_is_named_by_its_line(run: Run, flights: pd.DataFrame) -> None:
    # The header is line 1, the first flight line 2; so it is in the original.
    gaps = (flights.index[flights["tailnum"].isna()] + 2).tolist()
    errors = lines(run.out / "errors.jsonl")
    assert [error["line"] for error in errors] == gaps
    assert {error["detail"] for error in errors} == {"field 'tailnum': the key is missing or empty"}


def test_the_whole_file_is_prepared_as_it_is(tmp_path: Path) -> None:
    prepared = tmp_path / "flights.csv"
    assert write_flights(prepared, None) == 336_776
    original = pd.read_csv(flights_archive(), dtype=str, keep_default_na=False)
    found = pd.read_csv(prepared, dtype=str, keep_default_na=False)
    assert tuple(found.columns) == COLUMNS
    assert (found["tailnum"] == "").sum() == 2_512
    assert (found["dep_time"] == "NA").sum() == 8_255
    assert found["tailnum"].tolist() == original["tailnum"].replace("NA", "").tolist()
    original["minute"] = original["minute"].astype(int)
    assert found["scheduled"].tolist() == scheduled(original).tolist()
    for column in set(COLUMNS) - {"tailnum", "scheduled"}:
        assert found[column].tolist() == original[column].tolist()


def test_each_row_that_outlasts_the_run(run: Run, flights: pd.DataFrame) -> None:
    check_longterm(run.out / "memory.sqlite", flights)
    rows = store_rows(run.out / "memory.sqlite")
    aircraft = f"{flights['tailnum'].nunique():,}"
    months = flights.assign(month=scheduled(flights).str.slice(0, 7)).groupby(["tailnum", "month"]).ngroups
    assert run.table["rows of totals, one for each aircraft"] == aircraft
    assert run.table["rows of totals, one for each aircraft and month"] == f"{months:,}"
    assert run.table["working memories of aircraft that expired"] == aircraft
    assert len(rows) == 2 * flights["tailnum"].nunique() + months
    # Two rows of each flight, one of each expiry.
    upserts = 2 * flights["tailnum"].notna().sum() + flights["tailnum"].nunique()
    assert run.table["upserts that the store applied"] == f"{upserts:,}"
    assert run.table["stale upserts, which it refused"] == "0"


def test_the_commands_that_the_demo_names(run: Run, flights: pd.DataFrame) -> None:
    def output(command: str) -> str:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - as a user would paste it
        assert done.returncode == 0, done.stderr
        return done.stdout

    ls, get = run.commands
    assert shlex.split(ls)[-3:] == ["store", "ls", sqlite_uri(run.out / "memory.sqlite")]
    assert output(ls).count("month/2013-01") > 30
    listed = [json.loads(line) for line in output(f"{ls} --limit 0 --json").splitlines()]
    assert [(each["entity_key"], each["key"], each["seq"]) for each in listed] == [
        (row.entity_key.decode(), row.key, row.seq) for row in store_rows(run.out / "memory.sqlite")
    ]
    words = shlex.split(get)
    assert words[-3:] == ["--key", "profile", "--show-values"]
    aircraft = words[words.index("--entity") + 1]
    assert f"worst aircraft 1: {aircraft}" in run.table
    totals = re.search(r"│ value +│ +(.+?) +│", output(get))
    assert totals is not None
    assert (
        json.loads(totals[1])
        == expected_longterm(flights[flights["tailnum"] == aircraft])[aircraft].rows["profile"]
    )


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A run over all flights of a few aircraft, and those; the file's months are not in their order."""
    out = tmp_path_factory.mktemp("year")
    flights = pd.read_csv(flights_archive(), dtype={"tailnum": str})
    by_aircraft = flights["tailnum"].value_counts()
    flights = flights[flights["tailnum"].isin([*by_aircraft.index[:6], *by_aircraft.index[1_000:1_015]])]
    assert scheduled(flights).str.slice(0, 7).nunique() == 13  # the last evening is the next year's, in UTC
    write_flights(out / "all.csv", None)
    with (out / "all.csv").open(newline="") as source, (out / "flights.csv").open("w", newline="") as target:
        lines = csv.reader(source)
        chosen = csv.writer(target)
        chosen.writerow(next(lines))
        aircraft = set(flights["tailnum"])
        chosen.writerows(line for line in lines if line[0] in aircraft)
    uri = sqlite_uri(out / "memory.sqlite")
    provision_store(uri)
    run_job(flights_job(out, uri), lambda _tally: contextlib.nullcontext())
    return out / "memory.sqlite", flights


def test_a_year_of_months(year: tuple[Path, pd.DataFrame]) -> None:
    store, flights = year
    assert len(flights) > 3_000
    check_longterm(store, flights)


def test_a_second_run_leaves_what_the_first_one_did(tmp_path: Path) -> None:
    run_demo(tmp_path, 500)
    store = tmp_path / "memory.sqlite"
    first = store_rows(store)
    # What came of the first run meanwhile: a row that it did not write, in a log that nobody has folded in.
    with contextlib.closing(sqlite3.connect(store)) as other:
        other.execute("INSERT INTO beam_agents_longterm VALUES (x'00', x'00', 1, x'00', 1)")
        other.commit()
        wal = tmp_path / "memory.sqlite-wal"
        assert wal.stat().st_size > 0
        left = wal.read_bytes()
    wal.write_bytes(left)
    run_demo(tmp_path, 500)
    assert store_rows(store) == first
    assert {path.name for path in tmp_path.iterdir()} == {
        "alerts.jsonl",
        "errors.jsonl",
        "flights.csv",
        "memory.sqlite",
        "statistics.jsonl",
    }

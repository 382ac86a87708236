"""Every number of the demo against pandas, which knows nothing of agents, on the same rows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from beam_agents.demo.data import COLUMNS, flights_archive, write_flights

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 20_000
RECENT = 8
LIMIT = 60


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """The first rows of the original file."""
    return pd.read_csv(flights_archive(), nrows=ROWS, dtype={"tailnum": str})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The demo's folder, and the tables that it prints, as one mapping."""
    out = tmp_path_factory.mktemp("flights")
    done = subprocess.run(
        [sys.executable, "-m", "beam_agents.demo", "--rows", str(ROWS), "--out", str(out)],
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^│ +(.+?) +│ +(.+?) +│$", done.stdout, flags=re.MULTILINE)
    assert len(dict(rows)) == len(rows)
    return out, dict(rows)


def expected_statistics(flights: pd.DataFrame) -> pd.DataFrame:
    """Each aircraft's statistics over its flights, with and without departure."""
    delays = flights.groupby("tailnum")["dep_delay"]
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


def scheduled(flights: pd.DataFrame) -> pd.Series[str]:
    times = pd.to_datetime(flights["time_hour"]) + pd.to_timedelta(flights["minute"], unit="min")
    return times.dt.strftime("%Y-%m-%dT%H:%M:%SZ")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_what_happened(run: tuple[Path, dict[str, str]], flights: pd.DataFrame) -> None:
    out, table = run
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


def test_what_the_agents_found(run: tuple[Path, dict[str, str]], flights: pd.DataFrame) -> None:
    out, table = run
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


def test_each_aircraft(run: tuple[Path, dict[str, str]], flights: pd.DataFrame) -> None:
    last = {line["aircraft"]: line for line in lines(run[0] / "statistics.jsonl")}
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
    assert int(run[1]["departures folded into summaries"].replace(",", "")) == found["legs_in_summary"].sum()


def test_each_alert(run: tuple[Path, dict[str, str]], flights: pd.DataFrame) -> None:
    alerts = lines(run[0] / "alerts.jsonl")
    assert {(line["aircraft"], line["scheduled"]) for line in alerts} == expected_alerts(flights)
    assert all(line["late"] and line["recent_delay_minutes"] > RECENT * LIMIT for line in alerts)


def test_each_gap_is_named_by_its_line(run: tuple[Path, dict[str, str]], flights: pd.DataFrame) -> None:
    # The header is line 1, the first flight line 2; so it is in the original.
    gaps = (flights.index[flights["tailnum"].isna()] + 2).tolist()
    errors = lines(run[0] / "errors.jsonl")
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

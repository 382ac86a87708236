"""``make bench-stores``: what a store costs beside its bare client, side by side in one run.

Each operation is timed alternately on the store as the runtime uses it (GuardedStore over the backend) and on
the bare client library, against one server, in one process. The program prints medians, 99th percentiles and
ratios, each next to its goal, and writes all of it as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.memory.stores.guarded import GuardedStore
from beam_agents.memory.stores.registry import open_admin, open_store
from tests.benchmarks.bare_clients import BARE_CLIENTS
from tests.stores.conftest import SERVERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.benchmarks.bare_clients import BareClient

VALUE: Final = bytes(range(256))
FLUSHES: Final = (1, 20, 100)
STORED: Final = 10_000
FOUND: Final = 100
WARM_UP: Final = 5
MAX_ROUNDS: Final = 500
GOAL_BARE: Final = 1.3
GOAL_BATCH: Final = 2.0
IN_ONE_ROUND_TRIP: Final = frozenset({"sqlite", "redis", "postgresql", "mariadb"})


@dataclass(frozen=True, slots=True)
class Timing:
    """One operation on one backend.

    Attributes:
        backend: The backend.
        operation: What was timed.
        rounds: How often.
        p50_ms: Our median.
        p99_ms: Our 99th percentile.
        bare_p50_ms: The bare client's median.
        bare_p99_ms: The bare client's 99th percentile.
        ratio: Our median by the bare client's.
        goal: What the ratio should not exceed.
        met: Whether it does not.
    """

    backend: str
    operation: str
    rounds: int
    p50_ms: float
    p99_ms: float
    bare_p50_ms: float
    bare_p99_ms: float
    ratio: float
    goal: float
    met: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """20 rows beside one row, both on the store."""

    backend: str
    ratio: float
    goal: float
    met: bool


class Pair:
    """A store and the bare client, and the same work for both."""

    def __init__(self, store: GuardedStore, bare: BareClient) -> None:
        self.store = store
        self.bare = bare
        self._seq = 1_000_000

    def rows(self, entity: bytes, count: int) -> list[StoreRow]:
        """Return rows that are newer than all that were made before."""
        self._seq += 1
        rec = encode_record(VALUE, self._seq, self._seq)
        return [StoreRow(entity, f"case/{index:05d}", self._seq, rec, self._seq) for index in range(count)]

    async def fill(self) -> None:
        """Store what is searched, for both: they may keep it in different places."""
        rows = self.rows(b"many", STORED)
        for first in range(0, STORED, 250):
            part = rows[first : first + 250]
            await self.store.save_many(part)
            await self.bare.flush(part)

    async def check(self) -> None:
        """Check that both do the same work."""
        (row,) = self.rows(b"checked", 1)
        assert await self.bare.flush([row]) == [True]
        assert [each.value for each in await self.store.save_many([row])] == ["applied"]
        older = StoreRow(row.entity_key, row.key, 1, row.rec, 1)
        assert await self.bare.flush([older]) == [False]
        assert [each.value for each in await self.store.save_many([older])] == ["stale"]
        ours = await self.store.search(b"many", "case/", FOUND)
        assert [(each.key, each.rec) for each in ours] == await self.bare.search(b"many", "case/", FOUND)
        loaded = await self.store.load(b"many", "case/00042")
        assert loaded is not None
        assert loaded.rec == await self.bare.load(b"many", "case/00042")

    def operations(self) -> list[Operation]:
        """Return what is timed."""

        def flush(count: int) -> Operation:
            return Operation(
                flush_of(count),
                lambda entity: self.rows(entity, count),
                self.store.save_many,
                self.bare.flush,
            )

        return [
            *map(flush, FLUSHES),
            Operation(
                "load",
                lambda _: [],
                lambda _: self.store.load(b"many", "case/05000"),
                lambda _: self.bare.load(b"many", "case/05000"),
            ),
            Operation(
                "search",
                lambda _: [],
                lambda _: self.store.search(b"many", "case/", FOUND),
                lambda _: self.bare.search(b"many", "case/", FOUND),
            ),
        ]


Call: TypeAlias = "Callable[[list[StoreRow]], Awaitable[object]]"


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing to time, on the store and on the bare client.

    Attributes:
        name: What it is called.
        prepare: Makes the rows of one call for an entity; not timed.
        ours: The store's call.
        bare: The bare client's.
    """

    name: str
    prepare: Callable[[bytes], list[StoreRow]]
    ours: Call
    bare: Call


def flush_of(rows: int) -> str:
    return f"flush {rows}"


async def timed(call: Call, rows: list[StoreRow]) -> float:
    started = time.perf_counter()
    await call(rows)
    return time.perf_counter() - started


async def compare(operation: Operation, seconds: float) -> tuple[list[float], list[float]]:
    """Time both sides alternately, each first in half of the rounds."""
    ours: list[float] = []
    bare: list[float] = []
    sides = [(operation.ours, b"ours", ours), (operation.bare, b"bare", bare)]
    gc.collect()
    deadline = time.monotonic() + seconds
    while len(ours) < MAX_ROUNDS and (time.monotonic() < deadline or len(ours) < 2 * WARM_UP):
        for call, entity, times in sides:
            times.append(await timed(call, operation.prepare(entity)))
        sides.reverse()
    return ours[WARM_UP:], bare[WARM_UP:]


async def measure(backend: str, uri: str, seconds: float) -> list[Timing]:
    """Time all operations on one backend."""
    store = GuardedStore(open_store(uri))
    await open_admin(open_store(uri)).provision()
    bare = BARE_CLIENTS[backend](store.uri)
    await bare.open()
    pair = Pair(store, bare)
    try:
        await pair.fill()
        await pair.check()
        return [
            timing(backend, operation.name, *await compare(operation, seconds))
            for operation in track(pair.operations(), backend, transient=True)
        ]
    finally:
        await bare.close()
        await store.close()


def timing(backend: str, name: str, ours: Sequence[float], bare: Sequence[float]) -> Timing:
    """Put times into figures."""
    p50, bare_p50 = statistics.median(ours), statistics.median(bare)
    ratio = p50 / bare_p50
    return Timing(
        backend,
        name,
        len(ours),
        p50 * 1e3,
        percentile_99(ours) * 1e3,
        bare_p50 * 1e3,
        percentile_99(bare) * 1e3,
        ratio,
        GOAL_BARE,
        ratio <= GOAL_BARE,
    )


def percentile_99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def batches(timings: Sequence[Timing]) -> list[Batch]:
    """Compare 20 rows with one, where both are one round trip."""
    by_name = {(each.backend, each.operation): each.p50_ms for each in timings}
    compared = []
    for backend in dict.fromkeys(each.backend for each in timings):
        if backend in IN_ONE_ROUND_TRIP:
            ratio = by_name[backend, flush_of(20)] / by_name[backend, flush_of(1)]
            compared.append(Batch(backend, ratio, GOAL_BATCH, ratio <= GOAL_BATCH))
    return compared


def report(console: Console, timings: Sequence[Timing], compared: Sequence[Batch]) -> None:
    """Print the figures."""
    table = Table(
        Column("backend", no_wrap=True), Column("call", no_wrap=True),
        "p50", "p99", "bare p50", "bare p99", "ratio", f"≤ {GOAL_BARE:g}",
        title=f"milliseconds; rows of {len(VALUE)} bytes, a search finds {FOUND} of {STORED:,}",
        box=box.SIMPLE,
    )  # fmt: skip
    for each in timings:
        figures = (each.p50_ms, each.p99_ms, each.bare_p50_ms, each.bare_p99_ms, each.ratio)
        table.add_row(
            each.backend,
            each.operation,
            *(f"{figure:.2f}" for figure in figures),
            verdict(met=each.met),
            end_section=each.operation == "search",
        )
    console.print(table)
    rows = Table("backend", "20 rows ÷ 1 row", f"≤ {GOAL_BATCH:g}", box=box.SIMPLE)
    for batch in compared:
        rows.add_row(batch.backend, f"{batch.ratio:.2f}", verdict(met=batch.met))
    console.print(rows)


def verdict(*, met: bool) -> str:
    return "met" if met else "missed"


def main() -> None:
    """Time the backends that the machine has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=pathlib.Path, help="where the results go")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each comparison may take")
    parser.add_argument("backends", nargs="*", choices=[[], *BARE_CLIENTS], help="by default all")
    arguments = parser.parse_args()
    console = Console()
    timings: list[Timing] = []
    skipped: list[str] = []
    for backend in arguments.backends or BARE_CLIENTS:
        with tempfile.TemporaryDirectory(prefix="beam-agents-bench-") as folder:
            try:
                with SERVERS[backend](pathlib.Path(folder)) as uri:
                    timings += asyncio.run(measure(backend, uri, arguments.seconds))
            except pytest.skip.Exception as absent:
                skipped.append(backend)
                console.print(f"skipped {backend}: {absent}")
    compared = batches(timings)
    report(console, timings, compared)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        results = {
            "machine": {"python": platform.python_version(), "platform": platform.platform()},
            "skipped": skipped,
            "timings": [asdict(each) for each in timings],
            "batches": [asdict(each) for each in compared],
        }
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
        console.print(f"written to {arguments.json}")


if __name__ == "__main__":
    sys.exit(main())

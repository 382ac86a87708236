"""The layout of each store's rows: rows of version 1, kept as each server holds them, are read and written.

``golden/rows_v1.json`` holds three rows as the runtime knows them, and, by backend, what the server then has:
columns, hashes and sorted sets, cells, documents. It also holds the tables' DDL. A layout that must change
gets a new file, code that still reads the old one, and a command that brings rows from one to the other.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.memory.stores.contract import MemoryStore, StoreAdmin, StoreRow, decode_record
from beam_agents.memory.stores.sql_schema import DEFAULT_TABLE, ddl_statements
from beam_agents.signals.types import UpsertResult
from beam_agents.testing import AgentHarness, event
from tests.stores.raw import RAW, Json

Run = Callable[..., Any]
GOLDEN: Json = json.loads(pathlib.Path(__file__).with_name("golden").joinpath("rows_v1.json").read_text())
ROWS = [
    StoreRow(bytes.fromhex(entity), key, seq, bytes.fromhex(rec), at_ms)
    for entity, key, seq, rec, at_ms in GOLDEN["rows"]
]
ENTITY = ROWS[0].entity_key


@pytest.fixture
def held(store: MemoryStore, admin: StoreAdmin, run: Run) -> Json:
    """What the store's server is to hold; none of it is there yet."""
    if store.backend not in RAW:
        pytest.skip("the in-process store keeps nothing")
    run(admin.delete(run(store.search(ENTITY, "", 100))))
    return GOLDEN["stores"][RAW[store.backend].layout]


def test_rows_of_version_1_are_read(store: MemoryStore, admin: StoreAdmin, held: Json, run: Run) -> None:
    run(RAW[store.backend].write(store.uri, held))
    assert [run(store.load(ENTITY, row.key)) for row in ROWS] == ROWS
    assert run(store.search(ENTITY, "", 100)) == ROWS
    assert run(store.search(ENTITY, "case/", 100)) == ROWS[:1]
    assert run(admin.scan(None, 100, entity_key=ENTITY)) == ROWS
    assert [decode_record(row).value for row in ROWS] == [b"first", b"", bytes(range(256))]


def test_rows_are_written_as_version_1_wrote_them(store: MemoryStore, held: Json, run: Run) -> None:
    assert run(store.save_many(ROWS)) == [UpsertResult.APPLIED] * len(ROWS)
    assert run(RAW[store.backend].read(store.uri, held)) == held


def test_the_guard_knows_rows_of_version_1(store: MemoryStore, held: Json, run: Run) -> None:
    run(RAW[store.backend].write(store.uri, held))
    older, newer = ROWS[0]._replace(seq=ROWS[0].seq - 1), ROWS[1]._replace(seq=ROWS[1].seq + 1)
    assert run(store.save_many([older, newer])) == [UpsertResult.STALE, UpsertResult.APPLIED]
    assert run(store.load(ENTITY, older.key)) == ROWS[0]
    assert run(store.load(ENTITY, newer.key)) == newer


async def upgraded(ctx: AgentContext) -> Complete:
    """Read all rows, as a job does that follows one of version 1, and write one of them and one more."""
    longterm = ctx.memory.longterm
    found = await longterm.search("", limit=100)
    longterm.save("case/2024-11", b"second")
    longterm.save("new", b"of the upgraded job")
    return Complete(b"|".join(each.value for each in found))


def test_a_job_goes_on_with_rows_of_version_1(
    uri: str, store: MemoryStore, admin: StoreAdmin, held: Json, run: Run
) -> None:
    run(RAW[store.backend].write(store.uri, held))
    later_ms = ROWS[0].seq + 1
    with AgentHarness(upgraded, AgentConfig(longterm_memory=uri)) as harness:
        before = harness.send(event(ENTITY, time_ms=later_ms))
        assert (before.outputs, before.errors) == ([b"|".join(decode_record(row).value for row in ROWS)], [])
    rows = {row.key: row for row in run(admin.scan(None, 100, entity_key=ENTITY))}
    assert {key: decode_record(row).value for key, row in rows.items()} == {
        "case/2024-11": b"second",
        "new": b"of the upgraded job",
        ROWS[1].key: b"",
        ROWS[2].key: bytes(range(256)),
    }
    assert {rows["case/2024-11"].seq, rows["new"].seq} == {later_ms}


@pytest.mark.parametrize("backend", GOLDEN["ddl"])
def test_the_table_is_as_version_1_made_it(backend: Any) -> None:
    assert list(ddl_statements(backend, DEFAULT_TABLE)) == GOLDEN["ddl"][backend]

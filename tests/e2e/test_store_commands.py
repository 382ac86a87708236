"""The store commands against servers: rows travel between them unchanged, and failures say what to do."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

import asyncpg
import pytest
from typer.testing import CliRunner

from beam_agents.cli.app import app
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.runtime.bridge import shared_bridge
from tests.servers import bigtable, firestore, mariadb, postgresql, redis
from tests.servers.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from typer.testing import Result

    from tests.servers.postgresql import Cluster

T = TypeVar("T")

DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000
KEYS = ["a", "a/b", "a%", "_*\\", "..", "__x__", "two\nlines", "☕", "é" * 200]
PASSWORD = "s3cr3t-pass"  # noqa: S105 - of a server that this test starts


def run(work: Coroutine[object, object, T]) -> T:
    return shared_bridge().run(work, 120, inline=False)


def store(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["store", *arguments])
    assert "Traceback" not in result.output
    return result


async def put(uri: str, rows: list[StoreRow]) -> None:
    opened = open_store(uri)
    await opened.save_many(rows)
    await opened.close()


async def rows_of(uri: str) -> list[StoreRow]:
    opened = open_store(uri)
    rows = await open_admin(opened).scan(None, 10_000)
    await opened.close()
    return rows


@pytest.fixture(scope="module")
def rows() -> list[StoreRow]:
    """Rows with all that a key or an entity key may be, in the order of their ids."""
    chance = random.Random(7)
    entities = [bytes([first, 0, 255, index]) for first in (0, 65, 255) for index in range(8)]
    made = []
    for entity_key in [*entities, b"ada", "naïve".encode()]:
        for number, key in enumerate(KEYS):
            seq, at_ms = chance.randrange(2**62), NOW_MS - number * 30 * DAY_MS
            rec = encode_record(chance.randbytes(chance.randrange(2_000)), seq, at_ms)
            made.append(StoreRow(entity_key, key, seq, rec, at_ms))
    return sorted(made, key=lambda row: row.row_id.sort_key)


@pytest.fixture(scope="module")
def redis_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis.running(tmp_path_factory.mktemp("redis")) as uri:
        yield uri


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgresql.running_cluster() as running:
        yield running


def test_rows_travel_from_sqlite_through_redis_and_postgresql_and_back(
    rows: list[StoreRow], redis_uri: str, cluster: Cluster, tmp_path: Path
) -> None:
    first, last = (f"sqlite+aiosqlite:///{tmp_path}/{name}.db" for name in ("first", "last"))
    road = [first, redis_uri, f"{cluster.uri()}?table=travelled", last]
    for uri in road:
        assert store("provision", uri).exit_code == 0
        assert store("provision", uri).exit_code == 0
        checked = store("check", uri)
        assert checked.exit_code == 0, checked.output
        assert run(rows_of(uri)) == []
    run(put(first, rows))
    for source, destination in itertools.pairwise(road):
        copied = store("copy", source, destination, "--batch", "37")
        assert copied.exit_code == 0, copied.output
        assert run(rows_of(destination)) == rows
    # Again, from the end to the start: nothing is newer anywhere, and nothing changes.
    assert store("copy", last, first).exit_code == 0
    assert run(rows_of(first)) == rows


@pytest.mark.parametrize(
    "running", [mariadb.running_mariadb, bigtable.running_bigtable, firestore.running_firestore]
)
def test_rows_travel_from_sqlite_to_another_backend_and_back(
    rows: list[StoreRow],
    running: Callable[[Path], AbstractContextManager[str]],
    tmp_path: Path,
) -> None:
    first, last = (f"sqlite+aiosqlite:///{tmp_path}/{name}.db" for name in ("first", "last"))
    with running(tmp_path) as uri:
        for each in (first, uri, last):
            assert store("provision", each).exit_code == 0
        checked = store("check", uri)
        assert checked.exit_code == 0, checked.output
        run(put(first, rows))
        for source, destination in itertools.pairwise((first, uri, last)):
            copied = store("copy", source, destination)
            assert copied.exit_code == 0, copied.output
        assert run(rows_of(last)) == rows
        trimmed = store("trim", uri, "--older-than", "0s", "--no-dry-run")
        assert trimmed.exit_code == 0, trimmed.output
        assert run(rows_of(uri)) == []


def test_ls_get_and_trim_on_each_backend(
    rows: list[StoreRow], redis_uri: str, cluster: Cluster, tmp_path: Path
) -> None:
    for uri in (
        f"{redis_uri}?key_prefix=trimmed:",
        f"{cluster.uri()}?table=trimmed",
        f"sqlite+aiosqlite:///{tmp_path}/trimmed.db",
    ):
        assert store("provision", uri).exit_code == 0
        run(put(uri, rows))
        listed = store("ls", uri, "--entity", "ada", "--json")
        assert [json.loads(line)["key"] for line in listed.stdout.splitlines()] == sorted(
            KEYS, key=str.encode
        )
        assert len(store("ls", uri, "--limit", "0", "--json").stdout.splitlines()) == len(rows)
        got = store("get", uri, "--entity", "ada", "--key", "two\nlines", "--out", str(tmp_path / "value"))
        assert got.exit_code == 0, got.output
        kept = [row for row in rows if row.updated_at_ms > NOW_MS - 75 * DAY_MS]
        assert store("trim", uri, "--older-than", "75d").exit_code == 0
        assert run(rows_of(uri)) == rows
        trimmed = store("trim", uri, "--older-than", "75d", "--no-dry-run", "--batch", "50")
        assert trimmed.exit_code == 0, trimmed.output
        assert run(rows_of(uri)) == kept
        poisoned = kept[0]
        entity = ["--entity-base64", "AAD/AA=="]
        assert poisoned.entity_key == b"\x00\x00\xff\x00"
        repaired = store("repair", uri, *entity, "--key", poisoned.key, "--seq", "5", "--yes")
        assert repaired.exit_code == 0, repaired.output
        assert run(rows_of(uri))[0].seq == 5


def test_a_server_that_is_down_and_then_up_again(cluster: Cluster) -> None:
    uri = cluster.uri()
    assert store("provision", uri).exit_code == 0
    cluster.kill()
    try:
        down = store("check", uri)
        listed = store("ls", uri)
    finally:
        cluster.start()
    assert down.exit_code == 1
    assert "FAILED" in down.stdout
    assert f"127.0.0.1:{cluster.port} is its address" in down.stderr
    assert listed.exit_code == 1
    assert listed.stderr.count("\n") == 1
    assert store("check", uri).exit_code == 0


def test_a_server_that_is_frozen(tmp_path: Path) -> None:
    port = free_port()
    with redis.process(tmp_path, port) as server:
        os.kill(server.pid, signal.SIGSTOP)
        frozen = store("check", f"redis://127.0.0.1:{port}/0?connect_timeout_s=0.2&operation_timeout_s=0.2")
    assert frozen.exit_code == 1
    assert "raise operation_timeout_s" in frozen.stderr


def test_a_user_that_may_not_delete_leaves_no_row(cluster: Cluster) -> None:
    uri = f"{cluster.uri()}?table=guarded_rows"
    assert store("provision", uri).exit_code == 0

    async def grant() -> None:
        connection = await asyncpg.connect(host="127.0.0.1", port=cluster.port, user="postgres")
        await connection.execute(
            "CREATE ROLE no_delete LOGIN; GRANT SELECT, INSERT, UPDATE ON guarded_rows TO no_delete"
        )
        await connection.close()

    asyncio.run(grant())
    checked = store("check", f"{cluster.uri(user='no_delete')}?table=guarded_rows")
    assert checked.exit_code == 1
    assert "delete (permission)" in checked.stderr
    assert "DELETE" in checked.stderr
    assert run(rows_of(uri)) == []


def test_as_a_process_it_ends_and_shows_no_password(tmp_path: Path) -> None:
    port = free_port()
    with redis.process(tmp_path, port, "--requirepass", PASSWORD):

        def process(password: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "beam_agents.cli", "store", "check", "env:STORE_URI"],
                env={**os.environ, "STORE_URI": f"redis://:{password}@127.0.0.1:{port}/0"},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        right, wrong = process(PASSWORD), process("wr0ng-pass")
    assert right.returncode == 0, right.stderr
    assert wrong.returncode == 1
    assert "password" in wrong.stderr
    for shown in (right.stdout, right.stderr, wrong.stdout, wrong.stderr):
        assert PASSWORD not in shown
        assert "wr0ng-pass" not in shown
        assert "Traceback" not in shown

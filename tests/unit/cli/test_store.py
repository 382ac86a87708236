"""The store commands against SQLite files; the in-process store where a failure has to be made."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from beam_agents.cli.app import app
from beam_agents.errors import StoreRejected, StoreUnavailable
from beam_agents.memory.stores import inprocess
from beam_agents.memory.stores.contract import RowId, StoreRow, encode_record
from beam_agents.memory.stores.inprocess import InProcessAdmin, InProcessStore, forget_rows
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.runtime.bridge import shared_bridge
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from typer.testing import Result

DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000
ODD = b"\x00\xff"


def row(entity: bytes, key: str, seq: int = 5, value: bytes = b"v", at_ms: int = NOW_MS) -> StoreRow:
    return StoreRow(entity, key, seq, encode_record(value, seq, at_ms), at_ms)


def store(*arguments: str, answer: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["store", *arguments], input=answer)
    assert "Traceback" not in result.output
    return result


def put(uri: str, *rows: StoreRow) -> None:
    async def save() -> None:
        opened = open_store(uri)
        await open_admin(opened).provision()
        await opened.save_many(rows)
        await opened.close()

    shared_bridge().run(save(), 60, inline=False)


def rows_of(uri: str) -> list[StoreRow]:
    async def scan() -> list[StoreRow]:
        opened = open_store(uri)
        rows = await open_admin(opened).scan(None, 10_000)
        await opened.close()
        return rows

    return shared_bridge().run(scan(), 60, inline=False)


async def interrupt() -> None:
    """Press Ctrl-C, and wait for what comes of it."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    await asyncio.Event().wait()


def cell(result: Result, name: str) -> str:
    """Return the value beside a name in a table."""
    found = re.search(rf"│ {re.escape(name)}[^│]*│\s*(.*?)\s*│", result.stdout)
    assert found, result.output
    return found[1]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    made = f"sqlite+aiosqlite:///{tmp_path}/a.db"
    put(made)
    return made


@pytest.fixture
def other(tmp_path: Path) -> str:
    made = f"sqlite+aiosqlite:///{tmp_path}/b.db"
    put(made)
    return made


@pytest.fixture
def memory() -> Iterator[str]:
    forget_rows()
    yield "memory://"
    forget_rows()


class TestUri:
    def test_a_malformed_one_is_a_wrong_argument_and_its_password_is_not_shown(self) -> None:
        result = store("ls", "redis://u:s3cr3t@host:port")
        assert result.exit_code == 2
        assert "u:***@host" in result.stderr
        assert "its port must be a number" in result.stderr
        assert "s3cr3t" not in result.output

    def test_it_may_be_in_the_environment(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        put(uri, row(b"ada", "k"))
        monkeypatch.setenv("STORE", uri)
        result = store("ls", "env:STORE", "--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout)["entity_key"] == "ada"

    def test_a_variable_that_is_not_there_is_named(self) -> None:
        result = store("ls", "env:NO_SUCH")
        assert result.exit_code == 2
        assert "NO_SUCH" in result.stderr

    def test_a_client_library_that_is_missing_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("redis", "redis_client"):
            monkeypatch.delitem(sys.modules, f"beam_agents.memory.stores.{name}", raising=False)
        monkeypatch.setitem(sys.modules, "redis", None)
        monkeypatch.setitem(sys.modules, "redis.asyncio", None)
        result = store("ls", "redis://127.0.0.1/0")
        assert result.exit_code == 2
        assert "beam-agents[redis]" in result.stderr


class TestProvision:
    def test_print_shows_the_plan_and_changes_nothing(self, tmp_path: Path) -> None:
        result = store("provision", f"sqlite+aiosqlite:///{tmp_path}/new.db", "--print")
        assert result.exit_code == 0
        assert "CREATE TABLE beam_agents_longterm" in result.stdout
        assert not (tmp_path / "new.db").exists()

    def test_it_creates_once(self, tmp_path: Path) -> None:
        uri = f"sqlite+aiosqlite:///{tmp_path}/new.db"
        first, second = store("provision", uri), store("provision", uri)
        assert (first.exit_code, second.exit_code) == (0, 0)
        assert "created" in first.stdout
        assert "CREATE TABLE" in first.stdout
        assert "nothing was missing" in second.stdout
        assert "CREATE TABLE" not in second.stdout

    def test_a_folder_that_is_missing_is_told_in_one_line(self, tmp_path: Path) -> None:
        result = store("provision", f"sqlite+aiosqlite:///{tmp_path}/no/new.db")
        assert result.exit_code == 1
        assert "folder" in result.stderr
        assert result.stderr.count("\n") == 1


class TestCheck:
    def test_a_store_that_is_fit_for_use_is_left_as_it_was(self, uri: str) -> None:
        put(uri, row(b"ada", "k"))
        before = rows_of(uri)
        result = store("check", uri)
        assert result.exit_code == 0, result.output
        assert "write a stale row" in result.stdout
        assert "FAILED" not in result.stdout
        assert rows_of(uri) == before

    def test_a_missing_table_names_the_command_that_makes_it(self, tmp_path: Path) -> None:
        sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE t (x)").connection.close()
        result = store("check", f"sqlite+aiosqlite:///{tmp_path}/empty.db")
        assert result.exit_code == 1
        assert "FAILED" in result.stdout
        assert "beam-agents store provision" in result.stderr
        assert "write" not in result.stdout

    def test_a_server_that_is_not_there_is_named(self) -> None:
        result = store("check", "redis://user:s3cr3t@127.0.0.1:1/0")
        assert result.exit_code == 1
        assert "127.0.0.1:1" in result.stderr
        assert "s3cr3t" not in result.output

    def test_nothing_is_written_that_could_not_be_deleted(
        self, memory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def denied(*_: object) -> int:
            raise StoreRejected("inprocess", "delete", problem="no DELETE")

        monkeypatch.setattr(InProcessAdmin, "delete", denied)
        result = store("check", memory)
        assert result.exit_code == 1
        assert "no DELETE" in result.stderr
        assert rows_of(memory) == []

    def test_a_guard_that_does_not_hold_is_seen_and_its_row_is_deleted(
        self, memory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unguarded(by_id: dict[RowId, StoreRow], row: StoreRow) -> UpsertResult:
            by_id[row.row_id] = row
            return UpsertResult.APPLIED

        monkeypatch.setattr(inprocess, "_upsert", unguarded)
        result = store("check", memory)
        assert result.exit_code == 1
        assert "the guard does not hold" in result.stderr
        assert "clean up" in result.stdout
        assert rows_of(memory) == []

    def test_a_check_that_is_interrupted_leaves_nothing(
        self, memory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[StoreRow] = []

        async def interrupted(*_: object) -> list[StoreRow]:
            written.extend(await InProcessAdmin(InProcessStore(parse_store_uri(memory))).scan(None, 10))
            await interrupt()
            return []

        monkeypatch.setattr(InProcessStore, "search", interrupted)
        assert store("check", memory).exit_code == 130
        assert len(written) == 1
        assert rows_of(memory) == []


ROWS = [
    row(ODD, "bin"),
    row(b"ada", "/", 1, b""),
    row(b"ada", "month/1", 2, b"x" * 100),
    row(b"ada", "month/2", 3, b"y" * 200, NOW_MS - 100 * DAY_MS),
    row(b"bob", "two\nlines ☕", 4, b"\xff\x00"),
]


class TestCopy:
    def test_rows_are_copied_as_they_are(self, uri: str, other: str) -> None:
        unreadable = StoreRow(b"zoe", "newer", 9, b"\x08\x63", NOW_MS)
        put(uri, *ROWS, unreadable)
        result = store("copy", uri, other, "--batch", "2")
        assert result.exit_code == 0, result.output
        assert rows_of(other) == rows_of(uri)
        assert len(rows_of(other)) == 6
        assert cell(result, "rows written") == "6"
        assert cell(result, "compared: the same") == "6"

    def test_it_may_be_repeated(self, uri: str, other: str) -> None:
        put(uri, *ROWS)
        assert store("copy", uri, other).exit_code == store("copy", uri, other).exit_code == 0
        assert rows_of(other) == ROWS

    def test_a_newer_row_of_the_destination_stays(self, uri: str, other: str) -> None:
        put(uri, *ROWS)
        newer = row(b"ada", "/", 99, b"newer")
        put(other, newer, row(b"abe", "its own"))
        result = store("copy", uri, other)
        assert result.exit_code == 0
        assert cell(result, "rows that the destination has newer") == "1"
        assert cell(result, "compared: newer at the destination") == "1"
        assert newer in rows_of(other)
        assert len(rows_of(other)) == 6

    @pytest.mark.parametrize(
        ("option", "entity"), [(["--entity", "ada"], b"ada"), (["--entity-base64", "AP8="], ODD)]
    )
    def test_one_entity(self, uri: str, other: str, option: list[str], entity: bytes) -> None:
        put(uri, *ROWS)
        assert store("copy", uri, other, *option).exit_code == 0
        assert rows_of(other) == [each for each in ROWS if each.entity_key == entity]

    @pytest.mark.parametrize("how", ["fails", "is interrupted"])
    def test_a_copy_that_ends_early_goes_on_from_its_cursor(
        self, uri: str, memory: str, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(uri, *ROWS)
        saved = InProcessStore.save_many
        calls = 0

        async def ends(opened: InProcessStore, rows: Sequence[StoreRow]) -> list[UpsertResult]:
            nonlocal calls
            calls += 1
            if calls == 3 and how == "is interrupted":
                await interrupt()
            if calls >= 3:
                raise StoreUnavailable("inprocess", "flush", "Gone")
            return await saved(opened, rows)

        monkeypatch.setattr(InProcessStore, "save_many", ends)
        result = store("copy", uri, memory, "--batch", "1")
        assert result.exit_code == (1 if how == "fails" else 130)
        assert rows_of(memory) == ROWS[:2]
        cursor = re.search(r"rows dealt with: 2; go on with --after (\S+)", result.stderr)
        assert cursor, result.stderr
        if how == "fails":
            assert "the store is memory://" in result.stderr
        monkeypatch.setattr(InProcessStore, "save_many", saved)
        resumed = store("copy", uri, memory, "--after", cursor[1])
        assert resumed.exit_code == 0, resumed.output
        assert cell(resumed, "rows written") == "3"
        assert cell(resumed, "compared: the same") == "5"
        assert rows_of(memory) == ROWS

    def test_a_row_that_is_too_large_is_named_and_the_others_are_copied(
        self, uri: str, memory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(uri, *ROWS)
        limits = type(InProcessStore.limits)(max_value_bytes=150)
        monkeypatch.setattr(InProcessStore, "limits", limits)
        result = store("copy", uri, memory, "--no-verify")
        assert result.exit_code == 1
        assert "too large for the destination: 1: month/2 of ada" in result.stderr
        assert rows_of(memory) == [each for each in ROWS if each.key != "month/2"]

    def test_what_is_lost_on_the_way_is_found(
        self, uri: str, memory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(uri, *ROWS)
        saved = InProcessStore.save_many

        async def loses(opened: InProcessStore, rows: Sequence[StoreRow]) -> list[UpsertResult]:
            changed = [row(b"bob", rows[-1].key, 4, b"other"), *rows[1:-1]]
            await saved(opened, changed)
            return [UpsertResult.APPLIED] * len(rows)

        monkeypatch.setattr(InProcessStore, "save_many", loses)
        result = store("copy", uri, memory)
        assert result.exit_code == 1
        assert cell(result, "compared: missing") == "1"
        assert cell(result, "compared: different") == "1"
        assert "bin of base64:AP8=" in result.stderr

    def test_a_copy_to_itself_is_a_wrong_argument(self, uri: str) -> None:
        result = store("copy", uri, uri)
        assert result.exit_code == 2
        assert "the same store" in result.stderr

    @pytest.mark.parametrize(
        "options", [["--after", "x"], ["--entity", "a", "--entity-base64", "YQ=="], ["--batch", "0"]]
    )
    def test_wrong_options(self, uri: str, other: str, options: list[str]) -> None:
        assert store("copy", uri, other, *options).exit_code == 2


class TestLs:
    def test_the_table_has_no_values_and_takes_nothing_for_markup(self, uri: str) -> None:
        put(uri, *ROWS, row(b"[red]:smile:", "[b]key[/b]", 7, b"s3cr3t"))
        result = store("ls", uri)
        assert result.exit_code == 0
        for shown in ("base64:AP8=", "month/1", "base64:dHdvCmxpbmVzIOKYlQ==", "[red]:smile:", "[b]key[/b]"):
            assert shown in result.stdout
        assert "100d 0h" in result.stdout
        assert "s3cr3t" not in result.stdout

    def test_json(self, uri: str) -> None:
        put(uri, *ROWS)
        lines = [json.loads(line) for line in store("ls", uri, "--json").stdout.splitlines()]
        assert len(lines) == 5
        assert lines[0] == {
            "entity_key_base64": "AP8=",
            "key": "bin",
            "bytes": len(ROWS[0].rec),
            "seq": 5,
            "updated_at_ms": NOW_MS,
        }
        assert lines[4]["key"] == "two\nlines ☕"

    def test_entity_prefix_and_limit(self, uri: str) -> None:
        put(uri, *ROWS)

        def keys(*options: str) -> list[str]:
            result = store("ls", uri, "--json", *options)
            assert ("there are more" in result.stderr) == ("1" in options)
            return [json.loads(line)["key"] for line in result.stdout.splitlines()]

        assert keys("--entity", "ada") == ["/", "month/1", "month/2"]
        assert keys("--prefix", "month/") == ["month/1", "month/2"]
        assert keys("--prefix", "month/", "--limit", "2") == ["month/1", "month/2"]
        assert keys("--prefix", "month/", "--limit", "1") == ["month/1"]
        assert len(keys("--limit", "0")) == 5


class TestGet:
    def test_the_value_is_shown_only_if_asked_for(self, uri: str) -> None:
        put(uri, row(b"ada", "k", 5, b"s3cr3t"))
        hidden = store("get", uri, "--entity", "ada", "--key", "k")
        assert hidden.exit_code == 0
        assert "s3cr3t" not in hidden.output
        assert cell(hidden, "bytes of the value") == "6"
        assert cell(hidden, "seq") == "5"
        shown = store("get", uri, "--entity", "ada", "--key", "k", "--show-values")
        assert cell(shown, "value ") == "s3cr3t"

    def test_bytes_go_to_a_file(self, uri: str, tmp_path: Path) -> None:
        put(uri, *ROWS)
        key = "dHdvCmxpbmVzIOKYlQ=="
        result = store(
            "get", uri, "--entity", "bob", "--key-base64", key, "--show-values", "--out", f"{tmp_path}/value"
        )
        assert result.exit_code == 0
        assert cell(result, "value ") == "base64:/wA="
        assert (tmp_path / "value").read_bytes() == b"\xff\x00"

    def test_a_row_that_is_not_there(self, uri: str) -> None:
        result = store("get", uri, "--entity", "ada", "--key", "k")
        assert result.exit_code == 1
        assert "no such row" in result.stderr

    def test_a_record_that_does_not_decode(self, uri: str) -> None:
        put(uri, StoreRow(b"ada", "k", 9, b"\xff", NOW_MS))
        result = store("get", uri, "--entity", "ada", "--key", "k", "--show-values")
        assert result.exit_code == 1
        assert cell(result, "seq") == "9"

    @pytest.mark.parametrize("options", [[], ["--entity", "a"], ["--entity", "a", "--key-base64", "/w=="]])
    def test_wrong_options(self, uri: str, options: list[str]) -> None:
        assert store("get", uri, *options).exit_code == 2


class TestTrim:
    def test_it_is_a_dry_run_unless_told_otherwise(self, uri: str) -> None:
        put(uri, *ROWS)
        result = store("trim", uri, "--older-than", "90d")
        assert result.exit_code == 0
        assert cell(result, "rows last written before") == "1"
        assert cell(result, "rows deleted") == "0"
        assert "--no-dry-run" in result.stdout
        assert rows_of(uri) == ROWS

    def test_old_rows_are_deleted_in_batches(self, uri: str) -> None:
        old = [row(b"old", f"k{i:03}", at_ms=NOW_MS - 91 * DAY_MS) for i in range(25)]
        put(uri, *ROWS, *old)
        result = store("trim", uri, "--older-than", "90d", "--no-dry-run", "--batch", "10")
        assert result.exit_code == 0
        assert cell(result, "rows deleted") == "26"
        assert rows_of(uri) == [each for each in ROWS if each.key != "month/2"]

    def test_one_entity(self, uri: str) -> None:
        put(uri, *ROWS)
        result = store("trim", uri, "--older-than", "90d", "--no-dry-run", "--entity", "bob")
        assert cell(result, "rows deleted") == "0"
        assert rows_of(uri) == ROWS

    def test_a_row_that_is_written_meanwhile_stays(
        self, memory: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(memory, row(b"ada", "k", 1, at_ms=0), row(b"ada", "l", 1, at_ms=0))
        deleted = InProcessAdmin.delete

        async def after_a_write(admin: InProcessAdmin, rows: Sequence[StoreRow]) -> int:
            await admin.store.save_many([row(b"ada", "k", 2)])
            return await deleted(admin, rows)

        monkeypatch.setattr(InProcessAdmin, "delete", after_a_write)
        result = store("trim", memory, "--older-than", "1d", "--no-dry-run")
        assert cell(result, "rows deleted") == "1"
        assert cell(result, "rows written or deleted meanwhile") == "1"
        assert rows_of(memory) == [row(b"ada", "k", 2)]

    def test_a_wrong_duration(self, uri: str) -> None:
        result = store("trim", uri, "--older-than", "soon")
        assert result.exit_code == 2
        assert "is no duration" in result.stderr


class TestRepair:
    ONE = ("--entity", "ada", "--key", "k")

    @pytest.fixture
    def poisoned(self, uri: str) -> str:
        put(uri, row(b"ada", "k", 10**15, b"value"), row(b"ada", "l", 7), row(b"bob", "k", 10**15))
        return uri

    def test_the_seq_is_lowered_and_the_guard_takes_writes_again(self, poisoned: str) -> None:
        result = store("repair", poisoned, *self.ONE, "--seq", "100", answer="y\n")
        assert result.exit_code == 0, result.output
        assert "1000000000000000" in result.stdout
        assert rows_of(poisoned) == [
            row(b"ada", "k", 100, b"value"),
            row(b"ada", "l", 7),
            row(b"bob", "k", 10**15),
        ]
        put(poisoned, row(b"ada", "k", 101, b"new"))
        assert row(b"ada", "k", 101, b"new") in rows_of(poisoned)

    @pytest.mark.parametrize("answer", ["n\n", ""])
    def test_without_a_yes_nothing_is_changed(self, poisoned: str, answer: str) -> None:
        before = rows_of(poisoned)
        assert store("repair", poisoned, *self.ONE, "--seq", "100", answer=answer).exit_code == 1
        assert rows_of(poisoned) == before

    def test_all_keys_of_an_entity(self, poisoned: str) -> None:
        result = store("repair", poisoned, "--entity", "ada", "--all-keys", "--seq", "100", "--yes")
        assert result.exit_code == 0
        assert "rows lowered to seq 100: 1" in result.stdout
        assert "rows left, as their seq is not above 100: 1" in result.stdout
        assert [each.seq for each in rows_of(poisoned)] == [100, 7, 10**15]

    def test_a_seq_is_never_raised(self, poisoned: str) -> None:
        result = store("repair", poisoned, "--entity", "ada", "--key", "l", "--seq", "8", "--yes")
        assert result.exit_code == 1
        assert "only lowers" in result.stderr
        assert row(b"ada", "l", 7) in rows_of(poisoned)

    def test_nothing_to_do(self, poisoned: str) -> None:
        result = store("repair", poisoned, "--entity", "ada", "--key", "l", "--seq", "7", "--yes")
        assert result.exit_code == 0
        assert "already" in result.stdout

    def test_a_row_that_changes_meanwhile_is_left(self, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
        put(memory, row(b"ada", "k", 50))
        replaced = InProcessAdmin.replace_seq

        async def after_a_write(admin: InProcessAdmin, row_: StoreRow, replacement: StoreRow) -> bool:
            await admin.store.save_many([row(b"ada", "k", 51)])
            return await replaced(admin, row_, replacement)

        monkeypatch.setattr(InProcessAdmin, "replace_seq", after_a_write)
        result = store("repair", memory, *self.ONE, "--seq", "10", "--yes")
        assert result.exit_code == 1
        assert "changed meanwhile" in result.stderr
        assert rows_of(memory) == [row(b"ada", "k", 51)]

    def test_a_record_that_does_not_decode_is_left(self, uri: str) -> None:
        put(uri, StoreRow(b"ada", "k", 50, b"\xff", NOW_MS))
        result = store("repair", uri, *self.ONE, "--seq", "10", "--yes")
        assert result.exit_code == 1
        assert "do not decode" in result.stderr
        assert rows_of(uri)[0].seq == 50

    def test_a_row_that_is_not_there(self, uri: str) -> None:
        assert store("repair", uri, *self.ONE, "--seq", "10", "--yes").exit_code == 1

    @pytest.mark.parametrize(
        "options",
        [
            ["--entity", "ada", "--seq", "1"],
            ["--entity", "ada", "--key", "k", "--all-keys", "--seq", "1"],
            ["--key", "k", "--seq", "1"],
            ["--entity", "ada", "--key", "k", "--seq", "-1"],
            ["--entity", "ada", "--key", "k"],
        ],
    )
    def test_wrong_options(self, uri: str, options: list[str]) -> None:
        assert store("repair", uri, *options, "--yes").exit_code == 2


@pytest.mark.parametrize(
    "command",
    [
        lambda uri: ("ls", uri),
        lambda uri: ("get", uri, "--entity", "a", "--key", "k"),
        lambda uri: ("trim", uri, "--older-than", "1d", "--no-dry-run"),
        lambda uri: ("repair", uri, "--entity", "a", "--key", "k", "--seq", "1", "--yes"),
        lambda uri: ("copy", uri, "memory://"),
    ],
)
def test_a_failing_store_is_told_in_one_line(
    command: Callable[[str], tuple[str, ...]], tmp_path: Path
) -> None:
    missing = f"sqlite+aiosqlite:///{tmp_path}/missing.db"
    result = store(*command(missing))
    assert result.exit_code == 1
    assert "beam-agents store provision" in result.stderr
    assert f"the store is {missing}" in result.stderr
    assert result.stderr.count("\n") == 1

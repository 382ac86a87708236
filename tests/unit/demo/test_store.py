from __future__ import annotations

import contextlib
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from beam_agents.cli.staging import OutputError, StagedFile
from beam_agents.demo import store as module
from beam_agents.demo.store import (
    StoredRows,
    command_line,
    count_rows,
    provision_store,
    publish_store,
    sqlite_uri,
    store_in_use,
)


def insert(path: Path, *keys: str) -> None:
    """Write rows to a provisioned store."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        rows = [(b"N1", key.encode(), 1, b"", 1) for key in keys]
        connection.executemany("INSERT INTO beam_agents_longterm VALUES (?, ?, ?, ?, ?)", rows)


def publish_one(path: Path, *keys: str) -> None:
    with StagedFile(path) as staged:
        provision_store(sqlite_uri(store_in_use(staged)))
        insert(store_in_use(staged), *keys)
        publish_store(staged, path)


@pytest.mark.parametrize("name", ["memory.sqlite", "with space & % ?#@é.sqlite"])
def test_rows_are_counted_by_kind(tmp_path: Path, name: str) -> None:
    publish_one(tmp_path / name, "profile", "month/2013-01", "month/2013-02", "working_memory", "other")
    assert count_rows(sqlite_uri(tmp_path / name)) == StoredRows(profiles=1, months=2, working_memories=1)
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_uri_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    publish_one(Path("memory.sqlite"), "profile")
    assert sqlite_uri(Path("memory.sqlite")) == "sqlite+aiosqlite:///memory.sqlite"
    assert count_rows(sqlite_uri(Path("memory.sqlite"))).profiles == 1


def test_what_a_connection_still_holds_in_its_log_is_published(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    with StagedFile(path) as staged:
        in_use = store_in_use(staged)
        provision_store(sqlite_uri(in_use))
        with contextlib.closing(sqlite3.connect(in_use)):
            insert(in_use, "profile")
            publish_store(staged, path)
    assert count_rows(sqlite_uri(path)).profiles == 1


def test_nothing_of_the_earlier_store_is_left(tmp_path: Path) -> None:
    path, link = tmp_path / "memory.sqlite", tmp_path / "link.sqlite"
    publish_one(path, "profile", "month/2013-01")
    link.symlink_to(path)
    # As a process leaves it that is killed: rows in the log alone.
    with contextlib.closing(sqlite3.connect(path)) as reading:
        reading.execute("SELECT count(*) FROM beam_agents_longterm").fetchone()
        insert(path, *(f"month/{number}" for number in range(500)))
        left = {each: each.read_bytes() for each in tmp_path.glob("memory.sqlite-*")}
    assert left
    for each, content in left.items():
        each.write_bytes(content)
    publish_one(link, "working_memory")
    assert count_rows(sqlite_uri(path)) == StoredRows(working_memories=1)
    assert link.is_symlink()


def test_a_store_that_cannot_be_read_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    publish_one(path, "profile")
    with StagedFile(path) as staged:
        store_in_use(staged).write_bytes(b"no database" * 100)
        with pytest.raises(OutputError, match=r"memory\.sqlite' cannot be written: Input/output error"):
            publish_store(staged, path)
    assert count_rows(sqlite_uri(path)).profiles == 1
    assert [each.name for each in tmp_path.iterdir()] == ["memory.sqlite"]


def test_a_command_names_what_this_interpreter_has_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "my env" / "bin" / "beam-agents"
    script.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(script.parent / "python"))
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert shlex.split(command_line("store", "ls")) == [
        sys.executable,
        "-m",
        "beam_agents.cli",
        "store",
        "ls",
    ]
    script.touch()
    assert shlex.split(command_line("store", "ls")) == [str(script), "store", "ls"]
    monkeypatch.chdir(tmp_path)
    assert command_line("store", "ls") == "'my env/bin/beam-agents' store ls"
    monkeypatch.setattr(shutil, "which", lambda _name: "/usr/bin/beam-agents")
    assert command_line("store", "ls") == "'my env/bin/beam-agents' store ls"
    monkeypatch.setattr(shutil, "which", lambda _name: str(script))
    assert command_line("store", "ls", "a b") == "beam-agents store ls 'a b'"


def test_the_command_works_without_an_installed_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_one(tmp_path / "memory.sqlite", "profile")
    monkeypatch.setattr(module.Path, "is_file", lambda _path: False)
    command = command_line("store", "ls", sqlite_uri(tmp_path / "memory.sqlite"))
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - as a user would paste it
    assert done.returncode == 0, done.stderr
    assert "profile" in done.stdout

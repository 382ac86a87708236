from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from beam_agents.cli.targets import TargetError, load_target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder of its own, and the import system as it was afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_installation() -> None:
    assert load_target("asyncio:run") is asyncio.run


def test_a_dotted_name_reaches_into_an_object() -> None:
    assert load_target("pathlib:Path.cwd") is not None


def test_a_module_in_the_current_folder(folder: Path) -> None:
    (folder / "their_agents.py").write_text("VALUE = 7")
    assert load_target("their_agents:VALUE") == 7


def test_a_file_elsewhere_is_imported_under_its_own_name(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "their_file.py").write_text("async def agent(ctx): ...")
    agent = load_target("below/their_file.py:agent")
    # By reference: nothing of the function's code is in the pickle, so a worker must import it.
    assert b"their_file" in pickle.dumps(agent)
    assert pickle.loads(pickle.dumps(agent)) is agent  # noqa: S301 - our own bytes


def test_processes_started_later_can_import_the_same(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "their_other_file.py").write_text("VALUE = 8")
    load_target("below/their_other_file.py:VALUE")
    command = "import their_other_file; print(their_other_file.VALUE)"
    done = subprocess.run(
        [sys.executable, "-c", command], cwd="/", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "8"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("their_agents", "MODULE:NAME"),
        (":name", "MODULE:NAME"),
        ("module:", "MODULE:NAME"),
        ("no_such_module_of_theirs:x", "no module 'no_such_module_of_theirs'"),
        ("asyncio.no_such_part:x", "no module 'asyncio.no_such_part'"),
        ("asyncio:no_such_name", "no attribute 'no_such_name'"),
        ("asyncio:run.no_such_name", "no attribute 'run.no_such_name'"),
        ("no/such/file.py:x", "no file 'no/such/file.py'"),
    ],
)
def test_what_is_not_there(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        load_target(target)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_installed_anywhere", "needs 'not_installed_anywhere', which is not installed"),
        ("1 / 0", r"ZeroDivisionError at their_broken\.py:1$"),
        ("def (", r"SyntaxError at their_broken\.py:1$"),
        ("raise SystemExit('s3cr3t')", "exited while it was imported$"),
        ("import sys\nsys.exit(3)", "exited with status 3 while it was imported$"),
        ("class E(BaseException): ...\nraise E('s3cr3t')", r"failed with E at their_broken\.py:2$"),
    ],
)
def test_a_module_that_does_not_import(folder: Path, code: str, message: str) -> None:
    (folder / "their_broken.py").write_text(code)
    with pytest.raises(TargetError, match=message):
        load_target("their_broken:x")


def test_a_file_whose_name_another_module_has(folder: Path) -> None:
    (folder / "json.py").write_text("x = 1")
    with pytest.raises(TargetError, match="rename the file"):
        load_target("json.py:x")


def test_a_file_whose_name_is_no_identifier(folder: Path) -> None:
    (folder / "their-agent.py").write_text("x = 1")
    with pytest.raises(TargetError, match="no Python identifier"):
        load_target("their-agent.py:x")

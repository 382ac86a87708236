"""The Makefile's targets: each module that one runs does something when it is run."""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODULES = sorted(set(re.findall(r"-m ((?:tests|beam_agents)[.\w]*)", (ROOT / "Makefile").read_text())))


def test_there_are_some() -> None:
    assert {"beam_agents.demo", "tests.servers.flink", "tests.servers.prism"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_it_is_a_program(module: str) -> None:
    found = importlib.util.find_spec(module)
    assert found is not None
    if found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{module}.__main__")
        assert found is not None
    assert found.origin is not None
    last = ast.parse(pathlib.Path(found.origin).read_text()).body[-1]
    calls = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)
    assert calls or (isinstance(last, ast.If) and "__main__" in ast.unparse(last.test))


def test_run_replay_is_given_the_runner() -> None:
    # Built by now, by what installs the servers; else here, which takes minutes.
    done = subprocess.run(
        [sys.executable, "-m", "tests.servers.prism"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert pathlib.Path(done.stdout.strip()).is_file()

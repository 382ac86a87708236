"""The types that users see: right calls are accepted, wrong ones refused."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.parametrize("name", ["right_calls.py", "wrong_calls.py"])
def test_mypy_agrees(name: str, tmp_path: pathlib.Path) -> None:
    command = [
        *(
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--warn-unused-ignores",
            "--config-file",
            "pyproject.toml",
        ),
        *("--cache-dir", str(tmp_path), str(HERE / name)),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout

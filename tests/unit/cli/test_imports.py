from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command",
    [
        ["beam_agents.demo", "--help"],
        ["beam_agents.demo.outage", "--help"],
        ["beam_agents.cli", "run", "--agent=none_such:x", "--events=x", "--key=x", "--time=x", "--out=x"],
    ],
)
def test_beam_says_nothing_of_what_it_does_without(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False, timeout=120
    )
    said = done.stderr
    assert "FileSystem" not in said
    assert "WARNING" not in said
    assert "Usage" in done.stdout + said

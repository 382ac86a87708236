"""Writes docs/cli.md from the commands' own declarations: ``python -m beam_agents.cli.reference [FILE]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["reference"]


def reference() -> str:
    """Return the reference of the command line, as Markdown, by Typer's own generator."""
    command = [sys.executable, "-m", "typer", "beam_agents.cli.app", "utils", "docs"]
    names = ["--name", "beam-agents", "--title", "Command line reference"]
    done = subprocess.run([*command, *names], check=True, capture_output=True, text=True)  # noqa: S603 - no input in it
    return done.stdout.rstrip() + "\n"


if __name__ == "__main__":
    text = reference()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)

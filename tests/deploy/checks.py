"""What the tests of all deployment pages check alike."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

from tests.servers.process import absent

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "deploy"


def check_prometheus(file: Path, folder: Path) -> None:
    """Let promtool check a configuration whose rules are where an operator puts them.

    Args:
        file: As it ships.
        folder: Where it is written with the rules' own paths.
    """
    if shutil.which("promtool") is None:
        absent("promtool (Debian's package prometheus)")
    rules = str(ROOT / "dashboards" / "prometheus")
    changed = folder / file.name
    text = file.read_text().replace("/etc/prometheus/beam-agents", rules)
    # Debian's Prometheus is built without Kubernetes.
    changed.write_text(text.replace("kubernetes_sd_configs:\n      - role: pod", "static_configs: []"))
    done = subprocess.run(
        ("promtool", "check", "config", changed), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def options_of(page: Path, program: str) -> list[str]:
    """Return the options in a page's commands of a program, as NAME or NAME=VALUE, without their dashes."""
    commands = [
        command.replace("\\\n", " ")
        for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)
        if program in command
    ]
    return [word.removeprefix("--") for command in commands for word in re.findall(r"--\S+", command)]


def unknown_to_beam(options: Iterable[str]) -> set[str]:
    """Return the names of options that the Python SDK does not have."""
    parser = _BeamArgumentParser()
    for group in PipelineOptions.__subclasses__():
        group._add_argparse_args(parser)
    return {
        name
        for each in options
        if f"--{(name := each.partition('=')[0])}" not in parser._option_string_actions
    }

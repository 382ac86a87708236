"""A plugin of somebody else's: a package of its own, installed beside ours and found by its entry point."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.signals.plugins import InstalledPlugin, installed_plugins
from beam_agents.testing import event, run_events

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parent / "third_party_plugin"
GUIDE = Path(__file__).parents[2] / "docs" / "telemetry" / "plugins.md"


def install(target: Path) -> None:
    """Put the package where ``pip install --target`` would, as its own metadata says, without the network."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    for source in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PACKAGE / source, target / Path(source).name, ignore=ignored)
    about = project["project"]
    folder = target / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in about["entry-points"].items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(groups))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    target = tmp_path / "site"
    target.mkdir()
    install(target)
    monkeypatch.syspath_prepend(str(target))
    yield target
    sys.modules.pop("beam_agents_tally", None)
    monkeypatch.undo()
    importlib.invalidate_caches()


async def agent(ctx: AgentContext) -> Complete:
    if ctx.event == b"fail":
        raise ValueError
    return Complete()


@pytest.mark.usefixtures("installed")
def test_it_is_found_and_told(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    events = [event(b"k", payload, time_ms=at) for at, payload in enumerate((b"1", b"2", b"fail"), 1)]
    run_events(agent, events, config=AgentConfig(telemetry=[f"tally?path={counts}"]), name="mine")
    assert json.loads(counts.read_text()) == {"mine complete": 2, "mine failed": 1}


@pytest.mark.usefixtures("installed")
def test_it_is_listed() -> None:
    (listed,) = [plugin for plugin in installed_plugins() if plugin.name == "tally"]
    assert listed == InstalledPlugin(
        "tally",
        "beam-agents-tally 1.2.0",
        (("path", None),),
        "Counts activations by agent and outcome into a JSON file.",
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tally", "plugin 'tally' needs the option 'path'"),
        ("tally?path=a.txt", "plugin 'tally' refused its options: path must end in .json"),
        ("tally?file=a.json", "plugin 'tally' has no option 'file'; there: path"),
    ],
)
def test_what_is_wrong_with_it_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        AgentConfig(telemetry=[text])


def test_it_is_gone_when_it_is_not_installed() -> None:
    with pytest.raises(ValueError, match="knows no plugin 'tally'"):
        AgentConfig(telemetry=["tally?path=a.json"])


def test_the_command_line_takes_it(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(
        "from beam_agents import Complete\n\nasync def agent(ctx):\n    return Complete(b'{}')\n"
    )
    (tmp_path / "events.jsonl").write_text('{"id": "a", "at": 1700000000000}\n')
    command = [sys.executable, "-m", "beam_agents.cli", "run", "--agent", "agents:agent"]
    command += ["--events", "events.jsonl", "--key", "id", "--time", "at", "--out", "out.jsonl"]
    command += ["--telemetry", "tally?path=counts.json"]
    path = [str(installed), *(each for each in sys.path if each)]
    environment = {"PYTHONPATH": ":".join(path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(json.loads((tmp_path / "counts.json").read_text()).values()) == [1]


def test_the_guide_shows_the_package_as_it_is() -> None:
    guide = GUIDE.read_text()
    for quoted in ("pyproject.toml", "src/beam_agents_tally/__init__.py"):
        assert (PACKAGE / quoted).read_text().rstrip() in guide, f"quote {quoted} as it is"


@pytest.mark.usefixtures("installed")
def test_the_guides_own_test_passes() -> None:
    """It needs the package, which the tests of the docs do not have."""
    example = GUIDE.read_text().rpartition("```py\n")[2].partition("```")[0]
    assert "assert json.loads(counts.read_text())" in example
    exec(compile(example, str(GUIDE), "exec"), {"__name__": "guide"})  # noqa: S102 - our own docs

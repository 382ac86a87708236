from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints, PathDistribution, version
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from beam_agents.cli.app import app
from beam_agents.signals import Observer, plugins
from beam_agents.signals.plugins import ENTRY_POINT_GROUP, InstalledPlugin, installed_plugins, resolve_plugins

if TYPE_CHECKING:
    from pathlib import Path


class Scrape:
    """Serves ``numbers``.

    And more.
    """

    def __init__(self, *, port: int, host: str = "::", shout: bool = True, name: str = "scrape") -> None:
        self.port, self.host, self.shout, self.name = port, host, shout, name

    def build(self) -> Observer:
        return Observer()


def another() -> Scrape:
    """Make another."""
    return Scrape(port=1)


number = 7

ENTRY_POINTS = f"""[{ENTRY_POINT_GROUP}]
scrape = plugins_of_the_list:Scrape
twice = plugins_of_the_list:Scrape
lacking = no_such_module.of_ours:make [prometheus]
gone = plugins_of_the_list:gone
number = plugins_of_the_list:number
broken = broken_plugin_of_the_list:make
leaving = leaving_plugin_of_the_list:make
mute = builtins:dict
odd name = plugins_of_the_list:another
"""


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "plugins_of_the_list", sys.modules[__name__])
    (tmp_path / "broken_plugin_of_the_list.py").write_text("raise RuntimeError('sk-secret')")
    (tmp_path / "leaving_plugin_of_the_list.py").write_text("raise SystemExit('sk-secret')")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "some_agents-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-agents\nVersion: 1.5\n")
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    points = list(PathDistribution(folder).entry_points)
    # One distribution twice on the path, and a name that another package has as well.
    points += [points[0], EntryPoint("twice", "plugins_of_the_list:another", ENTRY_POINT_GROUP)]
    monkeypatch.setattr(plugins, "entry_points", EntryPoints(points).select)


def test_what_is_installed() -> None:
    options = (("port", None), ("host", "::"), ("shout", "true"))
    more = "more than one package provides it"
    assert installed_plugins() == [
        InstalledPlugin(
            "broken",
            "some-agents 1.5",
            problem="plugin 'broken' cannot be loaded, its import raised RuntimeError",
        ),
        InstalledPlugin(
            "gone",
            "some-agents 1.5",
            problem="plugin 'gone' cannot be loaded, there is no plugins_of_the_list:gone",
        ),
        InstalledPlugin(
            "lacking",
            "some-agents 1.5",
            problem="plugin 'lacking' cannot be loaded, no_such_module is missing: "
            "pip install 'some-agents[prometheus]'",
        ),
        InstalledPlugin(
            "leaving",
            "some-agents 1.5",
            problem="plugin 'leaving' cannot be loaded, its import raised SystemExit",
        ),
        InstalledPlugin(
            "mute", "some-agents 1.5", problem="plugin 'mute' does not tell what options it takes"
        ),
        InstalledPlugin("number", "some-agents 1.5", problem="its entry point is no factory, but a int"),
        InstalledPlugin(
            "odd name", "some-agents 1.5", (), "Make another.", f"its name must match {plugins._NAME.pattern}"
        ),
        InstalledPlugin("scrape", "some-agents 1.5", options, "Serves ``numbers``."),
        InstalledPlugin("twice", "some-agents 1.5", options, "Serves ``numbers``.", more),
        InstalledPlugin("twice", "", (), "Make another.", more),
    ]


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("leaving", ImportError, "plugin 'leaving' cannot be loaded, its import raised SystemExit"),
        ("broken", ImportError, "plugin 'broken' cannot be loaded, its import raised RuntimeError"),
        ("mute", ValueError, "plugin 'mute' does not tell what options it takes"),
    ],
)
def test_a_broken_one_is_told_where_it_is_named(name: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=rf"^AgentConfig\.telemetry: {told}$"):
        resolve_plugins([name])


def test_the_list() -> None:
    result = CliRunner().invoke(app, ["telemetry", "list"])
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.replace("│", " ").split())
    assert "plugin from options what it does" in shown.replace("┃ ", "")
    assert "scrape some-agents 1.5 port (needed) Serves `numbers`. host=:: shout=true" in shown
    assert "NOT USABLE: plugin 'lacking' cannot be loaded, no_such_module is missing: pip install" in shown
    assert "'some-agents[prometheus]'" in shown
    assert "sk-secret" not in result.output


def test_the_list_of_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    result = CliRunner().invoke(app, ["telemetry", "list"])
    assert result.exit_code == 0, result.output
    for name in ("beam", "logs"):
        assert f"│ {name} " in result.output
    assert f"beam-agents {version('beam-agents')}" in result.output
    assert "level=info" in result.output

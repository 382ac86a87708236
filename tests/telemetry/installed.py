"""The plugins that tests of all plugins take: whatever entry points there are and can be loaded."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from beam_agents.signals.plugins import ENTRY_POINT_GROUP, installed_plugins, resolve_plugins

if TYPE_CHECKING:
    from pathlib import Path

    from beam_agents.signals import TelemetryPlugin

__all__ = ["NAMES", "declared", "make_plugin"]

NAMES = sorted(plugin.name for plugin in installed_plugins() if not plugin.problem)
"""By name, so that one more is tested as soon as it is there."""

_OPTIONS = {
    "logs": "logs?file={folder}/logs.jsonl",
    "otlp": "otlp?endpoint=http://127.0.0.1:{port}&sample_ratio=1&timeout_s={timeout_s}&metrics_period_s=0.2",
    "prometheus": "prometheus?port=0",
}
"""What a test must say, so that nothing is left behind; a plugin that is not named here has its defaults."""


def make_plugin(name: str, folder: Path, port: int = 1) -> TelemetryPlugin:
    """Return an installed plugin as a test is to use it.

    Args:
        name: The plugin's name.
        folder: Where its files go.
        port: Where a receiver listens; 1, where nobody does.
    """
    timeout_s = 0.2 if port == 1 else 30
    options = _OPTIONS.get(name, name).format(folder=folder, port=port, timeout_s=timeout_s)
    (plugin,) = resolve_plugins([options])
    return plugin


def declared() -> list[str]:
    """Return the plugins whose modules are there, whether or not these can be loaded."""
    points = entry_points(group=ENTRY_POINT_GROUP)
    return sorted({point.name for point in points if find_spec(point.module) is not None})

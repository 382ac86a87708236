"""``beam-agents telemetry …``: what there is to be told by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from beam_agents.cli.tables import columns, plain_console
from beam_agents.signals.plugins import installed_plugins

if TYPE_CHECKING:
    from beam_agents.signals.plugins import InstalledPlugin

__all__ = ["telemetry_app"]

telemetry_app = typer.Typer(
    help="Show the telemetry plugins of this environment.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@telemetry_app.callback()
def _telemetry() -> None:
    """Show the telemetry plugins of this environment."""


@telemetry_app.command("list")
def list_plugins() -> None:
    """List the installed telemetry plugins: where each is from, what it takes, and what it does.

    Options are shown with their defaults. A plugin that cannot be used says what is missing, and how to
    install it.
    """
    table = columns("plugin", "from", "options", "what it does")
    for plugin in installed_plugins():
        options = "\n".join(
            f"{option} (needed)" if default is None else f"{option}={default}"
            for option, default in plugin.options
        )
        table.add_row(plugin.name, plugin.source, options, _told(plugin))
    plain_console().print(table)


def _told(plugin: InstalledPlugin) -> str:
    summary = plugin.summary.replace("``", "`")
    return f"NOT USABLE: {plugin.problem}" if plugin.problem else summary

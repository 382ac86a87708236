"""Tables of columns, as the commands print them."""

from __future__ import annotations

import sys
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

__all__ = ["columns", "plain_console"]

_PIPE_WIDTH: Final = 160
"""Columns of a table that goes to no terminal."""


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that takes nothing in a text for markup, and is wide where nobody looks."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)


def columns(*names: str) -> Table:
    """Return an empty table; a ``>`` before a column's name aligns it to the right."""
    table = Table()
    for name in names:
        justify: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        table.add_column(name.removeprefix(">"), overflow="fold", justify=justify)
    return table

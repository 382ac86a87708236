"""What is shown while a command goes over many rows."""

from __future__ import annotations

import io

from rich.console import Console

from beam_agents.cli.store_progress import counted
from beam_agents.memory.stores.contract import StoreRow

ROWS = [StoreRow(b"e", key, 1, bytes(512), 0) for key in ("a", "b")]


def test_elsewhere_than_on_a_terminal_it_is_a_line_every_ten_seconds() -> None:
    out = io.StringIO()
    seconds = iter([0.0, 9.9, 10.0, 10.0, 19.9])
    with counted(Console(file=out), "rows copied", lambda: next(seconds)) as on_rows:
        on_rows(ROWS)
        assert out.getvalue() == ""
        on_rows(ROWS)
        on_rows(ROWS)
    assert out.getvalue() == "rows copied: 4 (2.0 KiB)\n"


def test_on_a_terminal_it_is_a_bar_that_goes_away() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with counted(console, "rows copied") as on_rows:
        on_rows(ROWS)
    assert "rows copied" in out.getvalue()
    # The line is erased at the end.
    assert out.getvalue().endswith("\x1b[2K")

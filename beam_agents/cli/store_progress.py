"""Shows how far a command over many rows is: a bar on a terminal, else a line every ten seconds."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from beam_agents.cli.store_text import shown_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

    from beam_agents.memory.stores.contract import StoreRow

__all__ = ["counted"]

_LINE_EVERY_S: Final = 10.0


@contextmanager
def counted(
    console: Console, what: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[Sequence[StoreRow]], None]]:
    """Give a callback that is told rows as they are dealt with, and show their number.

    Args:
        console: Where to.
        what: What is done to them, for people: "rows copied".
        clock: Seconds.
    """
    rows_done = bytes_done = 0

    def shown() -> str:
        return f"{what}: {rows_done:,} ({shown_size(bytes_done)})"

    def count(rows: Sequence[StoreRow]) -> None:
        nonlocal rows_done, bytes_done
        rows_done += len(rows)
        bytes_done += sum(len(row.rec) for row in rows)

    if not console.is_terminal:
        next_line_s = clock() + _LINE_EVERY_S

        def count_in_lines(rows: Sequence[StoreRow]) -> None:
            nonlocal next_line_s
            count(rows)
            if clock() >= next_line_s:
                console.print(shown(), soft_wrap=True)
                next_line_s = clock() + _LINE_EVERY_S

        yield count_in_lines
        return
    # How many rows a store holds is not known before they are read: the bar only shows that it goes on.
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(shown(), total=None)

        def count_in_bar(rows: Sequence[StoreRow]) -> None:
            count(rows)
            progress.update(task, description=shown())

        yield count_in_bar

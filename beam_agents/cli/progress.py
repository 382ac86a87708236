"""Shows how far a run is: bars on a terminal, a plain line every ten seconds elsewhere."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console

    from beam_agents.cli.tally import Tally

__all__ = ["progress_line", "progress_on"]

_REFRESH_S: Final = 0.2
_LINE_EVERY_S: Final = 10.0


def progress_on(console: Console, total_bytes: int) -> Callable[[Tally], AbstractContextManager[None]]:
    """Return what shows a run's tally on a console while it runs.

    Args:
        console: Where to.
        total_bytes: The size of all input files.
    """

    @contextmanager
    def watch(tally: Tally) -> Iterator[None]:
        stop = threading.Event()
        show = _show_bars if console.is_terminal else _show_lines
        thread = threading.Thread(
            target=show, args=(console, tally, total_bytes, stop), name="progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    return watch


def progress_line(tally: Tally, total_bytes: int) -> str:
    """Return how far a run is, as one line of text."""
    read = f"{tally.lines_read:,} lines read"
    if tally.reading_done:
        done = f"{read}; {tally.activations:,} of {tally.events:,} activations done"
    else:
        percent = min(100, 100 * tally.bytes_read // total_bytes) if total_bytes else 0
        done = f"{read} ({percent} % of the input); {tally.activations:,} activations done"
    return "; ".join((done, *tally.event_time, *tally.troubles))


def _show_lines(console: Console, tally: Tally, total_bytes: int, stop: threading.Event) -> None:
    while not stop.wait(_LINE_EVERY_S):
        console.print(progress_line(tally, total_bytes), highlight=False, soft_wrap=True)


def _show_bars(console: Console, tally: Tally, total_bytes: int, stop: threading.Event) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        # Lines are not counted before they are read: the bar goes by bytes until then.
        reading = progress.add_task("bytes read", total=total_bytes)
        running = progress.add_task("activations", total=None)
        while not stop.wait(_REFRESH_S):
            progress.update(reading, completed=tally.bytes_read)
            progress.update(
                running,
                description="; ".join(("activations", *tally.event_time, *tally.troubles)),
                completed=tally.activations,
                total=tally.events if tally.reading_done else None,
            )

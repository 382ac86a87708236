from __future__ import annotations

import io

import pytest
from rich.console import Console

from beam_agents.cli.progress import progress_line, progress_on
from beam_agents.cli.tally import Tally
from beam_agents.signals import stores, wedges
from beam_agents.signals.stores import StoreTable
from beam_agents.signals.wedges import WedgeTable, wedge_table


def test_while_reading_the_share_of_the_input_is_told() -> None:
    tally = Tally()
    tally.reading(1_000, 250, 990)
    assert progress_line(tally, 1_000) == "1,000 lines read (25 % of the input); 0 activations done"


def test_after_reading_the_number_of_events_is_known() -> None:
    tally = Tally()
    tally.reading(1_001, 1_000, 990, done=True)
    assert progress_line(tally, 1_000) == "1,001 lines read; 0 of 990 activations done"


def test_of_a_replay_the_time_is_told() -> None:
    tally = Tally()
    tally.reading(1_000, 250, 990)
    tally.replaying(0)
    assert progress_line(tally, 1_000).endswith(
        "; 0 activations done; event time 1970-01-01 00:00; 0 keys expired"
    )


def test_an_empty_input_divides_by_nothing() -> None:
    assert "0 %" in progress_line(Tally(), 0)


def test_what_keeps_a_run_waiting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    table = StoreTable()
    monkeypatch.setattr(stores._table, "value", table)
    monkeypatch.setattr(wedges._table, "value", WedgeTable())
    table.opened("uri", "redis", "redis://host")
    assert progress_line(Tally(), 0).endswith("0 activations done")
    table.failed("uri", "StoreUnavailable")
    wedge_table().failed("p", "a", b"k", backend="redis", error_type="StoreUnavailable")
    assert progress_line(Tally(), 0).endswith(
        "; the redis store does not answer (StoreUnavailable); 1 expiring keys wait for the store"
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_watched_may_fail(terminal: bool) -> None:  # noqa: FBT001 - a parameter
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with pytest.raises(ZeroDivisionError), progress_on(console, 10)(Tally()):
        raise ZeroDivisionError

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from beam_agents.cli import inputs
from beam_agents.cli.interrupts import interruptible


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> int:
    """Standard input as a pipe; what writes to it."""
    reads, writes = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reads))
    return writes


def test_standard_input_is_copied_until_its_end(piped: int) -> None:
    text = b"x" * (3 * inputs.BLOCK_BYTES + 1)

    def write() -> None:
        with os.fdopen(piped, "wb") as pipe:
            pipe.write(text)

    writer = threading.Thread(target=write)
    writer.start()
    with inputs.opened(["-"]) as (copied,):
        path = Path(copied.path)
        assert copied.label == "standard input"
        assert path.read_bytes() == text
    writer.join()
    assert not path.exists()


def test_a_signal_that_comes_just_before_a_read_ends_the_copy(
    piped: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    waits: list[float] = []

    class SignalledFirst:
        """The system's select, and a signal whose handler runs only when it has returned."""

        @staticmethod
        def select(*arguments: object) -> object:
            waits.append(float(arguments[-1]))  # type: ignore[arg-type]  # the bound is the last one
            if len(waits) > 1:
                signal.raise_signal(signal.SIGINT)
            return [], [], []

    monkeypatch.setattr(inputs, "select", SignalledFirst)
    with pytest.raises(KeyboardInterrupt), interruptible(), inputs.opened(["-"]):
        pass
    # Every wait has a bound, so that the handler's turn comes.
    assert waits == [inputs.POLL_S] * 2
    assert not list(tmp_path.iterdir())
    os.close(piped)

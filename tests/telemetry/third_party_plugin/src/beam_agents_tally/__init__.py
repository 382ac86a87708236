"""Counts activations by their outcome, and keeps the counts in a JSON file."""

import json
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from beam_agents.errors import InvalidArgument
from beam_agents.signals import Observer, Record, catalogue

__all__ = ["Tally", "TallyObserver"]


@dataclass(frozen=True)
class Tally:
    """Counts activations by agent and outcome into a JSON file.

    Attributes:
        path: The file.
    """

    path: str

    def __post_init__(self) -> None:
        if not self.path.endswith(".json"):
            raise InvalidArgument("path must end in .json")

    @property
    def name(self) -> str:
        """``"tally"``."""
        return "tally"

    def build(self) -> Observer:
        """Make what counts, on the worker."""
        return TallyObserver(Path(self.path))


class TallyObserver(Observer):
    """Counts in memory, and writes when it is asked to flush."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def record(self, record: Record) -> None:
        """Count the activations that a record measured."""
        for metric, value, labels in record.measurements:
            if metric is catalogue.ACTIVATIONS:
                with self._lock:
                    self._counts[f"{record.agent} {labels[0]}"] += int(value)

    def flush(self, timeout_s: float) -> None:  # noqa: ARG002 - one small local file
        """Write the counts, on a thread that no bundle waits for longer than the bound."""
        with self._lock:
            text = json.dumps(self._counts, sort_keys=True)
        self._path.write_text(text)

    def close(self, timeout_s: float) -> None:
        """Write them for the last time."""
        self.flush(timeout_s)

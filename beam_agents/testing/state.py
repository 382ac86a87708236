"""What a key holds, seen from outside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from beam_agents.memory.facade import WorkingMemory
from beam_agents.wire.beam_agents_pb2 import ControlState

if TYPE_CHECKING:
    from collections.abc import Callable

    from beam_agents.runtime.cells import StateCell

__all__ = ["KeyState", "WatchedCell"]


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key's cells, byte for byte; None for an empty one.

    Attributes:
        control: Seq, clock, expiry, suspensions.
        memory: The working memory.
        replay: Kept model responses.
    """

    control: bytes | None = None
    memory: bytes | None = None
    replay: bytes | None = None

    @property
    def seq(self) -> int:
        """The key's last committed seq; 0 for none."""
        return self.decoded_control.seq

    @property
    def decoded_control(self) -> ControlState:
        """The control cell's message."""
        return ControlState.FromString(self.control or b"")

    @property
    def working_memory(self) -> WorkingMemory:
        """The working memory, to look into; what is done to it reaches nobody."""
        return WorkingMemory(self.memory)

    def with_cell(self, name: str, value: bytes | None) -> KeyState:
        """Return this state with another value in one cell."""
        if name == "control":
            return replace(self, control=value)
        if name == "memory":
            return replace(self, memory=value)
        return replace(self, replay=value)


class WatchedCell:
    """A state cell that tells what it holds, whenever that is read or written."""

    def __init__(self, cell: StateCell, tell: Callable[[bytes | None], None]) -> None:
        self._cell = cell
        self._tell = tell

    def read(self) -> bytes | None:
        """Return the value, or None where the cell is empty."""
        value = self._cell.read()
        self._tell(value)
        return value

    def write(self, value: bytes) -> None:
        """Put a value in the place of what is there."""
        self._cell.write(value)
        self._tell(value)

    def clear(self) -> None:
        """Empty the cell."""
        self._cell.clear()
        self._tell(None)

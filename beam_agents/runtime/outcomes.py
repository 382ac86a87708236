"""What an agent returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from beam_agents.errors import InvalidOutcome

__all__ = ["Complete", "Outcome", "Suspend"]


@dataclass(frozen=True, slots=True)
class Complete:
    """The activation is done.

    Attributes:
        output: What goes to the main output; None for nothing.
    """

    output: bytes | None = None

    def __post_init__(self) -> None:
        if self.output is not None and not isinstance(self.output, bytes):
            raise InvalidOutcome(f"Complete.output must be bytes or None, not {type(self.output).__name__}")


@dataclass(frozen=True, slots=True)
class Suspend:
    """The activation goes on when the answers to its tool intents have come.

    Other events of the key run as usual meanwhile; each may suspend in its own right.

    Attributes:
        snapshot: What the resumed activation finds in ``ctx.snapshot``.
        waiting_for: Ids of the intents to wait for, as ``ctx.act`` returned them in this activation; None
            for all of them.
        output: What goes to the main output now; None for nothing.
    """

    snapshot: bytes = b""
    waiting_for: tuple[str, ...] | None = None
    output: bytes | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.snapshot, bytes):
            raise InvalidOutcome(f"Suspend.snapshot must be bytes, not {type(self.snapshot).__name__}")
        if self.output is not None and not isinstance(self.output, bytes):
            raise InvalidOutcome(f"Suspend.output must be bytes or None, not {type(self.output).__name__}")
        ids = self.waiting_for
        if ids is not None and (
            not isinstance(ids, tuple) or not ids or not all(isinstance(each, str) for each in ids)
        ):
            raise InvalidOutcome(
                "Suspend.waiting_for must be None or a non-empty tuple of ids that ctx.act returned"
            )


Outcome: TypeAlias = Complete | Suspend

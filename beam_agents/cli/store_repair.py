"""Lowers the seq of rows that the guard protects from every write to come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from beam_agents.errors import StateUndecodable, StateVersionUnsupported
from beam_agents.memory.stores.contract import with_seq

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.contract import StoreRow

__all__ = ["RepairPlan", "plan_repair"]


@dataclass(slots=True)
class RepairPlan:
    """What a repair would do.

    Attributes:
        lowered: Rows, each with what takes its place.
        kept: Rows whose seq is not above the new one.
        unreadable: Rows whose record does not decode, and so cannot be written anew.
    """

    lowered: list[tuple[StoreRow, StoreRow]] = field(default_factory=list)
    kept: list[StoreRow] = field(default_factory=list)
    unreadable: list[StoreRow] = field(default_factory=list)


def plan_repair(rows: Sequence[StoreRow], seq: int) -> RepairPlan:
    """Return what bringing rows down to a seq would do. None is raised; value and time stay as they are."""
    plan = RepairPlan()
    for row in rows:
        if row.seq <= seq:
            plan.kept.append(row)
            continue
        try:
            plan.lowered.append((row, with_seq(row, seq)))
        except (StateUndecodable, StateVersionUnsupported):
            plan.unreadable.append(row)
    return plan

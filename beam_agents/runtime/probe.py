"""The seam for tests: who holds a probe sees a key's state and may fail a bundle after any step.

Production code passes none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from beam_agents.runtime.cells import Cells

__all__ = ["Probe", "ProbedStep"]


class ProbedStep(StrEnum):
    """The moments at which a probe is called, in the order of an activation's life."""

    DECODE = "decode"
    AGENT = "agent"
    SUMMARIZE = "summarize"
    RUN = "run"
    FLUSH = "flush"
    COMMIT = "commit"
    EXPIRE = "expire"
    BUNDLE = "bundle"


class Probe(Protocol):
    """What a test hands to RunAgent's DoFn. It is pickled with the pipeline."""

    def cells(self, key: bytes, cells: Cells) -> Cells:
        """Return the cells to use in place of a key's own."""
        ...

    def after(self, step: ProbedStep, key: bytes) -> None:
        """Do something after a step; the key is empty after a bundle. What it raises fails the bundle."""
        ...

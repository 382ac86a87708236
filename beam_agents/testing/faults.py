"""Faults on purpose: fail a chosen bundle once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from beam_agents.errors import BundleFailure
from beam_agents.runtime.probe import ProbedStep
from beam_agents.testing.registry import Shared

if TYPE_CHECKING:
    from beam_agents.runtime.cells import Cells

__all__ = ["FailOnce", "InjectedFault"]


class InjectedFault(BundleFailure):
    """What :class:`FailOnce` raises: it fails the bundle, as a lost worker would.

    Attributes:
        step: The step after which it was raised.
    """

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__(step)

    def __str__(self) -> str:
        return f"injected after the step {self.step!r}"


class FailOnce(Shared):
    """Fails one bundle once, right after one step of one activation.

    Args:
        step: ``"decode"``, ``"agent"``, ``"summarize"``, ``"run"``, ``"flush"``, ``"commit"``, ``"expire"``,
            or ``"bundle"`` (after all of a bundle's elements).
        key: The key whose activations count; None for every key's. Not for ``"bundle"``.
        occurrence: Which one fails: 1 for the first time that the step ends.

    Attributes:
        raised: Whether it has raised.

    Raises:
        ValueError: There is no such step, or the occurrence is below 1.
    """

    def __init__(self, step: str, *, key: bytes | None = None, occurrence: int = 1) -> None:
        super().__init__()
        known = [each.value for each in ProbedStep]
        if step not in known:
            raise ValueError(f"FailOnce's step must be one of {', '.join(known)}, not {step!r}")
        if occurrence < 1:
            raise ValueError(f"FailOnce's occurrence must be at least 1, not {occurrence}")
        self._step = ProbedStep(step)
        self._key = key
        self._left = occurrence
        self._lock = threading.Lock()
        self.raised = False

    def cells(self, key: bytes, cells: Cells) -> Cells:  # noqa: ARG002 - a probe's method
        """Return the cells as they are."""
        return cells

    def after(self, step: ProbedStep, key: bytes) -> None:
        """Raise, if this is the moment.

        Raises:
            InjectedFault: It is.
        """
        if step is not self._step:
            return
        if self._key is not None and step is not ProbedStep.BUNDLE and key != self._key:
            return
        with self._lock:
            self._left -= 1
            if self._left != 0:
                return
            self.raised = True
        raise InjectedFault(step.value)

"""A plugin that fails at everything that it is told."""

from __future__ import annotations

from dataclasses import dataclass

from beam_agents.signals import Observer, Record


class _Raises(Observer):
    def record(self, record: Record) -> None:  # noqa: ARG002 - an observer's
        raise ZeroDivisionError


@dataclass(frozen=True)
class Loses:
    """A plugin that loses every record."""

    name: str = "loses"

    def build(self) -> Observer:
        return _Raises()

"""Names that alerts, dashboards and runbooks share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Dashboard", "Query"]


class Dashboard(StrEnum):
    """The dashboards, by their fixed uid."""

    OVERVIEW = "beam-agents-overview"
    STORES = "beam-agents-stores"
    MEMORY = "beam-agents-memory"
    EXPIRY = "beam-agents-expiry"
    ACTIVATIONS = "beam-agents-activations"
    WORKERS = "beam-agents-workers"


@dataclass(frozen=True, slots=True)
class Query:
    """A query and where it is.

    Attributes:
        place: What people know it by: a rule's name, or a dashboard's and a panel's title.
        expression: PromQL, without variables.
    """

    place: str
    expression: str

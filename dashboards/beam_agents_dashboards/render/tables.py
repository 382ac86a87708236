"""Tables: several queries' answers as rows, as Grafana's transformations merge and organize them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from beam_agents_dashboards.render.colors import color, step_color
from beam_agents_dashboards.render.units import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from beam_agents_dashboards.render.model import Panel
    from beam_agents_dashboards.render.prometheus import Series

__all__ = ["Cell", "Table", "make_table"]

_VALUE = "Value"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        text: What it says.
        paint: Its text's colour, as CSS has it; empty for the usual.
        number: Whether it is a number, and so set to the right.
    """

    text: str
    paint: str = ""
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        heads: Its headings.
        rows: Its cells.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def make_table(panel: Panel, answers: Mapping[str, Sequence[Series]]) -> Table:
    """Return a panel's table.

    Args:
        panel: Whose titles, order and units count.
        answers: What each of its queries gave.
    """
    one = len(panel.targets) == 1
    merged: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for ref, answer in answers.items():
        column = _VALUE if one else f"{_VALUE} #{ref}"
        for series in answer:
            labels = tuple(sorted(item for item in series.labels.items() if item[0] != "__name__"))
            merged.setdefault(labels, {})[column] = series.points[-1][1]
    labels_seen = list(dict.fromkeys(name for labels in merged for name, _ in labels))
    values_seen = [_VALUE if one else f"{_VALUE} #{target.ref}" for target in panel.targets]
    organized = dict(panel.transformations).get("organize", {})
    hidden = {name for name, hide in organized.get("excludeByName", {}).items() if hide}
    order, names = organized.get("indexByName", {}), organized.get("renameByName", {})
    columns = [name for name in (*labels_seen, *values_seen) if name not in hidden]
    columns.sort(key=lambda name: order.get(name, len(order)))
    rows = tuple(
        tuple(_cell(panel, names.get(column, column), column, dict(labels), values) for column in columns)
        for labels, values in sorted(merged.items())
    )
    return Table(tuple(names.get(column, column) for column in columns), rows)


def _cell(
    panel: Panel, head: str, column: str, labels: Mapping[str, str], values: Mapping[str, float]
) -> Cell:
    if not column.startswith(_VALUE):
        return Cell(labels.get(column, ""))
    value = values.get(column)
    if value is None:
        return Cell("-", number=True)
    field = panel.overrides.get(f"name:{head}", panel.field)
    paint = color(step_color(value, field.steps)) if field.colored_text else ""
    return Cell(shown(value, field.unit, field.decimals), paint, number=True)

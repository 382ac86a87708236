"""A dashboard's JSON, as far as it is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Annotation", "Board", "Field", "Panel", "Target", "read_board"]

_ALL: Final = "$__all"


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel.

    Attributes:
        ref: Its letter.
        expr: PromQL, with Grafana's variables in it.
        legend: What its series are called.
        instant: Whether it is asked for at the end of the time shown alone.
    """

    ref: str
    expr: str
    legend: str
    instant: bool


@dataclass(frozen=True, slots=True)
class Field:
    """How values are shown.

    Attributes:
        unit: As Grafana calls it.
        decimals: Digits after the point; None for as many as fit.
        steps: Thresholds: (value from which on, colour) pairs.
        texts: What is said instead of some values.
        no_value: What is said when there is none.
        color: A fixed colour; empty for none.
        low: Where the axis begins; None for where the values do.
        high: Where it ends; None for where the values do.
        colored_text: Whether a cell takes its threshold's colour.
    """

    unit: str = "none"
    decimals: int | None = None
    steps: tuple[tuple[float, str], ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    no_value: str = "No data"
    color: str = ""
    low: float | None = None
    high: float | None = None
    colored_text: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        kind: Grafana's type of it.
        title: Its title.
        description: What it tells.
        place: (x, y, width, height) in the grid.
        targets: Its queries.
        field: How its values are shown.
        overrides: Other fields than that: by ``query:LETTER`` or ``name:COLUMN``.
        options: The type's own options, as they are.
        custom: The field's custom options, as they are.
        transformations: (name, options) pairs.
    """

    kind: str
    title: str
    description: str
    place: tuple[int, int, int, int]
    targets: tuple[Target, ...]
    field: Field
    overrides: Mapping[str, Field]
    options: Mapping[str, Any]
    custom: Mapping[str, Any]
    transformations: tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """What is marked in all panels over time.

    Attributes:
        name: What it tells.
        expr: PromQL: marked while it has a value.
        color: Its colour.
        title: What a mark is called, with ``{{label}}`` for a label's value.
        text: What it was about, likewise.
    """

    name: str
    expr: str
    color: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard.

    Attributes:
        uid: Its identity.
        title: Its title.
        description: What it tells.
        panels: In their order.
        annotations: What is marked.
        variables: Their values as the dashboard opens: regular expressions for all.
    """

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...]
    annotations: tuple[Annotation, ...]
    variables: Mapping[str, str]


def read_board(data: Mapping[str, Any]) -> Board:
    """Return a dashboard from its JSON."""
    panels: list[Panel] = []
    for each in data.get("panels", ()):
        panels.append(_panel(each))
        panels.extend(_panel(inner) for inner in each.get("panels") or ())
    return Board(
        uid=data["uid"],
        title=data["title"],
        description=data.get("description", ""),
        panels=tuple(panels),
        annotations=tuple(_annotation(each) for each in data["annotations"]["list"] if "target" in each),
        variables={each["name"]: _value(each) for each in data["templating"]["list"]},
    )


def _value(variable: Mapping[str, Any]) -> str:
    current = variable.get("current", {}).get("value", _ALL)
    values = current if isinstance(current, list) else [current]
    if _ALL in values:
        return str(variable.get("allValue") or ".*")
    return "|".join(values)


def _annotation(data: Mapping[str, Any]) -> Annotation:
    return Annotation(
        data["name"],
        data["target"]["expr"],
        data.get("iconColor", "blue"),
        data.get("titleFormat", data["name"]),
        data.get("textFormat", ""),
    )


def _panel(data: Mapping[str, Any]) -> Panel:
    config = data.get("fieldConfig") or {}
    base = _field(config.get("defaults") or {}, Field())
    overrides: dict[str, Field] = {}
    for each in config.get("overrides") or ():
        matcher = each["matcher"]
        key = {"byName": "name", "byFrameRefID": "query"}.get(matcher["id"])
        if key:
            properties = _nested({each["id"]: each.get("value") for each in each["properties"]})
            overrides[f"{key}:{matcher['options']}"] = _field(properties, base)
    grid = data["gridPos"]
    return Panel(
        kind=data["type"],
        title=data.get("title") or "",
        description=data.get("description") or "",
        place=(grid["x"], grid["y"], grid["w"], grid["h"]),
        targets=tuple(
            Target(
                each["refId"], each["expr"], each.get("legendFormat") or "", bool(each.get("instant", False))
            )
            for each in data.get("targets") or ()
        ),
        field=base,
        overrides=overrides,
        options=data.get("options") or {},
        custom=(config.get("defaults") or {}).get("custom") or {},
        transformations=tuple((each["id"], each["options"]) for each in data.get("transformations") or ()),
    )


def _nested(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with ``custom.x`` as x of custom."""
    nested: dict[str, Any] = {}
    for key, value in properties.items():
        head, _, tail = key.partition(".")
        if tail:
            nested.setdefault(head, {})[tail] = value
        else:
            nested[head] = value
    return nested


def _field(data: Mapping[str, Any], base: Field) -> Field:
    color = data.get("color") or {}
    custom = data.get("custom") or {}
    thresholds = data.get("thresholds")
    steps = base.steps
    if thresholds:
        steps = tuple(
            (float("-inf") if each["value"] is None else float(each["value"]), each["color"])
            for each in thresholds["steps"]
        )
    texts = {
        value: result["text"]
        for mapping in data.get("mappings") or ()
        if mapping["type"] == "value"
        for value, result in mapping["options"].items()
    }
    return Field(
        unit=data.get("unit", base.unit),
        decimals=data.get("decimals", base.decimals),
        steps=steps,
        texts=texts or base.texts,
        no_value=data.get("noValue", base.no_value),
        color=color.get("fixedColor", base.color) if color.get("mode") == "fixed" else base.color,
        low=data.get("min", custom.get("axisSoftMin", base.low)),
        high=data.get("max", custom.get("axisSoftMax", base.high)),
        colored_text=(custom.get("cellOptions") or {}).get("type") == "color-text",
    )

"""What a rule is, and how rules are written as Prometheus reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import yaml

from beam_agents_dashboards.promql import duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from beam_agents_dashboards.names import Dashboard
    from beam_agents_dashboards.settings import Settings

__all__ = ["Alert", "Group", "Recording", "render"]

_Plain: TypeAlias = "dict[str, str | dict[str, str]]"

_HEAD: Final = """\
# Built by `beam-agents dashboards export`: change it there, with --set, not here.
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule.

    Attributes:
        name: ``level:metric:operations``.
        expression: PromQL.
        labels: Labels that its series get.
    """

    name: str
    expression: str
    labels: dict[str, str] = field(default_factory=dict)

    def plain(self, settings: Settings) -> _Plain:
        """Return it as Prometheus's configuration has it."""
        del settings
        plain: _Plain = {"record": self.name, "expr": self.expression}
        return {**plain, "labels": self.labels} if self.labels else plain


@dataclass(frozen=True, slots=True)
class Alert:
    """An alerting rule.

    Attributes:
        name: Its alert's name; several rules may share one.
        pages: Whether it wakes someone.
        expression: PromQL.
        hold_s: How long the expression must hold, in seconds, before ``for_scale``.
        summary: What is wrong, in constant words.
        description: What is wrong where and how much, as Prometheus's template.
        dashboard: Where to look first.
        variables: The dashboard's variables that the alert's labels set.
        labels: Labels beside the severity and the expression's own.
        keep_s: How long it goes on firing when the expression holds no more, likewise scaled.
    """

    name: str
    pages: bool
    expression: str
    hold_s: float
    summary: str
    description: str
    dashboard: Dashboard
    variables: tuple[str, ...] = ("job", "pipeline", "agent")
    labels: dict[str, str] = field(default_factory=dict)
    keep_s: float = 0

    def plain(self, settings: Settings) -> _Plain:
        """Return it as Prometheus's configuration has it."""
        query = "&".join(f"var-{name}={{{{ $labels.{name} | urlquery }}}}" for name in self.variables)
        dashboard = f"{settings.dashboard_url.rstrip('/')}/d/{self.dashboard.value}"
        severity = settings.page_severity if self.pages else settings.ticket_severity
        plain: _Plain = {
            "alert": self.name,
            "expr": self.expression,
            "for": duration(self.hold_s * settings.for_scale),
            "labels": {"severity": severity, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": f"{settings.runbook_url.rstrip('/')}/{self.name}.md",
                "dashboard_url": f"{dashboard}?{query}" if query else dashboard,
            },
        }
        if self.keep_s:
            plain["keep_firing_for"] = duration(self.keep_s * settings.for_scale)
        return plain


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other.

    Attributes:
        name: Unique within a file.
        rules: In their order.
    """

    name: str
    rules: tuple[Recording | Alert, ...]


class _Dumper(yaml.SafeDumper):
    """Writes PromQL of several lines as such."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def render(groups: Iterable[Group], settings: Settings, note: str = "") -> str:
    """Return a rule file's text.

    Args:
        groups: What is in it.
        settings: What severities, durations and links are written with.
        note: Comment lines for its head.
    """
    plain = {
        "groups": [
            {"name": group.name, "rules": [rule.plain(settings) for rule in group.rules]} for group in groups
        ]
    }
    return _HEAD + note + yaml.dump(plain, Dumper=_Dumper, sort_keys=False, width=1_000, allow_unicode=True)

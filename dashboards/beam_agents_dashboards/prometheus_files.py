"""What goes to Prometheus and Alertmanager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beam_agents_dashboards.alerts import alert_groups
from beam_agents_dashboards.flink import NOTE as FLINK_NOTE
from beam_agents_dashboards.flink import flink_groups
from beam_agents_dashboards.names import Query
from beam_agents_dashboards.recording import recording_groups
from beam_agents_dashboards.rules import Alert, render
from beam_agents_dashboards.runners import NOTE, runner_groups
from beam_agents_dashboards.shipped import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents_dashboards.settings import Settings

__all__ = ["ALERTS", "FLINK", "RECORDING", "RUNNERS", "files", "queries", "rule_files"]

RECORDING: Final = "beam-agents.recording.yml"
ALERTS: Final = "beam-agents.alerts.yml"
RUNNERS: Final = "beam-agents.runners.yml"
FLINK: Final = "beam-agents.flink.yml"

_EXAMPLES: Final = ("prometheus.example.yml", "alertmanager.example.yml")


def rule_files(settings: Settings) -> dict[str, str]:
    """Return the rule files: text by name."""
    return {
        RECORDING: render(recording_groups(settings), settings),
        ALERTS: render(alert_groups(settings), settings),
        RUNNERS: render(runner_groups(), settings, NOTE),
        FLINK: render(flink_groups(), settings, FLINK_NOTE),
    }


def files(settings: Settings) -> dict[str, str]:
    """Return the files of the folder ``prometheus``: text by name; examples are as they ship.

    Raises:
        FileNotFoundError: The package was installed without its examples.
    """
    folder = shipped("prometheus")
    examples = {name: (folder / name).read_text(encoding="utf-8") for name in _EXAMPLES}
    for name, text in examples.items():
        examples[name] = text.replace('severity = "page"', f'severity = "{settings.page_severity}"').replace(
            'severity = "ticket"', f'severity = "{settings.ticket_severity}"'
        )
    return {**rule_files(settings), **examples}


def queries(settings: Settings) -> Iterator[Query]:
    """Return the query of every rule, except those that map Flink's series, which read nothing else."""
    for group in (*recording_groups(settings), *alert_groups(settings), *runner_groups()):
        for rule in group.rules:
            name = rule.name
            if isinstance(rule, Alert) and rule.labels:
                name += f" ({', '.join(rule.labels.values())})"
            yield Query(name, rule.expression)

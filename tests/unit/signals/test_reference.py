from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from beam_agents.signals import catalogue
from beam_agents.signals.reference import render
from beam_agents.signals.types import Reason

DOCS = Path(__file__).parents[3] / "docs"


def test_the_committed_page_is_what_the_catalogue_gives() -> None:
    assert (DOCS / "signals.md").read_text() == render(), (
        "run: python -m beam_agents.signals > docs/signals.md"
    )


def test_the_module_prints_the_page() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "beam_agents.signals"], check=True, capture_output=True, text=True
    )
    assert printed.stdout == render()


def test_the_page_has_every_form_of_every_name() -> None:
    page = render()
    for metric in catalogue.METRICS:
        start = f"| `{metric.prometheus_name}` | {metric.kind.value} |"
        (row,) = (line for line in page.splitlines() if line.startswith(start))
        for name in (metric.otel_name, metric.help, *metric.labels, *(form.name for form in metric.beam)):
            assert name in row
    for span in catalogue.SPANS:
        assert page.count(f"\n| `{span.name}` | {span.kind.value} |") == 1
    for event in catalogue.EVENTS:
        assert page.count(f"\n| `{event.name}` | {event.severity} |") == 1


def test_tables_have_as_many_cells_in_every_row() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", render(), re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_the_page_of_errors_has_each_reason_once_in_order() -> None:
    page = (DOCS / "errors.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [reason.value for reason in Reason]

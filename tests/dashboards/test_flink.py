"""Flink's series of our Beam metrics: what its own reporter tells, and which dashboards it fills."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from beam_agents.signals import catalogue
from beam_agents.signals.types import BeamKind
from beam_agents_dashboards.alerts import alert_groups
from beam_agents_dashboards.check import metric_of, selected
from beam_agents_dashboards.flink import flink_groups, flink_name
from beam_agents_dashboards.grafana import dashboards
from beam_agents_dashboards.grafana_check import panels_without_data
from beam_agents_dashboards.prometheus_files import ALERTS, FLINK, RECORDING, rule_files
from beam_agents_dashboards.recording import recording_groups
from beam_agents_dashboards.render import Prometheus, window
from beam_agents_dashboards.render.model import read_board
from beam_agents_dashboards.settings import Settings
from tests.servers import prometheus as servers
from tests.servers.pages import serving_page
from tests.servers.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents_dashboards.render.model import Board

ROOT = Path(__file__).parents[2]
RUNNERS_PAGE = ROOT / "docs" / "telemetry" / "runners.md"
# What Flink 1.20.0's PrometheusReporter told of a job whose operator registers what Beam's runner does.
PAGE = (ROOT / "tests" / "dashboards" / "flink" / "page.txt").read_text()
FORMS = [form for metric in catalogue.METRICS for form in metric.beam]
CONFIGURATION = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{files}]
scrape_configs:
  - job_name: flink
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def told() -> dict[str, tuple[dict[str, str], float]]:
    return {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(PAGE)
        for sample in family.samples
    }


def test_the_reporter_names_beam_metrics_as_the_rules_do() -> None:
    ours = {name for name in told() if "beam_agents" in name}
    assert ours == {flink_name(form) for form in FORMS}, "record it anew: python -m tests.dashboards.flink"
    assert {"job_name", "operator_name", "subtask_index", "task_attempt_id"} <= told()[flink_name(FORMS[0])][
        0
    ].keys()
    assert "flink_jobmanager_job_numRestarts" in told()


def test_the_reporter_knows_numbers_alone() -> None:
    for form in FORMS:
        value = told()[flink_name(form)][1]
        assert (value == 0) == (form.kind is BeamKind.DISTRIBUTION), form


def test_every_counter_and_gauge_of_beam_is_read_by_some_rule() -> None:
    (group,) = flink_groups()
    read = {each.name for rule in group.rules for each in selected(rule.expression)}
    wanted = {flink_name(form) for form in FORMS if form.kind is not BeamKind.DISTRIBUTION}
    assert {name for name in read if name.startswith("flink_")} == wanted


def test_rules_make_series_with_all_labels_of_the_catalogue() -> None:
    (group,) = flink_groups()
    made: dict[str, list[dict[str, str]]] = defaultdict(list)
    for rule in group.rules[1:]:
        metric = metric_of(rule.name)
        assert metric is not None
        assert set(rule.labels) == {*metric.labels, "via"}, rule.name
        for label, values in metric.values:
            assert rule.labels[label] in {"unknown", *values}, rule.name
        made[rule.name].append(rule.labels)
    for name, labels in made.items():
        assert len({tuple(each.items()) for each in labels}) == len(labels), name
    assert [each["outcome"] for each in made["beam_agents_activations_total"]] == [
        "complete",
        "suspend",
        "failed",
    ]


def test_the_alerts_that_can_fire_are_those_that_the_docs_tell() -> None:
    (group,) = flink_groups()
    known = {rule.name for rule in group.rules} | {"ALERTS"}
    recorded = {rule.name: rule.expression for group in recording_groups(Settings()) for rule in group.rules}

    def filled(expression: str) -> bool:
        return all(
            filled(recorded[each.name]) if each.name in recorded else each.name in known
            for each in selected(expression)
        )

    fires = {
        rule.name for group in alert_groups(Settings()) for rule in group.rules if filled(rule.expression)
    }
    (told_of,) = re.findall(r"These alerts can fire: (.+?)\.", RUNNERS_PAGE.read_text(), flags=re.DOTALL)
    assert fires == set(re.findall(r"BeamAgents\w+", told_of))


def growing(started_s: float) -> str:
    """Return the page with counters that rise, so that there are rates."""
    return re.sub(r" \d+\.0$", f" {100 * (time.monotonic() - started_s):.0f}", PAGE, flags=re.MULTILINE)


def told_empty(boards: list[Board]) -> Iterator[str]:
    """Return the panels that the docs say stay empty, as `dashboard: panel`."""
    counted = {board.title: sum(bool(panel.targets) for panel in board.panels) for board in boards}
    rows = re.findall(
        r"^\| (\w+) \| (\d+) of (\d+) \| (.+) \|$", RUNNERS_PAGE.read_text(), flags=re.MULTILINE
    )
    for board, empty, panels, titles in rows:
        title = f"beam-agents / {board}"
        each = titles.split("; ")
        assert (len(each), counted[title]) == (int(empty), int(panels))
        yield from (f"{title}: {panel}" for panel in each)


@pytest.mark.xdist_group("dashboards")
def test_the_panels_that_stay_empty_are_those_that_the_docs_tell(tmp_path: Path) -> None:
    started_s = time.monotonic()
    settings = Settings(window_scale=0.02)
    files = rule_files(settings)
    for name in (RECORDING, ALERTS, FLINK):
        (tmp_path / name).write_text(files[name])
    began_s = time.time() - 60
    boards = [read_board(json.loads(text)) for text in dashboards(Settings()).values()]
    documented = set(told_empty(boards))
    with serving_page(lambda: growing(started_s)) as port:
        text = CONFIGURATION.format(port=port, files=f"{RECORDING}, {ALERTS}, {FLINK}")
        with servers.running(tmp_path, text) as server, Prometheus(server.url) as prometheus:
            empty: set[str] = set()

            def settled() -> bool:
                shown = window(began_s, time.time(), 1)
                empty.clear()
                empty.update(each.place for each in panels_without_data(boards, prometheus, shown))
                return empty == documented

            try:
                wait_until(settled, "the panels with data are those that the docs tell")
            except AssertionError:
                assert empty == documented
                raise

"""The rules: what ships is what is built, Prometheus takes it, alerts fire when they should, not before."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from beam_agents_dashboards import Settings, SettingsError, files, parse_settings, queries
from beam_agents_dashboards.check import problems, recorded_names
from beam_agents_dashboards.prometheus_files import ALERTS, FLINK, RECORDING, RUNNERS, rule_files
from beam_agents_dashboards.promql import duration
from beam_agents_dashboards.shipped import shipped
from tests.servers.process import absent

FOLDER = Path(__file__).parents[2] / "dashboards" / "prometheus"
TESTS = sorted((FOLDER / "tests").glob("*.test.yml"))
NAMES = {
    "BeamAgentsStoreDown",
    "BeamAgentsStoreFlushErrorBudgetBurn",
    "BeamAgentsStoreLatencyHigh",
    "BeamAgentsExpireTimersWedged",
    "BeamAgentsTimerBundlesFailing",
    "BeamAgentsStaleUpserts",
    "BeamAgentsEvictionStorm",
    "BeamAgentsMemoryOverflow",
    "BeamAgentsSummariesFailing",
    "BeamAgentsSuspensionsWiped",
    "BeamAgentsActivationErrorBudgetBurn",
    "BeamAgentsActivationStuck",
    "BeamAgentsReplayCacheMissing",
    "BeamAgentsTelemetryDropping",
    "BeamAgentsWorkersAbsent",
}
PAGES = {
    "BeamAgentsStoreDown",
    "BeamAgentsExpireTimersWedged",
    "BeamAgentsTimerBundlesFailing",
    "BeamAgentsActivationStuck",
    "BeamAgentsWorkersAbsent",
}
BOTH = {"BeamAgentsStoreFlushErrorBudgetBurn", "BeamAgentsActivationErrorBudgetBurn"}


def run(*command: str, cwd: Path = FOLDER) -> str:
    if shutil.which(command[0]) is None:
        absent(f"{command[0]} (Debian's packages prometheus and prometheus-alertmanager)")
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules_of(text: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load(text)["groups"]
    return list(itertools.chain.from_iterable(group["rules"] for group in groups))


def alerts(settings: Settings | None = None, file: str = ALERTS) -> list[dict[str, Any]]:
    return rules_of(rule_files(settings or Settings())[file])


def test_what_ships_is_what_the_code_builds() -> None:
    for name, text in rule_files(Settings()).items():
        assert (FOLDER / name).read_text() == text, "write it anew: python -m beam_agents_dashboards"


def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    run("promtool", "check", "rules", RECORDING, ALERTS, RUNNERS, FLINK)
    run("promtool", "check", "config", "prometheus.example.yml")
    settings = parse_settings(
        ["pipeline=flights-.*", "job=a|b", "for_scale=0", "window_scale=0.1", "slo=0.9"]
    )
    for name, text in files("prometheus", settings).items():
        (tmp_path / name).write_text(text)
    run("promtool", "check", "rules", RECORDING, ALERTS, RUNNERS, FLINK, cwd=tmp_path)
    run("promtool", "check", "config", "prometheus.example.yml", cwd=tmp_path)
    run("amtool", "check-config", "alertmanager.example.yml", cwd=tmp_path)


def test_alertmanager_takes_the_example() -> None:
    assert "3 inhibit rules" in run("amtool", "check-config", "alertmanager.example.yml")


@pytest.mark.parametrize(("labels", "receiver"), [("severity=page", "pager"), ("severity=ticket", "tickets")])
def test_who_is_told(labels: str, receiver: str) -> None:
    command = ("amtool", "config", "routes", "test", "--config.file=alertmanager.example.yml", labels)
    assert run(*command).strip() == receiver


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name.removesuffix(".test.yml"))
def test_it_fires_and_stays_quiet(path: Path) -> None:
    run("promtool", "test", "rules", path.name, cwd=path.parent)


def test_each_alert_has_a_test_that_it_fires_and_one_that_it_stays_quiet() -> None:
    for name in NAMES:
        cases = yaml.safe_load((FOLDER / "tests" / f"{name}.test.yml").read_text())["tests"]
        fires = [any(check.get("exp_alerts") for check in case["alert_rule_test"]) for case in cases]
        assert any(fires)
        assert not all(fires)
        checks = [check for case in cases for check in case["alert_rule_test"]]
        assert {check["alertname"] for check in checks} == {name}


def test_each_rule_fires_in_some_test() -> None:
    """A rule is known by its alert's name and its constant labels."""
    fired = [
        {"alertname": check["alertname"], **expected["exp_labels"]}
        for path in TESTS
        for case in yaml.safe_load(path.read_text())["tests"]
        for check in case.get("alert_rule_test", ())
        for expected in check.get("exp_alerts", ())
    ]
    slow = {"1d", "6h"}
    for rule in alerts() + alerts(file=RUNNERS):
        constant = {"alertname": rule["alert"], **rule["labels"]}
        # The pairs of a budget are made alike: the shortest, the longest and one between stand for all.
        if constant.get("window") not in slow:
            assert any(constant.items() <= each.items() for each in fired), constant


def test_every_alert_is_there_with_all_that_it_must_have() -> None:
    assert {rule["alert"] for rule in alerts()} == NAMES
    assert {rule["alert"] for rule in alerts(file=RUNNERS)} <= NAMES
    for rule in alerts() + alerts(file=RUNNERS):
        annotations = rule["annotations"]
        assert annotations.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
        assert "{{" not in annotations["summary"]
        assert "$value" in annotations["description"]
        assert "$labels" in annotations["description"]
        assert annotations["runbook_url"].endswith(f"/{rule['alert']}.md")
        assert "for" in rule


def test_symptoms_page_and_causes_are_tickets() -> None:
    severities: dict[str, set[str]] = {}
    for rule in alerts():
        severities.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
    for name, found in severities.items():
        if name in BOTH:
            assert found == {"page", "ticket"}
        else:
            assert found == ({"page"} if name in PAGES else {"ticket"}), name


def test_rules_use_what_the_catalogue_has() -> None:
    found = {query.place: problems(query.expression) for query in queries("prometheus", Settings())}
    found |= {
        f"{query.place}, one pipeline": problems(query.expression)
        for query in queries("prometheus", Settings(pipeline="flights", job="workers"))
    }
    assert {place: wrong for place, wrong in found.items() if wrong} == {}


def test_sums_keep_labels_that_the_metrics_have() -> None:
    known = {"job", "instance", "job_name", "le", "pipeline", "agent", "backend", "plugin", "reason"}

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.AggregateExpr):
            assert node.modifier is not None
            assert set(node.modifier.labels) <= known

    for query in queries("prometheus", Settings()):
        promql_parser.walk(promql_parser.parse(query.expression), visit)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("beam_agents_store_upp", "beam_agents_store_upp is not in the catalogue"),
        ("beam_agents_store_up{agent='a'}", "beam_agents_store_up has no label agent"),
        ("beam_agents_memory_size_bytes", "beam_agents_memory_size_bytes is not in the catalogue"),
        ("sum(rate(beam_agents_store_up[5m])", "it does not parse"),
    ],
)
def test_what_a_check_finds(expression: str, problem: str) -> None:
    (found,) = problems(expression)
    assert found.startswith(problem)


def test_recording_rules_are_named_by_level_metric_and_operations() -> None:
    for name in recorded_names():
        level, metric, operations = name.split(":")
        assert level
        assert metric.startswith("beam_agents_")
        assert operations


def test_the_settings_reach_the_rules() -> None:
    settings = parse_settings(
        [
            *("slo=0.99", "for_scale=0", "window_scale=0.1", "pipeline=flights", "page_severity=critical"),
            *("runbook_url=https://wiki.example.org/rb/", "dashboard_url=https://grafana.example.org/g"),
        ]
    )
    down, *_ = alerts(settings)
    assert down["for"] == "0s"
    assert down["labels"] == {"severity": "critical"}
    assert down["annotations"]["runbook_url"] == "https://wiki.example.org/rb/BeamAgentsStoreDown.md"
    assert down["annotations"]["dashboard_url"].startswith(
        "https://grafana.example.org/g/d/beam-agents-stores?"
    )
    burn = next(rule for rule in alerts(settings) if rule["labels"].get("window") == "1h")
    assert "> 0.144\n" in burn["expr"]
    assert '{pipeline=~"flights", outcome!="ok"}[6m]' in burn["expr"]
    assert 'and on (job, instance) beam_agents_activations_in_flight{pipeline=~"flights"}' in down["expr"]
    examples = files("prometheus", settings)["alertmanager.example.yml"]
    assert 'severity = "critical"' in examples
    assert 'severity = "page"' not in examples


def test_a_regular_expression_is_quoted() -> None:
    (rule, *_) = rules_of(rule_files(Settings(job=r'a"\d'))[RECORDING])
    assert r'job=~"a\"\\d"' in rule["expr"]
    assert problems(rule["expr"]) == []


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("slo", "slo: a value is needed: key=value"),
        ("sloe=1", "sloe: there is no such setting; there are activation_slo, "),
        ("slo=high", "slo: a number is needed, not 'high'"),
        ("slo=99.9", "flush_slo: a share between 0 and 1 is needed, such as 0.999, not 99.9"),
        ("flush_latency_s=0", "flush_latency_s: a number above 0 is needed, not 0"),
        ("for_scale=-1", "for_scale: a number above 0 is needed, not -1"),
        ("for_scale=nan", "for_scale: a finite number is needed, not nan"),
        ("pipeline=(", "pipeline: '(' is no regular expression: "),
        ("runbook_url=ftp://x", "runbook_url: an http or https URL without query is needed, not 'ftp://x'"),
        ("page_severity=P 1", "page_severity: a word of small letters is needed, such as page, not 'P 1'"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(pair: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings([pair])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (1, "1s"), (90, "90s"), (300, "5m"), (3_600, "1h"), (259_200, "3d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_checkout_is_found() -> None:
    assert shipped("prometheus") == FOLDER
    with pytest.raises(FileNotFoundError, match="nothing"):
        shipped("nothing")


def test_the_page_has_every_alert_and_every_setting() -> None:
    page = (FOLDER.parents[1] / "docs" / "alerts.md").read_text()
    for name in NAMES:
        assert f"[{name}](runbooks/{name}.md)" in page
    named = set(re.findall(r"`(\w+)`", page))
    assert {field.name for field in dataclasses.fields(Settings)} <= named

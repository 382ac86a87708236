"""Pages come within two minutes of the fault: the numbers of the shipped files, added up."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml

from beam_agents import FlushToLongterm
from beam_agents.memory.expiry import backoff_ms
from beam_agents.memory.stores.uri import StoreOptions
from beam_agents_dashboards import Settings
from beam_agents_dashboards.alerts import FAILING_SCRAPES
from tests.dashboards.test_rules import FOLDER, alerts, rules_of

PAGED_WITHIN_S = 120.0
_UNITS_S = {"s": 1, "m": 60, "h": 3_600}


def seconds(text: str) -> float:
    """Return a duration as Prometheus and Alertmanager write it."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    assert found is not None, text
    return int(found[1]) * _UNITS_S[found[2]]


def shipped(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def rule(name: str) -> dict[str, Any]:
    (found,) = [each for each in alerts() if each["alert"] == name]
    return found


def told_after_s(name: str) -> float:
    """Return how long it takes at most from what a worker tells to the webhook."""
    found = rule(name)
    scraping = shipped("prometheus.example.yml")["global"]
    scrape_s, rule_s = (seconds(scraping[f"{each}_interval"]) for each in ("scrape", "evaluation"))
    # A rule that reads another group's result may read one that is a whole interval old.
    recorded = [each["record"] for each in rules_of((FOLDER / "beam-agents.recording.yml").read_text())]
    assert not any(each in found["expr"] for each in recorded)
    # It fires at the first evaluation at which it has held for that long.
    hold_s = math.ceil(seconds(found["for"]) / rule_s) * rule_s
    routing = shipped("alertmanager.example.yml")["route"]
    (route,) = [
        each
        for each in routing["routes"]
        if each["matchers"] == [f'severity = "{found["labels"]["severity"]}"']
    ]
    return scrape_s + rule_s + hold_s + seconds(route["group_wait"])


def test_a_store_that_goes_down() -> None:
    options = StoreOptions()
    # A probe that was answered just before, the pause, and one that is not answered.
    seen_after_s = options.probe_period_s + options.operation_timeout_s
    assert seen_after_s + told_after_s("BeamAgentsStoreDown") == 115 < PAGED_WITHIN_S


def test_an_expiry_timer_that_wedges() -> None:
    name = "BeamAgentsExpireTimersWedged"
    assert f"> {Settings().wedged_s:g}\n" in rule(name)["expr"]
    # The timer fires, its first attempt fails as late as it may, and from then on its age counts.
    worst_s = FlushToLongterm().timeout_s + Settings().wedged_s + told_after_s(name)
    assert worst_s == 110 < PAGED_WITHIN_S


@pytest.mark.parametrize("again_after_s", [1, 15])
def test_timer_bundles_that_fail_again_and_again(again_after_s: int) -> None:
    """Where the runner tries again within a scrape interval, or at once."""
    name = "BeamAgentsTimerBundlesFailing"
    assert f">= {FAILING_SCRAPES}\n" in rule(name)["expr"]
    scrape_s = seconds(shipped("prometheus.example.yml")["global"]["scrape_interval"])
    # Each scrape but the first one has to come; that one is in what it takes to be told.
    seen_s = (FAILING_SCRAPES - 1) * max(scrape_s, again_after_s)
    assert seen_s + told_after_s(name) == 100 < PAGED_WITHIN_S


def test_a_timer_that_failed_once_pages_nobody() -> None:
    """Set again, it has had two more attempts by the time at which it counts as wedged."""
    first_s, second_s = backoff_ms(1) / 1_000, backoff_ms(2) / 1_000
    assert first_s + second_s < Settings().wedged_s

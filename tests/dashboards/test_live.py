"""The shipped files in the real Prometheus and Alertmanager: who is told what, and who is spared."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from beam_agents_dashboards import files, parse_settings
from tests.dashboards.synthetic_worker import SyntheticWorker, working
from tests.servers import alertmanager, prometheus
from tests.servers.alertmanager import Alertmanager, Webhook, await_condition, receiving

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from tests.servers.prometheus import Prometheus

DOWN, BURN, WEDGED = (
    "BeamAgentsStoreDown",
    "BeamAgentsStoreFlushErrorBudgetBurn",
    "BeamAgentsExpireTimersWedged",
)


STORE_UP = "beam_agents_store_up"


@dataclass(frozen=True, slots=True)
class Watch:
    """All that watches, and what is watched."""

    workers: tuple[SyntheticWorker, ...]
    prometheus: Prometheus
    alertmanager: Alertmanager
    webhook: Webhook

    def value(self, query: str) -> float | None:
        """Return the one value of a query, or None where there is none yet."""
        found = self.prometheus.query(query)
        return found[0][1] if found else None


def hurried(text: str, **seconds: int) -> str:
    """Return a configuration with some of its intervals shortened, all of which must be there."""
    for name, value in seconds.items():
        text, count = re.subn(rf"\b{name}: \w+", f"{name}: {value}s", text)
        assert count, name
    return text


def replaced(text: str, old: str, new: str) -> str:
    """Return a text in which something that must be there is another."""
    assert old in text
    return text.replace(old, new)


@pytest.fixture
def watch(tmp_path: pathlib.Path) -> Iterator[Watch]:
    settings = parse_settings(["for_scale=0.02", "window_scale=0.03"])
    built = files("prometheus", settings)
    for name, text in built.items():
        (tmp_path / name).write_text(text)
    with ExitStack() as stack:
        workers = tuple(stack.enter_context(working()) for _ in range(3))
        (tmp_path / "workers.json").write_text(json.dumps([{"targets": [each.target for each in workers]}]))
        webhook = stack.enter_context(receiving())
        routing = hurried(built["alertmanager.example.yml"], group_wait=1, group_interval=1)
        routing = replaced(routing, "http://127.0.0.1:9095", webhook.url)
        told = stack.enter_context(alertmanager.running(tmp_path, routing))
        scraping = hurried(
            built["prometheus.example.yml"], scrape_interval=1, evaluation_interval=1, refresh_interval=1
        )
        scraping = replaced(scraping, "127.0.0.1:9093", told.url.removeprefix("http://"))
        scraping = replaced(scraping, "/run/beam-agents/*.json", str(tmp_path / "workers.json"))
        asked = stack.enter_context(prometheus.running(tmp_path, scraping))
        yield Watch(workers, asked, told, webhook)


@pytest.mark.xdist_group("alertmanager")
def test_a_store_goes_down_and_comes_back(watch: Watch) -> None:
    await_condition(
        lambda: (
            watch.value("slo:beam_agents_longterm_flushes:objective") == 0.999
            and watch.value(f"avg({STORE_UP})") == 1
            and watch.value("pipeline_agent_backend:beam_agents_longterm_flushes_failed:ratio_rate5m") == 0
        ),
        "three healthy workers are seen",
    )
    assert watch.prometheus.query("ALERTS") == []

    for worker in watch.workers:
        worker.set_store(up=False)
    down = watch.webhook.wait_for(DOWN, "firing")
    assert down.path == "/page"
    assert down.labels == {
        "alertname": DOWN,
        "backend": "redis",
        "job": "beam-agents",
        "severity": "page",
    }
    assert down.annotations["summary"] == "A long-term store does not answer most workers."
    text = r"Store redis answers only \d+(\.\d+)?% of the workers of job beam-agents\."
    assert re.match(text, down.annotations["description"])
    assert down.annotations["runbook_url"].endswith("/BeamAgentsStoreDown.md")
    assert down.annotations["dashboard_url"].endswith(
        "/d/beam-agents-stores?var-job=beam-agents&var-backend=redis"
    )

    # Its own consequence is silent, and what says something new is not.
    await_condition(
        lambda: any(
            each["labels"]["alertname"] == BURN and each["status"]["inhibitedBy"]
            for each in watch.alertmanager.alerts()
        ),
        "the burn of the flushes' budget is inhibited",
    )
    watch.workers[0].wedged_s = 600
    wedged = watch.webhook.wait_for(WEDGED, "firing")
    assert wedged.labels["pipeline"] == "flights"
    assert wedged.annotations["description"].startswith("An expiry timer has failed for 10m 0s: store redis,")
    assert [each for each in watch.webhook.told if each.name == BURN] == []

    watch.workers[0].wedged_s = 0
    for worker in watch.workers:
        worker.set_store(up=True)
    assert watch.webhook.wait_for(DOWN, "resolved").labels == down.labels
    assert watch.webhook.wait_for(WEDGED, "resolved").labels == wedged.labels


@pytest.mark.xdist_group("alertmanager")
def test_one_worker_of_three_that_is_cut_off_pages_nobody(watch: Watch) -> None:
    watch.workers[0].set_store(up=False)
    await_condition(
        lambda: any(0.6 < value < 0.7 for _, value in watch.prometheus.query(f"avg({STORE_UP})")),
        "one worker's store is seen down",
    )
    # The burn of its flushes' budget shows that rules are evaluated meanwhile, and that it is not silent.
    watch.webhook.wait_for(BURN, "firing")
    assert {each.name for each in watch.webhook.told} == {BURN}

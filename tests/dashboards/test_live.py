"""The shipped files in the real Prometheus and Alertmanager: who is told what, and who is spared."""

from __future__ import annotations

import json
import re
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from beam_agents.demo.outage.servers import ServerMissing
from beam_agents.demo.outage.watching import watching
from beam_agents_dashboards import parse_settings
from tests.dashboards.synthetic_worker import SyntheticWorker, working
from tests.servers.process import unavailable, wait_until
from tests.servers.prometheus import Prometheus

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from beam_agents.demo.outage.webhook import Webhook

DOWN, BURN, WEDGED, SLOW = (
    "BeamAgentsStoreDown",
    "BeamAgentsStoreFlushErrorBudgetBurn",
    "BeamAgentsExpireTimersWedged",
    "BeamAgentsStoreLatencyHigh",
)
STORE_UP = "beam_agents_store_up"
TOLD_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Scene:
    """All that watches, and what is watched."""

    workers: tuple[SyntheticWorker, ...]
    prometheus: Prometheus
    alertmanager: str
    webhook: Webhook

    def value(self, query: str) -> float | None:
        """Return the one value of a query, or None where there is none yet."""
        found = self.prometheus.query(query)
        return found[0][1] if found else None

    def post(self, name: str, **labels: str) -> None:
        """Tell Alertmanager of an alert, as Prometheus does."""
        body = json.dumps([{"labels": {"alertname": name, **labels}}]).encode()
        url, headers = f"{self.alertmanager}/api/v2/alerts", {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30).close()  # noqa: S310 - our own

    def inhibited(self) -> set[str]:
        """Return the names of the alerts that are silent because a worse one fires."""
        with urllib.request.urlopen(f"{self.alertmanager}/api/v2/alerts", timeout=30) as response:  # noqa: S310 - our own server
            alerts = json.load(response)
        return {each["labels"]["alertname"] for each in alerts if each["status"]["inhibitedBy"]}


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Iterator[Scene]:
    targets = tmp_path / "targets"
    targets.mkdir()
    with ExitStack() as stack:
        workers = tuple(stack.enter_context(working()) for _ in range(3))
        found = [{"targets": [each.target for each in workers]}]
        (targets / "workers.json").write_text(json.dumps(found))
        settings = parse_settings(["for_scale=0.02", "window_scale=0.03"])
        try:
            watch = stack.enter_context(watching(tmp_path, settings, targets))
        except ServerMissing as missing:
            unavailable(str(missing))
        yield Scene(workers, Prometheus(watch.prometheus), watch.alertmanager, watch.webhook)


def await_condition(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, TOLD_WITHIN_S)


@pytest.mark.xdist_group("alertmanager")
def test_a_store_goes_down_and_comes_back(scene: Scene) -> None:
    await_condition(
        lambda: (
            scene.value("slo:beam_agents_longterm_flushes:objective") == 0.999
            and scene.value(f"avg({STORE_UP})") == 1
            and scene.value("pipeline_agent_backend:beam_agents_longterm_flushes_failed:ratio_rate5m") == 0
        ),
        "three healthy workers are seen",
    )
    assert scene.prometheus.query("ALERTS") == []

    for worker in scene.workers:
        worker.set_store(up=False)
    down = scene.webhook.wait_for(DOWN, "firing")
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

    # Its own consequences are silent, and what says something new is not.
    scene.post(SLOW, severity="ticket", job="beam-agents", backend="redis")
    await_condition(
        lambda: SLOW in scene.inhibited(),
        "the slowness of the store that is down is inhibited",
    )
    scene.workers[0].wedged_s = 600
    wedged = scene.webhook.wait_for(WEDGED, "firing")
    assert wedged.labels["pipeline"] == "flights"
    assert wedged.annotations["description"].startswith("An expiry timer has failed for 10m 0s: store redis,")
    # The burn of the flushes' budget, which the rule itself holds back, would have come by now.
    assert {each.name for each in scene.webhook.told} == {DOWN, WEDGED}

    scene.workers[0].wedged_s = 0
    for worker in scene.workers:
        worker.set_store(up=True)
    assert scene.webhook.wait_for(DOWN, "resolved").labels == down.labels
    assert scene.webhook.wait_for(WEDGED, "resolved").labels == wedged.labels


@pytest.mark.xdist_group("alertmanager")
def test_one_worker_of_three_that_is_cut_off_pages_nobody(scene: Scene) -> None:
    scene.workers[0].set_store(up=False)
    await_condition(
        lambda: any(0.6 < value < 0.7 for _, value in scene.prometheus.query(f"avg({STORE_UP})")),
        "one worker's store is seen down",
    )
    # The burn of its flushes' budget shows that rules are evaluated meanwhile, and that it is not silent.
    scene.webhook.wait_for(BURN, "firing")
    assert {each.name for each in scene.webhook.told} == {BURN}

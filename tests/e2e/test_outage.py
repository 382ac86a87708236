"""``make demo-outage``: real servers, the shipped files, a store that goes away, and who is told of it."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from beam_agents.demo.outage.play import EXPECTED, Acts, play
from beam_agents.demo.outage.servers import ServerMissing
from tests.servers.process import unavailable

PIPELINE = {"job": "beam-agents", "pipeline": "flights", "agent": "aircraft"}
LABELS = {
    "BeamAgentsStoreDown": {"job": "beam-agents", "backend": "redis"},
    "BeamAgentsTimerBundlesFailing": PIPELINE,
    "BeamAgentsExpireTimersWedged": {**PIPELINE, "backend": "redis"},
}
TEXTS = {
    "BeamAgentsStoreDown": r"Store redis answers only \d+% of the workers of job beam-agents\. "
    r"Activations that save to it fail, and keys that expire wait\.",
    "BeamAgentsTimerBundlesFailing": r"\d+ timer bundles failed in 9s, and it goes on: agent aircraft of "
    r"pipeline flights \(job beam-agents\)\. Nothing is lost; the watermark is held\.",
    "BeamAgentsExpireTimersWedged": r"An expiry timer has failed for \d+(\.\d+)?s: store redis, agent "
    r"aircraft of pipeline flights \(job beam-agents\)\. Its memory is kept, and its watermark may be held\.",
}
# What customers see is told as well; what the store's own alert says already is not.
ALSO = {"BeamAgentsActivationErrorBudgetBurn"}
# What these two agents never do, or what never went wrong; each says so in its place.
EMPTY = {
    "Tool calls": "no agent has called a tool",
    "Intents": "no agent has emitted an intent",
    "Dropped telemetry": "No plugin has lost a signal",
}


@pytest.mark.xdist_group("outage")
def test_an_outage_is_told_while_it_lasts_and_at_no_other_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    # As ``make demo-outage`` names its folder.
    monkeypatch.chdir(tmp_path)
    try:
        found = play(pathlib.Path(), Acts(healthy_s=10, down_s=12, quiet_s=5), None, said.append)
    except ServerMissing as missing:
        unavailable(str(missing))
    assert {each.name for each in found.told} - ALSO == set(EXPECTED)
    assert any("nor would in 10 minutes of such traffic" in each for each in said)
    for name in EXPECTED:
        told = [each for each in found.told if each.name == name]
        fired, ended = next(each for each in told if each.status == "firing"), told[-1]
        assert fired.labels == {"alertname": name, "severity": "page", **LABELS[name]}
        assert fired.path == ended.path == "/page"
        assert re.fullmatch(TEXTS[name], fired.annotations["description"])
        assert fired.annotations["runbook_url"].endswith(f"/{name}.md")
        assert found.stopped_s < fired.at_s < found.back_s < ended.at_s
        assert (ended.status, ended.labels) == ("resolved", fired.labels)
    kept = [json.loads(line) for line in (tmp_path / "alerts.jsonl").read_text().splitlines()]
    assert [each["labels"] for each in kept] == [each.labels for each in found.told]

    empty = {}
    for path in found.drawn:
        page = path.read_text()
        assert "BeamAgentsStoreDown" in page
        empty |= dict(
            re.findall(r'<h2 [^>]*>([^<]*)</h2><div class="content"><div class="note \w+">([^<]*)<', page)
        )
    assert empty.keys() == EMPTY.keys()
    assert all(EMPTY[title] in text for title, text in empty.items())

"""Ten minutes of healthy traffic in a second: promtool runs the shipped rules over what seconds showed."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Final

import yaml

from beam_agents.demo.outage.servers import installed
from beam_agents_dashboards import Settings, files
from beam_agents_dashboards.alerts import alert_groups
from beam_agents_dashboards.prometheus_files import ALERTS, RECORDING
from beam_agents_dashboards.recording import recording_groups

if TYPE_CHECKING:
    from pathlib import Path

    from beam_agents_dashboards.render import Prometheus

__all__ = ["MINUTES", "would_fire"]

MINUTES: Final = 10
_SEEN_S: Final = 8.0
_STEP_S: Final = 15
_COUNTERS: Final = ("_total", "_bucket", "_count", "_sum")
_TIMEOUT_S: Final = 300.0


def would_fire(prometheus: Prometheus, folder: Path) -> str:
    """Return what of the shipped alerts, as they ship, fires if traffic goes on as in the last seconds.

    Args:
        prometheus: What scrapes the workers.
        folder: Where promtool's files go.

    Returns:
        What promtool says of it; empty if nothing fires.

    Raises:
        ServerMissing: promtool is not installed.
        PrometheusError: Prometheus does not answer.
    """
    program = installed("prometheus", "promtool")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files("prometheus", Settings()).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "healthy.test.yml").write_text(yaml.safe_dump(_test(prometheus)), encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - with arguments of our own
        [program, "test", "rules", "healthy.test.yml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _test(prometheus: Prometheus) -> dict[str, object]:
    recording, alerting = recording_groups(Settings()), alert_groups(Settings())
    names = dict.fromkeys(rule.name for group in alerting for rule in group.rules)
    return {
        "rule_files": [RECORDING, ALERTS],
        "evaluation_interval": f"{_STEP_S}s",
        "group_eval_order": [group.name for group in (*recording, *alerting)],
        "tests": [
            {
                "interval": f"{_STEP_S}s",
                "input_series": _series(prometheus),
                "alert_rule_test": [
                    {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
                    for minute in range(1, MINUTES + 1)
                    for name in names
                ],
            }
        ],
    }


def _series(prometheus: Prometheus) -> list[dict[str, str]]:
    """Return all series that workers tell, as they go on: counters at their rate, the others as they are."""
    now_s = time.time()
    earlier, later = (
        {tuple(sorted(each.labels.items())): each.points[-1][1] for each in found}
        for found in (prometheus.at('{job!=""}', at_s) for at_s in (now_s - _SEEN_S, now_s))
    )
    steps = MINUTES * 60 // _STEP_S
    series = []
    for labels, value in later.items():
        named = dict(labels)
        name = named.pop("__name__")
        if ":" in name:
            # A rule's: it is recorded anew.
            continue
        first = earlier.get(labels, value)
        rise = (value - first) / _SEEN_S * _STEP_S if name.endswith(_COUNTERS) else 0.0
        inside = ", ".join(f'{label}="{text}"' for label, text in named.items())
        series.append({"series": f"{name}{{{inside}}}", "values": f"{value:.9f}+{rise:.9f}x{steps}"})
    return series

"""Writes the built files into the checkout: ``python -m beam_agents_dashboards``."""

from __future__ import annotations

from beam_agents_dashboards.grafana import dashboards
from beam_agents_dashboards.prometheus_files import rule_files
from beam_agents_dashboards.settings import Settings
from beam_agents_dashboards.shipped import shipped

for half, built in (("grafana", dashboards(Settings())), ("prometheus", rule_files(Settings()))):
    for name, text in built.items():
        (shipped(half) / name).write_text(text, encoding="utf-8")

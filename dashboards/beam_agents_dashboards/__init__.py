"""Dashboards, recording rules, alerts and runbooks: built from data, and shipped beside it."""

from beam_agents_dashboards.halves import HALVES, files, queries
from beam_agents_dashboards.settings import Settings, SettingsError, parse_settings

__all__ = ["HALVES", "Settings", "SettingsError", "files", "parse_settings", "queries"]

"""The one place where an operator changes objectives, thresholds, labels and links."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Settings", "SettingsError", "parse_settings"]


class SettingsError(ValueError):
    """A setting that can't be used.

    Attributes:
        key: Which.
        problem: What is wrong with it, and what would do.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Settings:
    """What rules and dashboards are built from. Each field is a key of ``--set``.

    Attributes:
        flush_slo: Share of flushes to a long-term store that should succeed.
        activation_slo: Share of activations that should succeed.
        flush_latency_s: What 99 % of flushes should stay under, in seconds.
        activation_timeout_s: ``AgentConfig.activation_timeout_s`` of the slowest agent, in seconds.
        wedged_s: How long an expiry timer may fail before someone is paged, in seconds.
        stale_ratio: Share of stale rows above which reprocessing is no trickle.
        summary_failure_ratio: Share of summaries that may fail.
        eviction_factor: How many times its own week's rate eviction may reach.
        eviction_floor_bytes_per_s: Eviction below this rate is never a storm.
        min_failures: Fewer failures than this are no burn, whatever their share.
        pipeline: Which pipelines are watched, as a regular expression; empty for all.
        job: Which of Prometheus's jobs are watched, as a regular expression; empty for all.
        always_on: Which pipelines should have a worker at all times, as a regular expression.
        for_scale: What each ``for`` is multiplied by.
        window_scale: What each window of a rate is multiplied by.
        page_severity: The label ``severity`` of what wakes someone.
        ticket_severity: The label ``severity`` of what waits for the morning.
        runbook_url: Where the runbooks are; each is ``<AlertName>.md`` there.
        dashboard_url: Grafana's address.
    """

    flush_slo: float = 0.999
    activation_slo: float = 0.999
    flush_latency_s: float = 1.0
    activation_timeout_s: float = 30.0
    wedged_s: float = 60.0
    stale_ratio: float = 0.01
    summary_failure_ratio: float = 0.05
    eviction_factor: float = 5.0
    eviction_floor_bytes_per_s: float = 1024.0
    min_failures: float = 5.0
    pipeline: str = ""
    job: str = ""
    always_on: str = ".+"
    for_scale: float = 1.0
    window_scale: float = 1.0
    page_severity: str = "page"
    ticket_severity: str = "ticket"
    runbook_url: str = "https://docs.example.com/beam-agents/runbooks"
    dashboard_url: str = "http://localhost:3000"

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            SettingsError: One can't be used.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                _check_text(field.name, value)
            else:
                _check_number(field.name, value)


_SHARES: Final = {"flush_slo", "activation_slo", "stale_ratio", "summary_failure_ratio"}
_EXPRESSIONS: Final = {"pipeline", "job", "always_on"}
_URLS: Final = {"runbook_url", "dashboard_url"}
_MAY_BE_ZERO: Final = {"for_scale", "eviction_floor_bytes_per_s", "min_failures"}
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {"slo": ("activation_slo", "flush_slo")}
"""Keys that set several fields."""

_SEVERITY: Final = re.compile(r"[a-z][a-z0-9_-]*")
_URL: Final = re.compile(r"https?://[^\s/?#\"{}]+(/[^\s\"{}?#]*)?")


def _check_number(key: str, value: float) -> None:
    if not math.isfinite(value):
        raise SettingsError(key, f"a finite number is needed, not {value}")
    if key in _SHARES and not 0 < value < 1:
        raise SettingsError(key, f"a share between 0 and 1 is needed, such as 0.999, not {value:g}")
    if value < 0 or (value == 0 and key not in _MAY_BE_ZERO):
        raise SettingsError(key, f"a number above 0 is needed, not {value:g}")


def _check_text(key: str, value: str) -> None:
    if key in _EXPRESSIONS:
        if "\n" in value:
            raise SettingsError(key, "a regular expression on one line is needed")
        try:
            re.compile(value)
        except re.error as error:
            raise SettingsError(key, f"{value!r} is no regular expression: {error}") from error
    elif key in _URLS:
        if not _URL.fullmatch(value):
            raise SettingsError(key, f"an http or https URL without query is needed, not {value!r}")
    elif not _SEVERITY.fullmatch(value):
        raise SettingsError(key, f"a word of small letters is needed, such as page, not {value!r}")


def parse_settings(pairs: Iterable[str]) -> Settings:
    """Return the settings that ``key=value`` pairs make of the defaults; the last one of a key counts.

    ``slo=…`` sets both ``activation_slo`` and ``flush_slo``.

    Raises:
        SettingsError: A pair has no ``=``, a key is unknown, or a value can't be used.
    """
    numbers = {field.name for field in fields(Settings) if not isinstance(field.default, str)}
    known = sorted({field.name for field in fields(Settings)} | _ALIASES.keys())
    given: dict[str, float | str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if key not in known:
            raise SettingsError(key, f"there is no such setting; there are {', '.join(known)}")
        if not equals:
            raise SettingsError(key, "a value is needed: key=value")
        for name in _ALIASES.get(key, (key,)):
            given[name] = _number(key, text) if name in numbers else text
    return Settings(**given)  # type: ignore[arg-type]  # by name: a float where the field is one, else a str


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise SettingsError(key, f"a number is needed, not {text!r}") from error

"""Prometheus and Alertmanager with the files that ship, in a hurry."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.demo.outage.servers import running_alertmanager, running_prometheus
from beam_agents.demo.outage.webhook import Webhook, receiving
from beam_agents_dashboards import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from beam_agents_dashboards import Settings

__all__ = ["EVERY_S", "Watch", "hurried", "replaced", "watching"]

EVERY_S: Final = 1
"""Seconds between two scrapes, evaluations and notifications."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What watches.

    Attributes:
        prometheus: Prometheus's URL.
        alertmanager: Alertmanager's.
        webhook: Who is told.
    """

    prometheus: str
    alertmanager: str
    webhook: Webhook


@contextmanager
def watching(folder: Path, settings: Settings, targets: Path) -> Iterator[Watch]:
    """Run both while the block runs.

    Args:
        folder: Where their files go.
        settings: What rules are built from: an operator's one place for what may last how long.
        targets: The folder in which workers tell where they are.

    Raises:
        ServerMissing: One of them is not installed.
        ServerFailed: One does not come up.
    """
    built = files("prometheus", settings)
    for name, text in built.items():
        (folder / name).write_text(text, encoding="utf-8")
    with ExitStack() as stack:
        webhook = stack.enter_context(receiving())
        routing = hurried(built["alertmanager.example.yml"], "group_wait", "group_interval")
        routing = replaced(routing, "http://127.0.0.1:9095", webhook.url)
        alertmanager = stack.enter_context(running_alertmanager(folder, routing))
        scraping = hurried(
            built["prometheus.example.yml"], "scrape_interval", "evaluation_interval", "refresh_interval"
        )
        scraping = replaced(scraping, "127.0.0.1:9093", alertmanager.removeprefix("http://"))
        scraping = replaced(scraping, "/run/beam-agents/", f"{targets}/")
        prometheus = stack.enter_context(running_prometheus(folder, scraping))
        yield Watch(prometheus, alertmanager, webhook)


def hurried(text: str, *intervals: str) -> str:
    """Return a configuration with some of its intervals at EVERY_S.

    Raises:
        ValueError: One is not there.
    """
    for name in intervals:
        text, count = re.subn(rf"\b{name}: \w+", f"{name}: {EVERY_S}s", text)
        if not count:
            raise ValueError(f"there is no {name} in it")
    return text


def replaced(text: str, old: str, new: str) -> str:
    """Return a text with another in the place of a part of it.

    Raises:
        ValueError: The part is not there.
    """
    if old not in text:
        raise ValueError(f"there is no {old} in it")
    return text.replace(old, new)

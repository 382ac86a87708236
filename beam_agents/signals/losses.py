"""What this process's telemetry plugins lost: counted, and told once, without the text of any exception."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from beam_agents.signals import catalogue

__all__ = ["count_lost", "dropped", "forget"]

_logger = logging.getLogger(__name__)

_counts: Counter[tuple[str, str]] = Counter()
_told: set[tuple[str, str]] = set()
_lock = threading.Lock()


def count_lost(plugin: str, reason: str, error_type: str = "", amount: int = 1) -> None:
    """Count signals that a plugin lost.

    Args:
        plugin: The plugin's name.
        reason: Why: a :class:`~beam_agents.signals.types.DropReason`, or a short word of the plugin's own.
        error_type: The class of what was raised; it is logged, once per plugin and class.
        amount: How many were lost.
    """
    with _lock:
        _counts[plugin, reason] += amount
        first = bool(error_type) and (plugin, error_type) not in _told
        if first:
            _told.add((plugin, error_type))
    if first:
        _logger.error(
            "%s plugin=%s reason=%s error_type=%s",
            catalogue.EVENT_TELEMETRY_PLUGIN_FAILED.name,
            plugin,
            reason,
            error_type,
        )


def dropped() -> dict[tuple[str, str], int]:
    """Return what all plugins of this process have lost so far, by (plugin, reason)."""
    with _lock:
        return dict(_counts)


def forget() -> None:
    """Begin at nothing, with a lock that nobody holds: a forked process counts for itself."""
    global _lock  # noqa: PLW0603 - one per process is the point
    _lock = threading.Lock()
    _counts.clear()
    _told.clear()

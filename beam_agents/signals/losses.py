"""What this process's telemetry plugins lost: counted, and told once, without the text of any exception."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from beam_agents.signals import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FaultListener", "count_lost", "dropped", "forget", "hear_faults", "unhear_faults"]

_logger = logging.getLogger(__name__)

FaultListener: TypeAlias = "Callable[[str, str, str, str], bool]"
"""Is told of a plugin's fault (plugin, reason, error_type, problem) and returns whether it writes that. It
must neither wait nor raise."""

_counts: Counter[tuple[str, str]] = Counter()
_told: dict[tuple[str, str, str], str] = {}
"""The first reason of each (plugin, error_type, problem)."""
_listeners: list[FaultListener] = []
_lock = threading.Lock()


def count_lost(plugin: str, reason: str, error_type: str = "", amount: int = 1, problem: str = "") -> None:
    """Count signals that a plugin lost.

    Args:
        plugin: The plugin's name.
        reason: Why: a :class:`~beam_agents.signals.types.DropReason`, or a short word of the plugin's own.
        error_type: The class of what was raised; it is logged, once per plugin, class and problem, or
            told to those who hear faults.
        amount: How many were lost.
        problem: What is wrong and what would mend it, if that is known: configuration, never content.
    """
    with _lock:
        _counts[plugin, reason] += amount
        kind = plugin, error_type, problem
        first = bool(error_type) and kind not in _told
        if first:
            _told[kind] = reason
        listeners = tuple(_listeners)
    if not first:
        return
    # All of them are told, whichever writes it.
    written = [listener(plugin, reason, error_type, problem) for listener in listeners]
    if not any(written):
        _logger.error(
            "%s plugin=%s reason=%s error_type=%s%s",
            catalogue.EVENT_TELEMETRY_PLUGIN_FAILED.name,
            plugin,
            reason,
            error_type,
            f" problem={problem}" if problem else "",
        )


def hear_faults(listener: FaultListener) -> None:
    """Have a plugin that writes logs told of faults; what it writes, the process's own log does not have.

    It is told at once of those that came before it.
    """
    with _lock:
        _listeners.append(listener)
        told = dict(_told)
    for (plugin, error_type, problem), reason in told.items():
        listener(plugin, reason, error_type, problem)


def unhear_faults(listener: FaultListener) -> None:
    """Tell it no longer. A second call does nothing."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)


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
    _listeners.clear()

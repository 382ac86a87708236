"""Asks each long-term store for a sign of life, with or without traffic: an idle store that is down is down.

One thread per store and process, so that a probe that hangs delays no other, and at most one probe of a store
runs at a time. The answer goes to the process's table of stores, and as a record to the plugins.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from beam_agents.errors import StoreError
from beam_agents.memory.stores.guarded import RetryPolicy
from beam_agents.runtime.longterm import note_attempts, note_call
from beam_agents.signals import catalogue
from beam_agents.signals.observer import Record

if TYPE_CHECKING:
    from beam_agents.memory.stores.guarded import GuardedStore, StoreCall
    from beam_agents.memory.stores.uri import StoreUri
    from beam_agents.runtime.bridge import AsyncBridge
    from beam_agents.signals.hub import Telemetry

__all__ = ["StoreProbe", "release_probe", "share_probe"]

_logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 1.0
"""How long whoever stops a probe waits for one that is running."""


class StoreProbe:
    """Probes one store until it is stopped: at once, and then once every ``probe_period_s`` of its URI.

    Attributes:
        listeners: The hubs that want to know. The first one is told: what it reaches, the process shares.
    """

    def __init__(self, store: GuardedStore, bridge: AsyncBridge, telemetry: Telemetry) -> None:
        self._bridge = bridge
        self._calls: list[StoreCall] = []
        self._store = store.observed(self._calls.append, policy=RetryPolicy(attempts=1, budget=1.0))
        self.listeners: list[Telemetry] = [telemetry]
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"beam-agents-probe-{store.backend}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End it; a probe that is running is waited for only briefly."""
        self._stopped.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        period_s = self._store.uri.options.probe_period_s
        while not self._stopped.is_set():
            self._probe()
            self._stopped.wait(period_s)

    def _probe(self) -> None:
        record = Record(catalogue.SPAN_STORE_PROBE, "", "", b"")
        try:
            self._bridge.run(self._store.ping(), inline=False)
        except StoreError:
            # That it failed is what the call tells.
            pass
        except Exception as error:  # noqa: BLE001 - the next probe is due, whatever it was
            if not self._stopped.is_set():
                _logger.warning(
                    "a health probe of a %s store failed: %s", self._store.backend, type(error).__name__
                )
        for call in self._calls:
            record.error_type = call.error_type
            note_attempts(record, call, self._store.uri, None)
            note_call(record, call)
        self._calls.clear()
        record.end_ns = record.now_ns()
        for telemetry in self.listeners[:1]:
            telemetry.record(record)


_probes: dict[StoreUri, StoreProbe] = {}
_lock = threading.Lock()


def share_probe(store: GuardedStore, bridge: AsyncBridge, telemetry: Telemetry) -> None:
    """Have a store probed, by the process's one probe of it."""
    with _lock:
        probe = _probes.get(store.uri)
        if probe is None:
            _probes[store.uri] = StoreProbe(store, bridge, telemetry)
        else:
            probe.listeners.append(telemetry)


def release_probe(store: GuardedStore, telemetry: Telemetry) -> None:
    """Give back what :func:`share_probe` gave; the last one ends the probe. A second call does nothing."""
    with _lock:
        probe = _probes.get(store.uri)
        if probe is None or telemetry not in probe.listeners:
            return
        probe.listeners.remove(telemetry)
        if probe.listeners:
            return
        del _probes[store.uri]
    probe.stop()


def _renew() -> None:
    """Begin with none in a forked child: threads stay with its parent."""
    global _lock  # noqa: PLW0603 - one per process is the point
    _lock = threading.Lock()
    _probes.clear()


os.register_at_fork(after_in_child=_renew)

"""What all DoFn instances of one RunAgent share in one worker process: the model's client, the plugins."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from beam_agents.errors import InvalidArgumentType
from beam_agents.memory.stores.pool import acquire_store, release_store
from beam_agents.model.types import LLMClient
from beam_agents.runtime.bridge import AsyncBridge, shared_bridge
from beam_agents.runtime.health import release_probe, share_probe
from beam_agents.signals.hub import acquire_hub, release_hub

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from beam_agents.config import AgentConfig
    from beam_agents.memory.stores.guarded import GuardedStore
    from beam_agents.signals.hub import Telemetry
    from beam_agents.signals.observer import Worker

__all__ = ["AgentWorker", "acquire_worker", "release_worker"]

CLOSE_TIMEOUT_S: Final = 5.0

_logger = logging.getLogger(__name__)


class AgentWorker:
    """One process's share of one RunAgent.

    Attributes:
        bridge: The process's event loop.
        start: Where activations start.
        store: The long-term store; None where that tier is off.
        telemetry: The process's plugins.
    """

    def __init__(self, config: AgentConfig, worker: Worker) -> None:
        self._config = config
        self._client: LLMClient | None = None
        self._client_lock = threading.Lock()
        self.users = 0
        self.bridge: AsyncBridge = shared_bridge()
        self.start = StartHabit()
        # First: where its client library is missing, nothing else has been acquired yet.
        self.store: GuardedStore | None = (
            acquire_store(config.longterm_memory) if config.longterm_memory is not None else None
        )
        self.telemetry: Telemetry = acquire_hub(config.plugins)
        self.telemetry.start(worker)
        if self.store is not None and config.plugins:
            share_probe(self.store, self.bridge, self.telemetry)

    def client(self) -> LLMClient:
        """Return the model's client, made at the first call. Called on the event loop."""
        with self._client_lock:
            if self._client is None:
                assert self._config.provider_factory is not None  # noqa: S101 - the context asks only then
                client = self._config.provider_factory()
                if not isinstance(client, LLMClient):
                    raise InvalidArgumentType(
                        "AgentConfig.provider_factory must return an LLMClient "
                        f"(async complete, async close), not {type(client).__name__}"
                    )
                self._client = client
            return self._client

    def close(self) -> None:
        """Close the client and let go of store and plugins; a failure of one does not skip the others."""
        client, self._client = self._client, None
        store, self.store = self.store, None
        if client is not None:
            self._close("the model client", client.close())
        if store is not None:
            release_probe(store, self.telemetry)
            self._close("the long-term store", release_store(store))
        release_hub(self.telemetry)

    def _close(self, what: str, closing: Coroutine[object, object, None]) -> None:
        if self.bridge.closed:
            closing.close()
            return
        try:
            self.bridge.run(closing, CLOSE_TIMEOUT_S, inline=False)
        except Exception as error:  # noqa: BLE001 - it may be anything; the rest must go on
            _logger.warning("%s did not close: %s", what, type(error).__name__)


class StartHabit:
    """Where an agent's activations start: on the calling thread, or on the event loop's.

    On the calling thread an activation that waits for nothing spares two changes of thread. But some
    libraries (greenlets, as in SQLAlchemy, and whatever keeps thread-local state) must not begin on one
    thread and go on on another. What ``ctx`` offers changes threads in time; an agent that awaits something
    of its own starts on the loop's thread. Which kind an agent is, its activations show: the first starts on
    the loop's thread, and once one has awaited something of its own, all later ones do.

    Attributes:
        inline: Whether the next activation starts on the calling thread.
    """

    def __init__(self) -> None:
        self.inline = False
        self._waits = False

    def learn(self, *, waited: bool) -> None:
        """Note whether an activation awaited something of its own in its first step."""
        self._waits = self._waits or waited
        self.inline = not self._waits


_workers: dict[tuple[int, str], AgentWorker] = {}
_lock = threading.Lock()


def acquire_worker(run_id: str, config: AgentConfig, worker: Worker) -> AgentWorker:
    """Return this process's share of the RunAgent called ``run_id``, made at the first call."""
    with _lock:
        key = (os.getpid(), run_id)
        shared = _workers.get(key)
        if shared is None:
            shared = _workers[key] = AgentWorker(config, worker)
        shared.users += 1
        return shared


def release_worker(run_id: str) -> None:
    """Give back what :func:`acquire_worker` gave; the last one closes it."""
    with _lock:
        key = (os.getpid(), run_id)
        shared = _workers.get(key)
        if shared is None:
            return
        shared.users -= 1
        if shared.users > 0:
            return
        del _workers[key]
    shared.close()


def _forget_parents_workers() -> None:
    """Give a forked child a lock that nobody holds; its parent's workers stay the parent's."""
    global _lock  # noqa: PLW0603 - one per process is the point
    _lock = threading.Lock()
    _workers.clear()


os.register_at_fork(after_in_child=_forget_parents_workers)

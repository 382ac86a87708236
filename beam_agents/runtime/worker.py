"""What all DoFn instances of one RunAgent share in one worker process: the model's client, the plugins."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from beam_agents.model.types import LLMClient
from beam_agents.runtime.bridge import AsyncBridge, shared_bridge
from beam_agents.signals.hub import acquire_hub, release_hub

if TYPE_CHECKING:
    from beam_agents.config import AgentConfig
    from beam_agents.signals.hub import Telemetry
    from beam_agents.signals.observer import Worker

__all__ = ["AgentWorker", "acquire_worker", "release_worker"]

CLOSE_TIMEOUT_S: Final = 5.0

_logger = logging.getLogger(__name__)


class AgentWorker:
    """One process's share of one RunAgent.

    Attributes:
        bridge: The process's event loop.
        telemetry: The process's plugins.
    """

    def __init__(self, config: AgentConfig, worker: Worker) -> None:
        self._config = config
        self._client: LLMClient | None = None
        self._client_lock = threading.Lock()
        self.users = 0
        self.bridge: AsyncBridge = shared_bridge()
        self.telemetry: Telemetry = acquire_hub(config.plugins)
        self.telemetry.start(worker)

    def client(self) -> LLMClient:
        """Return the model's client, made at the first call. Called on the event loop."""
        with self._client_lock:
            if self._client is None:
                assert self._config.provider_factory is not None  # noqa: S101 - the context asks only then
                client = self._config.provider_factory()
                if not isinstance(client, LLMClient):
                    raise TypeError(
                        "AgentConfig.provider_factory must return an LLMClient "
                        f"(async complete, async close), not {type(client).__name__}"
                    )
                self._client = client
            return self._client

    def close(self) -> None:
        """Close the client and let go of the plugins; a failure of one does not skip the other."""
        client, self._client = self._client, None
        if client is not None and not self.bridge.closed:
            try:
                self.bridge.run(client.close(), CLOSE_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - it may be anything; the rest must go on
                _logger.warning("the model client's close failed: %s", type(error).__name__)
        release_hub(self.telemetry)


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

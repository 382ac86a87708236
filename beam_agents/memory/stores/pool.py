"""One open store per URI and process, shared by all that use it and closed by the last."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from beam_agents.memory.stores.guarded import GuardedStore
from beam_agents.memory.stores.registry import open_store
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.signals.stores import store_table

if TYPE_CHECKING:
    from beam_agents.memory.stores.contract import MemoryStore
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["acquire_store", "release_store"]


@dataclass(slots=True)
class _Shared:
    """A store, and what was handed out for it."""

    store: MemoryStore
    users: list[GuardedStore] = field(default_factory=list)


class _Process:
    """The stores of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.by_uri: dict[StoreUri, _Shared] = {}


_process = _Process()
_inherited: list[_Process] = []
"""What a forked child got from its parents. It is kept, so that no finalizer runs on a connection that the
parent uses."""


def acquire_store(uri: str | StoreUri) -> GuardedStore:
    """Return the process's store for a URI, opened if nobody has it. Nothing is connected yet.

    Each call is to be answered with one of :func:`release_store`. From any thread.

    Raises:
        ValueError: The URI does not follow the grammar.
        ImportError: The backend's client library is not installed.
    """
    parsed = parse_store_uri(uri) if isinstance(uri, str) else uri
    process = _current()
    with process.lock:
        shared = process.by_uri.get(parsed)
        if shared is None:
            shared = process.by_uri[parsed] = _Shared(open_store(parsed))
            store_table().opened(parsed, parsed.backend, parsed.redacted)
        user = GuardedStore(shared.store)
        shared.users.append(user)
        return user


async def release_store(store: GuardedStore) -> None:
    """Give back what :func:`acquire_store` returned; the last one closes the store.

    On the event loop that the store was used on. A second call for the same does nothing, and neither does
    one in a forked child for what its parent acquired.

    Raises:
        StoreError: Closing failed. The store is gone from the process all the same.
    """
    process = _current()
    with process.lock:
        shared = process.by_uri.get(store.uri)
        if shared is None or not any(user is store for user in shared.users):
            return
        shared.users = [user for user in shared.users if user is not store]
        if shared.users:
            return
        del process.by_uri[store.uri]
        store_table().closed(store.uri)
    await shared.store.close()


def _current() -> _Process:
    _renew()
    return _process


def _renew() -> None:
    """Begin anew in a forked child: with no store, and a lock that no thread of its parent holds."""
    global _process  # noqa: PLW0603 - one per process is the point
    if _process.pid != os.getpid():
        _inherited.append(_process)
        _process = _Process()


# Some forks bypass Python's hooks, so the process's id is compared at each call too.
os.register_at_fork(after_in_child=_renew)

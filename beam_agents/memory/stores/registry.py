"""From a URI to a store: which module has the backend, and which extra brings its client library."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.memory.stores.uri import parse_store_uri

if TYPE_CHECKING:
    from beam_agents.memory.stores.contract import MemoryStore, StoreAdmin
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["open_admin", "open_store"]


@dataclass(frozen=True, slots=True)
class _BackendModule:
    """Where a backend is.

    Attributes:
        name: Its module, under this package.
        store: The store's class.
        admin: The class of the operator's side.
        extra: The extra that installs its client library; empty for none.
    """

    name: str
    store: str
    admin: str
    extra: str = ""


_SQL: Final = _BackendModule("sql", "SqlStore", "SqlAdmin", "sql")
_BACKENDS: Final[dict[str, _BackendModule]] = {
    "inprocess": _BackendModule("inprocess", "InProcessStore", "InProcessAdmin"),
    "redis": _BackendModule("redis", "RedisStore", "RedisAdmin", "redis"),
    "bigtable": _BackendModule("bigtable", "BigtableStore", "BigtableAdmin", "bigtable"),
    "firestore": _BackendModule("firestore", "FirestoreStore", "FirestoreAdmin", "firestore"),
    **dict.fromkeys(("sqlite", "postgresql", "mysql", "mariadb"), _SQL),
}


def open_store(uri: str | StoreUri) -> MemoryStore:
    """Return the store that a URI names. Nothing is connected yet.

    Raises:
        ValueError: The URI does not follow the grammar.
        ImportError: The backend's client library is not installed; the message names the extra.
    """
    parsed = parse_store_uri(uri) if isinstance(uri, str) else uri
    store: MemoryStore = _load(parsed.backend, "store")(parsed)
    return store


def open_admin(store: MemoryStore) -> StoreAdmin:
    """Return the operator's side of a store."""
    admin: StoreAdmin = _load(store.backend, "admin")(store)
    return admin


def _load(backend: str, kind: str) -> type:
    where = _BACKENDS[backend]
    try:
        module = importlib.import_module(f"beam_agents.memory.stores.{where.name}")
    except ImportError as error:
        if error.name is not None and error.name.startswith("beam_agents"):
            raise
        raise ImportError(
            f"the backend {backend!r} needs {error.name}, which is not installed: "
            f"pip install 'beam-agents[{where.extra}]'",
            name=error.name,
        ) from error
    found: type = getattr(module, where.store if kind == "store" else where.admin)
    return found

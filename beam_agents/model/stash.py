"""What a worker process remembers of activations, so that it outlives a bundle that fails.

Two bounded tables: the responses that activations got, and how often each activation has begun. Nothing here
is durable: another process, or the child of a fork, starts with empty tables.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

__all__ = ["ENTRY_OVERHEAD_BYTES", "Stash", "begin_attempt", "process_stash"]

ENTRY_OVERHEAD_BYTES: Final = 512
"""What an entry counts beside its response: its two digests, and the objects that hold them."""


@dataclass(frozen=True, slots=True)
class Stashed:
    """One kept response.

    Attributes:
        response: The response; None where it alone was larger than the stash may be.
        response_digest: SHA-256 of the response.
    """

    response: bytes | None
    response_digest: bytes

    @property
    def size_bytes(self) -> int:
        """What the entry counts against the stash's bound."""
        return ENTRY_OVERHEAD_BYTES + len(self.response or b"")


class Stash:
    """Responses and attempts of one process, each bounded, the least recently used out first. Thread-safe.

    A response stays after its bundle has committed, because nothing tells that it has.

    Args:
        max_entries: Number of responses.
        max_bytes: Size of the responses with their overhead.
        max_attempts: Number of activations whose attempts are counted; the later half is always known.
    """

    def __init__(
        self, *, max_entries: int = 10_000, max_bytes: int = 67_108_864, max_attempts: int = 50_000
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_attempts_half = max_attempts // 2
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, bytes], Stashed] = OrderedDict()
        self._size_bytes = 0
        self._attempts: dict[int, int] = {}
        self._older_attempts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """What the kept responses count, overhead included."""
        return self._size_bytes

    def get(self, scope: str, digest: bytes) -> Stashed | None:
        """Return what is kept of a request's response, or None for an unknown request."""
        key = (scope, digest)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, scope: str, digest: bytes, response: bytes, response_digest: bytes) -> None:
        """Keep a response, in place of an earlier one to the same request."""
        entry = Stashed(response, response_digest)
        if entry.size_bytes > self._max_bytes:
            entry = Stashed(None, response_digest)
        key = (scope, digest)
        with self._lock:
            earlier = self._entries.pop(key, None)
            if earlier is not None:
                self._size_bytes -= earlier.size_bytes
            self._entries[key] = entry
            self._size_bytes += entry.size_bytes
            while self._entries and (
                len(self._entries) > self._max_entries or self._size_bytes > self._max_bytes
            ):
                _, oldest = self._entries.popitem(last=False)
                self._size_bytes -= oldest.size_bytes

    def begin_attempt(self, scope: str, entity_key: bytes, seq: int, event_hash: int = 0) -> int:
        """Return how often the activation has begun, this time included."""
        # A hash in place of the parts bounds the table's bytes, however long entities' keys are. It decides
        # nothing but a number in telemetry, and two of 50,000 activations share one less often than 1 in 10⁹.
        key = hash((scope, entity_key, seq, event_hash))
        with self._lock:
            attempts = self._attempts
            attempt = (attempts.get(key) or self._older_attempts.get(key, 0)) + 1
            attempts[key] = attempt
            if len(attempts) >= self._max_attempts_half:
                # Dropping a whole half costs less per activation than dropping one by one.
                self._older_attempts = attempts
                self._attempts = {}
        return attempt


_stashes: dict[int, Stash] = {}


def process_stash() -> Stash:
    """Return this process's stash. A forked child has its own, empty at first."""
    # Keyed by process id, not renewed by a fork hook: some forks run no hooks. Without a lock, which a
    # fork could have left held; setdefault is atomic.
    pid = os.getpid()
    stash = _stashes.get(pid)
    if stash is None:
        stash = _stashes.setdefault(pid, Stash())
        for parent in [known for known in _stashes if known != pid]:
            _stashes.pop(parent, None)
    return stash


def begin_attempt(scope: str, entity_key: bytes, seq: int, event_hash: int = 0) -> int:
    """Count an activation's beginning in this process.

    The table is bounded: an activation that has not begun again for long counts from 1 again.

    Args:
        scope: The run that the activation belongs to.
        entity_key: The entity's key.
        seq: The activation's seq.
        event_hash: A hash of the event, within this process: a failed activation gives its seq back.

    Returns:
        1 for the first time that this process sees the activation, 2 for its first retry, …
    """
    return process_stash().begin_attempt(scope, entity_key, seq, event_hash)

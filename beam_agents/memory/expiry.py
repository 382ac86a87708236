"""What becomes of a key's working memory when it expires."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from beam_agents.checks import check_int
from beam_agents.memory.compaction import EntryKind
from beam_agents.memory.facade import WorkingMemory
from beam_agents.memory.stores.contract import MAX_KEY_BYTES, StoreLimits, check_key

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ExpireHook",
    "ExpiringKey",
    "FlushToLongterm",
    "OnFailure",
    "backoff_ms",
    "check_hook",
    "restore_working_memory",
]


MAX_TIMEOUT_S: Final = 3_600
FIRST_BACKOFF_MS: Final = 15_000
LONGEST_BACKOFF_MS: Final = 3_600_000


class OnFailure(StrEnum):
    """What a failing hook does to its timer bundle. Either way the key's memory stays."""

    FAIL_BUNDLE = "fail_bundle"
    REARM = "rearm"


@dataclass(frozen=True, slots=True)
class ExpiringKey:
    """A key whose time has come.

    Attributes:
        entity_key: The key.
        memory: Its working memory, as it was committed last.
        seq: The seq of its last activation.
        due_ms: When it was due, milliseconds of event time since the Unix epoch.
    """

    entity_key: bytes
    memory: bytes
    seq: int
    due_ms: int


@runtime_checkable
class ExpireHook(Protocol):
    """Chooses the long-term rows that outlast an expiring key. The runtime writes them, then wipes the key.

    It is pickled with the pipeline, and must be a pure function of its argument: a retried timer must write
    the same bytes.
    """

    @property
    def on_failure(self) -> str:
        """``"fail_bundle"``: the runner retries the timer's bundle. ``"rearm"``: the timer is set again."""
        ...

    @property
    def timeout_s(self) -> float:
        """How long the write of one key may take, retries included, seconds."""
        ...

    @property
    def max_attempts(self) -> int | None:
        """After so many failures in a row, ``"rearm"`` fails the bundle as well; None for never."""
        ...

    def rows(self, expiring: ExpiringKey) -> Mapping[str, bytes]:
        """Return the rows to write, by key; none to let the memory go."""
        ...


@dataclass(frozen=True, slots=True)
class FlushToLongterm:
    """Writes an expiring key's working memory to one row of the long-term tier, as it is.

    :func:`restore_working_memory` reads it back.

    Attributes:
        key: The row's key.
        on_failure: ``"fail_bundle"`` (the default): the callback raises, and the runner retries the bundle,
            or ends the job. ``"rearm"``: memory is kept, the timer is set again, other keys go on.
        timeout_s: How long the write may take, retries included, seconds.
        max_attempts: After so many failures in a row, ``"rearm"`` fails the bundle as well; None for never.

    Raises:
        TypeError: A field of the wrong type.
        ValueError: A field out of its range.
    """

    key: str = "working_memory"
    on_failure: str = OnFailure.FAIL_BUNDLE.value
    timeout_s: float = 10.0
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        try:
            check_key(self.key, StoreLimits(max_value_bytes=0, max_key_bytes=MAX_KEY_BYTES))
        except (TypeError, ValueError) as error:
            raise type(error)(f"FlushToLongterm.key: {error}") from None
        check_hook(self)

    def rows(self, expiring: ExpiringKey) -> Mapping[str, bytes]:
        """Return the one row."""
        return {self.key: expiring.memory}


def check_hook(hook: ExpireHook) -> None:
    """Check what a hook says of itself.

    Raises:
        TypeError: A property of the wrong type.
        ValueError: A property out of its range.
    """
    kind = type(hook).__name__
    allowed = [each.value for each in OnFailure]
    if hook.on_failure not in allowed:
        raise ValueError(f"{kind}.on_failure must be one of {', '.join(allowed)}, not {hook.on_failure!r}")
    timeout_s = hook.timeout_s
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"{kind}.timeout_s must be a number, not {type(timeout_s).__name__}")
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"{kind}.timeout_s must be above 0 and at most {MAX_TIMEOUT_S}, not {timeout_s!r}")
    if hook.max_attempts is not None:
        check_int(f"{kind}.max_attempts", hook.max_attempts, 1)


def backoff_ms(failures: int) -> int:
    """Return how long to wait after so many failures in a row: 15 s, doubled each time, an hour at most.

    A timer that has failed for a minute has then failed three times: one that pages did not fail by chance.

    Without jitter: it is part of what a retried timer bundle must decide the same.
    """
    return min(FIRST_BACKOFF_MS << min(failures - 1, 10), LONGEST_BACKOFF_MS)


def restore_working_memory(memory: WorkingMemory, value: bytes) -> int:
    """Put what :class:`FlushToLongterm` wrote back into working memory; what is there already stays.

    Entries come back in the order of their last use, the least recent first, so that what is evicted next is
    what would have been evicted then.

    Returns:
        How many entries came back.

    Raises:
        StateUndecodable: ``value`` is nothing that it wrote.
        StateVersionUnsupported: A newer version wrote it.
        MemoryOverflow: Together they are over the hard cap, and no room could be made.
    """
    kept = WorkingMemory(value, compactor=None)
    restored = 0
    for info in kept.entries():
        if info.key in memory:
            continue
        if info.kind is EntryKind.RING:
            items = kept.ring(info.key)
            for item in items:
                memory.append(info.key, item, max_items=len(items))
        else:
            memory.set(info.key, kept.get(info.key, b""))
        restored += 1
    return restored

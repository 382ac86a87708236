"""What makes room in a full working memory: the contract of compactors, the default one, and summaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from beam_agents.checks import check_int, check_text, check_texts, kind_of
from beam_agents.memory.layout import HARD_CAP_BYTES, SOFT_CAP_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from beam_agents.model.types import LlmRequest

__all__ = ["Compactor", "DropOldestCompactor", "EntryInfo", "EntryKind", "SummarizeCompactor"]


class EntryKind(StrEnum):
    """What a memory key holds."""

    SCALAR = "scalar"
    RING = "ring"


class EntryInfo(NamedTuple):
    """What a compactor knows of an entry: everything but its content.

    Attributes:
        key: Its key.
        kind: Scalar or ring.
        size_bytes: What it counts towards the caps.
        accessed_tick: When it was last read or written, by memory's own logical clock.
        inserted_tick: When it was first written, likewise.
    """

    key: str
    kind: EntryKind
    size_bytes: int
    accessed_tick: int
    inserted_tick: int


class Compactor(ABC):
    """Decides what to evict. A pure function of its arguments and its own frozen configuration.

    It runs inside a memory write, so it can not wait for anything, and a replayed activation must see it
    decide the same.
    """

    __slots__ = ()

    @abstractmethod
    def select_evictions(
        self, entries: Sequence[EntryInfo], *, total_bytes: int, writing: str
    ) -> Sequence[str]:
        """Choose the keys to evict.

        Args:
            entries: All entries but the one that is being written, least recently used first.
            total_bytes: What memory would measure after the write, with nothing evicted.
            writing: The key that is being written.

        Returns:
            Keys from ``entries``, each once. If they are too few for the write to stay within the hard cap,
            the write raises MemoryOverflow and nothing is evicted.
        """


@dataclass(frozen=True, slots=True)
class DropOldestCompactor(Compactor):
    """Evicts the least recently used entries until memory is down to a target.

    Attributes:
        target_bytes: Where to stop, in bytes; well below the soft cap, so that it runs seldom.
        protected_prefixes: Keys that begin with one of these are never evicted.

    Raises:
        TypeError: A field of the wrong type.
        ValueError: A field out of its range.
    """

    target_bytes: int = 524_288
    protected_prefixes: tuple[str, ...] = ("__langgraph__/",)

    def __post_init__(self) -> None:
        check_int("DropOldestCompactor.target_bytes", self.target_bytes, 1, HARD_CAP_BYTES)
        check_texts("DropOldestCompactor.protected_prefixes", self.protected_prefixes)

    def select_evictions(
        self,
        entries: Sequence[EntryInfo],
        *,
        total_bytes: int,
        writing: str,  # noqa: ARG002 - part of the contract; it is not among the entries
    ) -> Sequence[str]:
        """Choose the least recently used entries that are not protected, as few as reach the target."""
        chosen: list[str] = []
        for entry in entries:
            if total_bytes <= self.target_bytes:
                break
            if not entry.key.startswith(self.protected_prefixes):
                chosen.append(entry.key)
                total_bytes -= entry.size_bytes
        return chosen


@dataclass(frozen=True, slots=True)
class SummarizeCompactor:
    """Folds the old items of rings into one summary, by a model call of the activation.

    Attributes:
        build_request: Makes the request from the items to fold, oldest first, and the summary so far. Must
            be pure: a replay has to make the same request.
        extract_summary: Gets the new summary out of the model's answer.
        source_keys: The rings whose items are folded.
        summary_key: The scalar that holds the summary.
        keep_recent: How many of a ring's newest items are kept as they are.
        trigger_bytes: Summarize once memory measures this many bytes.

    Raises:
        TypeError: A field of the wrong type.
        ValueError: A field out of its range, or ``summary_key`` among ``source_keys``.
    """

    build_request: Callable[[tuple[bytes, ...], bytes | None], LlmRequest]
    extract_summary: Callable[[bytes], bytes]
    source_keys: tuple[str, ...]
    summary_key: str
    keep_recent: int = 8
    trigger_bytes: int = SOFT_CAP_BYTES

    def __post_init__(self) -> None:
        for name in ("build_request", "extract_summary"):
            function = getattr(self, name)
            if not callable(function):
                raise TypeError(f"SummarizeCompactor.{name} must be a function, not {kind_of(function)}")
        check_texts("SummarizeCompactor.source_keys", self.source_keys)
        if not self.source_keys:
            raise ValueError("SummarizeCompactor.source_keys must name at least one ring")
        if len(set(self.source_keys)) < len(self.source_keys):
            raise ValueError("SummarizeCompactor.source_keys must name each ring once")
        check_text("SummarizeCompactor.summary_key", self.summary_key)
        if self.summary_key in self.source_keys:
            raise ValueError(
                "SummarizeCompactor.summary_key must not be among source_keys: it holds a scalar"
            )
        check_int("SummarizeCompactor.keep_recent", self.keep_recent, 0)
        check_int("SummarizeCompactor.trigger_bytes", self.trigger_bytes, 1, HARD_CAP_BYTES)

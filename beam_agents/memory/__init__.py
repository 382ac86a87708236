"""The working-memory tier: what an agent remembers of a key, in one cell of keyed state."""

from beam_agents.memory.compaction import (
    Compactor,
    DropOldestCompactor,
    EntryInfo,
    EntryKind,
    SummarizeCompactor,
)
from beam_agents.memory.facade import CompactionRun, MemoryStats, WorkingMemory
from beam_agents.memory.layout import HARD_CAP_BYTES, SOFT_CAP_BYTES

__all__ = [
    "HARD_CAP_BYTES",
    "SOFT_CAP_BYTES",
    "CompactionRun",
    "Compactor",
    "DropOldestCompactor",
    "EntryInfo",
    "EntryKind",
    "MemoryStats",
    "SummarizeCompactor",
    "WorkingMemory",
]

"""Run AI agents as keyed, stateful, fault-tolerant steps of an Apache Beam pipeline."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from beam_agents.config import AgentConfig, Tool
    from beam_agents.errors import (
        ActivationClosed,
        BeamAgentsError,
        BudgetExceeded,
        InvalidOutcome,
        LongTermDisabled,
        MemoryKindError,
        MemoryOverflow,
        ModelDisabled,
        StateUndecodable,
        StateVersionUnsupported,
        SummaryNotSmaller,
    )
    from beam_agents.memory.compaction import Compactor, DropOldestCompactor, SummarizeCompactor
    from beam_agents.memory.expiry import ExpireHook, ExpiringKey, FlushToLongterm, restore_working_memory
    from beam_agents.memory.facade import WorkingMemory
    from beam_agents.memory.longterm import LongTermMemory
    from beam_agents.memory.stores.contract import MemoryRecord
    from beam_agents.model.replay import ReplayCacheLimits
    from beam_agents.model.types import LLMClient, LlmRequest, LlmResponse
    from beam_agents.runtime.context import AgentContext
    from beam_agents.runtime.outcomes import Complete, Suspend
    from beam_agents.transform import AgentOutputs, RunAgent, envelope_from_mapping, keyed_envelopes
    from beam_agents.wire.beam_agents_pb2 import ActivationError, AgentEnvelope, ToolIntent, ToolResult

__all__ = [
    "ActivationClosed",
    "ActivationError",
    "AgentConfig",
    "AgentContext",
    "AgentEnvelope",
    "AgentOutputs",
    "BeamAgentsError",
    "BudgetExceeded",
    "Compactor",
    "Complete",
    "DropOldestCompactor",
    "ExpireHook",
    "ExpiringKey",
    "FlushToLongterm",
    "InvalidOutcome",
    "LLMClient",
    "LlmRequest",
    "LlmResponse",
    "LongTermDisabled",
    "LongTermMemory",
    "MemoryKindError",
    "MemoryOverflow",
    "MemoryRecord",
    "ModelDisabled",
    "ReplayCacheLimits",
    "RunAgent",
    "StateUndecodable",
    "StateVersionUnsupported",
    "SummarizeCompactor",
    "SummaryNotSmaller",
    "Suspend",
    "Tool",
    "ToolIntent",
    "ToolResult",
    "WorkingMemory",
    "envelope_from_mapping",
    "keyed_envelopes",
    "restore_working_memory",
]

# Beam takes two seconds to import: what needs none of it, such as an operator's command, does without.
_HOMES: Final = {
    "AgentConfig": "beam_agents.config",
    "Tool": "beam_agents.config",
    "ActivationClosed": "beam_agents.errors",
    "BeamAgentsError": "beam_agents.errors",
    "BudgetExceeded": "beam_agents.errors",
    "InvalidOutcome": "beam_agents.errors",
    "LongTermDisabled": "beam_agents.errors",
    "MemoryKindError": "beam_agents.errors",
    "MemoryOverflow": "beam_agents.errors",
    "ModelDisabled": "beam_agents.errors",
    "StateUndecodable": "beam_agents.errors",
    "StateVersionUnsupported": "beam_agents.errors",
    "SummaryNotSmaller": "beam_agents.errors",
    "Compactor": "beam_agents.memory.compaction",
    "DropOldestCompactor": "beam_agents.memory.compaction",
    "SummarizeCompactor": "beam_agents.memory.compaction",
    "ExpireHook": "beam_agents.memory.expiry",
    "ExpiringKey": "beam_agents.memory.expiry",
    "FlushToLongterm": "beam_agents.memory.expiry",
    "restore_working_memory": "beam_agents.memory.expiry",
    "WorkingMemory": "beam_agents.memory.facade",
    "LongTermMemory": "beam_agents.memory.longterm",
    "MemoryRecord": "beam_agents.memory.stores.contract",
    "ReplayCacheLimits": "beam_agents.model.replay",
    "LLMClient": "beam_agents.model.types",
    "LlmRequest": "beam_agents.model.types",
    "LlmResponse": "beam_agents.model.types",
    "AgentContext": "beam_agents.runtime.context",
    "Complete": "beam_agents.runtime.outcomes",
    "Suspend": "beam_agents.runtime.outcomes",
    "AgentOutputs": "beam_agents.transform",
    "RunAgent": "beam_agents.transform",
    "envelope_from_mapping": "beam_agents.transform",
    "keyed_envelopes": "beam_agents.transform",
    "ActivationError": "beam_agents.wire.beam_agents_pb2",
    "AgentEnvelope": "beam_agents.wire.beam_agents_pb2",
    "ToolIntent": "beam_agents.wire.beam_agents_pb2",
    "ToolResult": "beam_agents.wire.beam_agents_pb2",
}


def __getattr__(name: str) -> object:
    """Import what is asked for from where it lives (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

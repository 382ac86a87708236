"""Run AI agents as keyed, stateful, fault-tolerant steps of an Apache Beam pipeline."""

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

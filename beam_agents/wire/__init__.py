"""The wire and state format: ``beam_agents.proto`` and the module that ``make proto`` generates from it."""

from beam_agents.wire.beam_agents_pb2 import ActivationError, AgentEnvelope, ToolIntent, ToolResult

__all__ = ["ActivationError", "AgentEnvelope", "ToolIntent", "ToolResult"]

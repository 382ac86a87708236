"""Model calls: requests, responses, the client protocol and the replay cache."""

from beam_agents.model.types import LLMClient, LlmRequest, LlmResponse

__all__ = ["LLMClient", "LlmRequest", "LlmResponse"]

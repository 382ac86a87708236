"""What an agent asks a model and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from beam_agents.checks import check_int, check_text

__all__ = ["MAX_TOKENS", "LLMClient", "LlmRequest", "LlmResponse"]

MAX_TOKENS: Final = 2**62
"""More is no count of tokens; the wire format and Beam's counters hold 64 bits."""


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """One request to a model. The runtime reads nothing in it but its identity.

    Attributes:
        model: The model's name; the ``model`` label of every metric, so keep it low in cardinality.
        body: The request as the provider understands it (JSON, usually). Equal bytes are the same request.
        nonce: Tells apart requests that are equal on purpose, such as several samples of one prompt: within
            one activation an equal request is answered from the replay cache.
    """

    model: str
    body: bytes
    nonce: str = ""

    def __post_init__(self) -> None:
        check_text("LlmRequest.model", self.model)
        for field, kind in (("body", bytes), ("nonce", str)):
            value = getattr(self, field)
            if not isinstance(value, kind):
                raise TypeError(f"LlmRequest.{field} must be {kind.__name__}, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class LlmResponse:
    """A model's answer.

    Attributes:
        body: The response as the provider gave it.
        prompt_tokens: Tokens read, as billed.
        completion_tokens: Tokens written, as billed.

    Raises:
        TypeError: A field of the wrong type.
        ValueError: Tokens below 0 or above :data:`MAX_TOKENS`.
    """

    body: bytes
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            raise TypeError(f"LlmResponse.body must be bytes, not {type(self.body).__name__}")
        for field in ("prompt_tokens", "completion_tokens"):
            check_int(f"LlmResponse.{field}", getattr(self, field), 0, MAX_TOKENS)


@runtime_checkable
class LLMClient(Protocol):
    """What ``AgentConfig.provider_factory`` returns.

    Made once per worker process, on the process's event loop, at the first model call.
    """

    async def complete(self, request: LlmRequest) -> LlmResponse:
        """Answer a request, or raise."""
        ...

    async def close(self) -> None:
        """Release what the client holds. Called once, at the worker's end."""
        ...

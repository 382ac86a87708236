"""What a type checker must accept. Checked by test_typing.py, never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beam_agents import (
    ActivationError,
    AgentConfig,
    AgentContext,
    Complete,
    LlmRequest,
    LlmResponse,
    RunAgent,
    Suspend,
    Tool,
    ToolIntent,
    keyed_envelopes,
)

if TYPE_CHECKING:
    from apache_beam.pvalue import PCollection


class Client:
    async def complete(self, request: LlmRequest) -> LlmResponse:
        return LlmResponse(request.body)

    async def close(self) -> None: ...


async def read(arguments: bytes) -> bytes:
    return arguments


async def agent(ctx: AgentContext) -> Complete | Suspend:
    seen: bytes = ctx.memory.get("seen", b"0")
    maybe: bytes | None = ctx.memory.get("seen")
    ring: tuple[bytes, ...] = ctx.memory.ring("ring")
    response: LlmResponse = await ctx.call_model(LlmRequest("model", seen + (maybe or b"") + b"".join(ring)))
    result: bytes = await ctx.run_tool("read", response.body)
    intent_id: str = ctx.act("write", result)
    if ctx.result is not None and not ctx.result.is_error:
        return Complete(output=ctx.result.content)
    return Suspend(snapshot=b"", waiting_for=(intent_id,))


async def only_completes(ctx: AgentContext) -> Complete:
    return Complete(ctx.event)


config = AgentConfig(provider_factory=Client, tools=[Tool("read", read)], telemetry=["beam"])


def build(rows: PCollection[dict[str, object]]) -> None:
    outputs = rows | keyed_envelopes(key="id", time="at") | RunAgent(agent, config=config)
    output: PCollection[bytes] = outputs.output
    intents: PCollection[ToolIntent] = outputs.intents
    errors: PCollection[ActivationError] = outputs.errors
    _ = (output, intents, errors, RunAgent(only_completes))

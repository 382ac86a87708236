"""What a type checker must refuse: each ignored error is one, and mypy reports an ignore without one."""

from __future__ import annotations

from beam_agents import AgentConfig, AgentContext, Complete, LlmRequest, RunAgent, Suspend, Tool


def sync_agent(ctx: AgentContext) -> Complete:
    return Complete(ctx.event)


async def agent(ctx: AgentContext) -> Complete:
    ctx.memory.set(b"key", b"value")  # type: ignore[arg-type]
    ctx.memory.set("key", "value")  # type: ignore[arg-type]
    ctx.memory.append("ring", 5)  # type: ignore[arg-type]
    ctx.memory.get("key") + b""  # type: ignore[operator]
    _ = ctx.call_model(LlmRequest("model", b"")).body  # type: ignore[attr-defined]
    await ctx.call_model("prompt")  # type: ignore[arg-type]
    ctx.run_tool("read").decode()  # type: ignore[attr-defined]
    ctx.act("write", "text")  # type: ignore[arg-type]
    return Complete(output="text")  # type: ignore[arg-type]


async def wrong_outcome(ctx: AgentContext) -> bytes:
    return ctx.entity_key


def sync_tool(arguments: bytes) -> bytes:
    return arguments


Suspend(waiting_for=["id"])  # type: ignore[arg-type]
Tool("read", sync_tool)  # type: ignore[arg-type]
RunAgent(sync_agent)  # type: ignore[arg-type]
RunAgent(wrong_outcome)  # type: ignore[arg-type]
AgentConfig(ttl_ms="1h")  # type: ignore[arg-type]
AgentConfig(compactor="drop")  # type: ignore[arg-type]
AgentConfig(ttl=5)  # type: ignore[call-arg]
AgentConfig(5)  # type: ignore[call-arg, arg-type]

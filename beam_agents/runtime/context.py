"""What an agent is handed: the event, its memory, the model, the tools."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from beam_agents.checks import check_text
from beam_agents.errors import (
    ActivationClosed,
    BudgetExceeded,
    InvalidArgumentType,
    ModelDisabled,
    UnknownTool,
)
from beam_agents.model.replay import decode_response, encode_response, request_digest
from beam_agents.model.types import LlmRequest, LlmResponse
from beam_agents.runtime.bridge import on_loop_thread
from beam_agents.signals import attributes, catalogue, conventions
from beam_agents.signals.types import CacheResult, CallOutcome, Content, Direction
from beam_agents.wire.beam_agents_pb2 import ToolIntent, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from beam_agents.config import Tool
    from beam_agents.memory.facade import WorkingMemory
    from beam_agents.model.replay import ReplayCache
    from beam_agents.model.types import LLMClient
    from beam_agents.runtime.external import ExternalWaits
    from beam_agents.signals.observer import Record, Step
    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

__all__ = ["AgentContext", "event_digest"]


class AgentContext:
    """One activation, as its agent sees it.

    Attributes:
        entity_key: The key that the event belongs to.
        event: The event's payload; None on a resume.
        event_id: The event's id, as its producer gave it; may be empty.
        seq: The activation's place in the key's history, the same on every retry.
        now_ms: The event's time, milliseconds since the Unix epoch: the only clock to decide by.
        memory: The key's working memory.
        results: On a resume, the answers that the suspension waited for, in the order of ``waiting_for``.
        snapshot: On a resume, what ``Suspend`` kept; None otherwise.
    """

    __slots__ = (
        "_client",
        "_closed",
        "_envelope",
        "_intents",
        "_max_tokens",
        "_now_ms",
        "_record",
        "_replay",
        "_tools",
        "_used_tokens",
        "_waits",
        "entity_key",
        "event",
        "event_id",
        "memory",
        "now_ms",
        "results",
        "seq",
        "snapshot",
    )

    def __init__(
        self,
        *,
        entity_key: bytes,
        event: bytes | None,
        event_id: str,
        seq: int,
        now_ms: int,
        memory: WorkingMemory,
        results: tuple[ToolResult, ...],
        snapshot: bytes | None,
        replay: ReplayCache,
        client: Callable[[], LLMClient] | None,
        tools: Mapping[str, Tool],
        max_tokens: int | None,
        record: Record,
        waits: ExternalWaits,
        envelope: AgentEnvelope,
    ) -> None:
        self.entity_key = entity_key
        self.event = event
        self.event_id = event_id
        self.seq = seq
        self.now_ms = self._now_ms = now_ms
        self.memory = memory
        self.results = results
        self.snapshot = snapshot
        self._replay = replay
        self._client = client
        self._tools = tools
        self._max_tokens = max_tokens
        self._record = record
        self._intents: list[ToolIntent] = []
        self._used_tokens = 0
        self._waits = waits
        self._envelope = envelope
        self._closed = False

    @property
    def result(self) -> ToolResult | None:
        """On a resume, the (last) awaited answer; None otherwise."""
        return self.results[-1] if self.results else None

    @property
    def intents(self) -> tuple[ToolIntent, ...]:
        """The intents that this activation has staged, in order; :meth:`act` adds to them."""
        return tuple(self._intents)

    @property
    def used_tokens(self) -> int:
        """Prompt and completion tokens that this activation has used, replayed answers included."""
        return self._used_tokens

    async def call_model(self, request: LlmRequest) -> LlmResponse:
        """Ask the model, or the replay cache where this activation asked the same before.

        Raises:
            ModelDisabled: ``AgentConfig.provider_factory`` is not set.
            BudgetExceeded: ``AgentConfig.max_tokens_per_activation`` is used up.
            Exception: Whatever the client raises.
        """
        self._check_open()
        if not isinstance(request, LlmRequest):
            raise InvalidArgumentType(f"call_model takes an LlmRequest, not {type(request).__name__}")
        if self._client is None:
            raise ModelDisabled
        self._check_budget(at_least=1)
        record = self._record
        step = record.begin(catalogue.SPAN_CHAT, request.model)
        step.attributes[conventions.GEN_AI_OPERATION_NAME] = conventions.CHAT
        step.attributes[conventions.GEN_AI_REQUEST_MODEL] = request.model
        record.capture(step, Content.INPUT, request.body)
        error_type = ""
        try:
            digest = request_digest("model", request, record.entity_key, record.seq)
            answer, kept = await self._replay.get_or_ask(digest, lambda: self._ask(request, step))
            if kept:
                self._note_lookup(step, CacheResult.HIT)
            response = decode_response(answer)
        except BaseException as error:
            error_type = type(error).__name__
            raise
        finally:
            record.finish(step, error_type)
        record.capture(step, Content.OUTPUT, response.body)
        step.attributes[conventions.GEN_AI_USAGE_INPUT_TOKENS] = response.prompt_tokens
        step.attributes[conventions.GEN_AI_USAGE_OUTPUT_TOKENS] = response.completion_tokens
        self._used_tokens += response.prompt_tokens + response.completion_tokens
        self._check_budget()
        return response

    async def _ask(self, request: LlmRequest, step: Step) -> bytes:
        """Ask the provider, and return its answer as the replay cache keeps it."""
        if self._client is None:
            raise ModelDisabled
        record = self._record
        self._note_lookup(step, CacheResult.MISS)
        outcome = CallOutcome.ERROR
        entered_ns = self._waits.enter()
        try:
            await on_loop_thread()
            response = await self._client().complete(request)
            if not isinstance(response, LlmResponse):
                raise InvalidArgumentType(
                    f"the model's client must return an LlmResponse, not {type(response).__name__}"
                )
            outcome = CallOutcome.OK
        except TimeoutError:
            outcome = CallOutcome.TIMEOUT
            raise
        finally:
            elapsed_ns = self._waits.leave(entered_ns)
            if not self._closed:
                record.measure(catalogue.MODEL_CALLS, 1, request.model, outcome.value)
                record.measure(catalogue.MODEL_CALL_DURATION_SECONDS, elapsed_ns / 1e9, request.model)
        self._check_open()
        record.measure(catalogue.TOKENS, response.prompt_tokens, request.model, Direction.PROMPT.value)
        record.measure(
            catalogue.TOKENS, response.completion_tokens, request.model, Direction.COMPLETION.value
        )
        return encode_response(response)

    def act(self, tool: str, arguments: bytes = b"") -> str:
        """Ask for a side effect, to be executed outside of the pipeline once this activation is committed.

        Returns:
            The intent's id: the same on every retry, and what ``Suspend.waiting_for`` takes.
        """
        self._check_open()
        _check_tool_call("act", tool, arguments)
        record = self._record
        intent_id = _intent_id(record, event_digest(self._envelope), len(self._intents), tool, arguments)
        self._intents.append(
            ToolIntent(
                intent_id=intent_id,
                entity_key=record.entity_key,
                tool=tool,
                arguments=arguments,
                seq=record.seq,
                event_time_ms=self._now_ms,
                traceparent=record.traceparent,
            )
        )
        return intent_id

    async def run_tool(self, tool: str, arguments: bytes = b"") -> bytes:
        """Run one of ``AgentConfig.tools`` now and return its result.

        The result is kept like a model's answer: a retry of the activation sees the same bytes.

        Raises:
            LookupError: No such tool is configured.
            Exception: Whatever the tool raises.
        """
        self._check_open()
        _check_tool_call("run_tool", tool, arguments)
        if tool not in self._tools:
            known = ", ".join(sorted(self._tools)) or "none"
            raise UnknownTool(f"no such tool in AgentConfig.tools (there: {known})")
        record = self._record
        step = record.begin(catalogue.SPAN_EXECUTE_TOOL, tool)
        step.attributes[conventions.GEN_AI_OPERATION_NAME] = conventions.EXECUTE_TOOL
        step.attributes[conventions.GEN_AI_TOOL_NAME] = tool
        record.capture(step, Content.INPUT, arguments)
        error_type = ""
        try:
            digest = request_digest("tool", LlmRequest(tool, arguments), record.entity_key, record.seq)
            answer, kept = await self._replay.get_or_ask(digest, lambda: self._run(tool, arguments, step))
            if kept:
                self._note_lookup(step, CacheResult.HIT)
            result = decode_response(answer).body
            record.capture(step, Content.OUTPUT, result)
            return result  # noqa: TRY300 - what follows is what ends the step
        except BaseException as error:
            error_type = type(error).__name__
            raise
        finally:
            record.finish(step, error_type)

    async def _run(self, tool: str, arguments: bytes, step: Step) -> bytes:
        """Run a tool, and return its result as the replay cache keeps it."""
        self._note_lookup(step, CacheResult.MISS)
        entered_ns = self._waits.enter()
        try:
            await on_loop_thread()
            result = await self._tools[tool].call(arguments)
        finally:
            self._waits.leave(entered_ns)
            if not self._closed:
                self._record.measure(catalogue.TOOL_CALLS, 1, tool)
        self._check_open()
        if not isinstance(result, bytes):
            raise InvalidArgumentType(f"a tool must return bytes, not {type(result).__name__}")
        return encode_response(LlmResponse(result))

    def _note_lookup(self, step: Step, result: CacheResult) -> None:
        self._record.measure(catalogue.REPLAY_CACHE_REQUESTS, 1, result.value)
        step.attributes[attributes.CACHE_HIT] = result is CacheResult.HIT

    def _check_budget(self, at_least: int = 0) -> None:
        if self._max_tokens is not None and self._used_tokens + at_least > self._max_tokens:
            raise BudgetExceeded(self._used_tokens, self._max_tokens)

    def _check_open(self) -> None:
        if self._closed:
            raise ActivationClosed

    def close(self) -> None:
        """End the activation for whoever still holds the context."""
        self._closed = True
        self.memory.close()


def _check_tool_call(method: str, tool: object, arguments: object) -> None:
    check_text(f"the tool of {method}", tool)
    if not isinstance(arguments, bytes):
        raise InvalidArgumentType(f"{method} takes arguments as bytes, not {type(arguments).__name__}")


def event_digest(envelope: AgentEnvelope) -> bytes:
    """Return SHA-256 of an element: what tells it from another of the same key and seq."""
    return hashlib.sha256(envelope.SerializeToString(deterministic=True)).digest()


def _intent_id(record: Record, event: bytes, ordinal: int, tool: str, arguments: bytes) -> str:
    """Return 32 hex digits of SHA-256 over the length-prefixed parts: what makes an intent itself.

    The event is among them because seq alone may come again: a key that was wiped begins anew, and events
    without a time count from its beginning.
    """
    digest = hashlib.sha256(b"beam-agents intent v1")
    seq, place = record.seq.to_bytes(8, "big"), ordinal.to_bytes(4, "big")
    name = tool.encode("utf-8", "surrogatepass")
    for part in (record.entity_key, seq, event, place, name, arguments):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:32]

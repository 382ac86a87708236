"""How an agent runs: one frozen object, checked when it is built, pickled with the pipeline."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from beam_agents.checks import check_int, check_text, kind_of
from beam_agents.memory.compaction import Compactor, DropOldestCompactor, SummarizeCompactor
from beam_agents.memory.expiry import ExpireHook, check_hook
from beam_agents.memory.stores.uri import parse_store_uri, redact
from beam_agents.model.replay import ReplayCacheLimits
from beam_agents.signals.plugins import resolve_plugins

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from beam_agents.memory.stores.uri import StoreUri
    from beam_agents.model.types import LLMClient
    from beam_agents.signals.observer import TelemetryPlugin

__all__ = ["AgentConfig", "Tool"]

ProviderFactory: TypeAlias = "Callable[[], LLMClient]"

MAX_MS: Final = 100 * 366 * 86_400_000
"""A hundred years: longer durations are a mistake of unit, and would leave the range of Beam's timestamps."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that ``ctx.run_tool`` may run inside the activation.

    Such a tool only reads: it may run again on a retry, and nothing of it is undone when the activation
    fails. Anything that changes the world goes through ``ctx.act``.

    Attributes:
        name: What the agent calls it by; the ``tool`` label of its metrics.
        call: An async function from arguments to result, both bytes.
    """

    name: str
    call: Callable[[bytes], Awaitable[bytes]] = field(repr=False)

    def __post_init__(self) -> None:
        check_text("Tool.name", self.name)
        if not is_async_callable(self.call):
            raise TypeError(f"Tool.call of {self.name!r} must be an async function, not {kind_of(self.call)}")


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The configuration of one agent.

    Attributes:
        provider_factory: Makes the model's client; called once per worker process, on its event loop. None:
            ``ctx.call_model`` raises.
        compactor: What makes room in a full working memory; None: a write over the hard cap raises
            MemoryOverflow.
        summarizer: Folds old ring items into a summary, after the agent returned; None for no summaries.
        longterm_memory: The long-term store's URI, such as ``"redis://host:6379/0"``; None: no such tier.
        on_expire: What becomes of working memory at expiry; needs ``longterm_memory``. None: it is gone.
        ttl_ms: How long after its newest event a key expires, in milliseconds of event time.
        activation_timeout_s: Seconds of wall time after which an activation is cancelled and fails.
        max_tokens_per_activation: Prompt and completion tokens that one activation may use; None: no bound.
        suspension_timeout_ms: Milliseconds of wall time after which a suspension fails; None: it lasts as
            long as the key.
        max_future_skew_ms: How far, in milliseconds, an event may be ahead of the worker's clock.
        replay_cache: Bounds of the kept model responses.
        tools: The read-only tools of ``ctx.run_tool``.
        telemetry: Plugins, as objects or as ``"name?option=value"``; empty for none.

    Raises:
        TypeError: A field of the wrong type.
        ValueError: A field out of its range, or fields that do not go together.
    """

    provider_factory: ProviderFactory | None = None
    compactor: Compactor | None = field(default_factory=DropOldestCompactor)
    summarizer: SummarizeCompactor | None = None
    longterm_memory: str | None = None
    on_expire: ExpireHook | None = None
    ttl_ms: int = 3_600_000
    activation_timeout_s: float = 30.0
    max_tokens_per_activation: int | None = None
    suspension_timeout_ms: int | None = None
    max_future_skew_ms: int = 86_400_000
    replay_cache: ReplayCacheLimits = field(default_factory=ReplayCacheLimits)
    tools: Sequence[Tool] = ()
    telemetry: Sequence[str | TelemetryPlugin] = ("beam",)

    def __post_init__(self) -> None:
        if self.provider_factory is not None and not callable(self.provider_factory):
            raise TypeError(
                "AgentConfig.provider_factory must be a function that returns an LLMClient, "
                f"not {kind_of(self.provider_factory)}"
            )
        if self.compactor is not None and not isinstance(self.compactor, Compactor):
            raise TypeError(
                f"AgentConfig.compactor must be a Compactor or None, not {kind_of(self.compactor)}"
            )
        if self.summarizer is not None and not isinstance(self.summarizer, SummarizeCompactor):
            raise TypeError(
                f"AgentConfig.summarizer must be a SummarizeCompactor or None, not {kind_of(self.summarizer)}"
            )
        if not isinstance(self.replay_cache, ReplayCacheLimits):
            raise TypeError(
                f"AgentConfig.replay_cache must be ReplayCacheLimits, not {kind_of(self.replay_cache)}"
            )
        self._check_numbers()
        self._check_longterm()
        self._set("tools", _checked_tools(self.tools))
        self._set("telemetry", resolve_plugins(self.telemetry))

    @property
    def plugins(self) -> tuple[TelemetryPlugin, ...]:
        """``telemetry`` as objects: names were looked up when this configuration was built."""
        return cast("tuple[TelemetryPlugin, ...]", self.telemetry)

    @property
    def store_uri(self) -> StoreUri | None:
        """``longterm_memory``, taken apart; None where that tier is off."""
        return None if self.longterm_memory is None else parse_store_uri(self.longterm_memory)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        check_int("AgentConfig.ttl_ms", self.ttl_ms, 1, MAX_MS)
        check_int("AgentConfig.max_future_skew_ms", self.max_future_skew_ms, 0, MAX_MS)
        if self.suspension_timeout_ms is not None:
            check_int("AgentConfig.suspension_timeout_ms", self.suspension_timeout_ms, 1, MAX_MS)
        if self.max_tokens_per_activation is not None:
            check_int("AgentConfig.max_tokens_per_activation", self.max_tokens_per_activation, 1, 2**62)
        timeout = self.activation_timeout_s
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise TypeError(f"AgentConfig.activation_timeout_s must be a number, not {kind_of(timeout)}")
        if not 0 < timeout <= MAX_MS / 1000:
            raise ValueError(f"AgentConfig.activation_timeout_s must be a positive number, not {timeout!r}")

    def _check_longterm(self) -> None:
        if self.longterm_memory is not None:
            if not isinstance(self.longterm_memory, str):
                raise TypeError(
                    f"AgentConfig.longterm_memory must be a URI or None, not {kind_of(self.longterm_memory)}"
                )
            parse_store_uri(self.longterm_memory)
        elif self.on_expire is not None:
            raise ValueError(
                "AgentConfig.on_expire needs a store to write to: set AgentConfig.longterm_memory as well"
            )
        if self.on_expire is not None:
            if isinstance(self.on_expire, type) or not isinstance(self.on_expire, ExpireHook):
                raise TypeError(
                    "AgentConfig.on_expire must be an ExpireHook, such as FlushToLongterm(), "
                    f"not {kind_of(self.on_expire)}"
                )
            check_hook(self.on_expire)

    def __repr__(self) -> str:
        shown = (f"{name}={_shown(name, getattr(self, name))}" for name in self.__dataclass_fields__)
        return f"AgentConfig({', '.join(shown)})"


def is_async_callable(function: object) -> bool:
    """Tell whether calling ``function`` gives a coroutine, as far as can be seen without calling it."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - it is looked at, not only for its presence
    )


def _shown(name: str, value: object) -> str:
    """Return a field as it may be shown: no password of a URI, nothing that is bound to a function."""
    if name == "longterm_memory" and isinstance(value, str):
        return redact(value)
    if name == "provider_factory" and value is not None:
        return kind_of(value)
    return repr(value)


def _checked_tools(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    if isinstance(tools, Tool) or not hasattr(tools, "__iter__"):
        raise TypeError(f"AgentConfig.tools must be a sequence of Tool, not {kind_of(tools)}")
    checked = tuple(tools)
    for tool in checked:
        if not isinstance(tool, Tool):
            raise TypeError(f"AgentConfig.tools must hold Tool objects, not {kind_of(tool)}")
    names = [tool.name for tool in checked]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"AgentConfig.tools has more than one tool named {', '.join(twice)}")
    return checked

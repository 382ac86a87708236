from __future__ import annotations

import functools
import pickle
from typing import Any

import pytest

from beam_agents import AgentConfig, DropOldestCompactor, LlmRequest, SummarizeCompactor, Tool


async def call(arguments: bytes) -> bytes:
    return arguments


def test_the_defaults_are_the_documented_ones() -> None:
    config = AgentConfig()
    assert config.provider_factory is None
    assert config.compactor == DropOldestCompactor()
    assert config.summarizer is None
    assert config.longterm_memory is None
    assert config.on_expire is None
    assert config.ttl_ms == 3_600_000
    assert config.activation_timeout_s == 30
    assert config.max_tokens_per_activation is None
    assert config.suspension_timeout_ms is None
    assert [plugin.name for plugin in config.telemetry] == ["beam"]  # type: ignore[union-attr]  # resolved


def test_it_is_frozen_and_can_be_pickled() -> None:
    config = AgentConfig(ttl_ms=5, tools=[Tool("call", call)], summarizer=summarizer())
    with pytest.raises(AttributeError):
        config.ttl_ms = 6  # type: ignore[misc]  # the fault
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - its own


def build_request(items: tuple[bytes, ...], prior: bytes | None) -> LlmRequest:
    return LlmRequest("model", b"".join(items) + (prior or b""))


def summarizer() -> SummarizeCompactor:
    return SummarizeCompactor(
        build_request=build_request, extract_summary=bytes, source_keys=("log",), summary_key="summary"
    )


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("provider_factory", "openai", TypeError),
        ("compactor", "drop oldest", TypeError),
        ("compactor", DropOldestCompactor, TypeError),
        ("summarizer", DropOldestCompactor(), TypeError),
        ("longterm_memory", b"redis://host", TypeError),
        ("longterm_memory", "gopher://host/1", ValueError),
        ("longterm_memory", "bigtable://project/instance", ValueError),
        ("on_expire", object(), ValueError),
        ("ttl_ms", 0, ValueError),
        ("ttl_ms", -1, ValueError),
        ("ttl_ms", 1.5, TypeError),
        ("ttl_ms", True, TypeError),
        ("ttl_ms", "3600", TypeError),
        ("ttl_ms", 10**15, ValueError),
        ("activation_timeout_s", 0, ValueError),
        ("activation_timeout_s", -1, ValueError),
        ("activation_timeout_s", float("nan"), ValueError),
        ("activation_timeout_s", float("inf"), ValueError),
        ("activation_timeout_s", "30", TypeError),
        ("activation_timeout_s", True, TypeError),
        ("max_tokens_per_activation", 0, ValueError),
        ("max_tokens_per_activation", 1.0, TypeError),
        ("suspension_timeout_ms", 0, ValueError),
        ("suspension_timeout_ms", "1h", TypeError),
        ("max_future_skew_ms", -1, ValueError),
        ("max_future_skew_ms", None, TypeError),
        ("replay_cache", 64, TypeError),
        ("tools", Tool("call", call), TypeError),
        ("tools", [call], TypeError),
        ("tools", [Tool("call", call), Tool("call", call)], ValueError),
        ("tools", 5, TypeError),
        ("telemetry", ("no-such-plugin",), ValueError),
        ("telemetry", (object(),), TypeError),
        ("telemetry", 5, TypeError),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=field):
        AgentConfig(**{field: value})


def test_the_store_uri_is_shown_without_its_password() -> None:
    config = AgentConfig(longterm_memory="postgresql+asyncpg://me:s3cret@host/db")
    assert "s3cret" not in repr(config)
    assert "host" in repr(config)
    with pytest.raises(ValueError, match="longterm_memory") as caught:
        AgentConfig(longterm_memory="postgresql://me:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "function", "error"),
    [
        ("", call, ValueError),
        (b"call", call, ValueError),
        ("call", len, TypeError),
        ("call", None, TypeError),
    ],
)
def test_a_wrong_tool_is_refused(name: Any, function: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="Tool"):
        Tool(name, function)


def make_client(api_key: str) -> object:
    return api_key


def test_what_is_bound_to_a_function_is_not_shown() -> None:
    bound = functools.partial(make_client, api_key="s3cret")
    config = AgentConfig(provider_factory=bound, tools=[Tool("call", call)])  # type: ignore[arg-type]  # not called
    assert "s3cret" not in repr(config)

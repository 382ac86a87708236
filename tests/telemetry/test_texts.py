"""Texts that an author gives: odd ones are shown as they are, and none costs the others their telemetry."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, LlmRequest, LlmResponse, Tool
from beam_agents.signals import dropped, losses
from beam_agents.testing import AgentHarness, ScriptedModel, event
from beam_agents_telemetry.logs import StructuredLogs
from beam_agents_telemetry.otlp import OpenTelemetry
from beam_agents_telemetry.prometheus import PrometheusMetrics
from tests.servers import otlp_receiver
from tests.telemetry.scraping import endpoint, forget_all, get, scrape, scrape_text

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from tests.servers.otlp_receiver import Receiver

PROMETHEUS = PrometheusMetrics(port=0)


@pytest.fixture
def receiver(tmp_path: pathlib.Path) -> Iterator[Receiver]:
    forget_all()
    with otlp_receiver.running(tmp_path) as running:
        yield running
    forget_all()


@pytest.mark.parametrize(
    "text", ['a\nb"c\\d', "a\0b", "é 漢 😀", "<script>&amp;", "x" * 100_000, "{}", "%s %d"]
)
def test_an_odd_name_is_told_by_everyone(text: str, receiver: Receiver, tmp_path: pathlib.Path) -> None:
    failure = type(text.replace("\0", " "), (Exception,), {})

    async def agent(ctx: AgentContext) -> Complete:
        await ctx.call_model(LlmRequest(text, b"prompt"))
        await ctx.run_tool(text, b"arguments")
        raise failure

    async def tool(_: bytes) -> bytes:
        return b"result"

    config = AgentConfig(
        telemetry=[
            PROMETHEUS,
            OpenTelemetry(receiver.endpoint, sample_ratio=1),
            StructuredLogs(file=tmp_path / "log"),
        ],
        provider_factory=ScriptedModel(lambda _: LlmResponse(b"answer")),
        tools=[Tool(text, tool)],
    )
    with endpoint(PROMETHEUS) as observer:
        with AgentHarness(agent, config, name=text) as harness:
            harness.send(event(b"k", time_ms=1))
        for found in (scrape(observer.url), scrape_text(observer.url)):
            assert found.total("model_calls_total", agent=text, model=text) == 1
            assert found.total("tool_calls_total", agent=text, tool=text) == 1
        page = get(f"{observer.url}/")[1]
        assert "<script>" not in page
    assert dropped() == {}
    names = {span.name for span in receiver.spans}
    assert {f"invoke_agent {text}", f"chat {text}", f"execute_tool {text}"} <= names
    (line,) = [json.loads(each) for each in (tmp_path / "log").read_text().splitlines()]
    assert (line["agent"], line["error_type"]) == (text, failure.__name__)


async def nothing(_: AgentContext) -> Complete:
    return Complete(b"an output")


@pytest.mark.parametrize(
    "hook",
    [
        asyncio.CancelledError,
        SystemExit,
        KeyboardInterrupt,
        RecursionError,
        lambda: "half of a pair: \ud800",
        lambda: 7,
    ],
)
def test_a_redaction_hook_costs_its_content_alone(
    hook: object, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def redact(attribute: str, data: bytes) -> object:
        calls.append(attribute)
        if isinstance(hook, type):
            raise hook(data.decode())
        assert callable(hook)
        return hook()

    module = types.ModuleType("hooks_of_texts")
    module.redact = redact  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "hooks_of_texts", module)
    plugin = OpenTelemetry(
        receiver.endpoint, sample_ratio=1, metrics=False, capture_content=True, redact="hooks_of_texts:redact"
    )
    with AgentHarness(nothing, AgentConfig(telemetry=[plugin])) as harness:
        harness.send(*(event(b"k", b"an event", time_ms=at_ms) for at_ms in (1, 2)))
    roots = [span for span in receiver.spans if span.name.startswith("invoke_agent")]
    assert len(roots) == 2
    assert len(calls) == 4
    shown = [value for span in roots for name, value in span.attributes.items() if name.endswith(".messages")]
    if shown:
        assert all("half of a pair: ?" in each for each in shown)
        assert dropped() == {}
    else:
        assert dropped() == {("otlp", "redact"): 4}
        assert len(caplog.messages) == 1
    assert "an event" not in receiver.text + caplog.text
    losses.forget()


def test_half_of_a_pair_is_no_name() -> None:
    with pytest.raises(ValueError, match=r"Tool\.name must be text that UTF-8 can hold"):
        Tool("\ud800", nothing)  # type: ignore[arg-type]  # it does not come to that

"""Traces at a back end with pages to look at, which nobody here wrote: ``make test-phoenix``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from beam_agents import AgentConfig, AgentContext, Complete, LlmRequest, LlmResponse
from beam_agents.cli.app import app
from beam_agents.signals.trace import format_traceparent
from beam_agents.testing import FailOnce, ScriptedModel, event, run_events
from beam_agents_telemetry.otlp import OpenTelemetry
from tests.servers import phoenix
from tests.servers.process import wait_until
from tests.workers import end_workers

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from tests.servers.phoenix import Phoenix

PROJECT = "flights"
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MARK = b"sk-secret"


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Phoenix]:
    with phoenix.running(tmp_path_factory.mktemp("phoenix")) as running:
        yield running


async def agent(ctx: AgentContext) -> Complete:
    await ctx.memory.longterm.load("row")
    await ctx.call_model(LlmRequest("small", ctx.event or b""))
    for number in range(4):
        ctx.memory.set(f"item {number}", MARK + b"." * 300_000)
    ctx.memory.longterm.save("row", MARK)
    return Complete(b"done")


def test_the_tree_of_an_activation_and_of_its_retry(
    backend: Phoenix, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"openinference.project.name={PROJECT}")
    uri = f"sqlite+aiosqlite:///{tmp_path}/rows.sqlite"
    assert CliRunner().invoke(app, ["store", "provision", uri]).exit_code == 0
    config = AgentConfig(
        telemetry=[OpenTelemetry(backend.endpoint, metrics=False)],
        longterm_memory=uri,
        provider_factory=ScriptedModel(lambda _: LlmResponse(MARK, prompt_tokens=3, completion_tokens=2)),
    )
    parent = format_traceparent(TRACE_ID, SPAN_ID, sampled=True)
    run = run_events(
        agent,
        [event(MARK, MARK, time_ms=1_000, traceparent=parent)],
        config=config,
        faults=[FailOnce("commit")],
    )
    assert run.outputs == [b"done"]
    end_workers()
    wait_until(lambda: len(backend.spans(PROJECT)) == 18, "all spans of both attempts are there")
    first, second = roots(backend)
    for root in (first, second):
        assert tree(backend, root) == (
            "invoke_agent agent",
            [
                ("memory.decode", []),
                ("search_memory sqlite", [("load beam_agents_longterm", [])]),
                ("chat small", []),
                ("memory.compact", []),
                ("upsert_memory sqlite", [("flush beam_agents_longterm", [])]),
                ("memory.commit", []),
            ],
        )
        assert root["context"]["trace_id"] == TRACE_ID
        assert root["parent_id"] == SPAN_ID
    assert [root["attributes"]["beam_agents.attempt"] for root in (first, second)] == [1, 2]
    assert MARK.decode() not in str(backend.spans(PROJECT))


def roots(backend: Phoenix) -> list[dict[str, Any]]:
    found = [span for span in backend.spans(PROJECT) if span["name"].startswith("invoke_agent")]
    return sorted(found, key=lambda span: str(span["start_time"]))


def tree(backend: Phoenix, root: dict[str, Any]) -> Any:
    """Return (name, [(name, …), …]) of a span and its parts, by their start."""
    spans = backend.spans(PROJECT)
    parts = [span for span in spans if span["parent_id"] == root["context"]["span_id"]]
    return root["name"], [
        tree(backend, part) for part in sorted(parts, key=lambda span: str(span["start_time"]))
    ]

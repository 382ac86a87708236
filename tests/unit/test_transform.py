from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows

from beam_agents import (
    AgentConfig,
    AgentContext,
    AgentEnvelope,
    Complete,
    RunAgent,
    envelope_from_mapping,
    keyed_envelopes,
)
from beam_agents.transform import event_time_ms


async def agent(ctx: AgentContext) -> Complete:
    ctx.act("notify", b"arguments")
    if ctx.event == b"bad":
        raise ValueError
    return Complete(ctx.event)


class CallableAgent:
    async def __call__(self, ctx: AgentContext) -> Complete:
        return Complete(ctx.entity_key)


def pipeline() -> beam.Pipeline:
    return beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))


def test_it_gives_outputs_intents_and_errors() -> None:
    rows = [{"id": "a", "payload": "good", "at": 1}, {"id": "b", "payload": "bad", "at": 2}]
    with pipeline() as p:
        envelopes = p | beam.Create(rows) | keyed_envelopes(key="id", time="at", payload="payload")
        outputs = envelopes | RunAgent(agent, config=AgentConfig())
        assert_that(outputs.output, equal_to([b"good"]), label="output")
        assert_that(
            outputs.intents | beam.Map(lambda intent: (intent.entity_key, intent.tool, intent.seq)),
            equal_to([(b"a", "notify", 1)]),
            label="intents",
        )
        assert_that(
            outputs.errors | beam.Map(lambda error: (error.entity_key, error.reason, error.event_time_ms)),
            equal_to([(b"b", "activation_error", 2)]),
            label="errors",
        )


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (["--runner=FlinkRunner"], True),
        (["--runner=FlinkRunner", "--streaming"], False),
        (["--runner=FnApiRunner"], False),
    ],
)
def test_a_batch_in_any_order_is_warned_of(
    options: list[str], caplog: pytest.LogCaptureFixture, *, warned: bool
) -> None:
    p = beam.Pipeline(options=PipelineOptions(options))
    p | beam.Create([{"id": "a"}]) | keyed_envelopes(key="id") | RunAgent(agent)
    told = "FlinkRunner gives an agent the events of a key in any order"
    assert (told in caplog.text) is warned


@pytest.mark.parametrize(
    ("runner", "asked"), [("FlinkRunner", True), ("PortableRunner", True), ("FnApiRunner", None)]
)
def test_flink_sends_on_what_a_bundle_put_out_before_its_watermark(
    runner: str, *, asked: bool | None
) -> None:
    p = beam.Pipeline(options=PipelineOptions([f"--runner={runner}", "--streaming"]))
    p | beam.Create([{"id": "a"}]) | keyed_envelopes(key="id") | RunAgent(agent)
    given = p.options.get_all_options(drop_default=True)
    assert given.get("finish_bundle_before_checkpointing") is asked
    assert "prism_disable_sdf_split" in given["experiments"]


@pytest.mark.parametrize("kind", [CallableAgent(), partial(agent), agent])
def test_whatever_is_an_async_callable_is_an_agent(kind: Any) -> None:
    with pipeline() as p:
        outputs = p | beam.Create([{"id": "a"}]) | keyed_envelopes(key="id") | RunAgent(kind)
        assert outputs.output.element_type is bytes


def sync_agent(ctx: AgentContext) -> Complete:  # noqa: ARG001 - an agent's signature
    return Complete()


async def generator_agent(ctx: AgentContext) -> Any:  # noqa: ARG001 - as above
    yield Complete()


@pytest.mark.parametrize("wrong", [None, 5, "agent", sync_agent, generator_agent, lambda ctx: ctx])
def test_what_is_no_async_function_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="async"):
        RunAgent(wrong)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="config"):
        RunAgent(agent, config={"ttl_ms": 5})  # type: ignore[arg-type]  # the fault
    with pytest.raises(ValueError, match="name"):
        RunAgent(agent, name="")
    with pytest.raises(ValueError, match="pipeline"):
        RunAgent(agent, pipeline="")


ENVELOPE = AgentEnvelope(entity_key=b"k", event=b"e")


@pytest.mark.parametrize(
    "elements",
    [
        [b"un-keyed"],
        [ENVELOPE],
        [{"id": 1}],
        [(1, ENVELOPE)],
        [("text", ENVELOPE)],
        [(b"k", b"no envelope")],
        [(b"k", ENVELOPE, 3)],
        [(b"k", ENVELOPE), b"mixed"],
    ],
)
def test_an_input_that_is_not_keyed_is_refused_at_construction(elements: list[Any]) -> None:
    p = pipeline()
    with pytest.raises((ValueError, TypeError), match="tuple\\[bytes, AgentEnvelope\\]"):
        _ = p | beam.Create(elements) | RunAgent(agent)


def test_an_input_of_undeclared_type_is_checked_element_by_element() -> None:
    with pytest.raises(Exception, match="tuple\\[bytes, AgentEnvelope\\]"), pipeline() as p:
        _ = p | beam.Create([b"un-keyed"]) | beam.Map(lambda element: element) | RunAgent(agent)


def test_a_windowed_input_is_refused() -> None:
    p = pipeline()
    windowed = p | beam.Create([{"id": "a"}]) | keyed_envelopes(key="id") | beam.WindowInto(FixedWindows(60))
    with pytest.raises(ValueError, match="global window"):
        _ = windowed | RunAgent(agent)


def test_the_elements_timestamp_stands_in_for_the_envelopes() -> None:
    async def tell(ctx: AgentContext) -> Complete:
        return Complete(b"%d" % ctx.now_ms)

    with pipeline() as p:
        keyed = (
            p
            | beam.Create([5])
            | beam.Map(
                lambda seconds: beam.window.TimestampedValue((b"k", ENVELOPE), seconds)
            ).with_output_types(tuple[bytes, AgentEnvelope])
        )
        assert_that((keyed | RunAgent(tell)).output, equal_to([b"5000"]))


AT_MS = 1_357_035_300_000


@pytest.mark.parametrize(
    "value",
    [
        AT_MS,
        float(AT_MS),
        "2013-01-01T10:15:00Z",
        "2013-01-01T10:15:00",
        "2013-01-01T11:15:00+01:00",
        datetime(2013, 1, 1, 10, 15, tzinfo=UTC),
        datetime(2013, 1, 1, 10, 15),  # noqa: DTZ001 - without a zone it is UTC
        datetime(2013, 1, 1, 5, 15, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_a_time_has_several_forms(value: Any) -> None:
    assert event_time_ms(value) == AT_MS


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("yesterday", ValueError),
        (-1, ValueError),
        (10**16, ValueError),
        (1.5, TypeError),
        (float("nan"), TypeError),
        (float("inf"), TypeError),
        ("\u0662\u0660\u0661\u0663-01-01", ValueError),
        (True, TypeError),
        (b"", TypeError),
    ],
)
def test_what_is_no_time_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="time"):
        event_time_ms(value)


def test_an_envelope_from_a_dict() -> None:
    row = {"id": 7, "at": AT_MS, "who": "é", "e": "e1", "t": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    envelope = envelope_from_mapping(row, key="id", time="at", event_id="e", traceparent="t")
    assert envelope.entity_key == b"7"
    assert envelope.event_time_ms == AT_MS
    assert envelope.event_id == "e1"
    assert envelope.traceparent == row["t"]
    assert json.loads(envelope.event) == row


def test_the_order_of_a_dict_does_not_reach_the_payload() -> None:
    one = envelope_from_mapping({"id": "a", "b": 1}, key="id")
    other = envelope_from_mapping({"b": 1, "id": "a"}, key="id")
    assert one.event == other.event


@pytest.mark.parametrize(
    ("row", "fields", "shown"),
    [
        ({}, {}, "id"),
        ({"id": ""}, {}, "id"),
        ({"id": None}, {}, "id"),
        ({"id": 1.5}, {}, "id"),
        ({"id": True}, {}, "id"),
        ({"id": "a", "at": "noon"}, {"time": "at"}, "at"),
        ({"id": "a", "at": 1.5}, {"time": "at"}, "at"),
        ({"id": "a", "p": 5}, {"payload": "p"}, "p"),
        ({"id": "a"}, {"payload": "p"}, "p"),
        ({"id": "a", "x": object()}, {}, "field 'x' does not go into JSON"),
        ({"id": "a", "x": float("nan")}, {}, "field 'x': NaN and infinite numbers"),
        ({"id": "a", "x": {"y": [float("inf")]}}, {}, "field 'x': NaN and infinite numbers"),
        ({"id": "a", "x": "\ud800"}, {}, "field 'x': it holds a lone surrogate"),
        ({"id": "a", 5: 1}, {}, "the dict does not go into JSON"),
        ({"id": "\ud800"}, {}, "field 'id': it holds a lone surrogate"),
        ({"id": "a", "p": "\ud800"}, {"payload": "p"}, "field 'p': it holds a lone surrogate"),
        ({"id": "a", "e": "\ud800"}, {"event_id": "e"}, "field 'e': it holds a lone surrogate"),
        ({"id": "a", "e": 1.5}, {"event_id": "e"}, "field 'e': an event id must be str or int, not float"),
        ({"id": "a", "e": True}, {"event_id": "e"}, "field 'e': an event id must be str or int, not bool"),
        ({"id": "a", "e": ["b"]}, {"event_id": "e"}, "field 'e': an event id must be str or int, not list"),
        ("text", {}, "dict"),
    ],
)
def test_a_row_that_makes_no_envelope_is_refused_by_field(
    row: Any, fields: dict[str, str], shown: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=shown):
        envelope_from_mapping(row, key="id", **fields)  # type: ignore[arg-type]  # str all the same


def test_a_missing_time_is_an_event_without_one() -> None:
    for row in ({"id": "a"}, {"id": "a", "at": None}):
        assert not envelope_from_mapping(row, key="id", time="at").HasField("event_time_ms")


@pytest.mark.parametrize(
    "fields", [{"key": ""}, {"key": None}, {"key": "id", "time": 5}, {"key": "id", "payload": ""}]
)
def test_fields_must_be_named(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must name a field"):
        keyed_envelopes(**fields)

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.cli.lines import error_line, intent_line, located_error_line, malformed_line, output_line
from beam_agents.cli.rows import Malformed
from beam_agents.wire.beam_agents_pb2 import ActivationError, ToolIntent


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (b'{"b":1,  "a": 2.50}', b'{"b":1,  "a": 2.50}'),
        (b'  {"a": 1}\n', b'{"a": 1}'),
        (b'{"a":\n1}', b'{"a": 1}'),
        (b"{}", b"{}"),
        (b"text", b'{"output": "text"}'),
        (b"", b'{"output": ""}'),
        (b"7", b'{"output": "7"}'),
        (b"[1]", b'{"output": "[1]"}'),
        (b'{"a": NaN}', b'{"output": "{\\"a\\": NaN}"}'),
        (b'{"a": 1} x', b'{"output": "{\\"a\\": 1} x"}'),
        (b"{" * 100_000, b'{"output": "' + b"{" * 100_000 + b'"}'),
        ("one\ntwo \u2028 é".encode(), b'{"output": "one\\ntwo \\u2028 \\u00e9"}'),
        (b"\xff\x00", b'{"output_base64": "/wA="}'),
    ],
)
def test_outputs(output: bytes, line: bytes) -> None:
    assert output_line(output) == line


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.dictionaries(st.text(), st.text()).map(json.dumps).map(str.encode)
)
def test_every_output_is_one_line_of_json_that_tells_the_output(output: bytes) -> None:
    line = output_line(output)
    assert b"\n" not in line
    assert b"\r" not in line
    value = json.loads(line)
    told = (
        value["output"].encode() == output
        if value.keys() == {"output"} and isinstance(value["output"], str)
        else base64.b64decode(value["output_base64"]) == output
        if value.keys() == {"output_base64"}
        else False
    )
    assert told or value == json.loads(output)


def test_errors() -> None:
    error = ActivationError(
        entity_key=b"a", reason="activation_error", detail="KeyError", event_time_ms=5, event_id="e", seq=7
    )
    assert json.loads(error_line(error)) == {
        "entity_key": "a",
        "reason": "activation_error",
        "detail": "KeyError",
        "event_time_ms": 5,
        "event_id": "e",
        "seq": 7,
    }
    bare = json.loads(error_line(ActivationError(entity_key=b"\xff", reason="activation_error")))
    assert bare["event_time_ms"] is None
    assert bare["entity_key_base64"] == "/w=="


def test_errors_whose_event_id_is_their_place() -> None:
    found = json.loads(
        located_error_line(ActivationError(entity_key=b"a", reason="r", event_id="a:b.jsonl:17"))
    )
    assert (found["file"], found["line"], found["event_id"]) == ("a:b.jsonl", 17, "a:b.jsonl:17")
    assert "line" not in json.loads(located_error_line(ActivationError(entity_key=b"a", reason="r")))


def test_malformed_lines() -> None:
    assert json.loads(malformed_line(Malformed("f", 3, "not JSON"))) == {
        "reason": "malformed_line",
        "file": "f",
        "line": 3,
        "detail": "not JSON",
    }


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (b'{"a": 1}', {"arguments": {"a": 1}}),
        (b"text", {"arguments": "text"}),
        (b"\xff", {"arguments_base64": "/w=="}),
    ],
)
def test_intents(arguments: bytes, field: dict[str, object]) -> None:
    intent = ToolIntent(
        intent_id="i",
        entity_key=b"a",
        tool="mail",
        arguments=arguments,
        seq=7,
        event_time_ms=5,
        traceparent="t",
    )
    assert json.loads(intent_line(intent)) == {
        "intent_id": "i",
        "entity_key": "a",
        "tool": "mail",
        **field,
        "seq": 7,
        "event_time_ms": 5,
        "traceparent": "t",
    }

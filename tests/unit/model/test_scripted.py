"""The scripted model: what it answers, what it raises, what it remembers."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle

import pytest

from beam_agents.model.scripted import ScriptedModel, ScriptExhausted, fail_first
from beam_agents.model.types import LLMClient, LlmRequest, LlmResponse

HELLO = LlmRequest("m", b"hello")


def ask(model: ScriptedModel, *requests: LlmRequest) -> list[LlmResponse]:
    async def one_by_one() -> list[LlmResponse]:
        return [await model.complete(request) for request in requests]

    return asyncio.run(one_by_one())


def shout(request: LlmRequest) -> bytes:
    return request.body.upper()


def test_it_is_its_own_factory() -> None:
    model = ScriptedModel(shout)
    client = model()
    assert isinstance(client, LLMClient)
    assert asyncio.run(client.complete(HELLO)) == LlmResponse(b"HELLO")
    asyncio.run(client.close())
    assert model.call_count == 1


def test_a_function_answers_equal_requests_alike() -> None:
    model = ScriptedModel(shout, prompt_tokens=2, completion_tokens=3)
    assert ask(model, HELLO, LlmRequest("m", b"x"), HELLO) == [
        LlmResponse(b"HELLO", 2, 3),
        LlmResponse(b"X", 2, 3),
        LlmResponse(b"HELLO", 2, 3),
    ]


def test_a_mapping_answers_by_body() -> None:
    model = ScriptedModel({b"hello": "hé", b"bye": LlmResponse(b"!", 7, 8)}, prompt_tokens=1)
    assert ask(model, LlmRequest("m", b"bye"), HELLO) == [
        LlmResponse(b"!", 7, 8),
        LlmResponse("hé".encode(), 1, 0),
    ]
    with pytest.raises(ScriptExhausted, match=r"2 answers, and none for the request of call 3") as caught:
        ask(model, LlmRequest("m", b"hunter2"))
    assert "hunter2" not in str(caught.value)


def test_a_sequence_answers_in_order_and_says_when_it_is_used_up() -> None:
    model = ScriptedModel(["a", b"b"])
    assert [answer.body for answer in ask(model, HELLO, HELLO)] == [b"a", b"b"]
    with pytest.raises(ScriptExhausted, match=r"no answer left for call 3: all 2 are given") as caught:
        ask(model, HELLO)
    assert model.calls[-1].error_type == "ScriptExhausted"
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert str(again) == str(caught.value)


def test_concurrent_calls_get_a_sequence_in_the_order_in_which_they_came() -> None:
    async def together() -> list[LlmResponse]:
        return await asyncio.gather(*(model.complete(HELLO) for _ in range(3)))

    model = ScriptedModel(["a", "b", "c"], latency_s=0.001)
    assert [answer.body for answer in asyncio.run(together())] == [b"a", b"b", b"c"]
    starts = [call.started_ns for call in model.calls]
    ends = [call.ended_ns or 0 for call in model.calls]
    assert max(starts) < min(ends)


def test_failures_come_at_their_calls_and_use_up_no_answer() -> None:
    model = ScriptedModel(["a", "b"], failures={1: TimeoutError(), 3: ValueError("full")})
    with pytest.raises(TimeoutError):
        ask(model, HELLO)
    assert ask(model, HELLO)[0].body == b"a"
    with pytest.raises(ValueError, match="full"):
        ask(model, HELLO)
    assert ask(model, HELLO)[0].body == b"b"
    assert [call.error_type for call in model.calls] == ["TimeoutError", "", "ValueError", ""]


def test_fail_first() -> None:
    model = ScriptedModel(shout, failures=fail_first(2, ConnectionError()))
    for _ in range(2):
        with pytest.raises(ConnectionError):
            ask(model, HELLO)
    assert ask(model, HELLO)[0].body == b"HELLO"


def test_latency_is_waited_for_and_can_be_cancelled() -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(model.complete(HELLO))
        await asyncio.sleep(0)
        assert model.calls[0].ended_ns is None
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    model = ScriptedModel(shout, latency_s=3600)
    asyncio.run(cancelled())
    assert model.calls[0].error_type == "CancelledError"
    assert model.calls[0].ended_ns is not None


def test_without_latency_a_call_never_waits() -> None:
    call = ScriptedModel(shout).complete(HELLO)
    with pytest.raises(StopIteration) as ended:
        call.send(None)
    assert ended.value.value == LlmResponse(b"HELLO")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])  # noqa: S301 - our own bytes
def test_copies_share_log_and_script(duplicate) -> None:  # noqa: ANN001 - three ways of copying
    model = ScriptedModel(["a", "b"])
    other = duplicate(model)
    assert ask(other, HELLO)[0].body == b"a"
    assert ask(model, HELLO)[0].body == b"b"
    assert model.call_count == other.call_count == 2
    assert [call.request for call in model.calls] == [HELLO, HELLO]
    model.reset()
    assert other.calls == []
    assert ask(other, HELLO)[0].body == b"a"


def test_two_models_share_nothing() -> None:
    one, other = ScriptedModel(shout), ScriptedModel(shout)
    ask(one, HELLO)
    assert (one.call_count, other.call_count) == (1, 0)


def test_a_copy_outlives_its_original() -> None:
    pickled = pickle.dumps(ScriptedModel(["a"]))
    gc.collect()
    model = pickle.loads(pickled)  # noqa: S301 - our own bytes
    assert ask(model, HELLO)[0].body == b"a"


def test_the_log_handed_out_is_a_copy() -> None:
    model = ScriptedModel(shout)
    model.calls.clear()
    ask(model, HELLO)
    model.calls.clear()
    assert model.call_count == 1


@pytest.mark.parametrize(
    ("make", "error", "named"),
    [
        (lambda: ScriptedModel("abc"), TypeError, "script must be a sequence of answers"),
        (lambda: ScriptedModel(b"abc"), TypeError, "script must be a sequence of answers"),
        (lambda: ScriptedModel(7), TypeError, "not int"),
        (lambda: ScriptedModel([7]), TypeError, "must answer with LlmResponse, bytes or str, not int"),
        (lambda: ScriptedModel({b"a": None}), TypeError, "not NoneType"),
        (lambda: ScriptedModel({"a": "b"}), TypeError, "as bytes, not str"),
        (lambda: ScriptedModel(shout, latency_s="1"), TypeError, "latency_s must be a number"),
        (lambda: ScriptedModel(shout, latency_s=-1), ValueError, "latency_s must be 0 or"),
        (lambda: ScriptedModel(shout, latency_s=float("nan")), ValueError, "latency_s"),
        (lambda: ScriptedModel(shout, failures=[ValueError()]), TypeError, "failures must be a mapping"),
        (lambda: ScriptedModel(shout, failures={0: ValueError()}), ValueError, "number calls from 1"),
        (lambda: ScriptedModel(shout, failures={1: "no"}), TypeError, "must hold exceptions, not str"),
        (lambda: ScriptedModel(shout, prompt_tokens=-1), ValueError, "prompt_tokens"),
    ],
)
def test_bad_arguments_are_refused(make, error: type[Exception], named: str) -> None:  # noqa: ANN001 - each is wrong in its own way
    with pytest.raises(error) as caught:
        make()
    assert named in str(caught.value)


def test_a_function_that_returns_no_answer_is_told_so() -> None:
    with pytest.raises(TypeError, match="must answer with LlmResponse, bytes or str, not NoneType"):
        ask(ScriptedModel(lambda _: None), HELLO)  # type: ignore[arg-type, return-value]

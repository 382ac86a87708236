"""Requests and responses refuse what they could not carry."""

from __future__ import annotations

import pickle

import pytest

from beam_agents.model.types import MAX_TOKENS, LLMClient, LlmRequest, LlmResponse


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ((b"m", b""), TypeError, "LlmRequest.model must be a str"),
        (("m", "body"), TypeError, "LlmRequest.body must be bytes"),
        (("m", bytearray(b"x")), TypeError, "LlmRequest.body must be bytes, not bytearray"),
        (("m", b"", 1), TypeError, "LlmRequest.nonce must be str"),
        (("", b""), ValueError, "LlmRequest.model must not be empty"),
        (("a\ud800", b""), ValueError, "LlmRequest.model must be text that UTF-8 can hold"),
    ],
)
def test_bad_request_is_refused(arguments: tuple[object, ...], error: type[Exception], named: str) -> None:
    with pytest.raises(error) as caught:
        LlmRequest(*arguments)  # type: ignore[arg-type]
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        (("body",), TypeError, "LlmResponse.body must be bytes, not str"),
        ((b"", 1.0), TypeError, "LlmResponse.prompt_tokens must be an int, not float"),
        ((b"", True), TypeError, "LlmResponse.prompt_tokens must be an int, not bool"),
        ((b"", -1), ValueError, "LlmResponse.prompt_tokens must be from 0"),
        ((b"", 0, MAX_TOKENS + 1), ValueError, "LlmResponse.completion_tokens must be from 0"),
    ],
)
def test_bad_response_is_refused(arguments: tuple[object, ...], error: type[Exception], named: str) -> None:
    with pytest.raises(error) as caught:
        LlmResponse(*arguments)  # type: ignore[arg-type]
    assert named in str(caught.value)


def test_content_is_not_in_the_errors() -> None:
    with pytest.raises(TypeError) as caught:
        LlmRequest("m", "hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


def test_requests_and_responses_are_values() -> None:
    request, response = LlmRequest("m", b"body", nonce="2"), LlmResponse(b"answer", 3, 4)
    assert request == LlmRequest("m", b"body", "2")
    assert hash(request) == hash(LlmRequest("m", b"body", "2"))
    assert request != LlmRequest("m", b"body")
    assert pickle.loads(pickle.dumps((request, response))) == (request, response)  # noqa: S301 - our own bytes


def test_a_client_is_known_by_its_methods() -> None:
    class Client:
        async def complete(self, request: LlmRequest) -> LlmResponse:
            return LlmResponse(request.body)

        async def close(self) -> None:
            pass

    assert isinstance(Client(), LLMClient)
    assert not isinstance(object(), LLMClient)

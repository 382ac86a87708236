"""A model that answers from a script: for tests and demos, without a provider."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from beam_agents.errors import BeamAgentsError
from beam_agents.model.types import LlmResponse

if TYPE_CHECKING:
    from beam_agents.model.types import LlmRequest

__all__ = ["Answer", "ModelCall", "Script", "ScriptExhausted", "ScriptedModel", "fail_first"]

Answer: TypeAlias = LlmResponse | bytes | str
"""What a script answers: a response, or its body alone (a str as UTF-8)."""

Script: TypeAlias = "Callable[[LlmRequest], Answer] | Mapping[bytes, Answer] | Sequence[Answer]"


class ScriptExhausted(BeamAgentsError, LookupError):
    """The script has no (more) answers for a request.

    Attributes:
        call: The call's number, from 1.
        answers: How many answers the script has.
        body_hash: First 12 hex digits of the SHA-256 of the request's body, where the script is a mapping
            that lacks it; empty where it is a sequence that is used up.
    """

    def __init__(self, call: int, answers: int, body_hash: str = "") -> None:
        self.call = call
        self.answers = answers
        self.body_hash = body_hash
        super().__init__(call, answers, body_hash)

    def __str__(self) -> str:
        if not self.body_hash:
            return (
                f"the scripted model has no answer left for call {self.call}: all {self.answers} are given; "
                "add answers, or script it with a function of the request"
            )
        return (
            f"the scripted model has {self.answers} answers, and none for the request of call {self.call}, "
            f"whose body has a SHA-256 of {self.body_hash}…; add it, or script it with a function"
        )


@dataclass(slots=True)
class ModelCall:
    """One call that reached the model.

    Attributes:
        request: What was asked.
        started_ns: When it came, by ``time.perf_counter_ns``.
        ended_ns: When it was answered, failed or was cancelled; None while it is in flight.
        error_type: The class of what it raised; empty where it was answered.
    """

    request: LlmRequest
    started_ns: int
    ended_ns: int | None = None
    error_type: str = ""


class _Log:
    """What all copies of one model share in one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[ModelCall] = []
        self.answered = 0


_logs: weakref.WeakValueDictionary[str, _Log] = weakref.WeakValueDictionary()
_logs_lock = threading.Lock()


def _log_of(model_id: str) -> _Log:
    with _logs_lock:
        log = _logs.get(model_id)
        if log is None:
            log = _logs[model_id] = _Log()
        return log


class ScriptedModel:
    """An LLMClient that answers from a script, and the factory that returns it.

    It is both, so that ``AgentConfig(provider_factory=model)`` is all that a test needs. A pipeline pickles
    it; all its copies within one process share one call log, so that ``model.calls`` shows what the
    pipeline asked. In another process there is another log.

    A script that is a function of the request, or a mapping from requests' bodies, answers equal requests
    alike, whatever their order: a retry sees what the first attempt saw. A sequence gives its answers in the
    order in which the calls come, so a call that is repeated, or that comes in another order, gets another
    answer.

    Args:
        script: A function of the request, which must be pure; a mapping from a request's body to its answer;
            or a sequence of answers.
        latency_s: Seconds that each call takes. With 0 a call never waits.
        failures: What the calls of these numbers, from 1, raise in place of an answer. A failing call uses up
            no answer of a sequence.
        prompt_tokens: Tokens read, of each answer that is no LlmResponse.
        completion_tokens: Tokens written, likewise.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: An argument out of its range.
    """

    def __init__(
        self,
        script: Script,
        *,
        latency_s: float = 0.0,
        failures: Mapping[int, Exception] | None = None,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
    ) -> None:
        self._script = _checked_script(script)
        self._failures = _checked_failures(failures or {})
        if isinstance(latency_s, bool) or not isinstance(latency_s, int | float):
            raise TypeError(f"ScriptedModel.latency_s must be a number, not {type(latency_s).__name__}")
        if not 0 <= latency_s < float("inf"):
            raise ValueError(f"ScriptedModel.latency_s must be 0 or a positive number, not {latency_s!r}")
        self._latency_s = latency_s
        # Checks the tokens where the mistake is made.
        LlmResponse(b"", prompt_tokens, completion_tokens)
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = completion_tokens
        self._id = uuid.uuid4().hex
        self._log = _log_of(self._id)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_log"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._log = _log_of(self._id)

    def __call__(self) -> ScriptedModel:
        """Return the client, as ``AgentConfig.provider_factory`` must."""
        return self

    @property
    def calls(self) -> list[ModelCall]:
        """The calls that reached the model in this process, in the order in which they came."""
        with self._log.lock:
            return list(self._log.calls)

    @property
    def call_count(self) -> int:
        """How many calls reached the model in this process."""
        return len(self._log.calls)

    def reset(self) -> None:
        """Forget all calls: the script and the failures begin again."""
        with self._log.lock:
            self._log.calls.clear()
            self._log.answered = 0

    async def complete(self, request: LlmRequest) -> LlmResponse:
        """Answer a request by the script.

        Raises:
            ScriptExhausted: The script has no answer for it.
            TypeError: The script's function returned what is no answer.
            Exception: The failure that this call was given, or what the script's function raises.
        """
        call = ModelCall(request, time.perf_counter_ns())
        try:
            return await self._respond(call)
        except BaseException as error:
            call.error_type = type(error).__name__
            raise
        finally:
            call.ended_ns = time.perf_counter_ns()

    async def _respond(self, call: ModelCall) -> LlmResponse:
        # Decided when the call comes: which of two calls in flight ends first must not matter.
        answer = self._take(call)
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """Do nothing: there is nothing to release, and the log stays."""

    def _take(self, call: ModelCall) -> LlmResponse | Exception:
        """Note the call and return what it comes to."""
        with self._log.lock:
            self._log.calls.append(call)
            number = len(self._log.calls)
            failure = self._failures.get(number)
            if failure is not None:
                # Without the frames of where it was raised before.
                return failure.with_traceback(None)
            if isinstance(self._script, tuple):
                if self._log.answered == len(self._script):
                    raise ScriptExhausted(number, len(self._script))
                self._log.answered += 1
                return self._response(self._script[self._log.answered - 1])
        if isinstance(self._script, dict):
            body = call.request.body
            if body not in self._script:
                raise ScriptExhausted(number, len(self._script), hashlib.sha256(body).hexdigest()[:12])
            return self._response(self._script[body])
        return self._response(self._script(call.request))

    def _response(self, answer: Answer) -> LlmResponse:
        _check_answer(answer)
        if isinstance(answer, LlmResponse):
            return answer
        body = answer.encode() if isinstance(answer, str) else answer
        return LlmResponse(body, self._prompt_tokens, self._completion_tokens)


def fail_first(calls: int, error: Exception) -> dict[int, Exception]:
    """Return ``failures`` under which the first ``calls`` calls raise ``error``."""
    return dict.fromkeys(range(1, calls + 1), error)


def _checked_script(
    script: Script,
) -> Callable[[LlmRequest], Answer] | dict[bytes, Answer] | tuple[Answer, ...]:
    """Return the script in one of its three forms, copied where it could be changed from outside."""
    if isinstance(script, Mapping):
        for body, answer in script.items():
            if not isinstance(body, bytes):
                raise TypeError(
                    f"ScriptedModel.script maps requests' bodies, as bytes, not {type(body).__name__}"
                )
            _check_answer(answer)
        return dict(script)
    # A str is a sequence of str, and bytes one of int: neither is meant as one.
    if isinstance(script, Sequence) and not isinstance(script, str | bytes | bytearray | memoryview):
        for answer in script:
            _check_answer(answer)
        return tuple(script)
    if callable(script):
        return script
    raise TypeError(
        "ScriptedModel.script must be a sequence of answers, a mapping from bodies to answers, or a function "
        f"of the request, not {type(script).__name__}"
    )


def _check_answer(answer: object) -> None:
    if not isinstance(answer, LlmResponse | bytes | str):
        raise TypeError(
            f"ScriptedModel.script must answer with LlmResponse, bytes or str, not {type(answer).__name__}"
        )


def _checked_failures(failures: object) -> dict[int, Exception]:
    if not isinstance(failures, Mapping):
        raise TypeError(
            "ScriptedModel.failures must be a mapping from calls' numbers to exceptions, "
            f"not {type(failures).__name__}"
        )
    for number, error in failures.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"ScriptedModel.failures must number calls from 1, not {number!r}")
        if not isinstance(error, Exception):
            raise TypeError(f"ScriptedModel.failures must hold exceptions, not {type(error).__name__}")
    return dict(failures)

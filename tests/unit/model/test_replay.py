"""The replay cache: what it keeps, what it forgets, and what it never lets through."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import pickle
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.errors import StateUndecodable, StateVersionUnsupported, hash_entity_key
from beam_agents.model.replay import (
    ReplayCache,
    ReplayCacheLimits,
    begin_attempt,
    decode_response,
    encode_response,
    request_digest,
)
from beam_agents.model.stash import ENTRY_OVERHEAD_BYTES, Stash
from beam_agents.model.types import MAX_TOKENS, LlmRequest, LlmResponse
from beam_agents.wire.beam_agents_pb2 import CachedResponse, ReplayState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GOLDEN = Path(__file__).parent / "golden" / "replay_v1.bin"
DEFAULTS = ReplayCacheLimits()
KEY = b"entity"


def digest_of(name: int | str) -> bytes:
    return hashlib.sha256(str(name).encode()).digest()


A, B, C = digest_of("a"), digest_of("b"), digest_of("c")


def cache(
    state: bytes | None = None,
    *,
    limits: ReplayCacheLimits = DEFAULTS,
    seq: int = 1,
    now_ms: int = 1000,
    scope: str | None = None,
) -> ReplayCache:
    return ReplayCache(state, limits=limits, entity_key=KEY, seq=seq, now_ms=now_ms, scope=scope)


def committed(*answers: tuple[bytes, bytes], seq: int = 1, now_ms: int = 1000) -> bytes:
    """Return the state after one activation that got these answers."""
    activation = cache(seq=seq, now_ms=now_ms)
    for digest, response in answers:
        activation.put(digest, response)
    state = activation.encode()
    assert state is not None
    return state


def entries(state: bytes | None) -> list[CachedResponse]:
    return list(ReplayState.FromString(state or b"").entries)


def new_scope() -> str:
    return uuid.uuid4().hex


# Limits


@pytest.mark.parametrize("field", ["max_entries", "max_bytes", "max_entry_bytes", "max_age_ms"])
def test_limits_are_checked(field: str) -> None:
    with pytest.raises(ValueError, match=rf"ReplayCacheLimits\.{field} must be at least 1, not 0"):
        ReplayCacheLimits(**{field: 0})
    for wrong in (1.5, True, "1"):
        with pytest.raises(TypeError, match=rf"ReplayCacheLimits\.{field} must be an int"):
            ReplayCacheLimits(**{field: wrong})


def test_an_entry_may_not_be_larger_than_all() -> None:
    with pytest.raises(ValueError, match="must not exceed"):
        ReplayCacheLimits(max_bytes=10, max_entry_bytes=11)


# Identity


def test_a_digest_is_as_it_always_was() -> None:
    request = LlmRequest("model-1", b"body", "n")
    assert request_digest("model", request, b"key", 7).hex() == (
        "1b24122a2935d15c82b8d0117bbc06bfebe012cb46174549b28b59ec27cfafb7"
    ), "the digest of a request is part of the state's format"


REQUESTS = st.builds(
    LlmRequest,
    st.text("ab", min_size=1, max_size=3),
    st.text("ab", max_size=3).map(str.encode),
    st.text(st.sampled_from("ab\ud800"), max_size=3),
)
IDENTITIES = st.tuples(
    st.sampled_from(["model", "tool"]), REQUESTS, st.text("ab", max_size=3).map(str.encode), st.integers(0, 2)
)


@given(IDENTITIES, IDENTITIES)
def test_digests_are_equal_exactly_where_all_parts_are(one: tuple, other: tuple) -> None:  # type: ignore[type-arg]
    assert (request_digest(*one) == request_digest(*other)) == (one == other)


@given(st.binary(max_size=50), st.integers(0, MAX_TOKENS), st.integers(0, MAX_TOKENS))
def test_responses_survive_encoding(body: bytes, prompt: int, completion: int) -> None:
    response = LlmResponse(body, prompt, completion)
    assert decode_response(encode_response(response)) == response


def test_a_broken_response_does_not_show_its_bytes() -> None:
    with pytest.raises(StateUndecodable) as caught:
        decode_response(b"\x0a\x7fhunter2")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


# One activation


def test_an_activation_that_asks_nobody_changes_nothing() -> None:
    for state in (None, committed((A, b"a")), b"\xff no state"):
        activation = cache(state, limits=ReplayCacheLimits(max_entries=1, max_bytes=1, max_entry_bytes=1))
        assert not activation.changed
        assert activation.encode() is state


def test_a_look_up_that_finds_nothing_changes_nothing() -> None:
    state = committed((A, b"a"))
    activation = cache(state)
    assert activation.get(B) is None
    assert (activation.changed, activation.hits, activation.misses) == (False, 0, 1)
    assert activation.encode() is state


def test_what_was_put_is_found() -> None:
    activation = cache(seq=5, now_ms=77)
    activation.put(A, b"answer")
    assert activation.get(A) == b"answer"
    assert (activation.changed, activation.hits, activation.misses, activation.drifts) == (True, 1, 0, 0)
    assert entries(activation.encode()) == [
        CachedResponse(
            request_digest=A,
            seq=5,
            stored_at_ms=77,
            response=b"answer",
            response_digest=hashlib.sha256(b"answer").digest(),
        )
    ]


def test_an_empty_response_is_a_response() -> None:
    activation = cache(committed((A, b"")))
    assert activation.get(A) == b""


def test_a_committed_response_is_found_and_committed_alike() -> None:
    state = committed((A, b"a"))
    activation = cache(state, seq=2, now_ms=2000)
    assert activation.get(A) == b"a"
    assert activation.changed
    assert activation.encode() is state


def test_a_response_used_again_becomes_the_most_recent() -> None:
    state = cache(committed((A, b"a")), seq=2)
    state.put(B, b"b")
    activation = cache(state.encode(), seq=3)
    assert activation.get(A) == b"a"
    assert [entry.request_digest for entry in entries(activation.encode())] == [B, A]


def test_fields_of_a_later_version_are_kept() -> None:
    later = committed((A, b"a")) + b"\xa2\x06\x05later"
    activation = cache(later)
    activation.put(B, b"b")
    assert b"\xa2\x06\x05later" in (activation.encode() or b"")


# Limits at work


def test_what_is_too_old_is_forgotten_once_the_cache_is_used() -> None:
    state = committed((A, b"a"), now_ms=1000)
    limits = ReplayCacheLimits(max_age_ms=100)
    for now_ms, kept in ((1100, [A, B]), (1101, [B]), (0, [A, B])):
        activation = cache(state, limits=limits, now_ms=now_ms)
        assert activation.encode() is state
        activation.put(B, b"b")
        assert [entry.request_digest for entry in entries(activation.encode())] == kept


def test_of_a_response_too_large_the_digest_is_kept_and_notices_drift() -> None:
    limits = ReplayCacheLimits(max_entry_bytes=4)
    first = cache(limits=limits)
    first.put(A, b"12345")
    assert first.get(A) == b"12345"  # the activation itself still has it
    (entry,) = entries(first.encode())
    assert not entry.HasField("response")
    again = cache(first.encode(), limits=limits)
    assert again.get(A) is None
    again.put(A, b"12345")
    assert again.drifts == 0
    other = cache(first.encode(), limits=limits)
    assert other.get(A) is None
    other.put(A, b"12346")
    assert other.drifts == 1


def test_drift_within_one_activation_counts() -> None:
    activation = cache()
    activation.put(A, b"1")
    activation.put(A, b"2")
    assert activation.drifts == 1
    assert activation.get(A) == b"2"


def test_limits_that_became_tighter_apply() -> None:
    state = committed((A, b"aaaa"), (B, b"b"))
    activation = cache(state, limits=ReplayCacheLimits(max_entry_bytes=2))
    assert activation.get(A) is None
    assert activation.get(B) == b"b"
    assert [entry.HasField("response") for entry in entries(activation.encode())] == [
        entry.request_digest == B for entry in entries(activation.encode())
    ]


def test_where_nothing_fits_the_cell_is_emptied_or_stays_empty() -> None:
    tiny = ReplayCacheLimits(max_bytes=8, max_entry_bytes=8)
    activation = cache(limits=tiny)
    activation.put(A, b"a")
    assert activation.encode() is None
    activation = cache(committed((A, b"a")), limits=tiny)
    activation.put(B, b"b")
    assert entries(activation.encode()) == []
    assert activation.encode() is not None


def test_the_bound_of_bytes_is_exact() -> None:
    state = committed((A, b"a"), (B, b"b"))
    for spare_bytes, kept in ((0, 2), (-1, 1)):
        max_bytes = len(state) + spare_bytes
        activation = cache(limits=ReplayCacheLimits(max_bytes=max_bytes, max_entry_bytes=9))
        activation.put(A, b"a")
        activation.put(B, b"b")
        assert len(entries(activation.encode())) == kept


LIMITS = st.builds(
    lambda entries, bytes_, entry_bytes, age: ReplayCacheLimits(
        max_entries=entries, max_bytes=bytes_, max_entry_bytes=min(entry_bytes, bytes_), max_age_ms=age
    ),
    st.integers(1, 5),
    st.integers(1, 700),
    st.integers(1, 60),
    st.integers(1, 20),
)
ACTIVATIONS = st.lists(
    st.tuples(st.integers(0, 10), st.lists(st.tuples(st.integers(0, 7), st.binary(max_size=80)), max_size=6)),
    max_size=8,
)


class PlainModel:
    """The committed tier as one would say it: a list, the least recently used first."""

    def __init__(self, limits: ReplayCacheLimits) -> None:
        self.limits = limits
        self.kept: list[CachedResponse] = []

    def activation(self, seq: int, now_ms: int, requests: list[tuple[int, bytes]]) -> dict[bytes, bytes]:
        """Ask for what is not there; return what each request came to."""
        limits = self.limits
        answers: dict[bytes, bytes] = {}
        used: dict[bytes, CachedResponse] = {}
        known = {
            entry.request_digest: entry
            for entry in self.kept
            if now_ms - entry.stored_at_ms <= limits.max_age_ms
        }
        for name, fresh in requests:
            digest = digest_of(name)
            if digest in answers:
                continue
            earlier = known.get(digest)
            if earlier is not None and earlier.HasField("response"):
                answers[digest], used[digest] = earlier.response, earlier
                continue
            answers[digest] = fresh
            fresh_digest = hashlib.sha256(fresh).digest()
            if earlier is not None and earlier.response_digest == fresh_digest:
                used[digest] = earlier
                continue
            used[digest] = CachedResponse(
                request_digest=digest,
                seq=seq,
                stored_at_ms=now_ms,
                response=fresh if len(fresh) <= limits.max_entry_bytes else None,
                response_digest=fresh_digest,
            )
        if used:
            rest = [entry for digest, entry in known.items() if digest not in used]
            self.kept = rest + [used[digest] for digest in sorted(used)]
            while self.kept and not self.fits():
                del self.kept[0]
        return answers

    def fits(self) -> bool:
        state = ReplayState(state_schema_version=1, entries=self.kept)
        return len(self.kept) <= self.limits.max_entries and state.ByteSize() <= self.limits.max_bytes


@given(LIMITS, ACTIVATIONS)
def test_the_cache_does_what_a_plain_model_does(
    limits: ReplayCacheLimits, activations: list[tuple[int, list[tuple[int, bytes]]]]
) -> None:
    model = PlainModel(limits)
    state: bytes | None = None
    now_ms = 0
    for seq, (elapsed_ms, requests) in enumerate(activations):
        now_ms += elapsed_ms
        activation = cache(state, limits=limits, seq=seq, now_ms=now_ms)
        answers: dict[bytes, bytes] = {}
        for name, fresh in requests:
            digest = digest_of(name)
            kept = activation.get(digest)
            if kept is None:
                activation.put(digest, fresh)
            answers[digest] = fresh if kept is None else kept
        assert answers == model.activation(seq, now_ms, requests)
        assert activation.changed == bool(requests)
        assert activation.hits + activation.misses == len(requests)
        state = activation.encode()
        assert entries(state) == model.kept
        assert len(state or b"") <= max(limits.max_bytes, 2)  # the version alone takes two bytes


@given(
    LIMITS,
    st.lists(
        st.tuples(st.integers(0, 7), st.binary(max_size=80)), min_size=1, max_size=6, unique_by=lambda r: r[0]
    ),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_the_order_of_calls_and_the_stash_never_reach_the_bytes(
    limits: ReplayCacheLimits,
    requests: list[tuple[int, bytes]],
    random: object,
    stashed: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    before = committed(*((digest_of(name), b"before") for name in range(3)), now_ms=5)
    scope = new_scope() if stashed else None

    def activation(order: list[tuple[int, bytes]]) -> tuple[bytes | None, int]:
        running = cache(before, limits=limits, seq=2, now_ms=15, scope=scope)
        for name, fresh in order:
            if running.get(digest_of(name)) is None:
                running.put(digest_of(name), fresh)
        return running.encode(), running.drifts

    first = activation(requests)
    random.shuffle(requests)  # type: ignore[attr-defined]
    assert activation(requests) == first


# Bad state


@pytest.mark.parametrize("use", [lambda c: c.get(A), lambda c: c.put(A, b"a")])
@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\xff",
        ReplayState().SerializeToString(),
        ReplayState(
            state_schema_version=1, entries=[CachedResponse(request_digest=b"x")]
        ).SerializeToString(),
        ReplayState(state_schema_version=1, entries=[CachedResponse(request_digest=A)]).SerializeToString(),
    ],
)
def test_state_that_does_not_decode_is_refused_and_kept(
    use: Callable[[ReplayCache], object], state: bytes
) -> None:
    activation = cache(state)
    with pytest.raises(StateUndecodable) as caught:
        use(activation)
    assert (caught.value.cell, caught.value.entity) == ("replay", hash_entity_key(KEY))
    assert caught.value.__cause__ is None
    assert activation.encode() is state


def test_state_of_a_newer_version_is_refused_and_kept() -> None:
    state = ReplayState(state_schema_version=2).SerializeToString()
    activation = cache(state)
    with pytest.raises(StateVersionUnsupported) as caught:
        activation.get(A)
    assert (caught.value.found, caught.value.supported) == (2, 1)
    assert caught.value.entity == hash_entity_key(KEY)
    assert activation.encode() is state


def test_a_response_that_is_not_what_was_stored_is_refused() -> None:
    state = ReplayState.FromString(committed((A, b"answer")))
    state.entries[0].response = b"answes"
    with pytest.raises(StateUndecodable):
        cache(state.SerializeToString()).get(A)


@given(st.data())
def test_damaged_state_raises_nothing_else(data: st.DataObject) -> None:
    whole = bytearray(committed((A, b"a" * 20), (B, b"b" * 20)))
    cut = data.draw(st.integers(0, len(whole)))
    damaged = whole[:cut]
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    activation = cache(bytes(damaged))
    try:
        assert activation.get(A) in (None, b"a" * 20)
        activation.put(C, b"c")
        assert cache(activation.encode()).get(C) == b"c"
    except (StateUndecodable, StateVersionUnsupported):
        pass


def test_state_of_version_1_is_still_read_and_still_written() -> None:
    golden = GOLDEN.read_bytes()
    activation = cache(golden, seq=9, now_ms=2000)
    assert activation.get(A) == encode_response(LlmResponse(b"answer", 3, 4))
    assert activation.get(B) is None
    assert activation.get(C) == b""
    limits = ReplayCacheLimits(max_entry_bytes=32)
    first = cache(limits=limits, seq=7, now_ms=1000)
    first.put(A, encode_response(LlmResponse(b"answer", 3, 4)))
    first.put(B, b"b" * 33)
    second = cache(first.encode(), limits=limits, seq=8, now_ms=1001)
    second.put(C, b"")
    assert second.encode() == golden


# The stash


def test_a_retry_after_a_failed_bundle_is_answered_and_commits_the_same_bytes() -> None:
    scope, before = new_scope(), committed((A, b"a"))
    attempt = cache(before, seq=2, scope=scope)
    attempt.put(B, b"b")
    attempt.put(C, b"c" * 100_000)  # too large for the committed tier
    would_have_been = attempt.encode()
    retry = cache(before, seq=2, scope=scope)  # the state was rolled back
    assert retry.get(C) == b"c" * 100_000
    assert retry.get(B) == b"b"
    assert (retry.hits, retry.misses, retry.drifts) == (2, 0, 0)
    assert retry.changed
    assert retry.encode() == would_have_been


def test_another_run_and_a_cache_without_scope_have_no_stash() -> None:
    scope = new_scope()
    cache(scope=scope).put(A, b"a")
    assert cache(scope=scope).get(A) == b"a"
    assert cache(scope=new_scope()).get(A) is None
    assert cache(scope=None).get(A) is None


def test_what_is_committed_goes_before_what_is_stashed() -> None:
    scope = new_scope()
    cache(scope=scope).put(A, b"stashed")
    activation = cache(committed((A, b"committed")), scope=scope)
    assert activation.get(A) == b"committed"


def test_a_stashed_response_that_differs_from_the_committed_digest_is_drift() -> None:
    scope, limits = new_scope(), ReplayCacheLimits(max_entry_bytes=1)
    first = cache(limits=limits)
    first.put(A, b"one")
    cache(limits=limits, scope=scope).put(A, b"two")
    activation = cache(first.encode(), limits=limits, scope=scope)
    assert activation.get(A) == b"two"
    assert activation.drifts == 1


def test_another_answer_on_a_retry_is_drift() -> None:
    scope = new_scope()
    cache(scope=scope).put(A, b"one")
    retry = cache(scope=scope)
    retry.put(A, b"two")
    assert retry.drifts == 1
    assert cache(scope=scope).get(A) == b"two"


@given(
    st.integers(1, 4),
    st.integers(0, 3000),
    st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 1500)), max_size=40),
)
def test_the_stash_is_bounded_and_drops_the_least_recently_used(
    max_entries: int, max_bytes: int, operations: list[tuple[int, int | None]]
) -> None:
    stash = Stash(max_entries=max_entries, max_bytes=max_bytes)
    model: dict[bytes, bytes | None] = {}

    def size() -> int:
        return sum(ENTRY_OVERHEAD_BYTES + len(response or b"") for response in model.values())

    for name, length in operations:
        digest = digest_of(name)
        if length is None:
            found = stash.get("s", digest)
            assert (found is not None) == (digest in model)
            if found is not None:
                assert found.response == model[digest]
                model[digest] = model.pop(digest)
        else:
            response = bytes(length)
            stash.put("s", digest, response, hashlib.sha256(response).digest())
            model.pop(digest, None)
            model[digest] = response if ENTRY_OVERHEAD_BYTES + length <= max_bytes else None
            while len(model) > max_entries or size() > max_bytes:
                del model[next(iter(model))]
        assert (len(stash), stash.size_bytes) == (len(model), size())


def test_a_stashed_response_used_again_becomes_the_most_recent() -> None:
    stash = Stash(max_entries=2)
    stash.put("s", A, b"a", A)
    stash.put("s", B, b"b", B)
    assert stash.get("s", A) is not None
    stash.put("s", C, b"c", C)
    assert stash.get("s", B) is None
    assert stash.get("s", A) is not None


def test_attempts_are_counted_per_run_entity_and_seq() -> None:
    run, other = new_scope(), new_scope()
    assert [begin_attempt(run, KEY, 1) for _ in range(3)] == [1, 2, 3]
    assert begin_attempt(other, KEY, 1) == 1
    assert begin_attempt(run, b"other", 1) == 1
    assert begin_attempt(run, KEY, 2) == 1
    assert begin_attempt(run, KEY, 1) == 4


def test_attempts_are_bounded_and_the_later_half_is_known() -> None:
    stash = Stash(max_attempts=100)
    for seq in range(1000):
        assert stash.begin_attempt("s", KEY, seq) == 1
        assert len(stash._attempts) + len(stash._older_attempts) <= 100
    assert [stash.begin_attempt("s", KEY, seq) for seq in range(960, 1000)] == [2] * 40
    assert stash.begin_attempt("s", KEY, 0) == 1


def test_a_forked_child_has_a_stash_of_its_own() -> None:
    program = """
import os, threading
from beam_agents.model import replay, stash

def new():
    limits = replay.ReplayCacheLimits()
    return replay.ReplayCache(None, limits=limits, entity_key=b"k", seq=1, now_ms=1, scope="s")

digest = bytes(32)
new().put(digest, b"parent")
assert replay.begin_attempt("s", b"k", 1) == 1
held = stash.process_stash()._lock
held.acquire()  # as another thread of the parent might, at the fork
pid = os.fork()
if pid == 0:
    assert new().get(digest) is None
    assert replay.begin_attempt("s", b"k", 1) == 1
    new().put(digest, b"child")
    os._exit(0)
held.release()
assert os.waitpid(pid, 0)[1] == 0, "the child failed"
assert new().get(digest) == b"parent"
assert replay.begin_attempt("s", b"k", 1) == 2
print("done")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr


# Equal requests in flight


class Provider:
    """Answers when it is told to, and counts."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def ask(self) -> bytes:
        self.asked += 1
        return await asyncio.shield(self.answer)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario; whatever asyncio would only log fails it."""

    async def strict() -> None:
        lost: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        # Only so that a join that nobody ends fails, and does not hang.
        async with asyncio.timeout(60):
            await scenario()
        gc.collect()
        assert not lost

    asyncio.run(strict())


async def settled() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_equal_requests_in_flight_ask_once() -> None:
    async def scenario() -> None:
        activation, provider, other = cache(), Provider(), Provider()
        tasks = [asyncio.ensure_future(activation.get_or_ask(A, provider.ask)) for _ in range(3)]
        distinct = asyncio.ensure_future(activation.get_or_ask(B, other.ask))
        await settled()
        assert (provider.asked, other.asked) == (1, 1)
        provider.answer.set_result(b"a")
        other.answer.set_result(b"b")
        assert await asyncio.gather(*tasks) == [(b"a", False), (b"a", True), (b"a", True)]
        assert await distinct == (b"b", False)
        assert await activation.get_or_ask(A, provider.ask) == (b"a", True)
        assert (activation.hits, activation.misses, activation.drifts) == (3, 2, 0)
        assert provider.asked == 1

    run(scenario)


def test_a_kept_response_is_not_asked_for_and_nothing_waits() -> None:
    call = cache(committed((A, b"a"))).get_or_ask(A, Provider.ask)  # type: ignore[arg-type] - never called
    with pytest.raises(StopIteration) as ended:
        call.send(None)
    assert ended.value.value == (b"a", True)


def test_where_the_asking_one_is_cancelled_another_asks() -> None:
    async def scenario() -> None:
        activation, provider = cache(), Provider()
        first, second, third = (
            asyncio.ensure_future(activation.get_or_ask(A, provider.ask)) for _ in range(3)
        )
        await settled()
        first.cancel()
        await settled()
        assert first.cancelled()
        assert provider.asked == 2
        provider.answer.set_result(b"a")
        assert sorted([await second, await third]) == [(b"a", False), (b"a", True)]
        assert (activation.hits, activation.misses) == (1, 2)

    run(scenario)


def test_a_waiting_one_that_is_cancelled_concerns_nobody_else() -> None:
    async def scenario() -> None:
        activation, provider = cache(), Provider()
        first, second, third = (
            asyncio.ensure_future(activation.get_or_ask(A, provider.ask)) for _ in range(3)
        )
        await settled()
        second.cancel()
        await settled()
        assert second.cancelled()
        provider.answer.set_result(b"a")
        assert [await first, await third] == [(b"a", False), (b"a", True)]
        assert provider.asked == 1

    run(scenario)


def test_where_asking_fails_all_fail_and_the_next_asks_again() -> None:
    async def scenario() -> None:
        activation, provider = cache(), Provider()
        tasks = [asyncio.ensure_future(activation.get_or_ask(A, provider.ask)) for _ in range(2)]
        await settled()
        error = ConnectionError()
        provider.answer.set_exception(error)
        assert await asyncio.gather(*tasks, return_exceptions=True) == [error, error]
        assert not activation.changed
        provider.answer = asyncio.get_running_loop().create_future()
        provider.answer.set_result(b"a")
        assert await activation.get_or_ask(A, provider.ask) == (b"a", False)
        assert provider.asked == 2

    run(scenario)


def test_one_that_fails_alone_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async def fail() -> bytes:
            raise ConnectionError

        with pytest.raises(ConnectionError):
            await cache().get_or_ask(A, fail)

    run(scenario)


def test_bad_state_is_found_before_anybody_is_asked() -> None:
    async def scenario() -> None:
        provider = Provider()
        with pytest.raises(StateUndecodable):
            await cache(b"\xff").get_or_ask(A, provider.ask)
        assert provider.asked == 0

    run(scenario)


def test_limits_pickle() -> None:
    limits = ReplayCacheLimits(max_entries=3)
    assert pickle.loads(pickle.dumps(limits)) == limits  # noqa: S301 - our own bytes

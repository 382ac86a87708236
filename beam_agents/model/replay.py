"""The replay cache: a retried activation gets the responses that it got before, and asks nobody again.

It has two tiers. The *committed* one is part of the key's state, so it commits and rolls back with the
bundle: it is the durable record of what was answered. Because it rolls back, there is a second one, the
*stash* of the worker process, which keeps what a failed bundle had been answered until the bundle comes
again.

Nothing here reads a clock, and nothing knows of Beam.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from google.protobuf.message import DecodeError

from beam_agents.checks import check_int
from beam_agents.errors import StateUndecodable, StateVersionUnsupported, hash_entity_key
from beam_agents.model.stash import begin_attempt, process_stash
from beam_agents.model.types import LlmResponse
from beam_agents.wire.beam_agents_pb2 import CachedResponse, ModelResponse, ReplayState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from beam_agents.model.stash import Stashed
    from beam_agents.model.types import LlmRequest

__all__ = [
    "REPLAY_STATE_VERSION",
    "ReplayCache",
    "ReplayCacheLimits",
    "begin_attempt",
    "decode_response",
    "encode_response",
    "request_digest",
]

REPLAY_STATE_VERSION: Final = 1
"""The newest ``state_schema_version`` of the replay cell that this code reads, and the one it writes."""

_CELL: Final = "replay"
_DIGEST_BYTES: Final = 32
_LENGTH: Final = struct.Struct(">Q")
_SEQ: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class ReplayCacheLimits:
    """What the committed tier may hold for one key.

    Attributes:
        max_entries: Number of responses.
        max_bytes: Size of the encoded state.
        max_entry_bytes: Size of one response; of a larger one only the digest is kept, so that a repeated
            request that is answered differently is still noticed.
        max_age_ms: Age of a response, milliseconds of event time.

    Raises:
        TypeError: A limit that is no int.
        ValueError: A limit below 1, or ``max_entry_bytes`` above ``max_bytes``.
    """

    max_entries: int = 64
    max_bytes: int = 262_144
    max_entry_bytes: int = 65_536
    max_age_ms: int = 86_400_000

    def __post_init__(self) -> None:
        for field in ("max_entries", "max_bytes", "max_entry_bytes", "max_age_ms"):
            check_int(f"ReplayCacheLimits.{field}", getattr(self, field), 1)
        if self.max_entry_bytes > self.max_bytes:
            raise ValueError(
                f"ReplayCacheLimits.max_entry_bytes ({self.max_entry_bytes}) must not exceed "
                f"max_bytes ({self.max_bytes})"
            )


def request_digest(
    domain: Literal["model", "tool"], request: LlmRequest, entity_key: bytes, seq: int
) -> bytes:
    """Return the identity of a request within the whole system, 32 bytes.

    Args:
        domain: What is asked: a model, or a read-only tool.
        request: The request; for a tool its name as ``model`` and its arguments as ``body``.
        entity_key: The entity's key.
        seq: The activation's seq.
    """
    digest = hashlib.sha256()
    # Names come from authors and may hold lone surrogates, which plain UTF-8 refuses.
    texts = (text.encode("utf-8", "surrogatepass") for text in (domain, request.model, request.nonce))
    for part in (*texts, request.body, entity_key):
        digest.update(_LENGTH.pack(len(part)))
        digest.update(part)
    digest.update(_SEQ.pack(seq))
    return digest.digest()


def encode_response(response: LlmResponse) -> bytes:
    """Serialise an answer: equal answers give equal bytes."""
    message = ModelResponse(
        body=response.body,
        prompt_tokens=response.prompt_tokens,
        completion_tokens=response.completion_tokens,
    )
    return message.SerializeToString(deterministic=True)


def decode_response(data: bytes) -> LlmResponse:
    """Undo :func:`encode_response`.

    Raises:
        StateUndecodable: The bytes are nothing that it wrote.
    """
    try:
        message = ModelResponse.FromString(data)
    except DecodeError:
        # The parser's own error may quote the bytes.
        raise StateUndecodable(_CELL) from None
    return LlmResponse(message.body, message.prompt_tokens, message.completion_tokens)


class ReplayCache:
    """What one activation sees of the cache.

    The state is parsed at the first look-up, or by :meth:`verify`: that is where bad state is found. An
    activation that asks nobody leaves the cell as it is.

    Recency is counted in activations: whatever one activation used was used at the same time, and ties go by
    digest. So neither the order nor the timing of concurrent calls reaches the state's bytes. Nor does the
    stash: a response is committed alike, whether it was asked for or came out of there.

    Used by one thread at a time. What one activation was answered is in reach until its end, whatever the
    limits of the committed tier are.

    Args:
        state: The replay cell's bytes; None where it is empty.
        limits: What the committed tier may hold.
        entity_key: The entity's key.
        seq: The activation's seq.
        now_ms: The activation clock, milliseconds since the Unix epoch.
        scope: The run whose responses in the stash may be used; None to do without the stash.

    Attributes:
        hits: Look-ups that were answered.
        misses: Look-ups that were not.
        drifts: Responses that differ from an earlier one to the same request.
    """

    __slots__ = (
        "_answers",
        "_committed",
        "_entity_key",
        "_in_flight",
        "_limits",
        "_now_ms",
        "_scope",
        "_seq",
        "_state",
        "_used",
        "drifts",
        "hits",
        "misses",
    )

    def __init__(
        self,
        state: bytes | None,
        *,
        limits: ReplayCacheLimits,
        entity_key: bytes,
        seq: int,
        now_ms: int,
        scope: str | None,
    ) -> None:
        self._state = state
        self._limits = limits
        self._entity_key = entity_key
        self._seq = seq
        self._now_ms = now_ms
        self._scope = scope
        self._committed: _Committed | None = None
        # What this activation used: the entries as they will be committed, and the responses in full.
        self._used: dict[bytes, CachedResponse] = {}
        self._answers: dict[bytes, bytes] = {}
        self._in_flight: dict[bytes, asyncio.Future[None]] = {}
        self.hits = 0
        self.misses = 0
        self.drifts = 0

    @property
    def changed(self) -> bool:
        """Whether this activation used the cache, so that :meth:`encode` must be asked what to commit."""
        return bool(self._used)

    def verify(self) -> None:
        """Parse the state now, where bad state must be found before anything is looked up.

        Raises:
            StateUndecodable: The key's replay state does not decode.
            StateVersionUnsupported: A newer version wrote it.
        """
        if self._state is not None:
            self._load()

    def get(self, digest: bytes) -> bytes | None:
        """Return the kept response to a request, or None.

        Raises:
            StateUndecodable: The key's replay state does not decode.
            StateVersionUnsupported: A newer version wrote it.
        """
        response = self._find(digest)
        if response is None:
            self.misses += 1
        else:
            self.hits += 1
        return response

    def put(self, digest: bytes, response: bytes) -> None:
        """Keep a response; one that differs from an earlier response to the same request counts as drift.

        Raises:
            StateUndecodable: The key's replay state does not decode.
            StateVersionUnsupported: A newer version wrote it.
        """
        self._load()
        response_digest = hashlib.sha256(response).digest()
        self._use(digest, response, response_digest, self._stashed(digest))
        if self._scope is not None:
            process_stash().put(self._scope, digest, response, response_digest)

    async def get_or_ask(self, digest: bytes, ask: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """Return the response to a request, asking for it only where nobody has asked yet.

        Equal requests of one activation that are in flight together are joined: the first asks, the others
        wait for what it is answered, and count as hits. Where ``ask`` raises, all of them raise. Where the
        one that asks is cancelled, one of the others asks in its place. The cancellation of one that waits
        concerns nobody else.

        Args:
            digest: The request's identity.
            ask: Asks for the response. Must not ask for the same digest itself.

        Returns:
            The response, and whether it was there already.

        Raises:
            StateUndecodable: The key's replay state does not decode.
            StateVersionUnsupported: A newer version wrote it.
            Exception: Whatever ``ask`` raises.
        """
        while (response := self._find(digest)) is None:
            earlier = self._in_flight.get(digest)
            if earlier is None:
                self.misses += 1
                return await self._ask(digest, ask), False
            # Unlike awaiting it, wait() does not cancel it when the one that waits is cancelled.
            await asyncio.wait((earlier,))
            earlier.result()
        self.hits += 1
        return response, True

    async def _ask(self, digest: bytes, ask: Callable[[], Awaitable[bytes]]) -> bytes:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight[digest] = answered
        try:
            response = await ask()
            self.put(digest, response)
        except Exception as error:
            answered.set_exception(error)
            # Looked at, so that asyncio does not report it as lost where nobody waits for it.
            answered.exception()
            raise
        else:
            return response
        finally:
            del self._in_flight[digest]
            if not answered.done():
                # Also where this one was cancelled: whoever waits then finds no response, and asks.
                answered.set_result(None)

    def encode(self) -> bytes | None:
        """Return the bytes to commit.

        They are the very object that was given where nothing changed. None is returned only where the cell
        was empty and stays so.
        """
        if not self._used:
            return self._state
        committed = self._load()
        entries = [entry for digest, entry in committed.entries.items() if digest not in self._used]
        entries += [self._used[digest] for digest in sorted(self._used)]
        message = ReplayState()
        message.CopyFrom(committed.header)
        message.entries.extend(_least_recent_out(entries, self._limits, message.ByteSize()))
        if self._state is None and not message.entries:
            return None
        encoded = message.SerializeToString(deterministic=True)
        return self._state if encoded == self._state else encoded

    def _load(self) -> _Committed:
        if self._committed is None:
            self._committed = _decode_state(self._state, self._limits, self._entity_key, self._now_ms)
        return self._committed

    def _find(self, digest: bytes) -> bytes | None:
        """Return a response without counting: what is committed goes before what is stashed."""
        response = self._answers.get(digest)
        if response is not None:
            return response
        entry = self._load().entries.get(digest)
        if entry is not None and entry.HasField("response"):
            response = entry.response
            if hashlib.sha256(response).digest() != entry.response_digest:
                raise StateUndecodable(_CELL, hash_entity_key(self._entity_key))
            self._used[digest] = entry
            self._answers[digest] = response
            return response
        stashed = self._stashed(digest)
        if stashed is None or stashed.response is None:
            return None
        self._use(digest, stashed.response, stashed.response_digest, stashed)
        return stashed.response

    def _stashed(self, digest: bytes) -> Stashed | None:
        return None if self._scope is None else process_stash().get(self._scope, digest)

    def _use(self, digest: bytes, response: bytes, response_digest: bytes, stashed: Stashed | None) -> None:
        """Take a response over into what is committed, and compare it with what is known of it."""
        earlier = self._used.get(digest) or self._load().entries.get(digest)
        known = {entry.response_digest for entry in (earlier, stashed) if entry is not None}
        if known - {response_digest}:
            self.drifts += 1
        self._answers[digest] = response
        if earlier is not None and earlier.response_digest == response_digest:
            # The entry stays as it was first stored.
            self._used[digest] = earlier
            return
        entry = CachedResponse(
            request_digest=digest,
            seq=self._seq,
            stored_at_ms=self._now_ms,
            response_digest=response_digest,
        )
        if len(response) <= self._limits.max_entry_bytes:
            entry.response = response
        self._used[digest] = entry


@dataclass(frozen=True, slots=True)
class _Committed:
    """The replay cell, parsed.

    Attributes:
        header: All but the entries: the version, and fields that a later version adds.
        entries: By request digest, the least recently used first.
    """

    header: ReplayState
    entries: dict[bytes, CachedResponse]


def _decode_state(
    state: bytes | None, limits: ReplayCacheLimits, entity_key: bytes, now_ms: int
) -> _Committed:
    """Parse the cell and leave out what is too old or too large: limits may have become tighter."""
    if state is None:
        return _Committed(ReplayState(state_schema_version=REPLAY_STATE_VERSION), {})
    try:
        header = ReplayState.FromString(state)
    except DecodeError:
        # The parser's own error may quote the bytes.
        raise StateUndecodable(_CELL, hash_entity_key(entity_key)) from None
    version = header.state_schema_version
    if version > REPLAY_STATE_VERSION:
        raise StateVersionUnsupported(_CELL, version, REPLAY_STATE_VERSION, hash_entity_key(entity_key))
    stored = list(header.entries)
    if version == 0 or not all(_has_digests(entry) for entry in stored):
        raise StateUndecodable(_CELL, hash_entity_key(entity_key))
    entries: dict[bytes, CachedResponse] = {}
    for entry in stored:
        if now_ms - entry.stored_at_ms > limits.max_age_ms:
            continue
        if len(entry.response) > limits.max_entry_bytes:
            entry.ClearField("response")
        entries[entry.request_digest] = entry
    header.ClearField("entries")
    return _Committed(header, entries)


def _has_digests(entry: CachedResponse) -> bool:
    return len(entry.request_digest) == _DIGEST_BYTES == len(entry.response_digest)


def _least_recent_out(
    entries: list[CachedResponse], limits: ReplayCacheLimits, header_bytes: int
) -> list[CachedResponse]:
    """Return the longest tail of the entries, most recently used last, that is within the limits."""
    left_bytes = limits.max_bytes - header_bytes
    count = 0
    for entry in reversed(entries[-limits.max_entries :]):
        size = entry.ByteSize()
        # Within ReplayState an entry is preceded by a tag of one byte and by its length, seven bits a byte.
        left_bytes -= 1 + max(1, (size.bit_length() + 6) // 7) + size
        if left_bytes < 0:
            break
        count += 1
    return entries[len(entries) - count :]

"""How the Redis store talks to its server: one pool, one deadline for each call, errors by type."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    InvalidResponse,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from beam_agents.errors import StoreError, StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.cutting import cut_off
from beam_agents.memory.stores.tls import is_untrusted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["Command", "RedisClient", "Script", "ScriptCall", "run_script", "send", "translated"]

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = "tuple[Argument, ...]"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the digest by which a server that has seen it knows it.

    Attributes:
        text: Its source.
        digest: The SHA-1 of the source, in hexadecimal.
    """

    text: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """What one call of a script is given.

    Attributes:
        keys: Its KEYS.
        arguments: Its ARGV.
    """

    keys: tuple[bytes, ...]
    arguments: tuple[Argument, ...]

    def by_digest(self, script: Script) -> Command:
        """Return the command for a server that has the script."""
        return ("EVALSHA", script.digest, len(self.keys), *self.keys, *self.arguments)

    def by_text(self, script: Script) -> Command:
        """Return the command that brings the script along."""
        return ("EVAL", script.text, len(self.keys), *self.keys, *self.arguments)


@dataclass(frozen=True, slots=True)
class _Open:
    """A client, and to whom it belongs."""

    redis: Redis
    slots: asyncio.Semaphore
    loop: asyncio.AbstractEventLoop
    pid: int


_inherited: list[_Open] = []
"""Clients that a forked child got from its parent. They are kept, never closed: closing one would take the
parent's sockets out of the epoll set that both processes share, and so would the finalizer of a lost one."""


class RedisClient:
    """The connections of one store, made at the first call."""

    def __init__(self, uri: StoreUri) -> None:
        self._uri = uri
        self._open: _Open | None = None
        self._closed = False

    @asynccontextmanager
    async def session(self, operation: str) -> AsyncIterator[Redis]:
        """Hold one of the pool's connections, under the deadline of one call.

        Waiting for a connection that others use counts against the deadline.

        Raises:
            StoreUnavailable: The server cannot be reached, or cannot serve now.
            StoreTimeout: The deadline passed.
            StoreRejected: The server refused.
            RuntimeError: The store is closed, or another event loop than this one uses it.
        """
        held = self._current()
        try:
            async with asyncio.timeout(self._uri.options.operation_timeout_s), held.slots:
                yield held.redis
        except (RedisError, OSError) as error:
            # Without the cause, whose text may quote what was sent.
            raise translated(error, operation) from None

    async def close(self) -> None:
        """Close all connections. A second call does nothing."""
        self._closed = True
        held, self._open = self._open, None
        if held is None:
            return
        if held.pid != os.getpid():
            _inherited.append(held)
            return
        try:
            async with asyncio.timeout(self._uri.options.connect_timeout_s):
                await held.redis.aclose()
        except (RedisError, OSError) as error:
            raise translated(error, "close") from None

    def _current(self) -> _Open:
        if self._closed:
            raise RuntimeError("the store is closed: open another")
        loop, pid, held = asyncio.get_running_loop(), os.getpid(), self._open
        if held is not None and held.pid != pid:
            _inherited.append(held)
            held = None
        if held is not None and held.loop is not loop:
            raise RuntimeError("a store belongs to the event loop that first used it: open another")
        if held is None:
            slots = asyncio.Semaphore(self._uri.options.pool_size)
            held = self._open = _Open(_make_client(self._uri), slots, loop, pid)
        return held


class _Cut(AbstractConnection):
    """A connection that is cut off where the client would close it and go on sending."""

    async def disconnect(  # type: ignore[override]  # what versions of the client add is passed on
        self,
        nowait: bool = False,  # noqa: FBT001, FBT002 - the client's
        **failure: Any,
    ) -> None:
        """Disconnect; ``nowait`` is how the client does it after an error or a cancellation."""
        if nowait and self._writer is not None:
            cut_off(self._writer.transport)
        await super().disconnect(nowait=nowait, **failure)


class _CutConnection(_Cut, Connection):
    """Without TLS."""


class _CutSslConnection(_Cut, SSLConnection):
    """With TLS."""


def _make_client(uri: StoreUri) -> Redis:
    options = uri.options
    redis = Redis(
        host=uri.host,
        port=uri.port,
        db=int(uri.database),
        username=uri.username or None,
        password=uri.password or None,
        ssl=uri.tls,
        # Said in full: older clients do not compare the host's name unless asked.
        ssl_cert_reqs="required",
        ssl_check_hostname=True,
        # The session's deadline bounds all that a call waits for. A second one here would make the client
        # use asyncio.wait_for, which on Python 3.11 can swallow a call's cancellation.
        socket_timeout=None,
        socket_connect_timeout=options.connect_timeout_s,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        # The older protocol is what every server speaks, and needs no handshake.
        protocol=2,
        # The session's slots are the bound. The client's own raises at once where ours waits, and counts a
        # connection that a cancelled call gives back a step later.
        max_connections=2**31,
    )
    redis.connection_pool.connection_class = _CutSslConnection if uri.tls else _CutConnection
    return redis


async def send(redis: Redis, commands: Sequence[Command]) -> list[object]:
    """Send commands in one round trip and return their replies; an error among them is raised."""
    replies = await _exchange(redis, commands)
    _raise_first(replies)
    return replies


async def run_script(redis: Redis, script: Script, calls: Sequence[ScriptCall]) -> list[object]:
    """Run a script for each of ``calls``, in one round trip, and return what each call returned.

    A server that does not have the script (it was restarted, or its scripts were flushed) is asked again
    with the script's text.
    """
    replies = await _exchange(redis, [call.by_digest(script) for call in calls])
    unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        again = await _exchange(redis, [calls[index].by_text(script) for index in unknown])
        for index, reply in zip(unknown, again, strict=True):
            replies[index] = reply
    _raise_first(replies)
    return replies


async def _exchange(redis: Redis, commands: Sequence[Command]) -> list[object]:
    # The client drops the connection if this is cancelled or fails before the last reply.
    if len(commands) == 1:
        # A pipeline takes a sixth longer than the command itself.
        try:
            return [await redis.execute_command(*commands[0])]  # type: ignore[no-untyped-call]  # the client's
        except ResponseError as error:
            return [error]
    pipeline = redis.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies: list[object] = await pipeline.execute(raise_on_error=False)
    return replies


def _raise_first(replies: Sequence[object]) -> None:
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply


_BUSY_CODES: Final = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"}
)
_CODE: Final = re.compile(r"(?:^|-)([A-Z]{2,20}) ")

_AUTHENTICATE: Final = "the server refused the user or the password: check both in the store's URI"
_PERMISSION: Final = (
    "the user lacks a permission: grant the commands and keys that docs/stores/redis.md lists (ACL SETUSER)"
)
_WRONG_TYPE: Final = (
    "a key under the store's prefix holds something else: set another key_prefix in the store's URI, or "
    "remove that key"
)
_CLUSTER: Final = (
    "the server is a node of a Redis Cluster, which is not supported: name a single server, or one endpoint "
    "of a primary and its replicas"
)
_CERTIFICATE: Final = (
    "the server's TLS certificate does not verify: name the host as the certificate does, and have the "
    "authority that signed it among the trusted ones (SSL_CERT_FILE)"
)
_NOT_REDIS: Final = "what answers does not speak the Redis protocol: check host and port in the store's URI"
_KINDS: Final[tuple[tuple[type[Exception], str | None], ...]] = (
    (ClusterDownError, None),
    (OutOfMemoryError, None),
    (ReadOnlyError, None),
    (TryAgainError, None),
    # A connection error to the client, but one that stays.
    (AuthenticationError, _AUTHENTICATE),
    (NoPermissionError, _PERMISSION),
    (AskError, _CLUSTER),
    (ClusterCrossSlotError, _CLUSTER),
    (InvalidResponse, _NOT_REDIS),
)
"""By type: what would mend it; None for what a later try may not meet."""

_PROBLEMS: Final = {
    "ASK": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "MOVED": _CLUSTER,
    "NOAUTH": _AUTHENTICATE,
    "NOPERM": _PERMISSION,
    "WRONGPASS": _AUTHENTICATE,
    "WRONGTYPE": _WRONG_TYPE,
}
_PHRASES: Final = (
    ("can't run this command", _PERMISSION),
    ("can't access at least one of the keys", _PERMISSION),
    ("DB index is out of range", "the server has no such database: check the number in the store's URI"),
    ("unknown command", "the server lacks a command that the store needs: Redis 6.0 or later is required"),
)
"""What the server says without a code of its own, and what would mend it."""


def translated(error: Exception, operation: str) -> StoreError:
    """Return the project's error for one of the client's, with nothing of its text."""
    cause = type(error).__name__
    if isinstance(error, (TimeoutError, RedisTimeoutError)):
        return StoreTimeout("redis", operation, cause)
    problem = _problem(error)
    if problem is not None:
        return StoreRejected("redis", operation, cause, problem=problem)
    return StoreUnavailable("redis", operation, cause)


def _problem(error: Exception) -> str | None:
    """Return what is wrong and would be wrong again; None for what a later try may not meet."""
    for kind, problem in _KINDS:
        if isinstance(error, kind):
            return problem
    if isinstance(error, ResponseError):
        return _problem_of_reply(error)
    if isinstance(error, (RedisConnectionError, OSError)):
        return _CERTIFICATE if is_untrusted(error) else None
    return "the client refused to send the call"


def _problem_of_reply(error: ResponseError) -> str | None:
    # A server before 7.0 puts the code of what a script met into its own text: "… -OOM command not allowed".
    text = str(error)
    codes = set(_CODE.findall(text))
    if codes & _BUSY_CODES:
        return None
    for code, problem in _PROBLEMS.items():
        if code in codes:
            return problem
    for phrase, problem in _PHRASES:
        if phrase in text:
            return problem
    return "the server refused the call; its own log or MONITOR tells why"

"""Whether a store is fit for use: each step that the runtime and the operator's commands take, timed.

Steps that only read, or delete nothing, come first. A row is written only if it can be deleted again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.errors import StoreError, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.contract import StoreRow, encode_record
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from beam_agents.cli.store_session import OpenStore
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["RESERVED_ENTITY", "CheckStep", "check_store"]

RESERVED_ENTITY: Final = b"\x00beam-agents-check"
"""What the entity keys of checks begin with; random bytes follow, so that two checks do not meet."""

_KEY: Final = "check"
_BROKEN_GUARD: Final = (
    "the guard does not hold: report it with the backend's version, and do not use this store"
)


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One step of a check.

    Attributes:
        name: What was tried.
        seconds: How long it took.
        problem: What is wrong and what would mend it; empty if nothing is.
    """

    name: str
    seconds: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return not self.problem


class _Wrong(Exception):
    """A call succeeded, and its answer is not what the contract asks for."""


async def check_store(opened: OpenStore, now_ms: int) -> list[CheckStep]:
    """Take the steps of a check, up to the first that makes the rest pointless.

    Args:
        opened: The store.
        now_ms: What the row that is written says, milliseconds since the Unix epoch.
    """
    check = _Check(opened, RESERVED_ENTITY + secrets.token_bytes(8), now_ms)
    steps = [await _timed("connect", check.connect, opened.uri)]
    if not steps[0].ok:
        return steps
    steps += [
        await _timed(name, step, opened.uri)
        for name, step in (
            ("read (schema, permission)", check.read_nothing),
            ("scan (permission)", check.scan_nothing),
            ("delete (permission)", check.delete_nothing),
        )
    ]
    if not all(step.ok for step in steps):
        return steps
    try:
        return steps + await _round_trip(check, opened.uri)
    except asyncio.CancelledError:
        await check.clean_up()
        raise


async def _round_trip(check: _Check, uri: StoreUri) -> list[CheckStep]:
    """Take the steps of a row's life; delete it if one fails."""
    steps: list[CheckStep] = []
    for name, step in (
        ("write", check.write),
        ("read back", check.read_back),
        ("search", check.search),
        ("write a stale row", check.write_stale),
        ("scan", check.scan),
        ("delete", check.delete),
    ):
        steps.append(await _timed(name, step, uri))
        if not steps[-1].ok:
            steps.append(await _timed("clean up", check.clean_up, uri))
            break
    return steps


class _Check:
    """The steps. Each raises a StoreError, or _Wrong."""

    def __init__(self, opened: OpenStore, entity_key: bytes, now_ms: int) -> None:
        self._store, self._admin = opened.store, opened.admin
        self._entity_key = entity_key
        self._new, self._old = (
            StoreRow(entity_key, _KEY, seq, encode_record(b"check", seq, now_ms), now_ms) for seq in (2, 1)
        )

    async def connect(self) -> None:
        await self._store.ping()

    async def read_nothing(self) -> None:
        await self._expect(None)

    async def scan_nothing(self) -> None:
        if await self._admin.scan(None, 1, entity_key=self._entity_key):
            raise _Wrong("the scan of an entity that has no rows returned one")

    async def delete_nothing(self) -> None:
        if await self._admin.delete([self._new]):
            raise _Wrong("a row was deleted that was never written")

    async def write(self) -> None:
        if await self._store.save_many([self._new]) != [UpsertResult.APPLIED]:
            raise _Wrong("the first write of a row was not applied")

    async def read_back(self) -> None:
        await self._expect(self._new)

    async def search(self) -> None:
        if await self._store.search(self._entity_key, _KEY, 2) != [self._new]:
            raise _Wrong("the search did not find the row that was written")

    async def write_stale(self) -> None:
        if await self._store.save_many([self._old]) != [UpsertResult.STALE]:
            raise _Wrong(_BROKEN_GUARD)
        await self._expect(self._new)

    async def scan(self) -> None:
        if await self._admin.scan(None, 2, entity_key=self._entity_key) != [self._new]:
            raise _Wrong("the scan did not find the row that was written")

    async def delete(self) -> None:
        if await self._admin.delete([self._old]):
            raise _Wrong("a row was deleted that has another seq")
        if await self._admin.delete([self._new]) != 1:
            raise _Wrong("the row that was written was not deleted")
        await self._expect(None)

    async def clean_up(self) -> None:
        for row in (self._new, self._old):
            await self._admin.delete([row])
        await self._expect(None)

    async def _expect(self, row: StoreRow | None) -> None:
        if await self._store.load(self._entity_key, _KEY) != row:
            raise _Wrong(
                "a row was read that was never written"
                if row is None
                else "what was read is not what was written: reads must see writes at once, "
                "so let the URI name the primary"
            )


async def _timed(name: str, step: Callable[[], Awaitable[None]], uri: StoreUri) -> CheckStep:
    started_s = time.perf_counter()
    problem = ""
    try:
        await step()
    except StoreError as error:
        problem = f"{error}{_remedy(error, uri)}"
    except _Wrong as wrong:
        problem = str(wrong)
    return CheckStep(name, time.perf_counter() - started_s, problem)


def _remedy(error: StoreError, uri: StoreUri) -> str:
    """Return what would mend a failure whose own text does not say it."""
    if isinstance(error, StoreTimeout):
        return (
            f". The bounds are {uri.options.connect_timeout_s:g} s to connect and "
            f"{uri.options.operation_timeout_s:g} s a call: see whether the server is frozen, overloaded or "
            "behind a firewall; if it is only slow, raise operation_timeout_s in the URI"
        )
    if isinstance(error, StoreUnavailable):
        where = f"{uri.host}:{uri.port}" if uri.host else uri.redacted
        return f". See that the server runs, that {where} is its address, and what its log says"
    return ""

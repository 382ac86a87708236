"""Long-term rows in Redis: one hash per entity, and sorted sets that keep keys and entities in order.

Below the store's prefix:

======== ========== ================================================================================
key      type       holds
======== ========== ================================================================================
h:entity hash       a row's key, as UTF-8, and its value: seq and updated_at_ms in 8 bytes each, rec
k:entity sorted set the entity's row keys, all with score 0, hence in the order of their bytes
entities sorted set the entity keys, likewise
======== ========== ================================================================================

All three are written by the same script, so that no reader sees one without the others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.errors import StoreRejected
from beam_agents.memory.stores.contract import MemoryStore, StoreAdmin, StoreLimits, StoreRow
from beam_agents.memory.stores.redis_client import RedisClient, Script, ScriptCall, run_script, send
from beam_agents.signals.types import UpsertResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeGuard

    from redis.asyncio import Redis

    from beam_agents.memory.stores.contract import RowId
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["RedisAdmin", "RedisStore"]

MAX_VALUE_BYTES: Final = 16 * 1024 * 1024

_HEADER: Final = struct.Struct(">Qq")
_SEQ: Final = struct.Struct(">Q")
_ABOVE_UTF8: Final = b"\xff"
"""Greater than any byte of a key: UTF-8 has none such."""

_ENTITIES_AT_ONCE: Final = 100

_RESULTS: Final = {ord("0"): UpsertResult.STALE, ord("1"): UpsertResult.APPLIED}
"""By the digit that the script returns for a row."""

_SAVE: Final = Script("""\
local rows, keys, entities = KEYS[1], KEYS[2], KEYS[3]

-- Byte by byte: Lua's < on strings follows the locale, and its numbers hold 53 bits. Without a loop, which
-- would cost more than all the rest.
local function is_newer(stored, incoming)
  local a1, a2, a3, a4, a5, a6, a7, a8 = string.byte(stored, 1, 8)
  local b1, b2, b3, b4, b5, b6, b7, b8 = string.byte(incoming, 1, 8)
  if a1 ~= b1 then return a1 > b1 end
  if a2 ~= b2 then return a2 > b2 end
  if a3 ~= b3 then return a3 > b3 end
  if a4 ~= b4 then return a4 > b4 end
  if a5 ~= b5 then return a5 > b5 end
  if a6 ~= b6 then return a6 > b6 end
  if a7 ~= b7 then return a7 > b7 end
  return a8 > b8
end

local results, fields, members = {}, {}, {}
local count = (#ARGV - 1) / 2
-- A thousand at a time: what a Lua call can be handed is limited.
for first = 1, count, 1000 do
  local last = math.min(first + 999, count)
  local stored = redis.call('HMGET', rows, unpack(ARGV, first + 1, last + 1))
  for at = first, last do
    local field, value, old = ARGV[at + 1], ARGV[count + at + 1], stored[at - first + 1]
    if old and #old < 16 then return redis.error_reply('WRONGTYPE a field holds no row') end
    if old and is_newer(old, value) then
      results[at] = '0'
    else
      results[at] = '1'
      fields[#fields + 1] = field
      fields[#fields + 1] = value
      members[#members + 1] = 0
      members[#members + 1] = field
    end
  end
end
if #fields == 0 then return table.concat(results) end

-- The index first: should a later command fail, it names too much, which readers pass over, never too little.
redis.call('ZADD', entities, 0, ARGV[1])
for at = 1, #members, 1000 do
  redis.call('ZADD', keys, unpack(members, at, math.min(at + 999, #members)))
end
for at = 1, #fields, 1000 do
  redis.call('HSET', rows, unpack(fields, at, math.min(at + 999, #fields)))
end
-- A deadline that an operator set was meant for the rows that there were.
redis.call('PERSIST', rows)
redis.call('PERSIST', keys)
-- A string of digits, which a client reads faster than a list.
return table.concat(results)
""")

_SEARCH: Final = Script("""\
local rows, keys, low, high, limit = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local found, count = {}, 0
while count < limit do
  local page = redis.call('ZRANGEBYLEX', keys, low, high, 'LIMIT', 0, math.min(limit - count, 500))
  if #page == 0 then break end
  local values = redis.call('HMGET', rows, unpack(page))
  for at = 1, #page do
    if values[at] then
      found[#found + 1] = page[at]
      found[#found + 1] = values[at]
      count = count + 1
    end
  end
  low = '(' .. page[#page]
end
return found
""")

_DELETE: Final = Script("""\
local rows, keys, entities = KEYS[1], KEYS[2], KEYS[3]
local deleted = 0
for at = 2, #ARGV, 2 do
  local field, seq = ARGV[at], ARGV[at + 1]
  local stored = redis.call('HGET', rows, field)
  if stored and string.sub(stored, 1, 8) == seq then
    redis.call('HDEL', rows, field)
    redis.call('ZREM', keys, field)
    deleted = deleted + 1
  end
end
if redis.call('EXISTS', rows) == 0 then
  redis.call('DEL', keys)
  redis.call('ZREM', entities, ARGV[1])
end
return deleted
""")

_REPLACE: Final = Script("""\
local rows, field, seq, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local stored = redis.call('HGET', rows, field)
if not stored or string.sub(stored, 1, 8) ~= seq then return 0 end
redis.call('HSET', rows, field, value)
return 1
""")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where things are below a prefix."""

    prefix: bytes

    @property
    def entities(self) -> bytes:
        return self.prefix + b"entities"

    def rows(self, entity_key: bytes) -> bytes:
        return self.prefix + b"h:" + entity_key

    def keys(self, entity_key: bytes) -> bytes:
        return self.prefix + b"k:" + entity_key

    def save(self, entity_key: bytes, rows: Sequence[StoreRow]) -> ScriptCall:
        fields, values = [row.key.encode() for row in rows], [_pack(row) for row in rows]
        return ScriptCall(self._all(entity_key), (entity_key, *fields, *values))

    def search(self, entity_key: bytes, low: bytes, high: bytes, limit: int) -> ScriptCall:
        keys = (self.rows(entity_key), self.keys(entity_key))
        return ScriptCall(keys, (low, high, limit))

    def delete(self, entity_key: bytes, rows: Iterable[StoreRow]) -> ScriptCall:
        arguments: list[bytes] = [entity_key]
        for row in rows:
            arguments += (row.key.encode(), _SEQ.pack(row.seq))
        return ScriptCall(self._all(entity_key), tuple(arguments))

    def replace(self, row: StoreRow, replacement: StoreRow) -> ScriptCall:
        arguments = (row.key.encode(), _SEQ.pack(row.seq), _pack(replacement))
        return ScriptCall((self.rows(row.entity_key),), arguments)

    def _all(self, entity_key: bytes) -> tuple[bytes, ...]:
        return self.rows(entity_key), self.keys(entity_key), self.entities


class RedisStore(MemoryStore):
    """``redis://`` and ``rediss://``: a single server, or one endpoint of a primary and its replicas.

    An entity's part of a batch is atomic, and all of them take one round trip.
    """

    limits = StoreLimits(max_value_bytes=MAX_VALUE_BYTES)

    def __init__(self, uri: StoreUri) -> None:
        super().__init__(uri)
        self.client = RedisClient(uri)
        self.layout = _Layout(uri.options.key_prefix.encode())

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        async with self.client.session("load") as redis:
            (value,) = await send(redis, [("HGET", self.layout.rows(entity_key), key.encode())])
        return None if value is None else _unpack(entity_key, key.encode(), value, "load")

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first rows whose key begins with ``prefix``, by the key's bytes."""
        low, high = b"[" + prefix.encode(), b"(" + prefix.encode() + _ABOVE_UTF8
        call = self.layout.search(entity_key, low, high, limit)
        async with self.client.session("search") as redis:
            (found,) = await run_script(redis, _SEARCH, [call])
        return _unpack_all(entity_key, found, "search")

    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        """Upsert rows under the guard; each entity's are applied in one step."""
        if not rows:
            return []
        by_entity = _by_entity(rows)
        calls = [self.layout.save(entity_key, part) for entity_key, part in by_entity.items()]
        async with self.client.session("flush") as redis:
            replies = await run_script(redis, _SAVE, calls)
        digits: dict[bytes, Iterator[int]] = {}
        for entity_key, reply in zip(by_entity, replies, strict=True):
            if not isinstance(reply, bytes) or len(reply) != len(by_entity[entity_key]):
                raise _foreign("flush")
            digits[entity_key] = iter(reply)
        return [_RESULTS[next(digits[row.entity_key])] for row in rows]

    async def ping(self) -> None:
        """Ask for a sign of life."""
        async with self.client.session("ping") as redis:
            await send(redis, [("PING",)])

    async def close(self) -> None:
        """Close all connections. A second call does nothing."""
        await self.client.close()


class RedisAdmin(StoreAdmin):
    """The operator's side of a Redis store."""

    def __init__(self, store: MemoryStore) -> None:
        if not isinstance(store, RedisStore):
            raise TypeError(f"RedisAdmin needs a RedisStore, not {type(store).__name__}")
        super().__init__(store)
        self._client = store.client
        self._layout = store.layout

    def provision_plan(self) -> str:
        """Say that nothing is needed."""
        return "nothing to create: Redis makes its keys as rows are written"

    async def provision(self) -> bool:
        """Do nothing."""
        return False

    async def scan(
        self, after: RowId | None, limit: int, *, entity_key: bytes | None = None
    ) -> list[StoreRow]:
        """Return the next rows after a place, in the order of RowId, of one entity or of all."""
        found: list[StoreRow] = []
        async with self._client.session("scan") as redis:
            if entity_key is not None:
                if after is None or after.entity_key <= entity_key:
                    low = _after(after) if after and after.entity_key == entity_key else b"-"
                    found = await self._read(redis, {entity_key: low}, limit)
                return found
            low = b"-"
            if after is not None:
                found = await self._read(redis, {after.entity_key: _after(after)}, limit)
                low = b"(" + after.entity_key
            while len(found) < limit and (entities := await self._entities(redis, low)):
                counts = await send(redis, [("HLEN", self._layout.rows(each)) for each in entities])
                wanted = _as_many_as_needed(entities, counts, limit - len(found))
                found += await self._read(redis, dict.fromkeys(wanted, b"-"), limit - len(found))
                low = b"(" + wanted[-1]
        return found

    async def _entities(self, redis: Redis, low: bytes) -> list[bytes]:
        command = ("ZRANGEBYLEX", self._layout.entities, low, b"+", "LIMIT", 0, _ENTITIES_AT_ONCE)
        (reply,) = await send(redis, [command])
        return [each for each in _listed(reply, "scan") if isinstance(each, bytes)]

    async def _read(self, redis: Redis, lows: Mapping[bytes, bytes], limit: int) -> list[StoreRow]:
        """Return rows of entities, each from a place on, up to a number in all."""
        calls = [self._layout.search(entity_key, low, b"+", limit) for entity_key, low in lows.items()]
        replies = await run_script(redis, _SEARCH, calls)
        found: list[StoreRow] = []
        for entity_key, reply in zip(lows, replies, strict=True):
            found += _unpack_all(entity_key, reply, "scan")
        return found[:limit]

    async def delete(self, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have the seq that is given; return how many were deleted."""
        if not rows:
            return 0
        calls = [self._layout.delete(entity_key, part) for entity_key, part in _by_entity(rows).items()]
        async with self._client.session("delete") as redis:
            replies = await run_script(redis, _DELETE, calls)
        return sum(reply for reply in replies if isinstance(reply, int))

    async def replace_seq(self, row: StoreRow, replacement: StoreRow) -> bool:
        """Put a row in the place of one that still has the seq that is given, whatever the guard says."""
        async with self._client.session("replace_seq") as redis:
            (reply,) = await run_script(redis, _REPLACE, [self._layout.replace(row, replacement)])
        return reply == 1


def _by_entity(rows: Iterable[StoreRow]) -> dict[bytes, list[StoreRow]]:
    parts: dict[bytes, list[StoreRow]] = {}
    for row in rows:
        parts.setdefault(row.entity_key, []).append(row)
    return parts


def _after(place: RowId) -> bytes:
    """Return the bound that leaves out a row's key and all before it."""
    return b"(" + place.key.encode()


def _as_many_as_needed(entities: Sequence[bytes], counts: Sequence[object], rows: int) -> list[bytes]:
    """Return the first entities that have ``rows`` rows together, or all."""
    wanted: list[bytes] = []
    for entity_key, count in zip(entities, counts, strict=True):
        wanted.append(entity_key)
        rows -= count if isinstance(count, int) else 0
        if rows <= 0:
            break
    return wanted


def _pack(row: StoreRow) -> bytes:
    return _HEADER.pack(row.seq, row.updated_at_ms) + row.rec


def _unpack(entity_key: bytes, field: bytes, value: object, operation: str) -> StoreRow:
    if not isinstance(value, bytes) or len(value) < _HEADER.size:
        raise _foreign(operation)
    seq, updated_at_ms = _HEADER.unpack_from(value)
    return StoreRow(entity_key, field.decode(), seq, value[_HEADER.size :], updated_at_ms)


def _unpack_all(entity_key: bytes, reply: object, operation: str) -> list[StoreRow]:
    """Return rows from keys and values in turn."""
    flat = _listed(reply, operation)
    if not _all_bytes(flat):
        raise _foreign(operation)
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return [_unpack(entity_key, field, value, operation) for field, value in pairs]


def _all_bytes(values: list[object]) -> TypeGuard[list[bytes]]:
    return all(isinstance(each, bytes) for each in values)


def _listed(reply: object, operation: str) -> list[object]:
    if not isinstance(reply, list):
        raise _foreign(operation)
    return reply


def _foreign(operation: str) -> StoreRejected:
    return StoreRejected(
        "redis",
        operation,
        problem="a key under the store's prefix holds what this store did not write: set another key_prefix "
        "in the store's URI",
    )

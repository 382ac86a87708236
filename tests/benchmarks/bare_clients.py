"""What one would write by hand on each store's client library, for the stores to be measured against.

Each does the same work on the same tables, keys and documents: guarded upserts that tell what the guard did,
in one round trip where the server can, one row by its key, and the first rows of a range.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import aiosqlite
import asyncmy
import asyncpg
from google.cloud.bigtable import data as bigtable
from google.cloud.bigtable.data import row_filters
from google.cloud.firestore import AsyncClient
from google.cloud.firestore_v1.base_query import FieldFilter
from redis.asyncio import Redis

from beam_agents.memory.stores.bigtable import FAMILY, REC, SEQ, decode_row_key, encode_row_key
from beam_agents.memory.stores.firestore import decode_document_id, encode_document_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.contract import StoreRow
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["BARE_CLIENTS", "BareClient"]


class BareClient(ABC):
    """A client library without what this project puts around it."""

    def __init__(self, uri: StoreUri) -> None:
        self.uri = uri

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def flush(self, rows: Sequence[StoreRow]) -> list[bool]:
        """Upsert rows under the guard and tell which were applied."""

    @abstractmethod
    async def load(self, entity_key: bytes, key: str) -> bytes | None:
        """Return a row's record."""

    @abstractmethod
    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[tuple[str, bytes]]:
        """Return key and record of the first rows whose key begins with ``prefix``."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


_SAVE: Final = """\
local results = {}
for at = 2, #ARGV, 2 do
  local stored = redis.call('HGET', KEYS[1], ARGV[at])
  if stored and string.sub(stored, 1, 8) > string.sub(ARGV[at + 1], 1, 8) then
    results[#results + 1] = 0
  else
    redis.call('ZADD', KEYS[2], 0, ARGV[at])
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
    results[#results + 1] = 1
  end
end
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return results
"""
_SEARCH: Final = """\
local keys = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, tonumber(ARGV[3]))
if #keys == 0 then return {{}, {}} end
return {keys, redis.call('HMGET', KEYS[1], unpack(keys))}
"""
_HEADER: Final = struct.Struct(">Qq")


class BareRedis(BareClient):
    """redis-py, with scripts."""

    async def open(self) -> None:
        self._redis = Redis(host=self.uri.host, port=self.uri.port)
        self._save = self._redis.register_script(_SAVE)
        self._search = self._redis.register_script(_SEARCH)

    @staticmethod
    def _keys(entity_key: bytes) -> list[tuple[str, bytes]]:
        return [b"bare:rows:" + entity_key, b"bare:keys:" + entity_key, b"bare:entities"]

    async def flush(self, rows: Sequence[StoreRow]) -> list[bool]:
        arguments = [rows[0].entity_key]
        for row in rows:
            arguments += (row.key.encode(), _HEADER.pack(row.seq, row.updated_at_ms) + row.rec)
        found = await self._save(self._keys(rows[0].entity_key), arguments)
        return [each == 1 for each in found]

    async def load(self, entity_key: bytes, key: str) -> bytes | None:
        found = await self._redis.hget(self._keys(entity_key)[0], key.encode())
        return None if found is None else found[_HEADER.size :]

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[tuple[str, bytes]]:
        bounds = [b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff", limit]
        keys, found = await self._search(self._keys(entity_key), bounds)
        return [(key.decode(), each[_HEADER.size :]) for key, each in zip(keys, found, strict=True)]

    async def close(self) -> None:
        await self._redis.aclose()


def _values(rows: Sequence[StoreRow]) -> list[bytes | int]:
    values: list[bytes | int] = []
    for row in rows:
        values += (row.entity_key, row.key.encode(), row.seq, row.rec, row.updated_at_ms)
    return values


class BarePostgresql(BareClient):
    """asyncpg, with arrays for a batch."""

    async def open(self) -> None:
        # No pool: asyncpg's asks the server once more each time that a connection is given back.
        self._connection = await asyncpg.connect(
            host=self.uri.host, port=self.uri.port, user=self.uri.username, database=self.uri.database
        )

    async def flush(self, rows: Sequence[StoreRow]) -> list[bool]:
        found = await self._connection.fetch(
            "INSERT INTO beam_agents_longterm AS t (entity_key, key, seq, rec, updated_at_ms) "
            "SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[]) "
            "ON CONFLICT (entity_key, key) DO UPDATE SET seq = excluded.seq, rec = excluded.rec, "
            "updated_at_ms = excluded.updated_at_ms WHERE excluded.seq >= t.seq RETURNING t.key",
            [row.entity_key for row in rows],
            [row.key.encode() for row in rows],
            [row.seq for row in rows],
            [row.rec for row in rows],
            [row.updated_at_ms for row in rows],
        )
        applied = {each[0] for each in found}
        return [row.key.encode() in applied for row in rows]

    async def load(self, entity_key: bytes, key: str) -> bytes | None:
        found = await self._connection.fetchrow(
            "SELECT * FROM beam_agents_longterm WHERE entity_key = $1 AND key = $2", entity_key, key.encode()
        )
        return None if found is None else found["rec"]

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[tuple[str, bytes]]:
        found = await self._connection.fetch(
            "SELECT * FROM beam_agents_longterm WHERE entity_key = $1 AND key >= $2 AND key < $3 "
            "ORDER BY key LIMIT $4",
            entity_key,
            prefix.encode(),
            prefix.encode() + b"\xff",
            limit,
        )
        return [(each["key"].decode(), each["rec"]) for each in found]

    async def close(self) -> None:
        await self._connection.close()


class BareSqlite(BareClient):
    """aiosqlite, one statement for a batch."""

    async def open(self) -> None:
        self._connection = await aiosqlite.connect(self.uri.database, isolation_level=None)
        await self._connection.execute_fetchall("PRAGMA synchronous = NORMAL")

    async def flush(self, rows: Sequence[StoreRow]) -> list[bool]:
        places = ", ".join(["(?, ?, ?, ?, ?)"] * len(rows))
        found = await self._connection.execute_fetchall(
            "INSERT INTO beam_agents_longterm (entity_key, key, seq, rec, updated_at_ms) "  # noqa: S608 - fixed
            f"VALUES {places} ON CONFLICT (entity_key, key) DO UPDATE SET seq = excluded.seq, "
            "rec = excluded.rec, updated_at_ms = excluded.updated_at_ms "
            "WHERE excluded.seq >= beam_agents_longterm.seq RETURNING key",
            _values(rows),
        )
        applied = {each[0] for each in found}
        return [row.key.encode() in applied for row in rows]

    async def load(self, entity_key: bytes, key: str) -> bytes | None:
        found = await self._connection.execute_fetchall(
            "SELECT * FROM beam_agents_longterm WHERE entity_key = ? AND key = ?", (entity_key, key.encode())
        )
        return next((each[3] for each in found), None)

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[tuple[str, bytes]]:
        found = await self._connection.execute_fetchall(
            "SELECT * FROM beam_agents_longterm WHERE entity_key = ? AND key >= ? AND key < ? "
            "ORDER BY key LIMIT ?",
            (entity_key, prefix.encode(), prefix.encode() + b"\xff", limit),
        )
        return [(each[1].decode(), each[3]) for each in found]

    async def close(self) -> None:
        await self._connection.close()


class BareMariadb(BareClient):
    """asyncmy, one statement for a batch."""

    async def open(self) -> None:
        uri = self.uri
        self._connection = await asyncmy.connect(
            host=uri.host,
            port=uri.port,
            user=uri.username,
            password=uri.password.encode(),
            database=uri.database,
            autocommit=True,
            binary_prefix=True,
        )

    async def _fetch(self, statement: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
        async with self._connection.cursor() as cursor:
            await cursor.execute(statement, values)
            found: Sequence[Sequence[Any]] = await cursor.fetchall()
            return found

    async def flush(self, rows: Sequence[StoreRow]) -> list[bool]:
        places = ", ".join(["(%s, %s, %s, %s, %s)"] * len(rows))
        found = await self._fetch(
            "INSERT INTO beam_agents_longterm (entity_key, `key`, seq, rec, updated_at_ms) "  # noqa: S608 - fixed
            f"VALUES {places} ON DUPLICATE KEY UPDATE rec = IF(VALUES(seq) >= seq, VALUES(rec), rec), "
            "updated_at_ms = IF(VALUES(seq) >= seq, VALUES(updated_at_ms), updated_at_ms), "
            "seq = GREATEST(seq, VALUES(seq)) RETURNING `key`, seq",
            _values(rows),
        )
        seqs = dict(found)
        return [seqs[row.key.encode()] == row.seq for row in rows]

    async def load(self, entity_key: bytes, key: str) -> bytes | None:
        found = await self._fetch(
            "SELECT * FROM beam_agents_longterm WHERE entity_key = %s AND `key` = %s",
            (entity_key, key.encode()),
        )
        return next((each[3] for each in found), None)

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[tuple[str, bytes]]:
        found = await self._fetch(
            "SELECT * FROM beam_agents_longterm WHERE entity_key = %s AND `key` >= %s AND `key` < %s "
            "ORDER BY `key` LIMIT %s",
            (entity_key, prefix.encode(), prefix.encode() + b"\xff", limit),
        )
        return [(each[1].decode(), each[3]) for each in found]

    async def close(self) -> None:
        await self._connection.ensure_closed()


class BareBigtable(BareClient):
    """Bigtable's data client: a guarded call for each row, all at once."""

    async def open(self) -> None:
        self._client = bigtable.BigtableDataClientAsync(project=self.uri.project)
        self._table = self._client.get_table(self.uri.instance, self.uri.table)

    async def flush(self, rows: Sequence[StoreRow]) -> list[bool]:
        stale = await asyncio.gather(*(self._save(row) for row in rows))
        return [not each for each in stale]

    async def _save(self, row: StoreRow) -> bool:
        seq = row.seq.to_bytes(8, "big")
        at = row.updated_at_ms * 1000
        above: bool = await self._table.check_and_mutate_row(
            encode_row_key(row.entity_key, row.key),
            row_filters.RowFilterChain(
                [
                    row_filters.FamilyNameRegexFilter(FAMILY),
                    row_filters.ColumnQualifierRegexFilter(SEQ),
                    row_filters.CellsColumnLimitFilter(1),
                    row_filters.ValueRangeFilter(start_value=seq, inclusive_start=False),
                ]
            ),
            false_case_mutations=[
                bigtable.DeleteAllFromFamily(FAMILY),
                bigtable.SetCell(FAMILY, SEQ, seq, timestamp_micros=at),
                bigtable.SetCell(FAMILY, REC, row.rec, timestamp_micros=at),
            ],
        )
        return above

    async def load(self, entity_key: bytes, key: str) -> bytes | None:
        found = await self._table.read_row(
            encode_row_key(entity_key, key), row_filter=row_filters.CellsColumnLimitFilter(1)
        )
        return None if found is None else found.get_cells(FAMILY, REC)[0].value

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[tuple[str, bytes]]:
        first = encode_row_key(entity_key, prefix)
        query = bigtable.ReadRowsQuery(
            row_ranges=[bigtable.RowRange(first, first + b"\xff")],
            limit=limit,
            row_filter=row_filters.CellsColumnLimitFilter(1),
        )
        found = await self._table.read_rows(query)
        return [(decode_row_key(each.row_key).key, each.get_cells(FAMILY, REC)[0].value) for each in found]

    async def close(self) -> None:
        await self._client.close()


class BareFirestore(BareClient):
    """Firestore's client: a read of what is there, and one commit with preconditions."""

    async def open(self) -> None:
        self._client = AsyncClient(project=self.uri.project)
        self._collection = self._client.collection(self.uri.collection)

    async def flush(self, rows: Sequence[StoreRow]) -> list[bool]:
        places = [self._collection.document(encode_document_id(row.entity_key, row.key)) for row in rows]
        stored = {
            each.id: each async for each in self._client.get_all(places, field_paths=["seq"]) if each.exists
        }
        batch = self._client.batch()
        applied = []
        for row, place in zip(rows, places, strict=True):
            found = stored.get(place.id)
            applied.append(found is None or found.get("seq") <= row.seq)
            fields = {
                "seq": row.seq,
                "rec": row.rec,
                "at_ms": row.updated_at_ms,
                "at": dt.datetime.fromtimestamp(row.updated_at_ms / 1000, dt.UTC),
            }
            if found is None:
                batch.create(place, fields)
            elif applied[-1]:
                batch.update(place, fields, self._client.write_option(last_update_time=found.update_time))
        await batch.commit()
        return applied

    async def load(self, entity_key: bytes, key: str) -> bytes | None:
        found = await self._collection.document(encode_document_id(entity_key, key)).get()
        return found.get("rec") if found.exists else None

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[tuple[str, bytes]]:
        first = self._collection.document(encode_document_id(entity_key, prefix))
        after = self._collection.document(encode_document_id(entity_key, prefix + "\U0010ffff"))
        query = (
            self._collection.order_by("__name__")
            .limit(limit)
            .where(filter=FieldFilter("__name__", ">=", first))
            .where(filter=FieldFilter("__name__", "<", after))
        )
        return [(decode_document_id(each.id).key, each.get("rec")) for each in await query.get()]

    async def close(self) -> None:
        self._client.close()


BARE_CLIENTS: Final[dict[str, type[BareClient]]] = {
    "sqlite": BareSqlite,
    "redis": BareRedis,
    "postgresql": BarePostgresql,
    "mariadb": BareMariadb,
    "bigtable": BareBigtable,
    "firestore": BareFirestore,
}
"""By backend."""

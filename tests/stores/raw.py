"""Each store's rows as the server has them, read and written by the bare client, past all of our code.

What is read or written is JSON, with bytes in hexadecimal: what a golden file can hold.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import asyncmy
import psycopg
from google.cloud.bigtable import data as bigtable
from google.cloud.firestore import AsyncClient
from redis.asyncio import Redis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["RAW", "Json", "RawStore"]

Json: TypeAlias = Any
COLUMNS = ("entity_key", "key", "seq", "rec", "updated_at_ms")


class RawStore(Protocol):
    """A store without us. ``layout`` is its name in the golden file."""

    layout: str

    async def write(self, uri: StoreUri, golden: Json) -> None:
        """Write what a golden file holds."""

    async def read(self, uri: StoreUri, golden: Json) -> Json:
        """Read what the server holds at the places that a golden file names."""


def plain(value: object) -> Json:
    """Return a value as JSON has it."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value.isoformat() if isinstance(value, dt.datetime) else value


class RawSql:
    """Columns of a table."""

    layout = "sql"

    async def write(self, uri: StoreUri, golden: Json) -> None:
        rows = [
            [bytes.fromhex(each) if isinstance(each, str) else each for each in row] for row in golden["rows"]
        ]
        for row in rows:
            marks = ", ".join(["%s"] * len(COLUMNS))
            named = ", ".join(f"`{name}`" for name in golden["columns"])
            statement = f"INSERT INTO {uri.options.table} ({named}) VALUES ({marks})"  # noqa: S608 - fixed
            await self._run(uri, statement, row)

    async def read(self, uri: StoreUri, golden: Json) -> Json:
        entity = bytes.fromhex(golden["rows"][0][0])
        named = ", ".join(f"`{name}`" for name in COLUMNS)
        statement = f"SELECT {named} FROM {uri.options.table} WHERE entity_key = %s ORDER BY `key`"  # noqa: S608 - fixed
        found = await self._run(uri, statement, [entity])
        return {"columns": list(COLUMNS), "rows": [[plain(each) for each in row] for row in found]}

    async def _run(self, uri: StoreUri, statement: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
        match uri.backend:
            case "sqlite":
                with sqlite3.connect(uri.database, timeout=30) as file:
                    return file.execute(statement.replace("%s", "?"), tuple(values)).fetchall()
            case "postgresql":
                # Wherever the server listens, it takes this user without a password.
                with psycopg.connect(
                    host=uri.host, port=uri.port, user=uri.username, dbname=uri.database
                ) as connection:
                    cursor = connection.execute(statement.replace("`", '"'), tuple(values), binary=True)  # type: ignore[arg-type]  # fixed text
                    return cursor.fetchall() if cursor.description else []
            case _:
                return await self._run_asyncmy(uri, statement, values)

    @staticmethod
    async def _run_asyncmy(
        uri: StoreUri, statement: str, values: Sequence[object]
    ) -> Sequence[Sequence[Any]]:
        # As literals: how the client escapes bytes is wrong where the server takes no backslashes.
        literals = tuple(f"x'{each.hex()}'" if isinstance(each, bytes) else str(each) for each in values)
        connection = await asyncmy.connect(
            host=uri.host,
            port=uri.port,
            user=uri.username,
            password=uri.password.encode(),
            database=uri.database,
            autocommit=True,
        )
        async with connection, connection.cursor() as cursor:
            await cursor.execute(statement % literals)
            found: Sequence[Sequence[Any]] = await cursor.fetchall()
            return found


class RawRedis:
    """Hashes and sorted sets."""

    layout = "redis"

    async def write(self, uri: StoreUri, golden: Json) -> None:
        async with Redis(host=uri.host, port=uri.port) as redis:
            for name, held in golden.items():
                members = {bytes.fromhex(each): value for each, value in held["holds"].items()}
                if held["type"] == "hash":
                    fields = {field: bytes.fromhex(value) for field, value in members.items()}
                    await redis.hset(bytes.fromhex(name), mapping=fields)  # type: ignore[arg-type,misc]  # bytes are taken
                else:
                    await redis.zadd(bytes.fromhex(name), members)

    async def read(self, uri: StoreUri, golden: Json) -> Json:
        found: dict[str, Json] = {}
        async with Redis(host=uri.host, port=uri.port) as redis:
            for name, held in golden.items():
                key = bytes.fromhex(name)
                kind = (await redis.type(key)).decode()
                if kind == "hash":
                    holds = {each.hex(): plain(value) for each, value in (await redis.hgetall(key)).items()}  # type: ignore[misc,union-attr]  # as above
                else:
                    holds = {
                        each.hex(): score for each, score in await redis.zrange(key, 0, -1, withscores=True)
                    }
                # Other tests' entities are in the list of all of them.
                kept = {
                    each: value for each, value in holds.items() if each in held["holds"] or kind == "hash"
                }
                found[name] = {"type": kind, "holds": kept}
        return found


class RawBigtable:
    """Cells of rows."""

    layout = "bigtable"

    async def write(self, uri: StoreUri, golden: Json) -> None:
        async with (
            bigtable.BigtableDataClientAsync(project=uri.project) as client,
            client.get_table(uri.instance, uri.table) as table,
        ):
            for row_key, cells in golden.items():
                sets = [
                    bigtable.SetCell(family, column.encode(), bytes.fromhex(value), timestamp_micros=at)
                    for family, column, at, value in cells
                ]
                await table.mutate_row(bytes.fromhex(row_key), sets)

    async def read(self, uri: StoreUri, golden: Json) -> Json:
        found = {}
        async with (
            bigtable.BigtableDataClientAsync(project=uri.project) as client,
            client.get_table(uri.instance, uri.table) as table,
        ):
            for row_key in golden:
                row = await table.read_row(bytes.fromhex(row_key))
                assert row is not None
                found[row_key] = [
                    [cell.family, cell.qualifier.decode(), cell.timestamp_micros, cell.value.hex()]
                    for cell in row.cells
                ]
        return found


class RawFirestore:
    """Fields of documents."""

    layout = "firestore"

    async def write(self, uri: StoreUri, golden: Json) -> None:
        collection = AsyncClient(project=uri.project).collection(uri.collection)
        for document_id, fields in golden.items():
            at = fields["at"] and dt.datetime.fromisoformat(fields["at"])
            stored = {**fields, "rec": bytes.fromhex(fields["rec"]), "at": at}
            await collection.document(document_id).set(stored)

    async def read(self, uri: StoreUri, golden: Json) -> Json:
        collection = AsyncClient(project=uri.project).collection(uri.collection)
        found = {}
        for document_id in golden:
            fields = (await collection.document(document_id).get()).to_dict() or {}
            found[document_id] = {name: plain(value) for name, value in sorted(fields.items())}
        return found


RAW: dict[str, RawStore] = {
    "sqlite": RawSql(),
    "postgresql": RawSql(),
    "mariadb": RawSql(),
    "mysql": RawSql(),
    "redis": RawRedis(),
    "bigtable": RawBigtable(),
    "firestore": RawFirestore(),
}
"""By the backend's label."""

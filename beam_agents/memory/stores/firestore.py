"""The Firestore store: one document per row in one collection, guarded by conditional writes.

A batch is read (seqs and update times alone) and then committed in one atomic request whose every write has a
precondition: the document is not there, or was last updated when it was read. When another writer came
between, the commit changes nothing, and the batch is read again. Measured against a transaction with the same
promise: a twentieth of the time in a race, and every one of its calls takes a timeout.

A document's fields: ``seq`` (integer), ``rec`` (bytes), ``at_ms`` (integer, ``updated_at_ms``), and ``at``,
the same as a timestamp, for a TTL policy; null where a timestamp cannot say it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc.aio
from google.api_core import exceptions as api
from google.cloud.firestore import AsyncClient
from google.cloud.firestore_v1.base_query import FieldFilter
from google.cloud.firestore_v1.services.firestore import FirestoreAsyncClient
from google.cloud.firestore_v1.services.firestore.transports import FirestoreGrpcAsyncIOTransport

from beam_agents.errors import StoreRejected
from beam_agents.memory.stores.contract import MemoryStore, RowId, StoreAdmin, StoreLimits, StoreRow
from beam_agents.memory.stores.google_cloud import ClientSlot, ErrorTexts, find_credentials
from beam_agents.signals.types import StoreOperation, UpsertResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from google.cloud.firestore import (
        AsyncCollectionReference,
        AsyncDocumentReference,
        AsyncQuery,
        DocumentSnapshot,
    )

    from beam_agents.memory.stores.uri import StoreUri

    _Snapshot: TypeAlias = DocumentSnapshot[AsyncDocumentReference]

__all__ = ["FirestoreAdmin", "FirestoreStore", "decode_document_id", "encode_document_id"]

MAX_VALUE_BYTES: Final = 1_044_480
"""1,020 KiB. A document may have 1 MiB: 4 KiB are left for its name, the other fields and the record."""

MAX_ID_BYTES: Final = 1500
MAX_COMMIT_WRITES: Final = 500
MAX_COMMIT_BYTES: Final = 9 * 1024 * 1024
"""A commit may have 10 MiB: the rest is for names, fields and preconditions."""

EMULATOR_COMMIT_BYTES: Final = 3_670_016
"""3.5 MiB: the emulator takes 4 MiB."""

MAX_ROUNDS: Final = 50
"""How often a batch is read and committed anew because of other writers, before it is given up."""

EMULATOR_HOST: Final = "FIRESTORE_EMULATOR_HOST"

_CHANNEL_OPTIONS: Final = (
    # A new client must not get the half-open connection of the one that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
    # As the client's own channel.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
_STANDARD: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_ORDERED: Final = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz~"
_TO_ORDERED: Final = bytes.maketrans(_STANDARD, _ORDERED)
_TO_STANDARD: Final = bytes.maketrans(_ORDERED, _STANDARD)
_SEPARATOR: Final = ","
_AFTER_SEPARATOR: Final = "-"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LATEST_MS: Final = (dt.datetime(9999, 12, 31, tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(milliseconds=1)


def encode_document_id(entity_key: bytes, key: str) -> str:
    """Return a row's document id: ids compare as the pairs do, and any bytes make a valid one.

    Both parts are in base64 with an alphabet in ASCII order, so that ids compare as the bytes do. Hexadecimal
    would not fit: 512 and 512 bytes take 1,367 characters here, of 1,500, and 2,049 there. A comma separates
    them; it comes before the alphabet, so that an entity comes before those that it is a prefix of. Neither /
    nor . nor _ can occur.
    """
    return _encode(entity_key) + _SEPARATOR + _encode(key.encode())


def decode_document_id(document_id: str) -> RowId | None:
    """Return what :func:`encode_document_id` was given; None for an id that it cannot have returned."""
    entity_key, separator, key = document_id.partition(_SEPARATOR)
    if not separator:
        return None
    try:
        row_id = RowId(_decode(entity_key), _decode(key).decode())
    except (ValueError, binascii.Error):
        return None
    return row_id if encode_document_id(row_id.entity_key, row_id.key) == document_id else None


def _encode(part: bytes) -> str:
    # Padding says nothing that the length does not. Without it, what is shorter comes first.
    return base64.b64encode(part).rstrip(b"=").translate(_TO_ORDERED).decode()


def _decode(text: str) -> bytes:
    padded = text.encode("ascii").translate(_TO_STANDARD) + b"=" * (-len(text) % 4)
    return base64.b64decode(padded, validate=True)


def _range(entity_key: bytes, prefix: str) -> tuple[str, str]:
    """Return the first id of an entity's rows that have a prefix, and the first id after them."""
    if not prefix:
        entity = _encode(entity_key)
        return entity + _SEPARATOR, entity + _AFTER_SEPARATOR
    # UTF-8 has no byte FF, so that the last one can always be one more.
    first = prefix.encode()
    after = first[:-1] + bytes([first[-1] + 1])
    return encode_document_id(entity_key, prefix), _encode(entity_key) + _SEPARATOR + _encode(after)


@dataclass(frozen=True, slots=True)
class _Open:
    """A client, the transport that it uses, and what one commit may measure."""

    client: AsyncClient
    transport: FirestoreGrpcAsyncIOTransport
    commit_bytes: int


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of one document that depends on the stored seq.

    Attributes:
        document_id: The document.
        applies: Tells from the stored seq, None for no document, whether to make it.
        row: What to store; None deletes.
    """

    document_id: str
    applies: Callable[[int | None], bool]
    row: StoreRow | None


class FirestoreStore(MemoryStore):
    """``firestore://project/collection``.

    A batch of up to 500 rows and 9 MiB is atomic; a longer one is so in parts.
    """

    limits = StoreLimits(max_value_bytes=MAX_VALUE_BYTES)

    def __init__(self, uri: StoreUri) -> None:
        super().__init__(uri)
        self.texts = _texts(uri)
        self.seconds = uri.options.operation_timeout_s
        self.slot: ClientSlot[_Open] = ClientSlot(self._open, _close)

    async def _open(self, operation: str) -> _Open:
        credentials = None
        host = os.environ.get(EMULATOR_HOST)
        if host is None:
            credentials = await find_credentials(self.texts, operation, self.seconds * 0.9)
            channel = FirestoreGrpcAsyncIOTransport.create_channel(
                FirestoreAsyncClient.DEFAULT_ENDPOINT, credentials=credentials, options=_CHANNEL_OPTIONS
            )
        else:
            channel = grpc.aio.insecure_channel(host, options=_CHANNEL_OPTIONS)
        transport = FirestoreGrpcAsyncIOTransport(channel=channel)
        client = AsyncClient(
            project=self.uri.project, credentials=credentials, database=self.uri.options.database
        )
        # The client makes a channel of its own where it finds none, takes no options, and cannot be closed.
        client._firestore_api_internal = FirestoreAsyncClient(transport=transport)  # noqa: SLF001 - as above
        return _Open(client, transport, MAX_COMMIT_BYTES if host is None else EMULATOR_COMMIT_BYTES)

    def collection(self, client: AsyncClient) -> AsyncCollectionReference:
        """Return the collection that the rows are in."""
        return client.collection(self.uri.collection)

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        document_id = self.document_id(StoreOperation.LOAD, entity_key, key)
        async with self.slot.call(self.texts, StoreOperation.LOAD, self.seconds) as opened:
            found = (
                await self.collection(opened.client)
                .document(document_id)
                .get(retry=None, timeout=self.seconds)
            )
        return self._row(StoreOperation.LOAD, found) if found.exists else None

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first rows whose key begins with ``prefix``."""
        first, after = _range(entity_key, prefix)
        return await self.read(StoreOperation.SEARCH, limit, (">=", first), ("<", after))

    async def read(self, operation: str, limit: int, *bounds: tuple[str, str]) -> list[StoreRow]:
        """Return the first rows whose document ids keep to bounds, each an operator and an id."""
        async with self.slot.call(self.texts, operation, self.seconds) as opened:
            collection = self.collection(opened.client)
            query: AsyncQuery = collection.order_by("__name__").limit(limit)
            for comparison, document_id in bounds:
                place = collection.document(document_id)
                query = query.where(filter=FieldFilter("__name__", comparison, place))
            found = await query.get(retry=None, timeout=self.seconds)
        return [self._row(operation, each) for each in found]

    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        """Upsert rows under the guard; stale ones are left out of the commit."""
        applied = await self.change(
            StoreOperation.FLUSH,
            [
                _Change(
                    self.document_id(StoreOperation.FLUSH, row.entity_key, row.key),
                    _at_most(row.seq),
                    row,
                )
                for row in rows
            ],
        )
        return [UpsertResult.APPLIED if each else UpsertResult.STALE for each in applied]

    async def change(self, operation: str, changes: Sequence[_Change]) -> list[bool]:
        """Make the changes that apply, and tell of each whether it did."""
        if not changes:
            return []
        applied: list[bool] = []
        async with self.slot.call(self.texts, operation, self.seconds) as opened:
            for part in _parts(changes, opened.commit_bytes):
                applied += await self._commit(operation, opened.client, part)
        return applied

    async def _commit(self, operation: str, client: AsyncClient, changes: Sequence[_Change]) -> list[bool]:
        """Make the changes that apply in one atomic commit, however often other writers come between.

        Raises:
            google.api_core.exceptions.Conflict: Other writers came between in every round.
        """
        collection = self.collection(client)
        places = [collection.document(change.document_id) for change in changes]
        for tried in range(MAX_ROUNDS):
            stored = await self._stored(client, places)
            batch = client.batch()
            applied = []
            for change, place in zip(changes, places, strict=True):
                snapshot = stored.get(place.id)
                applies = change.applies(None if snapshot is None else self._seq(operation, snapshot))
                applied.append(applies)
                if not applies:
                    continue
                option = (
                    None if snapshot is None else client.write_option(last_update_time=snapshot.update_time)
                )
                if change.row is None:
                    batch.delete(place, option)
                elif option is None:
                    batch.create(place, _fields(change.row))
                else:
                    batch.update(place, _fields(change.row), option)
            if not any(applied):
                return applied
            try:
                await batch.commit(retry=None, timeout=self.seconds)
            except (api.Conflict, api.FailedPrecondition, api.NotFound):
                # A document was made, changed or deleted since it was read; or it is the database that is
                # missing, and then the next read says so.
                await asyncio.sleep(_pause_s(tried))
                continue
            return applied
        raise api.Aborted("every round met another writer")

    async def _stored(
        self, client: AsyncClient, places: list[AsyncDocumentReference]
    ) -> dict[str, _Snapshot]:
        """Return the seqs of documents that are there, by document id."""
        found = client.get_all(places, field_paths=["seq"], retry=None, timeout=self.seconds)
        return {snapshot.id: snapshot async for snapshot in found if snapshot.exists}

    async def ping(self) -> None:
        """Look for a document that cannot be."""
        async with self.slot.call(self.texts, StoreOperation.PING, self.seconds) as opened:
            await self.collection(opened.client).document("ping").get(retry=None, timeout=self.seconds)

    async def close(self) -> None:
        """Release all connections."""
        await self.slot.close()

    def document_id(self, operation: str, entity_key: bytes, key: str) -> str:
        """Return a row's document id.

        Raises:
            StoreRejected: It is too long.
        """
        document_id = encode_document_id(entity_key, key)
        if len(document_id) > MAX_ID_BYTES:
            problem = (
                f"entity key and key make a document id of {len(document_id)} bytes, over {MAX_ID_BYTES}"
            )
            raise StoreRejected(self.backend, operation, problem=problem)
        return document_id

    def _row(self, operation: str, snapshot: _Snapshot) -> StoreRow:
        row_id = decode_document_id(snapshot.id)
        fields = snapshot.to_dict() or {}
        rec, at_ms = fields.get("rec"), fields.get("at_ms")
        if row_id is None or type(rec) is not bytes or type(at_ms) is not int:
            raise self._foreign(operation)
        return StoreRow(row_id.entity_key, row_id.key, self._seq(operation, snapshot), rec, at_ms)

    def _seq(self, operation: str, snapshot: _Snapshot) -> int:
        seq = (snapshot.to_dict() or {}).get("seq")
        if type(seq) is not int:
            raise self._foreign(operation)
        return seq

    def _foreign(self, operation: str) -> StoreRejected:
        problem = (
            f"collection {self.uri.collection!r} has a document that is none of this store's: "
            "give the store a collection of its own"
        )
        return StoreRejected(self.backend, operation, problem=problem)


def _at_most(seq: int) -> Callable[[int | None], bool]:
    """The guard: nothing is stored, or no higher seq."""
    return lambda stored: stored is None or stored <= seq


def _exactly(seq: int) -> Callable[[int | None], bool]:
    return lambda stored: stored == seq


def _fields(row: StoreRow) -> dict[str, object]:
    at = None
    if 0 <= row.updated_at_ms <= _LATEST_MS:
        at = _EPOCH + dt.timedelta(milliseconds=row.updated_at_ms)
    return {"seq": row.seq, "rec": row.rec, "at_ms": row.updated_at_ms, "at": at}


def _parts(changes: Sequence[_Change], commit_bytes: int) -> Iterator[list[_Change]]:
    """Split changes into what one commit may have."""
    part: list[_Change] = []
    size = 0
    for change in changes:
        # A name is in the write and in its result; 256 bytes for the fields' names and the precondition.
        weight = (len(change.row.rec) if change.row else 0) + len(change.document_id) + 256
        if part and (len(part) == MAX_COMMIT_WRITES or size + weight > commit_bytes):
            yield part
            part, size = [], 0
        part.append(change)
        size += weight
    yield part


def _pause_s(tried: int) -> float:
    """Return how long to wait before the next round: at random, so that writers part."""
    return random.uniform(0, min(0.1, 0.004 * 2**tried))  # noqa: S311 - no secret


async def _close(opened: _Open) -> None:
    await opened.transport.close()


def _texts(uri: StoreUri) -> ErrorTexts:
    database = f"database {uri.options.database!r} of project {uri.project!r}"
    return ErrorTexts(
        "firestore",
        {
            api.NotFound: f"{database} is missing: create it (gcloud firestore databases create); the store "
            "itself needs nothing, as `beam-agents store provision` says",
            api.FailedPrecondition: f"{database} does not take these calls: it must be in Native mode",
            api.Forbidden: f"the credentials may not use {database}: grant roles/datastore.user",
            api.Unauthorized: "the credentials are not valid: renew the Application Default Credentials",
            api.BadRequest: f"{database} refused the request as invalid",
        },
    )


class FirestoreAdmin(StoreAdmin):
    """The operator's side of the Firestore store."""

    store: FirestoreStore

    def provision_plan(self) -> str:
        """Say that nothing is needed."""
        return "nothing to create: Firestore makes a collection with its first document"

    async def provision(self) -> bool:
        """Do nothing."""
        return False

    async def scan(
        self, after: RowId | None, limit: int, *, entity_key: bytes | None = None
    ) -> list[StoreRow]:
        """Return the next rows after a place."""
        bounds: list[tuple[str, str]] = []
        if entity_key is not None:
            first, end = _range(entity_key, "")
            bounds = [(">=", first), ("<", end)]
        if after is not None:
            bounds.append((">", encode_document_id(after.entity_key, after.key)))
        return await self.store.read("scan", limit, *bounds)

    async def delete(self, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have the seq that is given."""
        changes = [
            _Change(encode_document_id(row.entity_key, row.key), _exactly(row.seq), None) for row in rows
        ]
        return sum(await self.store.change("delete", changes))

    async def replace_seq(self, row: StoreRow, replacement: StoreRow) -> bool:
        """Put a row in the place of one that still has the seq that is given."""
        document_id = encode_document_id(row.entity_key, row.key)
        (replaced,) = await self.store.change(
            "replace_seq", [_Change(document_id, _exactly(row.seq), replacement)]
        )
        return replaced

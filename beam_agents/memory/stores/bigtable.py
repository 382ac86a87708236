"""The Bigtable store: one row per memory row, guarded by CheckAndMutateRow.

Column family ``m``; column ``seq`` has the seq as 8 big-endian bytes, which compare as the numbers do, and
``rec`` the record. A cell's timestamp is the row's ``updated_at_ms``, so that Bigtable's own garbage
collection by age works. A write deletes the old cells first: a row has one cell per column whatever the
policy, and a later write with an earlier clock is not hidden behind an older cell.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc.aio
from google.api_core import exceptions as api
from google.cloud.bigtable.data import BigtableDataClientAsync, ReadRowsQuery, RowRange
from google.cloud.bigtable.data.mutations import DeleteAllFromFamily, SetCell
from google.cloud.bigtable.data.row_filters import (
    CellsColumnLimitFilter,
    ColumnQualifierRegexFilter,
    FamilyNameRegexFilter,
    RowFilterChain,
    ValueRangeFilter,
)
from google.cloud.bigtable_admin_v2 import (
    BigtableTableAdminAsyncClient,
    ColumnFamily,
    CreateTableRequest,
    GcRule,
    GetTableRequest,
    ModifyColumnFamiliesRequest,
    Table,
)
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports.grpc_asyncio import (
    BigtableTableAdminGrpcAsyncIOTransport,
)

from beam_agents.errors import StoreError, StoreRejected
from beam_agents.memory.stores.contract import MAX_SEQ, MemoryStore, RowId, StoreAdmin, StoreLimits, StoreRow
from beam_agents.memory.stores.google_cloud import (
    FAILURES,
    ClientSlot,
    ErrorTexts,
    claim_grpc,
    deadline,
    find_credentials,
    worst,
)
from beam_agents.signals.types import StoreOperation, UpsertResult

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from google.cloud.bigtable.data import Row, TableAsync
    from google.cloud.bigtable.data.mutations import Mutation
    from google.cloud.bigtable.data.row_filters import RowFilter

    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["BigtableAdmin", "BigtableStore", "decode_row_key", "encode_row_key"]

FAMILY: Final = "m"
SEQ: Final = b"seq"
REC: Final = b"rec"
MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
"""Below the 10 MiB that Google recommends for a cell; the hard limit is 100 MiB."""

MAX_ROW_KEY_BYTES: Final = 4096
CONCURRENT_CALLS: Final = 32
"""Calls of one batch that are on their way at once: there is no guarded bulk call."""

PROVISION_WITHIN_S: Final = 60.0
EMULATOR_HOST: Final = "BIGTABLE_EMULATOR_HOST"

_ESCAPED_NUL: Final = b"\x00\xff"
_END: Final = b"\x00\x01"
_AFTER_END: Final = b"\x00\x02"
_MAX_TIMESTAMP_MS: Final = MAX_SEQ // 1000
_SEQ_BYTES: Final = 8
_IN_FAMILY: Final = FamilyNameRegexFilter(FAMILY)
_IN_SEQ_COLUMN: Final = ColumnQualifierRegexFilter(SEQ)
_NEWEST: Final = CellsColumnLimitFilter(1)
_NEWEST_CELLS: Final = RowFilterChain([_IN_FAMILY, _NEWEST])
_CHANNEL_OPTIONS: Final = (
    # A new client must not get the half-open connection of the one that it replaces.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)


def encode_row_key(entity_key: bytes, key: str) -> bytes:
    """Return where a row is: keys compare as the pairs do, and no entity's rows run into another's.

    A NUL in the entity key becomes 00 FF, and 00 01 ends it: the lowest that can follow, so that an entity
    comes before those that it is a prefix of.
    """
    return _entity_prefix(entity_key) + _END + key.encode()


def decode_row_key(row_key: bytes) -> RowId | None:
    """Return what :func:`encode_row_key` was given; None for a key that it cannot have returned."""
    # Every NUL of an escaped entity key is followed by FF: the first 00 01 is its end.
    escaped, end, key = row_key.partition(_END)
    entity_key = escaped.replace(_ESCAPED_NUL, b"\x00")
    if not end or _entity_prefix(entity_key) != escaped:
        return None
    try:
        return RowId(entity_key, key.decode())
    except UnicodeDecodeError:
        return None


def _entity_prefix(entity_key: bytes) -> bytes:
    return entity_key.replace(b"\x00", _ESCAPED_NUL)


def _range(entity_key: bytes, prefix: str) -> RowRange:
    """Return the row keys of an entity that have a prefix."""
    start = encode_row_key(entity_key, prefix)
    # UTF-8 has no byte FF, so that the last one can always be one more.
    end = start[:-1] + bytes([start[-1] + 1]) if prefix else _entity_prefix(entity_key) + _AFTER_END
    return RowRange(start, end)


@dataclass(frozen=True, slots=True)
class _Open:
    """A client and the table that it was made for."""

    client: BigtableDataClientAsync
    table: TableAsync


class _DataClient(BigtableDataClientAsync):
    """A client whose channel has options of ours; the client itself takes none."""

    def _build_grpc_channel(self, *args: Any, **kwargs: Any) -> grpc.aio.Channel:
        host = os.environ.get(EMULATOR_HOST)
        if host is None:
            kwargs["options"] = [*(kwargs.get("options") or ()), *_CHANNEL_OPTIONS]
        channel = super()._build_grpc_channel(*args, **kwargs)
        if host is not None:
            # The client gives an emulator's channel no options, so that 4 MiB would be the most to read.
            channel._channel_fn = partial(grpc.aio.insecure_channel, host, options=_CHANNEL_OPTIONS)  # noqa: SLF001 - as above
            channel.swap_channel(channel.create_channel())
        return channel


class BigtableStore(MemoryStore):
    """``bigtable://project/instance/table``.

    A batch is not atomic: each of its rows is. When one fails, the others may have been written.
    """

    limits = StoreLimits(max_value_bytes=MAX_VALUE_BYTES)

    def __init__(self, uri: StoreUri) -> None:
        super().__init__(uri)
        self.texts = _texts(uri)
        self.seconds = uri.options.operation_timeout_s
        self.slot: ClientSlot[_Open] = ClientSlot(self._open, _close)

    async def _open(self, operation: str) -> _Open:
        credentials = None
        if EMULATOR_HOST not in os.environ:
            credentials = await find_credentials(self.texts, operation, self.seconds * 0.9)
        client = _DataClient(project=self.uri.project, credentials=credentials)
        table = client.get_table(
            self.uri.instance, self.uri.table, app_profile_id=self.uri.options.app_profile or None
        )
        return _Open(client, table)

    async def load(self, entity_key: bytes, key: str) -> StoreRow | None:
        """Return a row, or None."""
        row_key = self._row_key(StoreOperation.LOAD, entity_key, key)
        async with self.slot.call(self.texts, StoreOperation.LOAD, self.seconds) as opened:
            found = await opened.table.read_row(
                row_key,
                row_filter=_NEWEST_CELLS,
                operation_timeout=self.seconds,
                attempt_timeout=self.seconds,
                retryable_errors=(),
            )
        return None if found is None else self._decode(StoreOperation.LOAD, found)

    async def search(self, entity_key: bytes, prefix: str, limit: int) -> list[StoreRow]:
        """Return an entity's first rows whose key begins with ``prefix``."""
        return await self.read(StoreOperation.SEARCH, _range(entity_key, prefix), limit)

    async def read(self, operation: str, row_range: RowRange, limit: int) -> list[StoreRow]:
        """Return the first rows of a range."""
        query = ReadRowsQuery(row_ranges=[row_range], limit=limit, row_filter=_NEWEST_CELLS)
        async with self.slot.call(self.texts, operation, self.seconds) as opened:
            found = await opened.table.read_rows(
                query,
                operation_timeout=self.seconds,
                attempt_timeout=self.seconds,
                retryable_errors=(),
            )
        return [self._decode(operation, row) for row in found]

    async def save_many(self, rows: Sequence[StoreRow]) -> list[UpsertResult]:
        """Upsert rows under the guard, by concurrent calls.

        Raises:
            StoreError: A row failed. All calls have ended, and rows of the batch may have been written.
        """
        stale = await self.mutate(
            StoreOperation.FLUSH,
            [
                _Guarded(
                    self._row_key(StoreOperation.FLUSH, row.entity_key, row.key),
                    _seq_range(row.seq, above=True),
                    if_false=_cells(row),
                )
                for row in rows
            ],
        )
        return [UpsertResult.STALE if each else UpsertResult.APPLIED for each in stale]

    async def mutate(self, operation: str, changes: Sequence[_Guarded]) -> list[bool]:
        """Make changes, and tell of each whether its row's seq was in its range."""
        if not changes:
            return []
        async with self.slot.call(self.texts, operation, self.seconds) as opened:
            if len(changes) == 1:
                return [await self._change(opened.table, changes[0])]
            calls = [partial(self._change, opened.table, change) for change in changes]
            outcomes = await _all_ended(calls)
        matched: list[bool] = []
        errors: list[StoreError] = []
        for outcome in outcomes:
            if isinstance(outcome, bool):
                matched.append(outcome)
            else:
                errors.append(self.texts.translate(outcome, operation))
        if errors:
            raise worst(errors)
        return matched

    async def _change(self, table: TableAsync, change: _Guarded) -> bool:
        matched: bool = await table.check_and_mutate_row(
            change.row_key,
            change.seq_range,
            true_case_mutations=change.if_true,
            false_case_mutations=change.if_false,
            operation_timeout=self.seconds,
        )
        return matched

    async def ping(self) -> None:
        """Look for a row that cannot be."""
        async with self.slot.call(self.texts, StoreOperation.PING, self.seconds) as opened:
            await opened.table.read_row(
                b"\x00",
                row_filter=_NEWEST_CELLS,
                operation_timeout=self.seconds,
                attempt_timeout=self.seconds,
                retryable_errors=(),
            )

    async def close(self) -> None:
        """Release all connections."""
        await self.slot.close()

    def _row_key(self, operation: str, entity_key: bytes, key: str) -> bytes:
        row_key = encode_row_key(entity_key, key)
        if len(row_key) > MAX_ROW_KEY_BYTES:
            # An emulator takes longer ones.
            problem = f"entity key and key make a row key of {len(row_key)} bytes, over {MAX_ROW_KEY_BYTES}"
            raise StoreRejected(self.backend, operation, problem=problem)
        return row_key

    def _decode(self, operation: str, row: Row) -> StoreRow:
        cells = {cell.qualifier: cell for cell in row.cells}
        row_id, seq, rec = decode_row_key(row.row_key), cells.get(SEQ), cells.get(REC)
        if row_id is None or seq is None or rec is None or len(seq.value) != _SEQ_BYTES:
            problem = (
                f"family {FAMILY!r} of table {self.uri.table!r} has a row that is none of this store's: "
                "give the store a table of its own"
            )
            raise StoreRejected(self.backend, operation, problem=problem)
        return StoreRow(
            row_id.entity_key,
            row_id.key,
            int.from_bytes(seq.value, "big"),
            rec.value,
            rec.timestamp_micros // 1000,
        )


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A change of one row that depends on the stored seq."""

    row_key: bytes
    seq_range: RowFilter
    if_true: list[Mutation] | None = None
    if_false: list[Mutation] | None = None


def _seq_bytes(seq: int) -> bytes:
    return seq.to_bytes(_SEQ_BYTES, "big")


def _seq_range(seq: int, *, above: bool) -> RowFilter:
    """Return a filter for a stored seq above another one, or equal to it."""
    wanted = _seq_bytes(seq)
    value = (
        ValueRangeFilter(start_value=wanted, inclusive_start=False)
        if above
        else ValueRangeFilter(start_value=wanted, end_value=wanted)
    )
    return RowFilterChain([_IN_FAMILY, _IN_SEQ_COLUMN, _NEWEST, value])


def _cells(row: StoreRow) -> list[Mutation]:
    """Return what puts a row in the place of whatever is there."""
    timestamp = min(max(row.updated_at_ms, 0), _MAX_TIMESTAMP_MS) * 1000
    return [
        DeleteAllFromFamily(FAMILY),
        SetCell(FAMILY, SEQ, _seq_bytes(row.seq), timestamp_micros=timestamp),
        SetCell(FAMILY, REC, row.rec, timestamp_micros=timestamp),
    ]


async def _all_ended(calls: Sequence[Callable[[], Coroutine[Any, Any, bool]]]) -> list[bool | Exception]:
    """Make calls, several at once, and return when all have ended, each with what it returned or raised."""
    outcomes: list[bool | Exception] = [False] * len(calls)
    waiting = iter(enumerate(calls))

    async def work() -> None:
        for index, call in waiting:
            try:
                outcomes[index] = await call()
            except FAILURES as error:
                outcomes[index] = error

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CONCURRENT_CALLS, len(calls))):
            group.create_task(work())
    return outcomes


async def _close(opened: _Open) -> None:
    await opened.table.close()
    await opened.client.close()


def _texts(uri: StoreUri) -> ErrorTexts:
    table = f"table {uri.table!r} of instance {uri.instance!r}"
    provision = f"run `beam-agents store provision {uri.redacted}`"
    missing = f"{table} or its column family {FAMILY!r} is missing: {provision}"
    return ErrorTexts(
        "bigtable",
        {
            api.NotFound: missing,
            api.FailedPrecondition: f"the service does not take the call in this state of {table}: its "
            "application profile must route to a single cluster and allow single-row transactions",
            # What the emulator says of a missing family.
            api.Unknown: f"the service names no reason; if {missing}",
            api.Forbidden: f"the credentials may not use {table}: grant roles/bigtable.user",
            api.Unauthorized: "the credentials are not valid: renew the Application Default Credentials",
            api.BadRequest: f"the service refused the request to {table} as invalid",
        },
    )


class BigtableAdmin(StoreAdmin):
    """The operator's side of the Bigtable store."""

    store: BigtableStore

    def provision_plan(self) -> str:
        """Return the command that does what :meth:`provision` does."""
        uri = self.store.uri
        return (
            f"cbt -project {uri.project} -instance {uri.instance} createtable {uri.table} "
            f'"families={FAMILY}:maxversions=1"'
        )

    async def provision(self) -> bool:
        """Create the table and its column family, each if it is missing."""
        uri = self.store.uri
        instance = f"projects/{uri.project}/instances/{uri.instance}"
        name = f"{instance}/tables/{uri.table}"
        family = ColumnFamily(gc_rule=GcRule(max_num_versions=1))
        client = await self._client()
        try:
            async with deadline(self._texts(), "provision", PROVISION_WITHIN_S):
                try:
                    table = await client.get_table(
                        GetTableRequest(name=name, view=Table.View.SCHEMA_VIEW),
                        timeout=PROVISION_WITHIN_S,
                        retry=None,
                    )
                except api.NotFound:
                    await client.create_table(
                        CreateTableRequest(
                            parent=instance, table_id=uri.table, table=Table(column_families={FAMILY: family})
                        ),
                        timeout=PROVISION_WITHIN_S,
                        retry=None,
                    )
                    return True
                if FAMILY in table.column_families:
                    return False
                await client.modify_column_families(
                    ModifyColumnFamiliesRequest(
                        name=name,
                        modifications=[ModifyColumnFamiliesRequest.Modification(id=FAMILY, create=family)],
                    ),
                    timeout=PROVISION_WITHIN_S,
                    retry=None,
                )
                return True
        finally:
            await client.transport.close()

    async def _client(self) -> BigtableTableAdminAsyncClient:
        claim_grpc(self._texts(), "provision")
        host = os.environ.get(EMULATOR_HOST)
        if host is not None:
            return BigtableTableAdminAsyncClient(
                transport=BigtableTableAdminGrpcAsyncIOTransport(channel=grpc.aio.insecure_channel(host))
            )
        seconds = self.store.uri.options.operation_timeout_s
        return BigtableTableAdminAsyncClient(
            credentials=await find_credentials(self._texts(), "provision", seconds)
        )

    def _texts(self) -> ErrorTexts:
        uri = self.store.uri
        instance = f"instance {uri.instance!r} of project {uri.project!r}"
        return ErrorTexts(
            "bigtable",
            {
                api.NotFound: f"{instance} is missing: create it first",
                api.Forbidden: f"the credentials may not create tables in {instance}: "
                "grant roles/bigtable.admin to who provisions",
            },
        )

    async def scan(
        self, after: RowId | None, limit: int, *, entity_key: bytes | None = None
    ) -> list[StoreRow]:
        """Return the next rows after a place."""
        start: bytes | None = None
        end: bytes | None = None
        if entity_key is not None:
            entity = _range(entity_key, "")
            start, end = entity.start_key, entity.end_key
        if after is None:
            return await self.store.read("scan", RowRange(start, end), limit)
        place = encode_row_key(after.entity_key, after.key)
        if start is not None and place < start:
            return await self.store.read("scan", RowRange(start, end), limit)
        if end is not None and place >= end:
            return []
        return await self.store.read("scan", RowRange(place, end, start_is_inclusive=False), limit)

    async def delete(self, rows: Sequence[StoreRow]) -> int:
        """Delete rows that still have the seq that is given."""
        changes = [
            _Guarded(
                encode_row_key(row.entity_key, row.key),
                _seq_range(row.seq, above=False),
                if_true=[DeleteAllFromFamily(FAMILY)],
            )
            for row in rows
        ]
        return sum(await self.store.mutate("delete", changes))

    async def replace_seq(self, row: StoreRow, replacement: StoreRow) -> bool:
        """Put a row in the place of one that still has the seq that is given."""
        change = _Guarded(
            encode_row_key(row.entity_key, row.key),
            _seq_range(row.seq, above=False),
            if_true=_cells(replacement),
        )
        (replaced,) = await self.store.mutate("replace_seq", [change])
        return replaced

"""What is particular to the Bigtable store."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from google.api_core import exceptions as api
from google.cloud.bigtable.data import BigtableDataClientAsync, TableAsync
from google.cloud.bigtable.data.mutations import SetCell
from google.cloud.bigtable_admin_v2 import GetTableRequest, ModifyColumnFamiliesRequest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.errors import StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.bigtable import (
    CONCURRENT_CALLS,
    MAX_ROW_KEY_BYTES,
    BigtableAdmin,
    BigtableStore,
    _range,
    decode_row_key,
    encode_row_key,
)
from beam_agents.memory.stores.contract import MAX_ENTITY_KEY_BYTES, MAX_KEY_BYTES, StoreRow, encode_record
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.signals.types import UpsertResult
from tests.servers.bigtable import EMULATOR_HOST, emulator
from tests.servers.process import free_port

if TYPE_CHECKING:
    from beam_agents.memory.stores.contract import MemoryStore

Run = Callable[..., Any]

OPTIONS = "operation_timeout_s=30"

ENTITIES = st.one_of(
    st.binary(max_size=6), st.text("\x00\x01\x02\xff", max_size=5).map(lambda text: text.encode("latin-1"))
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x00\x01\U0010ffff/"), max_size=5)


def row(key: str, seq: int = 1, value: bytes = b"value", at_ms: int | None = None) -> StoreRow:
    at = seq if at_ms is None else at_ms
    return StoreRow(b"entity", key, seq, encode_record(value, seq, at), at)


@given(ENTITIES, KEYS, ENTITIES, KEYS)
def test_row_keys_compare_as_the_pairs_do(entity: bytes, key: str, other: bytes, other_key: str) -> None:
    pairs = (entity, key.encode()), (other, other_key.encode())
    keys = encode_row_key(entity, key), encode_row_key(other, other_key)
    assert (keys[0] < keys[1]) == (pairs[0] < pairs[1])
    assert (keys[0] == keys[1]) == (pairs[0] == pairs[1])


@given(ENTITIES, KEYS)
def test_a_row_key_decodes_to_what_it_was_made_of(entity: bytes, key: str) -> None:
    decoded = decode_row_key(encode_row_key(entity, key))
    assert decoded is not None
    assert (decoded.entity_key, decoded.key) == (entity, key)


@given(ENTITIES, KEYS, ENTITIES, KEYS)
def test_a_range_has_the_rows_of_its_entity_and_prefix_alone(
    entity: bytes, prefix: str, other: bytes, key: str
) -> None:
    found = _range(entity, prefix)
    assert found.start_key is not None
    assert found.end_key is not None
    for each in (key, prefix + key):
        inside = found.start_key <= encode_row_key(other, each) < found.end_key
        assert inside == (other == entity and each.startswith(prefix))


@pytest.mark.parametrize(
    "row_key", [b"", b"\x00", b"a", b"a\x00b\x00\x01k", b"\x00\x00\x01k", b"a\x00\x01\xff", b"a\x00\x02k"]
)
def test_a_foreign_row_key_is_told_from_ours(row_key: bytes) -> None:
    assert decode_row_key(row_key) is None


def test_the_longest_row_key_is_one_that_bigtable_takes() -> None:
    longest = encode_row_key(b"\x00" * MAX_ENTITY_KEY_BYTES, "k" * MAX_KEY_BYTES)
    assert len(longest) <= MAX_ROW_KEY_BYTES


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An emulator's port."""
    port = free_port()
    with emulator(tmp_path_factory.mktemp("bigtable"), port):
        yield port


@pytest.fixture
def table_uri(port: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a table of this test alone, which is not there yet."""
    monkeypatch.setenv(EMULATOR_HOST, f"127.0.0.1:{port}")
    return f"bigtable://beam-agents-tests/instance/table-{zlib.crc32(request.node.name.encode())}?{OPTIONS}"


@pytest.fixture
def fresh(table_uri: str, run: Run) -> Iterator[BigtableStore]:
    """A store whose table is not there yet."""
    store = open_store(table_uri)
    assert isinstance(store, BigtableStore)
    yield store
    run(store.close())


@pytest.fixture
def provisioned(fresh: BigtableStore, run: Run) -> BigtableStore:
    assert run(open_admin(fresh).provision()) is True
    return fresh


def test_a_row_key_that_is_too_long_is_refused_before_it_is_sent(run: Run) -> None:
    store = open_store("bigtable://project/instance/table")
    too_long = StoreRow(b"e" * 4000, "k" * 200, 1, b"", 1)
    with pytest.raises(StoreRejected, match="4202 bytes, over 4096"):
        run(store.save_many([too_long]))
    with pytest.raises(StoreRejected, match="4202 bytes, over 4096"):
        run(store.load(too_long.entity_key, too_long.key))


def test_a_missing_table_names_the_command_that_makes_it(fresh: BigtableStore, run: Run) -> None:
    command = f"beam-agents store provision {fresh.uri.redacted}"
    for call in (
        lambda: fresh.load(b"entity", "k"),
        lambda: fresh.search(b"entity", "", 5),
        lambda: fresh.save_many([row("k")]),
        lambda: fresh.save_many([row("k"), row("kk")]),
        fresh.ping,
    ):
        with pytest.raises(StoreRejected) as caught:
            run(call())
        assert command in caught.value.problem
    assert run(open_admin(fresh).provision()) is True
    run(fresh.ping())


async def without_family(store: BigtableStore) -> None:
    """Drop the store's column family."""
    client = await BigtableAdmin(store)._client()
    name = f"projects/{store.uri.project}/instances/{store.uri.instance}/tables/{store.uri.table}"
    drop = ModifyColumnFamiliesRequest.Modification(id="m", drop=True)
    await client.modify_column_families(ModifyColumnFamiliesRequest(name=name, modifications=[drop]))
    await client.transport.close()


def test_a_missing_family_names_the_command_that_makes_it(provisioned: BigtableStore, run: Run) -> None:
    run(without_family(provisioned))
    for batch in ([row("k")], [row("k"), row("kk")]):
        with pytest.raises(StoreRejected) as caught:
            run(provisioned.save_many(batch))
        assert f"beam-agents store provision {provisioned.uri.redacted}" in caught.value.problem
    admin = open_admin(provisioned)
    assert run(admin.provision()) is True
    assert run(admin.provision()) is False
    assert run(provisioned.save_many([row("k")])) == [UpsertResult.APPLIED]


def test_the_family_keeps_one_version(provisioned: BigtableStore, run: Run) -> None:
    async def versions() -> int:
        client = await BigtableAdmin(provisioned)._client()
        uri = provisioned.uri
        table = await client.get_table(
            GetTableRequest(name=f"projects/{uri.project}/instances/{uri.instance}/tables/{uri.table}")
        )
        await client.transport.close()
        kept: int = table.column_families["m"].gc_rule.max_num_versions
        return kept

    assert run(versions()) == 1


def test_a_row_has_one_cell_per_column_and_its_clock_is_their_time(
    provisioned: BigtableStore, run: Run
) -> None:
    # The later seq has the earlier clock, as an event that comes late.
    run(provisioned.save_many([row("k", 7, b"first", at_ms=9_000)]))
    run(provisioned.save_many([row("k", 8, b"second", at_ms=4_000)]))
    assert run(provisioned.load(b"entity", "k")) == row("k", 8, b"second", at_ms=4_000)

    async def cells() -> list[tuple[bytes, int]]:
        async with provisioned.slot.call(provisioned.texts, "load", 20) as opened:
            found = await opened.table.read_row(encode_row_key(b"entity", "k"))
        assert found is not None
        return [(cell.qualifier, cell.timestamp_micros) for cell in found.cells]

    assert sorted(run(cells())) == [(b"rec", 4_000_000), (b"seq", 4_000_000)]


def test_a_foreign_row_is_refused_by_name_of_the_table(provisioned: BigtableStore, run: Run) -> None:
    async def write() -> None:
        async with provisioned.slot.call(provisioned.texts, "flush", 20) as opened:
            await opened.table.mutate_row(b"foreign", SetCell("m", b"x", b"y", timestamp_micros=0))

    run(write())
    with pytest.raises(StoreRejected, match="a table of its own"):
        run(open_admin(provisioned).scan(None, 10))


def failing(
    monkeypatch: pytest.MonkeyPatch, errors: dict[bytes, Exception], delay_s: float = 0.0
) -> list[bytes]:
    """Let calls for some row keys fail; return a list that gets the row keys of calls that have ended."""
    ended: list[bytes] = []
    real = TableAsync.check_and_mutate_row

    async def patched(self: TableAsync, row_key: bytes, *args: Any, **kwargs: Any) -> bool:
        if row_key in errors:
            ended.append(row_key)
            raise errors[row_key]
        await asyncio.sleep(delay_s)
        result = bool(await real(self, row_key, *args, **kwargs))
        ended.append(row_key)
        return result

    monkeypatch.setattr(TableAsync, "check_and_mutate_row", patched)
    return ended


def test_when_one_row_of_a_batch_fails_the_others_end_first_and_the_error_is_raised(
    provisioned: BigtableStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [row(f"k{index:03d}", 3) for index in range(3 * CONCURRENT_CALLS)]
    broken = batch[1]
    errors: dict[bytes, Exception] = {
        encode_row_key(broken.entity_key, broken.key): api.ServiceUnavailable("down")
    }
    ended = failing(monkeypatch, errors, 0.005)
    with pytest.raises(StoreUnavailable) as caught:
        run(provisioned.save_many(batch))
    assert caught.value.cause_type == "ServiceUnavailable"
    assert len(ended) == len(batch)
    assert run(provisioned.search(b"entity", "", 1000)) == [each for each in batch if each is not broken]


def test_a_batch_that_failed_in_part_is_mended_by_saving_it_again(
    provisioned: BigtableStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [row(f"k{index}", 3) for index in range(6)]
    broken = encode_row_key(batch[4].entity_key, batch[4].key)
    with monkeypatch.context() as patch:
        failing(patch, {broken: api.DeadlineExceeded("late")})
        with pytest.raises(StoreTimeout):
            run(provisioned.save_many(batch))
    assert set(run(provisioned.save_many(batch))) == {UpsertResult.APPLIED}
    assert run(provisioned.search(b"entity", "", 10)) == batch


def test_an_error_that_no_retry_mends_is_raised_before_one_that_it_may(
    provisioned: BigtableStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [row(f"k{index}", 3) for index in range(4)]
    keys = [encode_row_key(each.entity_key, each.key) for each in batch]
    failing(monkeypatch, {keys[0]: api.ServiceUnavailable("down"), keys[3]: api.PermissionDenied("no")})
    with pytest.raises(StoreRejected, match=r"roles/bigtable\.user"):
        run(provisioned.save_many(batch))


def test_a_batch_that_is_cut_off_leaves_no_call_behind(
    provisioned: BigtableStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any, **__: Any) -> bool:
        await asyncio.Event().wait()
        return True

    run(provisioned.ping())
    monkeypatch.setattr(TableAsync, "check_and_mutate_row", never)
    provisioned.seconds = 0.2

    async def save() -> None:
        before = asyncio.all_tasks()
        with pytest.raises(StoreTimeout):
            await provisioned.save_many([row(f"k{index}") for index in range(50)])
        async with asyncio.timeout(30):
            # gRPC's own tasks may need a turn more.
            while asyncio.all_tasks() - before:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0)

    run(save())


def test_no_more_calls_than_the_bound_are_on_their_way(
    provisioned: BigtableStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    async def counted(*_: Any, **__: Any) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return False

    monkeypatch.setattr(TableAsync, "check_and_mutate_row", counted)
    run(provisioned.save_many([row(f"k{index}") for index in range(200)]))
    assert most == CONCURRENT_CALLS


def test_the_application_profile_is_sent(table_uri: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles: list[str | None] = []
    real = BigtableDataClientAsync.get_table

    def get_table(self: BigtableDataClientAsync, *args: Any, **kwargs: Any) -> TableAsync:
        profiles.append(kwargs["app_profile_id"])
        table: TableAsync = real(self, *args, **kwargs)
        return table

    monkeypatch.setattr(BigtableDataClientAsync, "get_table", get_table)
    for query, expected in (("&app_profile=batch", "batch"), ("", None)):
        store: MemoryStore = open_store(table_uri + query)
        with pytest.raises(StoreRejected):
            run(store.load(b"entity", "k"))
        run(store.close())
        assert profiles.pop() == expected


def test_the_plan_is_a_command() -> None:
    store = BigtableStore(parse_store_uri("bigtable://project/instance/table"))
    assert BigtableAdmin(store).provision_plan() == (
        'cbt -project project -instance instance createtable table "families=m:maxversions=1"'
    )

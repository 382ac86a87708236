"""What is particular to the Firestore store."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.cloud.firestore import AsyncWriteBatch
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.errors import StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores import firestore as backend
from beam_agents.memory.stores.contract import (
    MAX_ENTITY_KEY_BYTES,
    MAX_KEY_BYTES,
    MAX_SEQ,
    StoreRow,
    encode_record,
)
from beam_agents.memory.stores.firestore import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_WRITES,
    MAX_ID_BYTES,
    FirestoreStore,
    _Change,
    _parts,
    _range,
    decode_document_id,
    encode_document_id,
)
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.signals.types import UpsertResult
from tests.servers.firestore import EMULATOR_HOST, emulator
from tests.servers.process import free_port

Run = Callable[..., Any]

ENTITIES = st.binary(max_size=6)
KEYS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x00\x01\U0010ffff/_."), max_size=5
)


def row(key: str, seq: int = 1, value: bytes = b"value", at_ms: int | None = None) -> StoreRow:
    at = seq if at_ms is None else at_ms
    return StoreRow(b"entity", key, seq, encode_record(value, seq, at), at)


@given(ENTITIES, KEYS, ENTITIES, KEYS)
def test_document_ids_compare_as_the_pairs_do(entity: bytes, key: str, other: bytes, other_key: str) -> None:
    pairs = (entity, key.encode()), (other, other_key.encode())
    ids = encode_document_id(entity, key), encode_document_id(other, other_key)
    assert (ids[0].encode() < ids[1].encode()) == (pairs[0] < pairs[1])
    assert (ids[0] == ids[1]) == (pairs[0] == pairs[1])


@given(ENTITIES, KEYS)
def test_a_document_id_is_valid_and_decodes_to_what_it_was_made_of(entity: bytes, key: str) -> None:
    document_id = encode_document_id(entity, key)
    assert document_id.isascii()
    assert document_id
    assert not set(document_id) & set("/._")
    decoded = decode_document_id(document_id)
    assert decoded is not None
    assert (decoded.entity_key, decoded.key) == (entity, key)


@given(ENTITIES, KEYS, ENTITIES, KEYS)
def test_a_range_has_the_rows_of_its_entity_and_prefix_alone(
    entity: bytes, prefix: str, other: bytes, key: str
) -> None:
    first, after = _range(entity, prefix)
    for each in (key, prefix + key):
        inside = first <= encode_document_id(other, each) < after
        assert inside == (other == entity and each.startswith(prefix))


@pytest.mark.parametrize(
    "document_id", ["", "ping", "-", "a,", "A,zz", "00,0", "é,00", "01,//", "Jl,s1,", "0,a"]
)
def test_a_foreign_document_id_is_told_from_ours(document_id: str) -> None:
    assert decode_document_id(document_id) is None


def test_the_longest_document_id_is_one_that_firestore_takes() -> None:
    longest = encode_document_id(b"\x00" * MAX_ENTITY_KEY_BYTES, "\U0010ffff" * (MAX_KEY_BYTES // 4))
    assert len(longest) == 1_367 <= MAX_ID_BYTES


def test_the_largest_document_is_one_that_firestore_takes() -> None:
    """By the size that Firestore counts; the emulator does not hold to it."""
    value = b"v" * backend.MAX_VALUE_BYTES
    rec = encode_record(value, MAX_SEQ, MAX_SEQ)
    longest_collection, longest_id = 1_500, 1_367
    name = longest_collection + 1 + longest_id + 1 + 16
    fields = (4 + 8) + (4 + len(rec)) + (6 + 8) + (3 + 8)
    assert name + fields + 32 <= 1_048_576
    assert len(rec) <= 1_048_487


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An emulator's port."""
    port = free_port()
    with emulator(tmp_path_factory.mktemp("firestore"), port):
        yield port


@pytest.fixture
def store(
    port: int, run: Run, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FirestoreStore]:
    """A store whose collection is of this test alone."""
    monkeypatch.setenv(EMULATOR_HOST, f"127.0.0.1:{port}")
    # Emulators answer slowly at first.
    opened = open_store(
        f"firestore://beam-agents-tests/rows-{zlib.crc32(request.node.name.encode())}?operation_timeout_s=30"
    )
    assert isinstance(opened, FirestoreStore)
    yield opened
    run(opened.close())


def test_an_id_that_is_too_long_is_refused_before_it_is_sent(run: Run) -> None:
    store = open_store("firestore://project/collection")
    too_long = StoreRow(b"e" * 1_200, "k", 1, b"", 1)
    with pytest.raises(StoreRejected, match="1603 bytes, over 1500"):
        run(store.save_many([too_long]))
    with pytest.raises(StoreRejected, match="1603 bytes, over 1500"):
        run(store.load(too_long.entity_key, too_long.key))


def document(store: FirestoreStore, key: str, run: Run) -> dict[str, Any] | None:
    async def get() -> dict[str, Any] | None:
        async with store.slot.call(store.texts, "load", 30) as opened:
            place = store.collection(opened.client).document(encode_document_id(b"entity", key))
            fields: dict[str, Any] | None = (await place.get()).to_dict()
            return fields

    found: dict[str, Any] | None = run(get())
    return found


def test_a_document_has_a_timestamp_for_a_ttl_policy(store: FirestoreStore, run: Run) -> None:
    run(store.save_many([row("k", 7, at_ms=1_700_000_000_123), row("far", 8, at_ms=10**15)]))
    found = document(store, "k", run)
    assert found is not None
    assert found == {
        "seq": 7,
        "rec": encode_record(b"value", 7, 1_700_000_000_123),
        "at_ms": 1_700_000_000_123,
        "at": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC),
    }
    far = document(store, "far", run)
    assert far is not None
    assert far["at"] is None
    assert run(store.load(b"entity", "far")) == row("far", 8, at_ms=10**15)


def test_a_foreign_document_is_refused_by_name_of_the_collection(store: FirestoreStore, run: Run) -> None:
    async def write(document_id: str) -> None:
        async with store.slot.call(store.texts, "flush", 30) as opened:
            await store.collection(opened.client).document(document_id).set({"seq": "one"})

    run(write("foreign"))
    with pytest.raises(StoreRejected, match="a collection of its own"):
        run(open_admin(store).scan(None, 10))
    run(write(encode_document_id(b"entity", "k")))
    with pytest.raises(StoreRejected, match="a collection of its own"):
        run(store.save_many([row("k")]))
    with pytest.raises(StoreRejected, match="a collection of its own"):
        run(store.load(b"entity", "k"))


class Commits:
    """Looks at commits, and lets something happen before the first of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.before_first: Callable[[], Any] | None = None
        self.error: Exception | None = None
        real = AsyncWriteBatch.commit

        async def commit(batch: AsyncWriteBatch, *args: Any, **kwargs: Any) -> Any:
            self.sizes.append(len(batch))
            before, self.before_first = self.before_first, None
            if before is not None:
                await before()
            if self.error is not None:
                raise self.error
            return await real(batch, *args, **kwargs)

        monkeypatch.setattr(AsyncWriteBatch, "commit", commit)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


def test_a_batch_is_one_commit_without_the_stale_rows(
    store: FirestoreStore, run: Run, commits: Commits
) -> None:
    run(store.save_many([row("b", 9)]))
    batch = [row(key, 5) for key in ("a", "b", "c")]
    applied, stale = UpsertResult.APPLIED, UpsertResult.STALE
    assert run(store.save_many(batch)) == [applied, stale, applied]
    assert run(store.save_many([row("b", 8)])) == [stale]
    assert commits.sizes == [1, 2]


def test_a_batch_of_more_than_500_rows_is_split(store: FirestoreStore, run: Run, commits: Commits) -> None:
    batch = [row(f"k{index:04d}", 3) for index in range(MAX_COMMIT_WRITES + 1)]
    assert set(run(store.save_many(batch))) == {UpsertResult.APPLIED}
    assert commits.sizes == [MAX_COMMIT_WRITES, 1]
    assert run(store.search(b"entity", "", 1_000)) == batch


def test_a_batch_of_more_than_a_commit_may_have_is_split_by_size(
    store: FirestoreStore, run: Run, commits: Commits
) -> None:
    batch = [row(f"k{index:02d}", 3, b"v" * 1_000_000) for index in range(7)]
    assert set(run(store.save_many(batch))) == {UpsertResult.APPLIED}
    # The emulator takes less in a commit than the service.
    assert commits.sizes == [3, 3, 1]
    assert run(store.search(b"entity", "", 100)) == batch


@given(st.lists(st.integers(0, 1_100_000), min_size=1, max_size=40), st.integers(1, 12))
def test_parts_have_all_changes_in_order_and_keep_to_the_limits(sizes: list[int], writes: int) -> None:
    changes = [
        _Change(f"id{index}", lambda _: True, StoreRow(b"e", "k", 1, bytes(size), 1))
        for index, size in enumerate(sizes)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "MAX_COMMIT_WRITES", writes)
        parts = list(_parts(changes, MAX_COMMIT_BYTES))
    assert [change for part in parts for change in part] == changes
    for part in parts:
        assert 1 <= len(part) <= writes
        assert sum(len(change.row.rec) for change in part if change.row) <= MAX_COMMIT_BYTES
    for part, following in itertools.pairwise(parts):
        total = sum(len(change.row.rec) + 300 for change in (*part, following[0]) if change.row)
        assert len(part) == writes or total > MAX_COMMIT_BYTES


def test_a_split_batch_that_failed_in_part_is_mended_by_saving_it_again(
    store: FirestoreStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [row(f"k{index:04d}", 3) for index in range(MAX_COMMIT_WRITES + 2)]
    real = AsyncWriteBatch.commit

    async def commit(self: AsyncWriteBatch, *args: Any, **kwargs: Any) -> Any:
        if len(self) == 2:
            raise api.ServiceUnavailable("down")
        return await real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(AsyncWriteBatch, "commit", commit)
        with pytest.raises(StoreUnavailable):
            run(store.save_many(batch))
    assert run(store.search(b"entity", "", 1_000)) == batch[:MAX_COMMIT_WRITES]
    assert set(run(store.save_many(batch))) == {UpsertResult.APPLIED}
    assert run(store.search(b"entity", "", 1_000)) == batch


@pytest.mark.parametrize("stored", [None, 4])
@pytest.mark.parametrize(("other", "result"), [(6, UpsertResult.APPLIED), (9, UpsertResult.STALE)])
def test_a_writer_that_comes_between_read_and_commit_is_seen(
    store: FirestoreStore, run: Run, commits: Commits, stored: int | None, other: int, result: UpsertResult
) -> None:
    if stored is not None:
        run(store.save_many([row("k", stored)]))
    commits.before_first = lambda: store.save_many([row("k", other, b"other")])
    assert run(store.save_many([row("k", 7, b"ours"), row("beside", 7)])) == [result, UpsertResult.APPLIED]
    ours, theirs = row("k", 7, b"ours"), row("k", other, b"other")
    assert run(store.load(b"entity", "k")) == (ours if result is UpsertResult.APPLIED else theirs)
    assert run(store.load(b"entity", "beside")) == row("beside", 7)


def test_a_row_that_is_deleted_between_read_and_commit_is_made_anew(
    store: FirestoreStore, run: Run, commits: Commits
) -> None:
    run(store.save_many([row("k", 4)]))
    commits.before_first = lambda: open_admin(store).delete([row("k", 4)])
    assert run(store.save_many([row("k", 5)])) == [UpsertResult.APPLIED]
    assert run(store.load(b"entity", "k")) == row("k", 5)


def test_nothing_is_deleted_or_replaced_that_changes_between_read_and_commit(
    store: FirestoreStore, run: Run, commits: Commits
) -> None:
    admin = open_admin(store)
    run(store.save_many([row("k", 4)]))
    commits.before_first = lambda: store.save_many([row("k", 5)])
    assert run(admin.delete([row("k", 4)])) == 0
    commits.before_first = lambda: store.save_many([row("k", 6)])
    assert run(admin.replace_seq(row("k", 5), row("k", 1))) is False
    assert run(store.load(b"entity", "k")) == row("k", 6)


def test_other_writers_in_every_round_are_an_unavailable_store(
    store: FirestoreStore, run: Run, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "MAX_ROUNDS", 3)
    commits.error = api.Aborted("too much contention")
    with pytest.raises(StoreUnavailable) as caught:
        run(store.save_many([row("k")]))
    assert caught.value.cause_type == "Aborted"
    assert commits.sizes == [1, 1, 1]


def test_rounds_end_with_the_deadline(store: FirestoreStore, run: Run, commits: Commits) -> None:
    run(store.ping())
    store.seconds = 0.3
    commits.error = api.Aborted("too much contention")

    async def save() -> None:
        before = asyncio.all_tasks()
        with pytest.raises(StoreTimeout):
            await store.save_many([row("k")])
        async with asyncio.timeout(30):
            # gRPC's own tasks may need a turn more.
            while asyncio.all_tasks() - before:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0)

    run(save())


def test_a_database_is_a_namespace_of_its_own(store: FirestoreStore, run: Run) -> None:
    other = open_store(
        f"firestore://beam-agents-tests/{store.uri.collection}?database=other&operation_timeout_s=30"
    )
    run(store.save_many([row("k", 1, b"default")]))
    run(other.save_many([row("k", 2, b"other")]))
    assert run(store.load(b"entity", "k")) == row("k", 1, b"default")
    assert run(other.load(b"entity", "k")) == row("k", 2, b"other")
    run(other.close())


def test_nothing_is_provisioned(store: FirestoreStore, run: Run) -> None:
    admin = open_admin(store)
    assert "nothing to create" in admin.provision_plan()
    assert run(admin.provision()) is False

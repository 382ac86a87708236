"""What every backend answers alike. Each test runs against each real server, emulator or file."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from beam_agents.memory.longterm import LongTermMemory
from beam_agents.memory.stores.contract import (
    MAX_ENTITY_KEY_BYTES,
    MAX_KEY_BYTES,
    MAX_SEQ,
    MemoryStore,
    RowId,
    StoreAdmin,
    StoreRow,
    encode_record,
)
from beam_agents.memory.stores.registry import open_store
from beam_agents.runtime.activation import MAX_EVENT_MS
from beam_agents.signals.types import UpsertResult

Run = Callable[..., Any]

ODD_KEYS = (
    "a", "A", "a/b", "a/", "/", "%", "a%", "a%b", "_", "a_b", "*", "a*b", "?", "[", "\\", "a\\b", "'",
    '"', "..",
    ".", "__x__", " ", " a", "a ", "\n", "a\nb", "\t", "\x00", "a\x00b", "\x01", "\x7f", "é",
    "e\u0301", "ß", "SS",
    "ı", "I", "i", "İ", "🛫", "\uffff", "\U0010ffff", "漢字", "0", "00", "10", "2", "~", "\u200d",
    "\ufeff",
)  # fmt: skip


def row(entity: bytes, key: str, seq: int = 1, value: bytes = b"value", at_ms: int | None = None) -> StoreRow:
    at = seq if at_ms is None else at_ms
    return StoreRow(entity, key, seq, encode_record(value, seq, at), at)


def test_a_row_comes_back_byte_for_byte(store: MemoryStore, entity: bytes, run: Run) -> None:
    written = row(entity, "profile", 7, bytes(range(256)))
    assert run(store.load(entity, "profile")) is None
    assert run(store.save_many([written])) == [UpsertResult.APPLIED]
    found = run(store.load(entity, "profile"))
    assert found == written
    # A driver might give what only compares equal, such as a bytearray or a subclass of int.
    assert [type(column) for column in found] == [type(column) for column in written]


def test_an_equal_seq_rewrites_and_a_lower_one_is_stale(store: MemoryStore, entity: bytes, run: Run) -> None:
    def save(seq: int, value: bytes) -> UpsertResult:
        (result,) = run(store.save_many([row(entity, "k", seq, value)]))
        return UpsertResult(result)

    assert save(5, b"five") is UpsertResult.APPLIED
    assert save(5, b"five again") is UpsertResult.APPLIED
    assert save(4, b"four") is UpsertResult.STALE
    assert run(store.load(entity, "k")) == row(entity, "k", 5, b"five again")
    assert save(6, b"six") is UpsertResult.APPLIED
    assert run(store.load(entity, "k")) == row(entity, "k", 6, b"six")


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (9, 10), (255, 256), (2**31 - 1, 2**31), (2**53, 2**53 + 1), (MAX_SEQ - 1, MAX_SEQ)],
)
def test_seqs_compare_as_numbers(store: MemoryStore, entity: bytes, run: Run, low: int, high: int) -> None:
    assert run(store.save_many([row(entity, "k", high)])) == [UpsertResult.APPLIED]
    assert run(store.save_many([row(entity, "k", low)])) == [UpsertResult.STALE]
    assert run(store.load(entity, "k")).seq == high


def test_a_batch_tells_each_rows_result_in_order(store: MemoryStore, entity: bytes, run: Run) -> None:
    run(store.save_many([row(entity, "b", 9), row(entity, "d", 2)]))
    batch = [row(entity, key, 5) for key in ("a", "b", "c", "d")]
    applied, stale = UpsertResult.APPLIED, UpsertResult.STALE
    assert run(store.save_many(batch)) == [applied, stale, applied, applied]
    assert [run(store.load(entity, key)).seq for key in "abcd"] == [5, 9, 5, 5]
    assert run(store.save_many(batch)) == [applied, stale, applied, applied]


def test_an_empty_batch_is_no_fault(store: MemoryStore, run: Run) -> None:
    assert run(store.save_many([])) == []


def test_a_large_batch(store: MemoryStore, entity: bytes, run: Run) -> None:
    batch = [row(entity, f"k{index:04d}", index) for index in range(700)]
    assert set(run(store.save_many(batch))) == {UpsertResult.APPLIED}
    assert run(store.search(entity, "", 1_000)) == batch


def test_a_batch_may_have_several_entities(store: MemoryStore, entity: bytes, run: Run) -> None:
    other = entity + b"\x00"
    run(store.save_many([row(entity, "k", 1, b"one"), row(other, "k", 2, b"two")]))
    assert run(store.load(entity, "k")).seq == 1
    assert run(store.load(other, "k")).seq == 2
    assert run(store.search(entity, "", 10)) == [row(entity, "k", 1, b"one")]


def test_odd_keys_are_kept_apart_and_in_order(store: MemoryStore, entity: bytes, run: Run) -> None:
    rows = [row(entity, key, index + 1, key.encode()) for index, key in enumerate(ODD_KEYS)]
    shuffled = random.Random(5).sample(rows, len(rows))
    run(store.save_many(shuffled))
    for each in rows:
        assert run(store.load(entity, each.key)) == each
    ordered = sorted(rows, key=lambda each: each.key.encode())
    assert run(store.search(entity, "", 1_000)) == ordered


@pytest.mark.parametrize(
    "prefix", ["a", "a/", "%", "_", "a\\", "*", "..", "__", "\x00", "é", "🛫", "\U0010ffff", "nothing"]
)
def test_a_prefix_is_bytes_and_no_pattern(store: MemoryStore, entity: bytes, run: Run, prefix: str) -> None:
    run(store.save_many([row(entity, key) for key in ODD_KEYS]))
    expected = sorted((key for key in ODD_KEYS if key.startswith(prefix)), key=str.encode)
    assert [each.key for each in run(store.search(entity, prefix, 1_000))] == expected
    assert [each.key for each in run(store.search(entity, prefix, 2))] == expected[:2]


def test_search_is_bounded_and_begins_at_the_lowest(store: MemoryStore, entity: bytes, run: Run) -> None:
    run(store.save_many([row(entity, f"case/{index:03d}") for index in reversed(range(120))]))
    for limit in (1, 7, 119, 120, 121):
        found = run(store.search(entity, "case/", limit))
        assert [each.key for each in found] == [f"case/{index:03d}" for index in range(min(limit, 120))]


@pytest.mark.parametrize("limit", [2**31 - 1, 2**31, 2**63, 10**30])
def test_an_agent_may_ask_for_any_number_of_rows(
    store: MemoryStore, entity: bytes, run: Run, limit: int
) -> None:
    run(store.save_many([row(entity, "a")]))
    memory = LongTermMemory(store, entity_key=entity, seq=2, now_ms=2)
    memory.save("b", b"staged")
    assert [found.key for found in run(memory.search("", limit))] == ["a", "b"]


@pytest.mark.parametrize(
    "odd", [b"", b"\x00", b"\x00" * 512, b"\xff" * 512, b"*", b"[a]", b"..", b"__x__", b"a/b", b"%00"]
)
def test_an_entity_key_is_any_bytes(store: MemoryStore, admin: StoreAdmin, run: Run, odd: bytes) -> None:
    key = "k\x00\n/%_*\\..😀"
    saved = row(odd, key)
    assert run(store.save_many([saved])) == [UpsertResult.APPLIED]
    assert run(store.load(odd, key)) == saved
    assert run(store.search(odd, "k\x00", 2)) == [saved]
    assert run(admin.scan(None, 2, entity_key=odd)) == [saved]
    assert run(admin.delete([saved])) == 1
    assert run(store.load(odd, key)) is None


def test_the_lowest_and_the_highest_seq(
    store: MemoryStore, admin: StoreAdmin, entity: bytes, run: Run
) -> None:
    lowest = row(entity, "k", 0, at_ms=0)
    highest = row(entity, "k", MAX_SEQ, at_ms=MAX_EVENT_MS)
    assert run(store.save_many([lowest])) == [UpsertResult.APPLIED]
    assert run(store.load(entity, "k")) == lowest
    assert run(store.save_many([highest])) == [UpsertResult.APPLIED]
    assert run(store.save_many([lowest])) == [UpsertResult.STALE]
    assert run(admin.replace_seq(highest, lowest))
    assert run(store.load(entity, "k")) == lowest


@pytest.mark.parametrize("other", [b"", b"\x00", b"\xff", b"/", b"a" * 100])
def test_entities_do_not_see_each_other(store: MemoryStore, entity: bytes, run: Run, other: bytes) -> None:
    neighbour = entity + other + b"!"
    run(store.save_many([row(entity, "k", 1), row(neighbour, "k", 2), row(neighbour, "kk", 2)]))
    assert [each.key for each in run(store.search(entity, "k", 10))] == ["k"]
    assert [each.key for each in run(store.search(neighbour, "k", 10))] == ["k", "kk"]


def test_the_longest_keys_and_values_fit(store: MemoryStore, run: Run, entity: bytes) -> None:
    long_entity = (entity + b"\xff" * MAX_ENTITY_KEY_BYTES)[:MAX_ENTITY_KEY_BYTES]
    for filler in ("\x00", "/", "z", "é", "\U0010ffff"):
        key = filler * (MAX_KEY_BYTES // len(filler.encode()))
        written = row(long_entity, key, 3)
        run(store.save_many([written]))
        assert run(store.load(long_entity, key)) == written
        assert run(store.search(long_entity, key, 5)) == [written]
    largest = row(entity, "large", 4, b"\xab" * store.limits.max_value_bytes)
    run(store.save_many([largest]))
    assert run(store.load(entity, "large")) == largest


def test_an_empty_value_is_a_row(store: MemoryStore, entity: bytes, run: Run) -> None:
    run(store.save_many([row(entity, "k", 1, b"")]))
    assert run(store.load(entity, "k")) == row(entity, "k", 1, b"")


@pytest.mark.parametrize("new", [True, False])
def test_sixteen_writers_end_at_the_highest_seq(
    store: MemoryStore, entity: bytes, run: Run, *, new: bool
) -> None:
    if not new:
        run(store.save_many([row(entity, "k", 1)]))
    seqs = list(range(2, 18))
    random.Random(11).shuffle(seqs)

    async def race() -> list[list[UpsertResult]]:
        return await asyncio.gather(*(store.save_many([row(entity, "k", seq, b"%d" % seq)]) for seq in seqs))

    results = run(race())
    assert run(store.load(entity, "k")) == row(entity, "k", 17, b"17")
    assert results[seqs.index(17)] == [UpsertResult.APPLIED]


def test_overlapping_batches_do_not_block_each_other_for_ever(
    store: MemoryStore, entity: bytes, run: Run
) -> None:
    keys = [f"k{index}" for index in range(12)]

    async def race() -> None:
        batches = []
        for seq in range(1, 9):
            order = random.Random(seq).sample(keys, len(keys))
            batches.append(store.save_many([row(entity, key, seq) for key in order]))
        await asyncio.gather(*batches)

    run(race())
    assert {each.seq for each in run(store.search(entity, "", 100))} == {8}


def test_two_stores_of_one_uri_see_the_same_rows(store: MemoryStore, entity: bytes, run: Run) -> None:
    other = open_store(store.uri)
    run(store.save_many([row(entity, "k", 1)]))
    assert run(other.load(entity, "k")) == row(entity, "k", 1)
    run(other.close())
    run(other.close())


def test_it_answers_a_ping(store: MemoryStore, run: Run) -> None:
    run(store.ping())


def test_provisioning_twice_creates_nothing(admin: StoreAdmin, run: Run) -> None:
    assert run(admin.provision()) is False
    assert admin.provision_plan()


def test_a_scan_goes_through_all_rows_once_in_order(
    store: MemoryStore, admin: StoreAdmin, entity: bytes, run: Run
) -> None:
    entities = [entity + bytes([index]) for index in (0, 1, 47, 127, 128, 255)]
    rows = [row(each, key, 3) for each in entities for key in ("a", "a/", "b", "é", "🛫")]
    run(store.save_many(random.Random(3).sample(rows, len(rows))))

    def scan(page: int, **only: bytes) -> list[StoreRow]:
        found: list[StoreRow] = []
        after: RowId | None = None
        while part := run(admin.scan(after, page, **only)):
            assert len(part) <= page
            found += part
            after = part[-1].row_id
        return found

    found = [each for each in scan(7) if each.entity_key in entities]
    assert found == sorted(rows, key=lambda each: each.row_id.sort_key)
    assert scan(2, entity_key=entities[3]) == [each for each in found if each.entity_key == entities[3]]


def test_a_row_that_changed_is_not_deleted(
    store: MemoryStore, admin: StoreAdmin, entity: bytes, run: Run
) -> None:
    run(store.save_many([row(entity, "stays", 2), row(entity, "goes", 2)]))
    assert (
        run(admin.delete([row(entity, "stays", 1), row(entity, "goes", 2), row(entity, "never was", 2)])) == 1
    )
    assert [each.key for each in run(store.search(entity, "", 10))] == ["stays"]


def test_a_poisoned_seq_is_replaced_once(
    store: MemoryStore, admin: StoreAdmin, entity: bytes, run: Run
) -> None:
    poisoned, mended = row(entity, "k", 10**15, b"v"), row(entity, "k", 5, b"v")
    run(store.save_many([poisoned]))
    assert run(store.save_many([mended])) == [UpsertResult.STALE]
    assert run(admin.replace_seq(poisoned, mended)) is True
    assert run(store.load(entity, "k")) == mended
    assert run(admin.replace_seq(poisoned, mended)) is False

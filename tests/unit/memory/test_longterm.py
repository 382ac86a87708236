from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.errors import ActivationClosed, StateUndecodable, StateVersionUnsupported
from beam_agents.memory.longterm import LongTermMemory
from beam_agents.memory.stores.contract import (
    MAX_ENTITY_KEY_BYTES,
    MAX_KEY_BYTES,
    MemoryRecord,
    StoreRow,
    encode_record,
)
from beam_agents.memory.stores.inprocess import MAX_VALUE_BYTES, InProcessStore, forget_rows
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.wire.beam_agents_pb2 import LongTermRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENTITY = b"N41104"
KEYS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=4)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    forget_rows()
    yield
    forget_rows()


def opened(entity_key: bytes = ENTITY, seq: int = 10) -> LongTermMemory:
    return LongTermMemory(
        InProcessStore(parse_store_uri("memory://")), entity_key=entity_key, seq=seq, now_ms=77
    )


def store_rows(*rows: tuple[str, bytes, int]) -> None:
    made = [StoreRow(ENTITY, key, seq, encode_record(value, seq, seq), seq) for key, value, seq in rows]
    asyncio.run(InProcessStore(parse_store_uri("memory://")).save_many(made))


def test_an_activation_reads_its_own_saves_first() -> None:
    store_rows(("k", b"old", 1))
    longterm = opened()
    assert asyncio.run(longterm.load("k")) == MemoryRecord("k", b"old", 1, 1)
    longterm.save("k", b"first")
    longterm.save("k", b"second")
    assert asyncio.run(longterm.load("k")) == MemoryRecord("k", b"second", 10, 77)
    assert asyncio.run(longterm.load("none")) is None
    assert [(row.key, row.seq) for row in longterm.staged] == [("k", 10)]


def test_saving_does_no_io() -> None:
    longterm = opened()
    longterm.save("k", b"value")
    assert asyncio.run(opened().load("k")) is None


@given(
    st.dictionaries(KEYS, st.binary(max_size=3), max_size=12),
    st.dictionaries(KEYS, st.binary(max_size=3), max_size=6),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=2),
    st.integers(1, 8),
)
def test_search_is_the_stores_rows_with_the_staged_ones_over_them(
    stored: dict[str, bytes], staged: dict[str, bytes], prefix: str, limit: int
) -> None:
    forget_rows()
    store_rows(*((key, value, 1) for key, value in stored.items()))
    longterm = opened()
    for key, value in staged.items():
        longterm.save(key, value)
    expected = {**stored, **staged}
    wanted = sorted((key for key in expected if key.startswith(prefix)), key=str.encode)[:limit]
    found = asyncio.run(longterm.search(prefix, limit))
    assert [(record.key, record.value) for record in found] == [(key, expected[key]) for key in wanted]


@given(st.lists(st.tuples(KEYS, st.binary(max_size=3)), max_size=8))
def test_what_is_flushed_does_not_depend_on_the_order_of_saves(saves: list[tuple[str, bytes]]) -> None:
    last = dict(saves)
    one, other = opened(), opened()
    for key, value in saves:
        one.save(key, value)
    for key in sorted(last, reverse=True):
        other.save(key, last[key])
    assert one.staged == other.staged
    assert [row.key for row in one.staged] == sorted(last, key=str.encode)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda tier: tier.save("", b""), ValueError),
        (lambda tier: tier.save(b"k", b""), TypeError),
        (lambda tier: tier.save("k", "text"), TypeError),
        (lambda tier: tier.save("k", bytearray(b"x")), TypeError),
        (lambda tier: tier.save("\ud800", b""), ValueError),
        (lambda tier: tier.save("k" * (MAX_KEY_BYTES + 1), b""), ValueError),
        (lambda tier: tier.save("é" * (MAX_KEY_BYTES // 2 + 1), b""), ValueError),
        (lambda tier: tier.save("k", bytes(MAX_VALUE_BYTES + 1)), ValueError),
        (lambda tier: asyncio.run(tier.load("")), ValueError),
        (lambda tier: asyncio.run(tier.load(None)), TypeError),
        (lambda tier: asyncio.run(tier.search(None)), TypeError),
        (lambda tier: asyncio.run(tier.search("k", limit=0)), ValueError),
        (lambda tier: asyncio.run(tier.search("k", limit=-1)), ValueError),
        (lambda tier: asyncio.run(tier.search("k", limit=1.5)), TypeError),
        (lambda tier: asyncio.run(tier.search("k", limit=True)), TypeError),
    ],
)
def test_a_wrong_call_stages_nothing(call: Callable[[Any], Any], error: type[Exception]) -> None:
    longterm = opened()
    with pytest.raises(error):
        call(longterm)
    assert longterm.staged == ()


def test_a_key_that_encodes_itself_otherwise_is_taken_for_the_text_that_it_is() -> None:
    class Odd(str):
        __slots__ = ()

        def encode(self, *_: str) -> bytes:  # type: ignore[override]  # the point of the test
            return b"another"

    memory = opened()
    memory.save(Odd("a"), b"value")
    (staged,) = memory.staged
    assert type(staged.key) is str
    assert staged.key.encode() == b"a"


def test_an_entity_key_that_is_too_long_is_refused_at_save() -> None:
    opened(b"e" * MAX_ENTITY_KEY_BYTES).save("k", b"")
    with pytest.raises(ValueError, match="entity key"):
        opened(b"e" * (MAX_ENTITY_KEY_BYTES + 1)).save("k", b"")


def test_rows_that_cannot_be_read_are_told_and_left() -> None:
    store = InProcessStore(parse_store_uri("memory://"))
    newer = LongTermRecord(record_schema_version=9, value=b"v").SerializeToString()
    for rec, error in (
        (b"\xff", StateUndecodable),
        (b"", StateUndecodable),
        (newer, StateVersionUnsupported),
    ):
        forget_rows()
        asyncio.run(store.save_many([StoreRow(ENTITY, "k", 1, rec, 1)]))
        with pytest.raises(error) as caught:
            asyncio.run(opened().load("k"))
        assert ENTITY.decode() not in str(caught.value)
        with pytest.raises(error):
            asyncio.run(opened().search())
        row = asyncio.run(store.load(ENTITY, "k"))
        assert row is not None
        assert row.rec == rec


def test_it_ends_with_its_activation() -> None:
    longterm = opened()
    longterm.close()
    for call in (
        lambda: longterm.save("k", b""),
        lambda: asyncio.run(longterm.load("k")),
        lambda: asyncio.run(longterm.search()),
    ):
        with pytest.raises(ActivationClosed):
            call()


def test_the_envelope_is_the_same_everywhere() -> None:
    assert encode_record(b"value", 7, 1_700_000_000_000).hex() == "0801120576616c756518072080d095ffbc31"

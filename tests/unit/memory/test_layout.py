from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from beam_agents.memory.layout import Directory, frame, page_of, pages_for, parent_of, splice
from beam_agents.wire.beam_agents_pb2 import MemoryExtent


@given(st.integers(0, 2**32 - 1), st.integers(1, 3_000))
def test_one_more_page_moves_keys_from_its_parent_alone(key_hash: int, pages: int) -> None:
    before, after = page_of(key_hash, pages), page_of(key_hash, pages + 1)
    assert 0 <= before < pages
    assert after == before or (after == pages and before == parent_of(pages))


def test_one_more_page_does_move_keys() -> None:
    assert {page_of(key_hash, 6) for key_hash in range(64)} == set(range(6))


@pytest.mark.parametrize(("entries", "pages"), [(0, 0), (1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_a_page_for_every_eight_entries(entries: int, pages: int) -> None:
    assert pages_for(entries) == pages


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_framing_is_protobufs(size: int) -> None:
    value = bytes(size)
    assert frame(b"\x0a", size) + value == MemoryExtent(value=value).SerializeToString()


@given(
    st.lists(st.binary(max_size=5), max_size=80),
    st.dictionaries(st.integers(0, 79), st.binary(max_size=5), max_size=10),
    st.lists(st.binary(max_size=5), max_size=40),
    st.integers(0, 79),
)
def test_splicing_gives_what_joining_all_parts_gives(
    old: list[bytes], changes: dict[int, bytes], added: list[bytes], dropped: int
) -> None:
    """The new parts stand where the old ones stood; spans are right before and after."""
    head = b"head"
    sizes: list[int] = []
    groups: list[int] = []
    directory = Directory(sizes, groups, len(head))
    splice(memoryview(head), directory, len(old), [(i, 4, 4, [part]) for i, part in enumerate(old)])
    directory = Directory(sizes, groups, len(head))
    blob = memoryview(head + b"".join(old))
    for index, part in enumerate(old):
        start, end = directory.span(index)
        assert blob[start:end] == part

    new = [*old, *added] if added else old[: max(1, len(old) - dropped)]
    for index, part in changes.items():
        if index < len(new):
            new[index] = part
    touched = sorted({index for index in changes if index < len(new)} | set(range(len(old), len(new))))
    parts = [(index, *directory.span(index), [new[index][:2], new[index][2:]]) for index in touched]
    assert b"".join(splice(blob, directory, len(new), parts)) == b"".join(new)
    assert sizes == [len(part) for part in new]
    assert groups == [sum(sizes[start : start + 32]) for start in range(0, len(sizes), 32)]

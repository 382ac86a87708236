from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from beam_agents.memory.ring import Ring
from beam_agents.wire.beam_agents_pb2 import MemoryBlob, MemoryExtended

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([0, 3, 1_000, 4_096, 5_000]), st.integers(1, 90)),
        st.tuples(st.just("drop"), st.integers(0, 70), st.just(1)),
        st.tuples(st.just("store"), st.just(0), st.just(1)),
        st.tuples(st.just("look"), st.integers(0, 70), st.just(1)),
    ),
    max_size=12,
)


def stored(ring: Ring, target: MemoryExtended) -> tuple[MemoryExtended, bytes]:
    return target, b"".join(ring.write(target))


@given(STEPS)
@settings(deadline=None)
def test_a_ring_is_a_list_however_often_it_is_stored(steps: list[tuple[str, int, int]]) -> None:
    directory = MemoryExtended()
    ring = Ring()
    straight = Ring()
    model: list[bytes] = []
    for action, amount, times in steps:
        if action == "append":
            for number in range(times):
                item = bytes([number]) * amount
                ring.append(item)
                straight.append(item)
                model.append(item)
        elif action == "drop":
            ring.drop(amount)
            straight.drop(amount)
            del model[:amount]
        elif action == "look":
            assert ring.oldest(amount) == model[:amount]
        else:
            directory, extents = stored(ring, directory)
            ring = Ring(directory, memoryview(extents))
        assert ring.items == len(model)
        assert ring.content_bytes == sum(map(len, model))
    assert ring.all() == tuple(model)
    directory, extents = stored(ring, directory)
    assert (directory, extents) == stored(straight, MemoryExtended())
    chunks = MemoryBlob.FromString(extents).extents
    assert [len(chunk.items) for chunk in chunks] == directory.chunk_items
    assert sum(directory.chunk_bytes) == directory.stored_bytes == len(extents)
    for chunk in chunks:
        assert 1 <= len(chunk.items) <= 64
        assert len(chunk.items) == 1 or sum(map(len, chunk.items)) <= 4_096


def test_an_append_leaves_the_chunks_between_unread() -> None:
    ring = Ring()
    for number in range(4_096):
        ring.append(b"%d" % number)
    directory, extents = stored(ring, MemoryExtended())
    # What is between the first chunk and the last is no protobuf: reading it would fail.
    first, last = directory.chunk_bytes[0], directory.chunk_bytes[-1]
    damaged = extents[:first] + b"\xff" * (len(extents) - first - last) + extents[-last:]
    ring = Ring(directory, memoryview(damaged))
    assert ring.oldest(1) == [b"0"]
    ring.append(b"new")
    ring.drop(1)
    directory, rewritten = stored(ring, directory)
    assert b"\xff" * (len(extents) - first - last) in rewritten
    assert directory.items == 4_096

"""Pipelines on every backend: two that write one entity, a new one over old rows, a key that wakes."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.memory.stores.contract import decode_record
from beam_agents.testing import AgentHarness, event

if TYPE_CHECKING:
    from collections.abc import Callable

    from beam_agents.memory.stores.contract import MemoryStore

    Run = Callable[..., Any]

TTL_MS = 1_000
KEYS = ("first", "second")


async def keep(ctx: AgentContext) -> Complete:
    """Save the event under two keys."""
    assert ctx.event is not None
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    for key in KEYS:
        ctx.memory.longterm.save(key, ctx.event)
    return Complete(b"%d" % seen)


@pytest.fixture
def config(uri: str, store: MemoryStore) -> AgentConfig:  # noqa: ARG001 - it is provisioned
    return AgentConfig(longterm_memory=uri, ttl_ms=TTL_MS)


@pytest.fixture
def rows(store: MemoryStore, entity: bytes, run: Run) -> Callable[[], dict[str, tuple[bytes, int]]]:
    """Read the entity's rows: value and seq, by key."""

    def read() -> dict[str, tuple[bytes, int]]:
        return {row.key: (decode_record(row).value, row.seq) for row in run(store.search(entity, "", 100))}

    return read


def test_two_pipelines_that_write_one_entity_end_at_the_highest_seq(
    config: AgentConfig, entity: bytes, rows: Callable[[], dict[str, tuple[bytes, int]]]
) -> None:
    times = random.Random(7).sample(range(10_000, 20_000), 40)

    def pipeline(own: list[int]) -> tuple[float, float, int]:
        with AgentHarness(keep, config) as harness:
            for time_ms in own:
                assert harness.send(event(entity, b"%d" % time_ms, time_ms=time_ms)).errors == []
            total = harness.signals.total
            return (
                total("longterm_upserts_total", result="applied"),
                total("longterm_upserts_total", result="stale"),
                harness.states[entity].seq,
            )

    # Each goes forward in time: what its seqs are then, its events alone decide.
    halves = [sorted(times[:20]), sorted(times[20:])]
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(pipeline, halves))
    assert [seq for _, _, seq in results] == [half[-1] for half in halves]
    for applied, stale, _ in results:
        assert applied + stale == 20 * len(KEYS)
    highest = max(times)
    assert rows() == dict.fromkeys(KEYS, (b"%d" % highest, highest))


def test_a_key_that_wakes_after_its_wipe_updates_its_old_rows(
    config: AgentConfig, entity: bytes, rows: Callable[[], dict[str, tuple[bytes, int]]]
) -> None:
    with AgentHarness(keep, config) as harness:
        # Many activations at one time: the seq runs ahead of the clock.
        harness.send(*(event(entity, b"%d" % number, time_ms=5_000) for number in range(20)))
        assert rows() == dict.fromkeys(KEYS, (b"19", 5_019))
        harness.advance_watermark(6_000)
        assert harness.states == {}
        assert harness.send(event(entity, b"woken", time_ms=6_001)).outputs == [b"1"]
        assert harness.signals.total("longterm_upserts_total", result="stale") == 0
    assert rows() == dict.fromkeys(KEYS, (b"woken", 6_001))


def test_a_new_pipeline_updates_old_rows_and_reprocessing_is_refused_and_told(
    config: AgentConfig, entity: bytes, rows: Callable[[], dict[str, tuple[bytes, int]]]
) -> None:
    with AgentHarness(keep, config) as harness:
        harness.send(*(event(entity, b"old", time_ms=5_000 + number) for number in range(10)))
    with AgentHarness(keep, config) as harness:
        harness.send(event(entity, b"new", time_ms=8_000))
        assert harness.signals.total("longterm_upserts_total", result="applied") == len(KEYS)
    assert rows() == dict.fromkeys(KEYS, (b"new", 8_000))
    with AgentHarness(keep, config) as harness:
        assert harness.send(event(entity, b"old", time_ms=5_000)).outputs == [b"1"]
        assert harness.signals.total("longterm_upserts_total", result="applied") == 0
        assert harness.signals.total("longterm_upserts_total", result="stale") == len(KEYS)
        (told,) = harness.signals.happenings("longterm_upsert_stale")
        assert (told.attributes["rows"], told.attributes["seq"]) == (len(KEYS), 5_000)
    assert rows() == dict.fromkeys(KEYS, (b"new", 8_000))

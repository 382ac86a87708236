"""One store per URI and process."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from beam_agents.errors import StoreUnavailable
from beam_agents.memory.stores import inprocess, pool
from beam_agents.memory.stores.pool import acquire_store, release_store

if TYPE_CHECKING:
    from beam_agents.memory.stores.guarded import GuardedStore
    from beam_agents.memory.stores.uri import StoreUri


class Counts:
    """Stores that were opened and closed."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.failing = False


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Count what happens to the stores behind ``memory://``, under any URI of another scheme too."""
    made = Counts()

    class Counting(inprocess.InProcessStore):
        def __init__(self, uri: StoreUri) -> None:
            super().__init__(uri)
            made.opened.append(str(uri))

        async def close(self) -> None:
            made.closed.append(str(self.uri))
            if made.failing:
                raise StoreUnavailable("inprocess", "close", "ConnectionError")

    monkeypatch.setattr(pool, "open_store", Counting)
    # Runners that drop a failing DoFn without its teardown leave stores behind in this process.
    monkeypatch.setattr(pool, "_process", pool._Process())
    return made


def release(*stores: GuardedStore) -> None:
    async def release_all() -> None:
        for store in stores:
            await release_store(store)

    asyncio.run(release_all())


def test_the_last_user_closes_it(counts: Counts) -> None:
    first, second = acquire_store("memory://"), acquire_store("memory://")
    assert first is not second
    release(first)
    assert (counts.opened, counts.closed) == (["memory://"], [])
    release(second)
    assert counts.closed == ["memory://"]
    release(acquire_store("memory://"))
    assert len(counts.opened) == len(counts.closed) == 2


def test_giving_back_twice_takes_it_from_nobody(counts: Counts) -> None:
    first, second = acquire_store("memory://"), acquire_store("memory://")
    release(first, first, first.observed(lambda _call: None))
    assert counts.closed == []
    release(second, second)
    assert counts.closed == ["memory://"]


def test_uris_that_differ_share_nothing(counts: Counts) -> None:
    stores = [
        acquire_store("redis://host"),
        acquire_store("redis://host:6379/0"),
        acquire_store("redis://:password@host"),
        acquire_store("redis://host?pool_size=2"),
    ]
    assert (
        counts.opened == ["redis://host", "redis://:***@host", "redis://host?pool_size=2"]
        or len(counts.opened) == 3
    )
    release(*stores)
    assert sorted(counts.closed) == sorted(counts.opened)


def test_a_failing_close_is_told_and_the_store_is_gone(counts: Counts) -> None:
    counts.failing = True
    store = acquire_store("memory://")
    with pytest.raises(StoreUnavailable):
        release(store)
    counts.failing = False
    release(acquire_store("memory://"))
    assert len(counts.opened) == 2


def test_a_wrong_uri_is_refused() -> None:
    with pytest.raises(ValueError, match="its scheme is unknown"):
        acquire_store("nosuch://host")


def test_threads_that_come_and_go_share_one_at_a_time(counts: Counts) -> None:
    keeper = acquire_store("memory://")

    def come_and_go(seed: int) -> None:
        randomness = random.Random(seed)
        held = []
        for _ in range(50):
            held.append(acquire_store("memory://"))
            if randomness.random() < 0.7:
                release(held.pop(randomness.randrange(len(held))))
        release(*held)

    threads = [threading.Thread(target=come_and_go, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(counts.opened), counts.closed) == (1, [])
    release(keeper)
    assert counts.closed == ["memory://"]


FORKS = """
import os, threading
from beam_agents.memory.stores import pool
from beam_agents.memory.stores.contract import StoreRow
from beam_agents.runtime.bridge import shared_bridge

row = StoreRow(b"e", "k", 1, b"rec", 1)
parents = pool.acquire_store("memory://")
shared_bridge().run(parents.save_many([row]), 30)

locked, may_end = threading.Event(), threading.Event()
def hold_lock():
    with pool._process.lock:
        locked.set()
        may_end.wait()
holder = threading.Thread(target=hold_lock)
holder.start()
locked.wait()
child = os.fork()
if child == 0:
    status = 1
    try:
        run = shared_bridge().run
        mine = pool.acquire_store("memory://")
        assert mine._store is not parents._store
        run(pool.release_store(parents), 30)
        run(mine.save_many([row]), 30)
        run(pool.release_store(mine), 30)
        assert not pool._process.by_uri
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
may_end.set()
holder.join()
assert pool.acquire_store("memory://")._store is parents._store
assert shared_bridge().run(parents.load(b"e", "k"), 30) == row
"""


def test_a_forked_child_begins_with_none_though_another_thread_held_the_lock() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr

"""Stores that fail for real: nothing committed is lost, no row goes back, no memory is wiped unsaved.

The randomised runs print their seed; ``BEAM_AGENTS_FAULT_SEED`` repeats one.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from beam_agents import AgentConfig, AgentContext, Complete, FlushToLongterm, restore_working_memory
from beam_agents.errors import ExpireFlushFailed
from beam_agents.memory.stores.contract import RowId, StoreRow, encode_record
from beam_agents.memory.stores.guarded import GuardedStore
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.sql_schema import ddl_statements
from beam_agents.runtime.bridge import shared_bridge
from beam_agents.testing import AgentHarness, event
from tests.semantics.longterm_model import StoreModel
from tests.servers import redis
from tests.servers.disks import mounted
from tests.servers.postgresql import running_cluster
from tests.servers.strikes import SLOW, Strike, rigged

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Coroutine, Iterator

    from beam_agents.memory.stores.contract import MemoryRecord, MemoryStore
    from beam_agents.memory.stores.uri import StoreUri
    from beam_agents.testing import KeyState
    from tests.servers.strikes import LiveServer, Rig

T = TypeVar("T")

FAULTS = 50
ACTIVATIONS = 1_000
TTL_MS = 1_000
ENTITIES = (b"a", b"b", b"c\x00\xff", b"d")
MEMORY_KEY = "working_memory"
READ_FAILED, FLUSH_FAILED = "longterm_read_failed", "longterm_flush_failed"
TRIES = 20
"""How often an activation may fail after the store is back."""


# A server, and its store's URI at another port


@contextmanager
def durable_redis(folder: pathlib.Path) -> Iterator[tuple[LiveServer, str]]:
    server = redis.DurableServer(folder)
    try:
        server.start()
        yield server, "redis://127.0.0.1:{port}/0"
    finally:
        server.close()


@contextmanager
def durable_postgresql(folder: pathlib.Path) -> Iterator[tuple[LiveServer, str]]:  # noqa: ARG001 - as Redis
    with running_cluster() as cluster:
        yield cluster, "postgresql+asyncpg://postgres@127.0.0.1:{port}/postgres"


SERVERS = {"redis": durable_redis, "postgresql": durable_postgresql}


def call(coroutine: Coroutine[Any, Any, T]) -> T:
    return shared_bridge().run(coroutine, 120, inline=False)


def provision(uri: str | StoreUri) -> None:
    store = open_store(uri)
    call(open_admin(store).provision())
    call(store.close())


class FaultRun:
    """Agents whose store fails, and a model of what may come of that."""

    def __init__(self, rig: Rig, watcher: MemoryStore, uri: str, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._rig = rig
        self._watcher = watcher
        self._rng = rng
        self._model = StoreModel()
        self._now_ms = 1_000_000
        self._number = 0
        self._seen: Counter[bytes] = Counter()
        self._staged: tuple[StoreRow, ...] = ()
        self._read: tuple[MemoryRecord | None] | None = None
        self._before_flush: Callable[[], None] | None = None
        # Half of the entities expire one way, half the other.
        self.harnesses = [
            AgentHarness(
                self._agent,
                AgentConfig(
                    longterm_memory=uri,
                    ttl_ms=TTL_MS,
                    on_expire=FlushToLongterm(key=MEMORY_KEY, on_failure=on_failure),
                ),
            )
            for on_failure in ("fail_bundle", "rearm")
        ]

    async def _agent(self, ctx: AgentContext) -> Complete:
        """Save rows that follow from the event and from memory, and read one back on the way."""
        assert ctx.event is not None
        number, mode = ctx.event.split()
        longterm = ctx.memory.longterm
        if len(ctx.memory) == 0:
            kept = await longterm.load(MEMORY_KEY)
            if kept is not None:
                restore_working_memory(ctx.memory, kept.value)
        self._read = None
        if mode == b"reads":
            self._read = (await longterm.load("last"),)
            await longterm.search("case/", limit=3)
        seen = int(ctx.memory.get("seen", b"0")) + 1
        ctx.memory.set("seen", b"%d" % seen)
        ctx.memory.append("log", number, max_items=5)
        longterm.save("last", number)
        longterm.save("seen", b"%d" % seen)
        longterm.save(f"case/{int(number) % 7}", number)
        ctx.act("notify", number)
        self._staged = longterm.staged
        self._model.attempted(self._staged)
        if self._before_flush is not None:
            strike, self._before_flush = self._before_flush, None
            strike()
        return Complete(b"%s %d" % (number, seen))

    def _harness(self, entity: bytes) -> AgentHarness:
        return self.harnesses[ENTITIES.index(entity) % 2]

    def _next_event(self, awaited: frozenset[bytes] = frozenset()) -> tuple[bytes, bytes, int]:
        """Return an entity, a payload and a time that is above all seqs so far."""
        self._number += 1
        self._now_ms += self._rng.randint(10, 30)
        mode = self._rng.choice(["reads", "writes"])
        entity = self._rng.choice([each for each in ENTITIES if each not in awaited])
        return entity, f"{self._number} {mode}".encode(), self._now_ms

    def _send(self, entity: bytes, payload: bytes, time_ms: int) -> bool:
        """Run an activation, check that it is whole or nothing, and tell whether it was committed."""
        harness = self._harness(entity)
        before = harness.states
        emitted = harness.send(event(entity, payload, time_ms=time_ms))
        self.counts["activations"] += 1
        if emitted.errors:
            (error,) = emitted.errors
            assert error.reason in {READ_FAILED, FLUSH_FAILED}, error.detail
            assert (emitted.outputs, emitted.intents) == ([], [])
            assert harness.states == before
            self.counts[error.reason] += 1
            return False
        self._seen[entity] += 1
        assert emitted.outputs == [b"%s %d" % (payload.split()[0], self._seen[entity])]
        assert len(emitted.intents) == 1
        if self._read is not None:
            self._model.check_read(RowId(entity, "last"), self._read[0])
        self._model.committed(self._staged)
        return True

    def _expire(self, entity: bytes) -> None:
        """Let a key expire, and check that it is wiped only with its memory saved."""
        harness = self._harness(entity)
        before = harness.states
        state = before.get(entity)
        if state is None:
            return
        row = memory_row(entity, state)
        self._model.attempted([row])
        fired_ms = max(state.decoded_control.expires_at_ms, *harness.timers(entity).values())
        self._now_ms = max(self._now_ms, fired_ms)
        try:
            assert harness.fire_expiry(entity, fired_ms) == []
        except ExpireFlushFailed:
            assert harness is self.harnesses[0]
            assert harness.states == before
            self.counts["expiries failed"] += 1
            return
        after = harness.states.get(entity)
        if after is None:
            self._model.committed([row])
            self.counts["wipes"] += 1
            return
        assert harness is self.harnesses[1]
        assert (after.memory, after.replay) == (state.memory, state.replay)
        assert after.seq == state.seq
        failures = state.decoded_control.expire_failures
        # A store that gave no answer last time is not asked again for each key: that is no further attempt.
        assert after.decoded_control.expire_failures in {failures + 1, max(1, failures)}
        assert max(harness.timers(entity).values()) > fired_ms
        self.counts["expiries put off"] += 1

    def check_store(self) -> None:
        rows = [row for entity in ENTITIES for row in call(self._watcher.search(entity, "", 1_000))]
        self.counts["rows of failed activations"] += self._model.check_store(rows)

    def fault(self, strike: Strike) -> None:
        """Make a fault before, in or after an activation, go on under it, mend it, and look at the store."""
        rng = self._rng

        def begin() -> None:
            self._rig.strike(strike, rng.randrange(4))

        failed: list[tuple[bytes, bytes, int]] = []

        def act() -> None:
            # A key's next event waits for the one before it, as its runner keeps their order.
            chosen = self._next_event(frozenset(entity for entity, _, _ in failed))
            # The source delivers some again; the others have gone to the errors output for good.
            if not self._send(*chosen) and rng.random() < 0.5:
                failed.append(chosen)

        moment = rng.choice(["before", "in", "after"])
        if moment == "in":
            self._before_flush = begin
            act()
            assert self._before_flush is None
        else:
            if moment == "after":
                act()
            begin()
        for _ in range(1 if strike in SLOW else rng.randint(1, 3)):
            # An event that comes after its key's wipe is old: its rows would be refused, and rightly.
            awaited = {entity for entity, _, _ in failed}
            expiring = rng.choice(ENTITIES)
            if expiring not in awaited and rng.random() < 0.3:
                self._expire(expiring)
            else:
                act()
        self._rig.mend()
        self.check_store()
        for chosen in failed:
            self.send_at_last(*chosen)
        self.check_store()

    def go_on(self, activations: int) -> None:
        for _ in range(activations):
            if self._rng.random() < 0.1:
                self._expire(self._rng.choice(ENTITIES))
            self.send_at_last(*self._next_event())

    def send_at_last(self, entity: bytes, payload: bytes, time_ms: int) -> None:
        """Run an activation on a store that is there; what is left of a fault may fail it at first."""
        for _ in range(TRIES):
            if self._send(entity, payload, time_ms):
                return
            self.counts["failed after the fault"] += 1
        pytest.fail(f"the store is back, and {TRIES} activations failed")

    def finish(self) -> None:
        """Let all keys expire."""
        for entity in ENTITIES:
            for _ in range(TRIES):
                self._expire(entity)
        assert [harness.states for harness in self.harnesses] == [{}, {}]


def memory_row(entity: bytes, state: KeyState) -> StoreRow:
    """Return the row that FlushToLongterm makes of a key."""
    control = state.decoded_control
    assert state.memory is not None
    at_ms = control.expires_at_ms
    return StoreRow(entity, MEMORY_KEY, control.seq, encode_record(state.memory, control.seq, at_ms), at_ms)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_thousand_activations_over_fifty_faults(kind: str, tmp_path: pathlib.Path) -> None:
    seed = int(os.environ.get("BEAM_AGENTS_FAULT_SEED") or random.SystemRandom().randrange(2**32))
    print(f"BEAM_AGENTS_FAULT_SEED={seed}")  # noqa: T201 - shown where the test fails, or with -s
    rng = random.Random(seed)
    strikes = [*Strike] * (FAULTS // len(Strike))
    rng.shuffle(strikes)
    with SERVERS[kind](tmp_path) as (server, uri), rigged(server) as rig:
        watcher = GuardedStore(open_store(uri.format(port=server.port) + "?operation_timeout_s=30"))
        provision(watcher.uri)
        short = uri.format(port=rig.port) + "?operation_timeout_s=0.5&connect_timeout_s=0.5"
        run = FaultRun(rig, watcher, short, rng)
        with run.harnesses[0], run.harnesses[1]:
            for strike in strikes:
                run.go_on(ACTIVATIONS // FAULTS)
                run.fault(strike)
            run.go_on(ACTIVATIONS // FAULTS)
            run.finish()
            run.check_store()
            signals = [harness.signals for harness in run.harnesses]
            for reason in (READ_FAILED, FLUSH_FAILED):
                told = sum(each.total("activation_errors_total", reason=reason) for each in signals)
                assert told == run.counts[reason]
            assert sum(each.total("longterm_upserts_total", result="stale") for each in signals) == 0
        call(watcher.close())
    print(kind, dict(run.counts))  # noqa: T201 - as above
    assert run.counts["activations"] >= ACTIVATIONS
    for what in (READ_FAILED, FLUSH_FAILED, "wipes", "rows of failed activations"):
        assert run.counts[what] > 0, f"no {what}: the run shows too little"
    assert run.counts["expiries failed"] + run.counts["expiries put off"] > 0


# SQLite, whose faults are those of a disk


async def keep(ctx: AgentContext) -> Complete:
    assert ctx.event is not None
    seen = int(ctx.memory.get("seen", b"0")) + 1
    ctx.memory.set("seen", b"%d" % seen)
    ctx.memory.set("last", ctx.event)
    ctx.memory.longterm.save("last", ctx.event)
    return Complete(b"%d" % seen)


@contextmanager
def on_file(file: pathlib.Path) -> Iterator[AgentHarness]:
    config = AgentConfig(
        longterm_memory=f"sqlite+aiosqlite:///{file}",
        ttl_ms=TTL_MS,
        on_expire=FlushToLongterm(key=MEMORY_KEY),
    )
    with AgentHarness(keep, config) as harness:
        yield harness


def fails_closed(harness: AgentHarness, payload: bytes, time_ms: int, problem: str) -> None:
    """An activation and an expiry fail, and change nothing."""
    before = harness.states
    emitted = harness.send(event(b"k", payload, time_ms=time_ms))
    (error,) = emitted.errors
    assert error.reason == FLUSH_FAILED
    assert problem in error.detail
    assert (emitted.outputs, emitted.intents) == ([], [])
    assert harness.states == before
    if b"k" in before:
        with pytest.raises(ExpireFlushFailed):
            harness.fire_expiry(b"k", before[b"k"].decoded_control.expires_at_ms)
        assert harness.states == before


def saved(file: pathlib.Path) -> dict[str, int]:
    """Return each row's seq, by its key."""
    with sqlite3.connect(file) as connection:
        found = connection.execute("SELECT key, seq FROM beam_agents_longterm").fetchall()
    connection.close()
    return {bytes(key).decode(): seq for key, seq in found}


def test_a_dropped_table(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "longterm.db"
    provision(f"sqlite+aiosqlite:///{file}")
    with on_file(file) as harness:
        assert harness.send(event(b"k", b"one", time_ms=1_000)).outputs == [b"1"]
        with sqlite3.connect(file) as connection:
            connection.execute("DROP TABLE beam_agents_longterm")
        connection.close()
        fails_closed(harness, b"two", 1_500, "beam-agents store provision")
        provision(f"sqlite+aiosqlite:///{file}")
        assert harness.send(event(b"k", b"two", time_ms=1_500)).outputs == [b"2"]
        harness.advance_watermark(2_500)
        assert harness.states == {}
    assert saved(file) == {"last": 1_500, MEMORY_KEY: 1_500}


def test_a_full_disk(tmp_path: pathlib.Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "size=2m"):
        file, filler = disk / "longterm.db", disk / "filler"
        provision(f"sqlite+aiosqlite:///{file}")
        with on_file(file) as harness:
            # Its memory is too large for what is left, at expiry too.
            assert harness.send(event(b"k", bytes(200_000), time_ms=1_000)).outputs == [b"1"]
            fill(filler)
            fails_closed(harness, bytes(300_000), 1_500, "StoreUnavailable")
            assert saved(file) == {"last": 1_000}
            filler.unlink()
            assert harness.send(event(b"k", b"two", time_ms=1_500)).outputs == [b"2"]
            harness.advance_watermark(2_500)
            assert harness.states == {}
        assert saved(file) == {"last": 1_500, MEMORY_KEY: 1_500}


def fill(filler: pathlib.Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4_096))
        except OSError:
            return


def test_a_read_only_file(tmp_path: pathlib.Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "size=2m"):
        file = disk / "longterm.db"
        # Without a write-ahead log, whose files would have to be made for reading too.
        with sqlite3.connect(file) as connection:
            connection.executescript(ddl_statements("sqlite", "beam_agents_longterm")[1])
        connection.close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with on_file(file) as harness:
            fails_closed(harness, b"one", 1_000, "read-only")
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            assert harness.send(event(b"k", b"one", time_ms=1_000)).outputs == [b"1"]
        assert saved(file) == {"last": 1_000}

"""Redis alone: faults made on a real server, security, the pool, and what is left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from beam_agents.errors import StoreError, StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.contract import RowId, StoreRow, encode_record
from beam_agents.memory.stores.redis import RedisAdmin, RedisStore
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.signals.types import UpsertResult
from tests.servers import redis as redis_server
from tests.servers.certificates import Certificates
from tests.servers.process import free_port
from tests.servers.proxy import Fault, Proxy, proxied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from beam_agents.runtime.bridge import AsyncBridge

    Run = Callable[..., Any]

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "stores" / "redis.md"
PASSWORD = "hunter2-never-shown"  # noqa: S105 - a test's own
APPLIED, STALE = UpsertResult.APPLIED, UpsertResult.STALE
ENTITY = b"\x00\xffentity"


def row(key: str = "k", seq: int = 1, value: bytes = b"value", entity: bytes = ENTITY) -> StoreRow:
    return StoreRow(entity, key, seq, encode_record(value, seq, seq), seq)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: pathlib.Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server of this test alone, on ``port``."""
    with redis_server.process(tmp_path, port) as process:
        yield process


@pytest.fixture
def proxy(server: object, port: int) -> Iterator[Proxy]:  # noqa: ARG001 - it must run
    with proxied(port) as made:
        yield made


@pytest.fixture
def opened(run: Run) -> Iterator[Callable[[str], RedisStore]]:
    """Open stores that are closed after the test."""
    stores: list[RedisStore] = []

    def open_one(uri: str) -> RedisStore:
        stores.append(RedisStore(parse_store_uri(uri)))
        return stores[-1]

    yield open_one
    for store in stores:
        run(store.close())


def at(port: int, query: str = "operation_timeout_s=5", user: str = "") -> str:
    return f"redis://{user}127.0.0.1:{port}/0?{query}"


def save(run: Run, store: RedisStore, *rows: StoreRow) -> list[UpsertResult]:
    results: list[UpsertResult] = run(store.save_many(rows))
    return results


# --- the server dies, and comes back ---


def test_a_killed_server_is_unavailable_and_its_rows_are_there_after_a_restart(
    tmp_path: pathlib.Path, port: int, opened: Callable[[str], RedisStore], run: Run
) -> None:
    store = opened(at(port))
    with redis_server.process(tmp_path, port, durable=True) as process:
        assert save(run, store, row(seq=5), row("other", 5)) == [APPLIED, APPLIED]
        process.kill()
        process.wait()
        for call in (store.save_many([row(seq=6)]), store.load(ENTITY, "k"), store.ping()):
            with pytest.raises(StoreUnavailable):
                run(call)
    with redis_server.process(tmp_path, port, durable=True):
        assert run(store.search(ENTITY, "", 10)) == [row(seq=5), row("other", 5)]
        assert save(run, store, row(seq=4), row("other", 6)) == [STALE, APPLIED]
        assert run(store.load(ENTITY, "k")) == row(seq=5)


def test_a_server_killed_with_a_call_in_flight(
    tmp_path: pathlib.Path,
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
    bridge: AsyncBridge,
) -> None:
    with redis_server.process(tmp_path, port, durable=True) as process, proxied(port) as proxy:
        store = opened(at(proxy.port))
        save(run, store, row(seq=1))
        process.send_signal(signal.SIGSTOP)
        seen = proxy.round_trips
        flush = bridge.submit(store.save_many([row(seq=2)]))
        run(until(lambda: proxy.round_trips > seen))
        process.kill()
        process.wait()
        with pytest.raises(StoreUnavailable):
            flush.result(60)
        with redis_server.process(tmp_path, port, durable=True):
            assert run(store.load(ENTITY, "k")) == row(seq=1)
            assert save(run, store, row(seq=2)) == [APPLIED]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in another process
            await asyncio.sleep(0.002)


def test_a_request_that_never_arrived_changed_nothing(
    proxy: Proxy, port: int, opened: Callable[[str], RedisStore], run: Run
) -> None:
    store, direct = opened(at(proxy.port)), opened(at(port))
    save(run, store, row(seq=1))
    proxy.fail(Fault.CUT_REQUEST)
    with pytest.raises(StoreUnavailable):
        save(run, store, row(seq=2))
    assert proxy.cuts == 1
    assert run(direct.load(ENTITY, "k")) == row(seq=1)
    proxy.fail(Fault.NONE)
    assert save(run, store, row(seq=2)) == [APPLIED]


def test_a_lost_reply_leaves_a_row_that_the_same_call_finds_again(
    proxy: Proxy, port: int, opened: Callable[[str], RedisStore], run: Run
) -> None:
    store, direct = opened(at(proxy.port)), opened(at(port))
    # The server must know the script, or its reply is that it does not.
    save(run, store, row(entity=b"another"))
    proxy.fail(Fault.CUT_REPLY)
    with pytest.raises(StoreUnavailable):
        save(run, store, row(seq=2), row("other", 2))
    assert proxy.cuts == 1
    assert run(direct.search(ENTITY, "", 10)) == [row(seq=2), row("other", 2)]
    proxy.fail(Fault.NONE)
    assert save(run, store, row(seq=2), row("other", 2)) == [APPLIED, APPLIED]
    assert run(direct.search(ENTITY, "", 10)) == [row(seq=2), row("other", 2)]


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "new"])
@pytest.mark.parametrize(
    ("fault", "raised"), [(Fault.REFUSE, StoreUnavailable), (Fault.FREEZE, StoreTimeout)], ids=str
)
def test_a_refused_and_a_half_open_connection(
    proxy: Proxy,
    opened: Callable[[str], RedisStore],
    run: Run,
    fault: Fault,
    raised: type[StoreError],
    *,
    warm: bool,
) -> None:
    store = opened(at(proxy.port, "operation_timeout_s=0.3&connect_timeout_s=0.2"))
    if warm:
        save(run, store, row(seq=1))
    proxy.fail(fault)
    for call in (store.save_many([row(seq=2)]), store.load(ENTITY, "k"), store.search(ENTITY, "", 1)):
        with pytest.raises(raised) as caught:
            run(call)
        assert caught.value.backend == "redis"
        assert caught.value.cause_type
    proxy.fail(Fault.NONE)
    assert run(store.load(ENTITY, "k")) == (row(seq=1) if warm else None)


def test_a_server_stopped_for_longer_than_the_deadline(
    server: subprocess.Popen[bytes], port: int, opened: Callable[[str], RedisStore], run: Run
) -> None:
    store = opened(at(port, "operation_timeout_s=0.3&connect_timeout_s=0.2&pool_size=1"))
    save(run, store, row("a", 1), row("b", 1))
    server.send_signal(signal.SIGSTOP)
    try:
        for call in (store.load(ENTITY, "a"), store.ping(), store.save_many([row("a", 3)])):
            with pytest.raises(StoreTimeout):
                run(call)
    finally:
        server.send_signal(signal.SIGCONT)
    # Were a connection used again, this would be the reply to an earlier call.
    assert run(store.load(ENTITY, "b")) == row("b", 1)
    assert save(run, store, row("a", 2), row("b", 2))[1] is APPLIED


def test_after_a_cancelled_call_no_reply_is_taken_for_anothers(
    server: subprocess.Popen[bytes],
    proxy: Proxy,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    # A cancellation that got lost would end with the deadline, which is longer than the test may take.
    store = opened(at(proxy.port, "pool_size=1&operation_timeout_s=300"))
    save(run, store, *(row(key, 1, key.encode()) for key in "abc"))

    async def cancel_in_mid_call() -> None:
        seen = proxy.round_trips
        server.send_signal(signal.SIGSTOP)
        try:
            task = asyncio.ensure_future(store.load(ENTITY, "a"))
            await until(lambda: proxy.round_trips > seen)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            server.send_signal(signal.SIGCONT)
        for key in "bc":
            assert await store.load(ENTITY, key) == row(key, 1, key.encode())

    for _ in range(3):
        run(cancel_in_mid_call())


def test_calls_cancelled_while_they_wait_for_the_pool_take_no_slot(
    server: subprocess.Popen[bytes],
    proxy: Proxy,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(proxy.port, "pool_size=2&operation_timeout_s=300"))

    async def scenario() -> None:
        await store.ping()
        seen = proxy.round_trips
        server.send_signal(signal.SIGSTOP)
        tasks = [asyncio.ensure_future(store.load(ENTITY, str(index))) for index in range(16)]
        await until(lambda: proxy.round_trips > seen)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        server.send_signal(signal.SIGCONT)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
        await asyncio.gather(*(store.save_many([row(str(index))]) for index in range(16)))

    run(scenario())
    assert len(run(store.search(ENTITY, "", 100))) == 16


# --- scripts, memory, replicas ---


def test_flushed_scripts_are_brought_again(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    admin = RedisAdmin(store)
    save(run, store, row("a", 2))
    for seq in (3, 4):
        assert redis_server.command(port, "SCRIPT", "FLUSH") == b"+OK\r\n"
        batch = [row("a", seq), row("a", seq, entity=b"x"), row("a", seq, entity=b"y")]
        assert save(run, store, *batch) == [APPLIED] * 3
        redis_server.command(port, "SCRIPT", "FLUSH")
        assert run(store.search(ENTITY, "", 5)) == [row("a", seq)]
        redis_server.command(port, "SCRIPT", "FLUSH")
        assert run(admin.replace_seq(row("a", seq), row("a", 1))) is True
        redis_server.command(port, "SCRIPT", "FLUSH")
        assert run(admin.delete([row("a", 1)])) == 1


def test_a_batch_of_many_entities_takes_one_round_trip(
    proxy: Proxy, opened: Callable[[str], RedisStore], run: Run
) -> None:
    store = opened(at(proxy.port))
    batch = [row(f"k{index}", entity=b"entity%d" % (index % 4)) for index in range(20)]
    save(run, store, *batch)
    run(store.search(b"entity0", "", 1))
    before = proxy.round_trips
    save(run, store, *batch)
    assert proxy.round_trips == before + 1
    assert len(run(store.search(b"entity1", "k", 100))) == 5
    assert proxy.round_trips == before + 2


def test_a_full_memory_is_unavailable_and_changes_nothing(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    save(run, store, row("a", 1))
    redis_server.command(port, "CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreUnavailable) as caught:
        save(run, store, row("a", 2), row("b", 2))
    assert caught.value.cause_type == "OutOfMemoryError"
    assert run(store.search(ENTITY, "", 9)) == [row("a", 1)]
    redis_server.command(port, "CONFIG", "SET", "maxmemory", "0")
    assert save(run, store, row("a", 2), row("b", 2)) == [APPLIED, APPLIED]


@pytest.mark.parametrize("stale_data", ["yes", "no"])
def test_a_replica_is_unavailable(
    tmp_path: pathlib.Path, port: int, opened: Callable[[str], RedisStore], run: Run, stale_data: str
) -> None:
    options = ("--replicaof", "127.0.0.1", str(free_port()), "--replica-serve-stale-data", stale_data)
    store = opened(at(port))
    with redis_server.process(tmp_path, port, *options):
        with pytest.raises(StoreUnavailable):
            save(run, store, row("a", 2))
        if stale_data == "no":
            with pytest.raises(StoreUnavailable):
                run(store.load(ENTITY, "a"))


@pytest.mark.parametrize("foreign", ["h:x", "k:x", "entities"])
def test_a_foreign_key_under_the_prefix_is_named_as_such(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
    foreign: str,
) -> None:
    store = opened(at(port))
    redis_server.command(port, "SET", f"beam-agents:{foreign}", "1")
    with pytest.raises(StoreRejected, match="set another key_prefix"):
        save(run, store, row(entity=b"x"))
    if foreign != "h:x":
        assert run(store.load(b"x", "k")) is None


def test_a_foreign_value_is_refused_and_left_as_it_is(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    save(run, store, row(entity=b"x"))
    redis_server.command(port, "HSET", "beam-agents:h:x", "k", "short")
    for call in (
        store.load(b"x", "k"),
        store.search(b"x", "", 1),
        RedisAdmin(store).scan(None, 1),
        store.save_many([row("new", entity=b"x"), row(seq=2, entity=b"x")]),
    ):
        with pytest.raises(StoreRejected):
            run(call)
    assert redis_server.command(port, "HGET", "beam-agents:h:x", "k") == b"$5\r\nshort\r\n"
    assert run(store.load(b"x", "new")) is None


def test_results_come_in_the_order_of_rows_whose_entities_alternate(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    save(run, store, row("b", 9, entity=b"x"), row("a", 9, entity=b"y"))
    batch = [row(key, 5, entity=entity) for key in "ab" for entity in (b"x", b"y", b"z")]
    assert save(run, store, *batch) == [APPLIED, STALE, APPLIED, STALE, APPLIED, APPLIED]


def test_prefixes_keep_stores_apart(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    ours, theirs = opened(at(port, "key_prefix=a:")), opened(at(port, "key_prefix=b:"))
    save(run, ours, row(seq=1), row(entity=b""))
    save(run, theirs, row(seq=9))
    assert run(ours.load(ENTITY, "k")) == row(seq=1)
    assert run(RedisAdmin(theirs).scan(None, 10)) == [row(seq=9)]
    assert run(RedisAdmin(ours).scan(None, 10)) == [row(entity=b""), row(seq=1)]


# --- retention and the index ---


def test_expired_entities_leave_nothing_that_a_reader_sees(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    admin = RedisAdmin(store)
    save(run, store, row("a", entity=b"gone"), row("b", entity=b"gone"), row("a", entity=b"stays"))
    assert redis_server.command(port, "PEXPIREAT", "beam-agents:h:gone", "1") == b":1\r\n"
    # The rows are gone and their keys are not: readers pass over what the index has too much.
    assert run(store.search(b"gone", "", 5)) == []
    assert run(admin.scan(None, 10)) == [row("a", entity=b"stays")]
    save(run, store, row("b", 2, entity=b"gone"))
    assert run(store.search(b"gone", "", 1)) == [row("b", 2, entity=b"gone")]
    assert run(admin.scan(None, 1)) == [row("b", 2, entity=b"gone")]
    assert run(admin.delete([row("b", 2, entity=b"gone")])) == 1
    assert redis_server.command(port, "EXISTS", "beam-agents:k:gone", "beam-agents:h:gone") == b":0\r\n"
    assert redis_server.command(port, "ZCARD", "beam-agents:entities") == b":1\r\n"


def test_a_write_takes_an_entitys_deadline_away_and_a_stale_one_does_not(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    save(run, store, row(seq=5, entity=b"e"))
    for key in ("beam-agents:h:e", "beam-agents:k:e"):
        redis_server.command(port, "EXPIRE", key, "1000")
    assert save(run, store, row(seq=4, entity=b"e")) == [STALE]
    assert redis_server.command(port, "TTL", "beam-agents:h:e") != b":-1\r\n"
    assert save(run, store, row(seq=6, entity=b"e")) == [APPLIED]
    for key in ("beam-agents:h:e", "beam-agents:k:e"):
        assert redis_server.command(port, "TTL", key) == b":-1\r\n"


def documented(language: str) -> str:
    """Return the one block of a language on the operator's page."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


def test_the_documented_retention_script(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    save(run, store, row(entity=b"old"), row(entity=b"new"), row(entity=b"gone"))

    async def sweep(seconds: int) -> object:
        async with store.client.session("sweep") as client:
            return await client.eval(documented("lua"), 1, "beam-agents:", seconds)

    assert run(sweep(1000)) == [3, 0]
    assert save(run, store, row(seq=2, entity=b"new")) == [APPLIED]
    assert redis_server.command(port, "TTL", "beam-agents:h:new") == b":-1\r\n"
    deadline = redis_server.command(port, "PEXPIRETIME", "beam-agents:h:old")
    for key in ("h:gone", "k:gone"):
        redis_server.command(port, "PEXPIREAT", f"beam-agents:{key}", "1")
    assert run(sweep(5000)) == [1, 1]
    # An entity that nobody wrote keeps its first deadline, for its rows and their index alike.
    for key in ("h:old", "k:old"):
        assert redis_server.command(port, "PEXPIRETIME", f"beam-agents:{key}") == deadline
    assert {each.entity_key for each in run(RedisAdmin(store).scan(None, 9))} == {b"old", b"new"}


def test_a_scan_pages_over_more_entities_than_it_asks_for_at_once(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    admin = RedisAdmin(store)
    rows = [row("k", entity=b"%04d" % index) for index in range(250)]
    rows[7:7] = [row(f"k{index}", entity=b"0006") for index in range(4)]
    save(run, store, *rows)
    assert run(admin.scan(None, 1_000)) == rows
    found: list[StoreRow] = []
    while part := run(admin.scan(found[-1].row_id if found else None, 99)):
        found += part
    assert found == rows
    assert run(admin.scan(RowId(b"0006", "k1"), 3)) == rows[9:12]
    assert run(admin.scan(RowId(b"0007", ""), 3, entity_key=b"0006")) == []


# --- who may, and who listens in ---


def test_a_wrong_password_is_rejected_and_never_shown(
    tmp_path: pathlib.Path,
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with redis_server.process(tmp_path, port, "--requirepass", "the-right-one"):
        for user in (f":{PASSWORD}@", f"somebody:{PASSWORD}@", ""):
            store = opened(at(port, user=user))
            with pytest.raises(StoreRejected) as caught:
                save(run, store, row(value=PASSWORD.encode()))
            assert "check both in the store's URI" in str(caught.value)
            shown = [str(caught.value), repr(caught.value), repr(store), str(store.uri), caplog.text]
            shown += traceback.format_exception(caught.value)
            assert PASSWORD not in "".join(shown)
        store = opened(at(port, user=":the-right-one@"))
        assert save(run, store, row()) == [APPLIED]


def test_a_user_who_may_only_read_is_told_what_is_missing(
    tmp_path: pathlib.Path, port: int, opened: Callable[[str], RedisStore], run: Run
) -> None:
    rights = f"reader on >{PASSWORD} ~* -@all +@read +@connection +eval +evalsha"
    with redis_server.process(tmp_path, port):
        assert redis_server.command(port, "ACL", "SETUSER", rights) == b"+OK\r\n"
        writer, reader = opened(at(port)), opened(at(port, user=f"reader:{PASSWORD}@"))
        save(run, writer, row(seq=1))
        with pytest.raises(StoreRejected, match="lacks a permission"):
            save(run, reader, row(seq=2))
        with pytest.raises(StoreRejected, match="lacks a permission"):
            run(RedisAdmin(reader).delete([row(seq=1)]))
        assert run(reader.search(ENTITY, "", 5)) == [row(seq=1)]
        assert run(reader.load(ENTITY, "k")) == row(seq=1)


def test_the_documented_rights_are_enough_and_end_at_the_prefix(
    tmp_path: pathlib.Path, port: int, opened: Callable[[str], RedisStore], run: Run
) -> None:
    with redis_server.process(tmp_path, port):
        assert redis_server.command(port, documented("text").strip()) == b"+OK\r\n"
        store = opened(at(port, user="agents:PASSWORD@"))
        admin = RedisAdmin(store)
        run(store.ping())
        assert save(run, store, row("a"), row("b")) == [APPLIED, APPLIED]
        assert run(store.load(ENTITY, "a")) == row("a")
        assert run(store.search(ENTITY, "", 5)) == run(admin.scan(None, 5)) == [row("a"), row("b")]
        assert run(admin.replace_seq(row("a"), row("a", 0))) is True
        assert run(admin.delete([row("a", 0), row("b")])) == 2
        other = opened(at(port, "key_prefix=other:", user="agents:PASSWORD@"))
        with pytest.raises(StoreRejected, match="lacks a permission"):
            save(run, other, row())


def test_a_database_that_is_not_there(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(f"redis://127.0.0.1:{port}/99")
    with pytest.raises(StoreRejected, match="no such database"):
        run(store.ping())


def test_tls_verifies_the_server(
    tmp_path: pathlib.Path,
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = Certificates.write(tmp_path, "localhost")
    tls_port = free_port()
    options = ["--requirepass", PASSWORD, "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key)]
    with redis_server.process(tmp_path, port, *options, tls_port=tls_port):
        unknown_authority = opened(f"rediss://:{PASSWORD}@localhost:{tls_port}")
        with pytest.raises(StoreRejected, match="certificate does not verify"):
            run(unknown_authority.ping())
        monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
        wrong_name = opened(f"rediss://:{PASSWORD}@127.0.0.1:{tls_port}")
        with pytest.raises(StoreRejected, match="certificate does not verify"):
            run(wrong_name.ping())
        store = opened(f"rediss://:{PASSWORD}@localhost:{tls_port}")
        assert save(run, store, row()) == [APPLIED]
        assert run(store.load(ENTITY, "k")) == row()
        without_tls = opened(f"redis://:{PASSWORD}@localhost:{tls_port}/0?operation_timeout_s=1")
        with pytest.raises(StoreError):
            run(without_tls.ping())


# --- the pool, and what is left behind ---


def connections(port: int) -> int:
    """Return how many connections this process has to a port."""
    return sum(
        bool(each.raddr) and each.raddr.port == port and each.status != psutil.CONN_TIME_WAIT
        for each in psutil.Process().net_connections("tcp")
    )


def test_sixteen_writers_wait_for_a_pool_of_two(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port, "pool_size=2"))

    async def bundle(number: int) -> None:
        for seq in range(1, 11):
            assert await store.save_many([row(f"own-{number}", seq), row("shared", seq)])
            assert await store.load(ENTITY, f"own-{number}") == row(f"own-{number}", seq)

    async def bundles() -> None:
        await asyncio.gather(*(bundle(number) for number in range(16)))

    run(bundles())
    assert connections(port) == 2
    assert run(store.load(ENTITY, "shared")) == row("shared", 10)
    assert len(run(store.search(ENTITY, "own-", 100))) == 16


@pytest.mark.parametrize("fault", [None, Fault.FREEZE, Fault.REFUSE], ids=str)
def test_closing_leaves_no_socket_and_no_task(
    proxy: Proxy, run: Run, bridge: AsyncBridge, fault: Fault | None
) -> None:
    store = RedisStore(parse_store_uri(at(proxy.port, "operation_timeout_s=0.3&connect_timeout_s=0.2")))

    async def use() -> None:
        await asyncio.gather(*(store.save_many([row(str(index))]) for index in range(8)))

    run(use())
    assert connections(proxy.port) > 0
    if fault is not None:
        proxy.fail(fault)
        with pytest.raises(StoreError):
            run(use())
    run(store.close())
    run(store.close())
    run(until(lambda: connections(proxy.port) == 0))

    async def others() -> set[Any]:
        return {task for task in asyncio.all_tasks(bridge.loop) if task is not asyncio.current_task()}

    assert run(others()) == set()
    with pytest.raises(RuntimeError, match="the store is closed"):
        run(store.ping())


def test_another_loop_is_told_so(
    server: object,  # noqa: ARG001 - it must run
    port: int,
    opened: Callable[[str], RedisStore],
    run: Run,
) -> None:
    store = opened(at(port))
    run(store.ping())
    with pytest.raises(RuntimeError, match="event loop"):
        asyncio.run(store.ping())
    run(store.ping())


FORKS = """
import os, sys
from beam_agents.memory.stores.contract import StoreRow
from beam_agents.memory.stores.redis import RedisStore
from beam_agents.memory.stores.uri import parse_store_uri
from beam_agents.runtime.bridge import shared_bridge

store = RedisStore(parse_store_uri(sys.argv[1]))
def save(key):
    assert shared_bridge().run(store.save_many([StoreRow(b"e", key, 1, b"rec", 1)]), 30) == ["applied"]
save("parent")
child = os.fork()
if child == 0:
    save("child")
    shared_bridge().run(store.close(), 30)
    os._exit(0)
save("parent meanwhile")
assert os.waitpid(child, 0)[1] == 0
for number in range(20):
    save(f"parent afterwards {number}")
found = shared_bridge().run(store.search(b"e", "", 100), 30)
assert len(found) == 23, found
shared_bridge().run(store.close(), 30)
"""


def test_a_forked_child_makes_its_own_connections(
    server: object,  # noqa: ARG001 - it must run
    port: int,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", FORKS, at(port)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning" not in done.stderr


def test_nothing_is_tried_twice(proxy: Proxy, opened: Callable[[str], RedisStore], run: Run) -> None:
    store = opened(at(proxy.port))
    run(store.ping())
    proxy.fail(Fault.CUT_REQUEST)
    with pytest.raises(StoreUnavailable) as caught:
        run(store.load(ENTITY, "k"))
    assert (proxy.cuts, caught.value.attempts) == (1, 1)

"""Which of our errors each of the client's becomes."""

from __future__ import annotations

import ssl

import pytest
from redis import exceptions
from redis._parsers.base import BaseParser

from beam_agents.errors import StoreError, StoreRejected, StoreTimeout, StoreUnavailable
from beam_agents.memory.stores.redis_client import Script, translated

SECRET = "the-secret"  # noqa: S105 - what must not be shown


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.ConnectionError(SECRET), StoreUnavailable),
        (ConnectionRefusedError(SECRET), StoreUnavailable),
        (ssl.SSLEOFError(SECRET), StoreUnavailable),
        (exceptions.TimeoutError(SECRET), StoreTimeout),
        (TimeoutError(SECRET), StoreTimeout),
        (exceptions.InvalidResponse(SECRET), StoreRejected),
        (exceptions.DataError(SECRET), StoreRejected),
        (ssl.SSLCertVerificationError(SECRET), StoreRejected),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_by_type(error: Exception, expected: type[StoreError]) -> None:
    result = translated(error, "load")
    assert type(result) is expected
    assert (result.backend, result.operation, result.cause_type) == ("redis", "load", type(error).__name__)
    assert SECRET not in str(result) + repr(result)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("LOADING Redis is loading the dataset in memory", None),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", None),
        ("READONLY You can't write against a read only replica. script: 0f, on @user_script:37.", None),
        ("OOM command not allowed when used memory > 'maxmemory'. script: 0f, on @user_script:37.", None),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist", None),
        ("CLUSTERDOWN The cluster is down", None),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", None),
        ("NOREPLICAS Not enough good replicas to write.", None),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
        ("ERR max number of clients reached", None),
        # As servers before 7.0 tell what a script met.
        (
            "ERR Error running script (call to f_0f): @user_script:37: @user_script: 37: -OOM command not",
            None,
        ),
        ("ERR Error running script (call to f_0f): @user_script:37: @user_script: 37: -READONLY You", None),
        ("NOAUTH Authentication required.", "user or the password"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "user or the password"),
        ("ERR invalid password", "user or the password"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", "lacks a permission"),
        ("ERR The user executing the script can't run this command or subcommand script: 0f", "permission"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value script: 0f", "key_prefix"),
        ("ERR Error running script: @user_script: 9: -WRONGTYPE Operation against a key", "key_prefix"),
        ("MOVED 3999 127.0.0.1:6381", "Redis Cluster"),
        ("CROSSSLOT Keys in request don't hash to the same slot", "Redis Cluster"),
        ("ERR DB index is out of range", "no such database"),
        ("ERR unknown command `EVALSHA`, with args beginning with: ", "lacks a command"),
        ("ERR something that nobody foresaw", "refused the call"),
    ],
)
def test_by_reply(reply: str, expected: str | None) -> None:
    error = BaseParser.parse_error(reply)
    result = translated(error, "flush")
    if expected is None:
        assert type(result) is StoreUnavailable
    else:
        assert isinstance(result, StoreRejected)
        assert expected in str(result)
        assert reply.partition(" ")[2] not in str(result)


def test_a_certificate_that_does_not_verify_is_found_below_the_clients_own_error() -> None:
    def connect() -> None:
        try:
            raise ssl.SSLCertVerificationError(SECRET)
        except OSError:
            raise exceptions.ConnectionError(SECRET)  # noqa: B904 - as the client raises it

    with pytest.raises(exceptions.ConnectionError) as caught:
        connect()
    assert isinstance(translated(caught.value, "ping"), StoreRejected)


def test_a_script_knows_its_digest() -> None:
    assert Script("return 1").digest == "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"

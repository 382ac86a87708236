"""TLS to SQL servers: what each sslmode takes and refuses, against servers with a certificate of the test."""

from __future__ import annotations

import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from beam_agents.errors import StoreRejected, StoreUnavailable
from beam_agents.memory.stores.registry import open_admin, open_store
from beam_agents.memory.stores.sql import SqlStore
from tests.servers.certificates import Certificates
from tests.servers.mariadb import running_mariadb, running_mariadb_with_tls
from tests.servers.postgresql import running_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Run = Callable[[Coroutine[Any, Any, Any]], Any]

IN_USE = {
    "postgresql": "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mariadb": "SELECT VARIABLE_VALUE <> '' FROM information_schema.SESSION_STATUS "
    "WHERE VARIABLE_NAME = 'SSL_CIPHER'",
}
DRIVERS = ("postgresql+asyncpg", "postgresql+psycopg", "mariadb+asyncmy")


@pytest.fixture(scope="module")
def files() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory() as folder:
        # The servers are other users.
        path = pathlib.Path(folder)
        path.chmod(0o755)
        made = Certificates.write(path, "localhost")
        made.key.chmod(0o644)
        yield made


@pytest.fixture(scope="module")
def uris(files: Certificates) -> Iterator[dict[str, str]]:
    """By driver: the URI of a server with TLS, whose certificate names ``localhost``."""
    with running_cluster(files) as cluster, running_mariadb_with_tls(files) as mariadb:
        yield {
            "postgresql+asyncpg": cluster.uri("asyncpg"),
            "postgresql+psycopg": cluster.uri("psycopg"),
            "mariadb+asyncmy": mariadb,
        }


@pytest.fixture(params=DRIVERS)
def uri(request: pytest.FixtureRequest, uris: dict[str, str]) -> str:
    return uris[request.param]


def at_its_name(uri: str) -> str:
    return uri.replace("@127.0.0.1:", "@localhost:")


def encrypted(run: Run, uri: str) -> bool:
    """Tell whether a store's connections are; raise what it raises."""
    store = open_store(uri)
    assert isinstance(store, SqlStore)
    try:
        run(open_admin(store).provision())
        ((answer,),) = run(
            store.connections.call("load", lambda session: session.fetch(IN_USE[store.backend], ()))
        )
    finally:
        run(store.close())
    return str(answer) in {"1", "true"}


def test_require_encrypts_and_takes_any_certificate(uri: str, run: Run) -> None:
    assert encrypted(run, f"{uri}?sslmode=require")


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_a_certificate_of_a_named_authority_is_taken(
    mode: str, uri: str, files: Certificates, run: Run
) -> None:
    assert encrypted(run, f"{at_its_name(uri)}?sslmode={mode}&sslrootcert={files.authority}")


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_an_authority_of_the_system_is_taken(
    mode: str, uri: str, files: Certificates, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
    assert encrypted(run, f"{at_its_name(uri)}?sslmode={mode}")


def refused(run: Run, uri: str, says: str) -> None:
    if "psycopg" in uri:
        # libpq gives no code for what went wrong while connecting.
        with pytest.raises((StoreUnavailable, StoreRejected)):
            encrypted(run, uri)
    else:
        with pytest.raises(StoreRejected, match=says):
            encrypted(run, uri)


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_a_certificate_of_an_unknown_authority_is_refused(mode: str, uri: str, run: Run) -> None:
    refused(run, f"{at_its_name(uri)}?sslmode={mode}", "certificate does not verify.*sslrootcert")


def test_a_certificate_of_another_name_is_refused_by_verify_full_alone(
    uri: str, files: Certificates, run: Run
) -> None:
    refused(run, f"{uri}?sslmode=verify-full&sslrootcert={files.authority}", "certificate does not verify")
    assert encrypted(run, f"{uri}?sslmode=verify-ca&sslrootcert={files.authority}")


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_of_authorities_that_is_none(
    content: str | None, uri: str, run: Run, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StoreRejected, match="sslrootcert names is missing"):
        encrypted(run, f"{at_its_name(uri)}?sslmode=verify-full&sslrootcert={file}")


def test_disable_connects_without(uris: dict[str, str], run: Run) -> None:
    for driver in DRIVERS[:2]:
        assert not encrypted(run, f"{uris[driver]}?sslmode=disable")
    for query in ("", "?sslmode=disable"):
        with pytest.raises(StoreRejected, match="TLS"):
            encrypted(run, f"{uris['mariadb+asyncmy']}{query}")


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_server_without_tls_gets_no_password(driver: str, run: Run, tmp_path: pathlib.Path) -> None:
    if driver.startswith("mariadb"):
        with running_mariadb(tmp_path) as uri:
            refused(run, f"{uri}?sslmode=require", "offers no TLS")
    else:
        with running_cluster() as cluster:
            refused(run, f"{cluster.uri(driver.partition('+')[2])}?sslmode=require", "offers no TLS")

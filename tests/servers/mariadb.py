"""MariaDB: a server of its own in a folder, from the binaries of the distribution's package."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers.process import absent, accepts, free_port, server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.certificates import Certificates

__all__ = ["running_mariadb", "running_mysql"]


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
"""Debian keeps the server where not every user's PATH goes."""


@contextmanager
def _running(scheme: str, *options: str) -> Iterator[str]:
    daemon, install = shutil.which("mariadbd", path=_PATH), shutil.which("mariadb-install-db", path=_PATH)
    if daemon is None or install is None:
        absent("MariaDB (Debian's package mariadb-server)")
        return
    # It refuses to run as root; the folder is where its own user gets to.
    user = "mysql" if os.geteuid() == 0 else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="beam-agents-mariadb-"))
    try:
        # At its start a server deletes temporary tables from its folder for them, those of others too.
        temporary = folder / "temporary"
        temporary.mkdir()
        if user is not None:
            shutil.chown(folder, user)
            shutil.chown(temporary, user)
        subprocess.run(
            [install, "--no-defaults", f"--datadir={folder}/data", f"--tmpdir={temporary}",
             "--auth-root-authentication-method=normal", "--skip-test-db"],
            check=True, stdout=subprocess.DEVNULL, user=user, cwd=folder,
        )  # fmt: skip
        port = free_port()
        command = [
            daemon, "--no-defaults", f"--datadir={folder}/data", f"--tmpdir={temporary}", f"--port={port}",
            "--bind-address=127.0.0.1", f"--socket={folder}/socket", f"--pid-file={folder}/pid",
            "--skip-name-resolve", *options,
        ]  # fmt: skip
        with server(command, lambda: accepts(port), folder / "log", user=user):
            _administer(
                folder / "socket",
                "CREATE DATABASE agents; CREATE USER worker@'127.0.0.1' IDENTIFIED BY 'wo/rd'; "
                "GRANT ALL ON agents.* TO worker@'127.0.0.1'",
            )
            yield f"{scheme}://worker:wo%2Frd@127.0.0.1:{port}/agents"
    finally:
        shutil.rmtree(folder)


def _administer(socket: pathlib.Path, statements: str) -> None:
    client = shutil.which("mariadb", path=_PATH)
    assert client is not None
    subprocess.run(
        [client, "--no-defaults", f"--socket={socket}", "-u", "root", "-e", statements], check=True
    )


@contextmanager
def running_mariadb(folder: pathlib.Path) -> Iterator[str]:  # noqa: ARG001 - as the others
    """Yield the URI of an empty database."""
    with _running("mariadb+asyncmy") as uri:
        yield uri


@contextmanager
def running_mariadb_with_tls(tls: Certificates) -> Iterator[str]:
    """Yield the URI of an empty database whose server takes TLS connections alone."""
    options = (f"--ssl-cert={tls.certificate}", f"--ssl-key={tls.key}", "--require-secure-transport=ON")
    with _running("mariadb+asyncmy", *options) as uri:
        yield uri


@contextmanager
def running_mysql(folder: pathlib.Path) -> Iterator[str]:  # noqa: ARG001 - as the others
    """Yield a MySQL URI of an empty database: MariaDB, in an odd mode, takes its statements."""
    with _running("mysql+asyncmy", "--sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES") as uri:
        yield uri

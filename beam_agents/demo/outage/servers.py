"""Servers as child processes: on loopback, on a free port, ready before they are used, stopped and reaped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

__all__ = [
    "READY_WITHIN_S",
    "RedisServer",
    "ServerFailed",
    "ServerMissing",
    "free_port",
    "installed",
    "is_ready",
    "running_alertmanager",
    "running_prometheus",
    "server",
    "serving",
    "stop",
]

READY_WITHIN_S: Final = 60.0
_STOPPED_WITHIN_S: Final = 15.0
_SHOWN_OF_LOG: Final = 2_000


class ServerMissing(Exception):
    """A server is not installed. The text names it, and Debian's package of it."""


class ServerFailed(Exception):
    """A server did not come up. The text has the end of its log."""


def installed(package: str, *names: str) -> str:
    """Return the path of the first of some programs that is installed.

    Args:
        package: Debian's package of it.
        names: What it may be called.

    Raises:
        ServerMissing: None is.
    """
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise ServerMissing(f"{names[0]} is not installed: Debian's package is {package}")


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_ready(url: str) -> bool:
    """Tell whether a server of the Prometheus family says that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as response:  # noqa: S310 - our own server
            return bool(response.status == 200)  # noqa: PLR2004 - OK
    except OSError:
        return False


@contextmanager
def server(
    command: Sequence[str],
    ready: Callable[[], bool],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    stop_signal: int = signal.SIGTERM,
    user: str | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server while the block runs.

    Args:
        command: What starts it, in the foreground.
        ready: Tells whether it answers.
        log: Where its output goes.
        environment: Variables beside this process's own.
        stop_signal: What ends it in good order.
        user: Who it runs as; this process's user by default.

    Raises:
        ServerFailed: It does not come up.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - the caller's own command
            command, stdout=output, stderr=output, env={**os.environ, **(environment or {})}, user=user
        )
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                told = log.read_text(errors="replace")[-_SHOWN_OF_LOG:]
                raise ServerFailed(f"{command[0]} did not come up:\n{told}")
            time.sleep(0.02)
        yield process
    finally:
        stop(process, stop_signal)


def stop(process: subprocess.Popen[bytes], stop_signal: int = signal.SIGTERM) -> None:
    """End a process and reap it, whatever state it is in."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.send_signal(stop_signal)
        try:
            process.wait(_STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answer HTTP on a thread of this process while the block runs, and yield the port."""
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, name="serving")
    thread.start()
    try:
        yield httpd.server_port
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@contextmanager
def running_prometheus(folder: Path, configuration: str) -> Iterator[str]:
    """Run a Prometheus while the block runs, and yield its URL.

    Args:
        folder: Where its files go, and where its configuration finds the rules.
        configuration: Its configuration file's text.

    Raises:
        ServerMissing: It is not installed.
        ServerFailed: It does not come up.
    """
    program = installed("prometheus", "prometheus")
    flags = (f"--storage.tsdb.path={folder / 'data'}", "--enable-feature=exemplar-storage")
    with _running("prometheus", (program, *flags), folder, configuration) as url:
        yield url


@contextmanager
def running_alertmanager(folder: Path, configuration: str) -> Iterator[str]:
    """Run an Alertmanager while the block runs, and yield its URL; else as :func:`running_prometheus`."""
    program = installed("prometheus-alertmanager", "prometheus-alertmanager", "alertmanager")
    flags = (f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address=")
    with _running("alertmanager", (program, *flags), folder, configuration) as url:
        yield url


@contextmanager
def _running(name: str, command: Sequence[str], folder: Path, configuration: str) -> Iterator[str]:
    """Run a server of the Prometheus family, which all take their configuration and address alike."""
    file = folder / f"{name}.yml"
    file.write_text(configuration, encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    listening = (f"--config.file={file}", f"--web.listen-address={url.removeprefix('http://')}")
    with server([*command, *listening], lambda: is_ready(url), folder / f"{name}.log"):
        yield url


class RedisServer:
    """A Redis that has each write on the disk before it answers, and can be started again at its port.

    Attributes:
        port: Where it listens.

    Raises:
        ServerMissing: It is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._program = installed("redis-server", "redis-server")
        self._folder = folder
        self._stack = ExitStack()

    def start(self) -> None:
        """Start it, with what it knew.

        Raises:
            ServerFailed: It does not come up.
        """
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._stack.enter_context(server(command, self._answers, self._folder / "redis.log"))

    def stop(self) -> None:
        """End it in good order. A second call does nothing."""
        self._stack.close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False

"""An Alertmanager of Debian's package prometheus-alertmanager, and a receiver for its webhooks."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.process import absent, free_port, is_ready, server, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

TOLD_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """A running server.

    Attributes:
        url: Where it answers.
    """

    url: str

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that it knows, silent ones as well."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=30) as response:  # noqa: S310 - our own server
            found: list[dict[str, Any]] = json.load(response)
        return found


@dataclass(frozen=True, slots=True)
class Told:
    """One alert in one notification.

    Attributes:
        path: Which receiver got it, by the path of its URL.
        status: ``"firing"`` or ``"resolved"``.
        labels: The alert's labels.
        annotations: Its texts.
    """

    path: str
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]

    @property
    def name(self) -> str:
        """The alert's name."""
        return self.labels["alertname"]


class Webhook:
    """Keeps what it is told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._told: list[Told] = []
        self._news = threading.Condition()

    @property
    def told(self) -> list[Told]:
        """All so far, in their order."""
        with self._news:
            return list(self._told)

    def add(self, path: str, notification: dict[str, Any]) -> None:
        """Keep a notification's alerts."""
        with self._news:
            self._told += [
                Told(path, each["status"], each["labels"], each["annotations"])
                for each in notification["alerts"]
            ]
            self._news.notify_all()

    def wait_for(self, name: str, status: str) -> Told:
        """Return the first alert of a name and a status; wait for it if need be."""
        found: list[Told] = []

        def there() -> bool:
            found[:] = [each for each in self._told if each.name == name and each.status == status]
            return bool(found)

        with self._news:
            if not self._news.wait_for(there, TOLD_WITHIN_S):
                pytest.fail(f"no {status} {name} came; there were {[(t.name, t.status) for t in self._told]}")
        return found[0]


@contextmanager
def receiving() -> Iterator[Webhook]:
    """Run a receiver while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.add(self.path, json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook = Webhook(f"http://127.0.0.1:{httpd.server_port}")
    thread = threading.Thread(target=httpd.serve_forever, name="webhook")
    thread.start()
    try:
        yield hook
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@contextmanager
def running(folder: pathlib.Path, configuration: str) -> Iterator[Alertmanager]:
    """Run a server while the block runs.

    Args:
        folder: Where its files go.
        configuration: Its configuration file's text.
    """
    if shutil.which("prometheus-alertmanager") is None:
        absent("prometheus-alertmanager (Debian's package of that name)")
    file = folder / "alertmanager.yml"
    file.write_text(configuration)
    found = Alertmanager(f"http://127.0.0.1:{free_port()}")
    command = [
        "prometheus-alertmanager",
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address={found.url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]
    with server(command, lambda: is_ready(found.url), folder / "alertmanager.log"):
        yield found


def await_condition(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so; fail if it does not come to be."""
    wait_until(condition, what, TOLD_WITHIN_S)

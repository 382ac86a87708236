"""A receiver for Alertmanager's webhooks: it keeps what it is told."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Final, Literal

from beam_agents.demo.outage.servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["TOLD_WITHIN_S", "Told", "Webhook", "receiving"]

TOLD_WITHIN_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Told:
    """One alert in one notification.

    Attributes:
        path: Which receiver got it, by the path of its URL.
        status: ``"firing"`` or ``"resolved"``.
        labels: The alert's labels.
        annotations: Its texts.
        at_s: When it was told, seconds since the Unix epoch.
    """

    path: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    at_s: float

    @property
    def name(self) -> str:
        """The alert's name."""
        return self.labels["alertname"]


class Webhook:
    """Keeps what it is told.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._told: list[Told] = []
        self._news = threading.Condition()

    @property
    def told(self) -> list[Told]:
        """All so far, in their order."""
        with self._news:
            return list(self._told)

    @property
    def firing(self) -> list[Told]:
        """The alerts of which the last news is that they fire."""
        last = {tuple(sorted(each.labels.items())): each for each in self.told}
        return [each for each in last.values() if each.status == "firing"]

    def add(self, path: str, body: bytes) -> None:
        """Keep a notification's alerts."""
        with self._news:
            self._told += [
                Told(path, each["status"], each["labels"], each["annotations"], time.time())
                for each in json.loads(body)["alerts"]
            ]
            self._news.notify_all()

    def wait_for(
        self, name: str, status: Literal["firing", "resolved"], within_s: float = TOLD_WITHIN_S
    ) -> Told:
        """Return the first alert of a name and a status; wait for it if need be.

        Raises:
            TimeoutError: None comes.
        """
        found: list[Told] = []

        def there() -> bool:
            found[:] = [each for each in self._told if each.name == name and each.status == status]
            return bool(found)

        with self._news:
            if not self._news.wait_for(there, within_s):
                so_far = ", ".join(f"{each.status} {each.name}" for each in self._told) or "nothing"
                raise TimeoutError(f"no {status} {name} came in {within_s:g} s; there was {so_far}")
        return found[0]


@contextmanager
def receiving() -> Iterator[Webhook]:
    """Run a receiver while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.add(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with serving(Handler) as port:
        hook = Webhook(f"http://127.0.0.1:{port}")
        yield hook

"""Arize Phoenix, a tracing back end with pages and a REST API, out of an environment of its own (850 MB)."""

from __future__ import annotations

import os
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import requests

from tests.servers.process import free_port, server

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

PROGRAM: Final = "BEAM_AGENTS_PHOENIX"
"""The variable that names its program; without it, its tests are not there."""


@dataclass(frozen=True)
class Phoenix:
    """A running one.

    Attributes:
        endpoint: Where it takes OTLP by HTTP, and where its pages and its API are.
    """

    endpoint: str

    def spans(self, project: str) -> list[dict[str, Any]]:
        """Return all spans of a project, as its API tells them; none while there is no such project."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            answer = requests.get(
                f"{self.endpoint}/v1/projects/{project}/spans",
                {"limit": "100", **({"cursor": cursor} if cursor else {})},
                timeout=30,
            )
            if answer.status_code == requests.codes.not_found:
                return []
            answer.raise_for_status()
            page = answer.json()
            found += page["data"]
            cursor = page["next_cursor"]
            if not cursor:
                return found


@contextmanager
def running(folder: pathlib.Path) -> Iterator[Phoenix]:
    """Run one while the block runs; it keeps what it gets in a folder."""
    port = free_port()
    environment = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_WORKING_DIR": str(folder),
        # It would tell its makers that it runs.
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/healthz", timeout=5) as response:  # noqa: S310 - our own server
            return bool(response.status == 200)
        return False

    command = [os.environ[PROGRAM], "serve"]
    with server(command, ready, folder / "phoenix.log", environment=environment):
        yield Phoenix(url)

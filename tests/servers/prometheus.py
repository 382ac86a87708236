"""A Prometheus server of Debian's package prometheus, and its API."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.servers.process import absent, free_port, is_ready, server

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server.

    Attributes:
        url: Where it answers.
    """

    url: str

    def api(self, path: str, **parameters: str) -> Any:
        """Return the data of an API call, such as ``api("query", query="up")``."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as response:  # noqa: S310 - our own server
            return json.load(response)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series that an expression has now."""
        return [
            (each["metric"], float(each["value"][1]))
            for each in self.api("query", query=expression)["result"]
        ]


@contextmanager
def running(folder: pathlib.Path, configuration: str) -> Iterator[Prometheus]:
    """Run a server while the block runs.

    Args:
        folder: Where its files go.
        configuration: Its configuration file's text.
    """
    if shutil.which("prometheus") is None:
        absent("prometheus (Debian's package prometheus)")
    file = folder / "prometheus.yml"
    file.write_text(configuration)
    found = Prometheus(f"http://127.0.0.1:{free_port()}")
    command = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={found.url.removeprefix('http://')}",
        "--enable-feature=exemplar-storage",
    ]
    with server(command, lambda: is_ready(found.url), folder / "prometheus.log"):
        yield found

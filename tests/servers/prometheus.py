"""A Prometheus server of Debian's package prometheus, and its API."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beam_agents.demo.outage.servers import ServerMissing, running_prometheus
from tests.servers.process import unavailable

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
    try:
        with running_prometheus(folder, configuration) as url:
            yield Prometheus(url)
    except ServerMissing as missing:
        unavailable(str(missing))

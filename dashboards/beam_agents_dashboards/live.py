"""What a running Prometheus has no data for, and why."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue
from beam_agents_dashboards.check import metric_of, recorded_names, selected
from beam_agents_dashboards.runners import FOREIGN_METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from beam_agents_dashboards.names import Query

__all__ = ["Missing", "PrometheusError", "PrometheusServer", "missing"]

_TIMEOUT_S: Final = 10.0


class PrometheusError(Exception):
    """A Prometheus that can't be asked. Its text says why, in one line."""


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A server's API.

    Attributes:
        url: Its address, http or https.
    """

    url: str

    def count(self, selector: str) -> int:
        """Return how many series there are now.

        Raises:
            PrometheusError: It does not answer, or does not take the query.
        """
        query = urllib.parse.urlencode({"query": f"count({selector})"})
        address = f"{self.url.rstrip('/')}/api/v1/query?{query}"
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the operator's
                result = json.load(response)["data"]["result"]
                return int(result[0]["value"][1]) if result else 0
        except urllib.error.HTTPError as error:
            raise PrometheusError(f"it answers {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise PrometheusError(f"it does not answer: {error.reason}") from error
        except OSError as error:
            raise PrometheusError(f"it does not answer: {error}") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise PrometheusError(
                "what answers is no Prometheus: give its address, such as http://host:9090"
            ) from error


@dataclass(frozen=True, slots=True)
class Missing:
    """A metric without data.

    Attributes:
        metric: Its name.
        reason: Why that may be.
        places: Where it is asked for.
    """

    metric: str
    reason: str
    places: tuple[str, ...]


def missing(server: PrometheusServer, queries: Iterable[Query]) -> list[Missing]:
    """Return what queries ask for that has no data now.

    Raises:
        PrometheusError: The server can't be asked.
        ValueError: A query is no PromQL.
    """
    places: dict[str, dict[str, None]] = {}
    for query in queries:
        for read in selected(query.expression):
            places.setdefault(read.name, {})[query.place] = None
    scraped = server.count(catalogue.BUILD_INFO.prometheus_name) > 0
    return [
        Missing(name, _reason(name, scraped=scraped), tuple(asked))
        for name, asked in places.items()
        if server.count(name) == 0
    ]


def _reason(name: str, *, scraped: bool) -> str:
    if name in FOREIGN_METRICS:
        return "optional: this runner's metrics are not scraped here"
    metric = metric_of(name)
    if metric is None and name in recorded_names():
        return (
            "its recording rule is not loaded or not yet evaluated, or nothing that it sums up is there"
            if scraped
            else "no worker is scraped"
        )
    if not scraped:
        return "no worker is scraped: see the targets, and the plugin prometheus on the workers"
    return f"no worker has told it: {metric.help}" if metric is not None else "it is not scraped"

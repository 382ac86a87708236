"""Scrapes an endpoint as Prometheus does, with prometheus-client's own parsers."""

from __future__ import annotations

import urllib.request
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from beam_agents.signals import hub, losses
from beam_agents.signals.per_process import renew_all
from beam_agents.signals.types import PROMETHEUS_PREFIX
from beam_agents_telemetry.prometheus import PrometheusMetrics, PrometheusObserver
from tests.workers import end_workers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """All samples of one scrape."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = {family.name: family for family in families}
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        for family in families:
            for sample in family.samples:
                self.samples[sample.name].append(sample)

    def matching(self, name: str, **labels: str) -> list[Sample]:
        """Return the samples of a name, without our prefix, that have these labels."""
        return [
            sample
            for sample in self.samples.get(PROMETHEUS_PREFIX + name, ())
            if labels.items() <= sample.labels.items()
        ]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over what :meth:`matching` finds."""
        return sum(sample.value for sample in self.matching(name, **labels))


def get(
    url: str, accept: str = "", *, tls: ssl.SSLContext | None = None, headers: dict[str, str] | None = None
) -> tuple[str, str]:
    """Return a page's content type and text."""
    request = urllib.request.Request(url, headers={"Accept": accept, **(headers or {})})  # noqa: S310 - our own
    with urllib.request.urlopen(request, timeout=30, context=tls) as response:  # noqa: S310 - as above
        return response.headers["Content-Type"], response.read().decode()


def scrape(url: str, *, tls: ssl.SSLContext | None = None, headers: dict[str, str] | None = None) -> Scrape:
    """Scrape in OpenMetrics."""
    _, text = get(f"{url}/metrics", OPENMETRICS, tls=tls, headers=headers)
    return Scrape(list(parse_openmetrics(text)))


def scrape_text(url: str) -> Scrape:
    """Scrape in Prometheus's older text format."""
    _, text = get(f"{url}/metrics")
    return Scrape(list(parse_text(text)))


def forget_all() -> None:
    """Let this process begin at nothing, as a forked one does."""
    end_workers()
    renew_all()
    losses.forget()
    hub._workers.clear()


@contextmanager
def endpoint(plugin: PrometheusMetrics) -> Iterator[PrometheusObserver]:
    """Hold a plugin of this process, so that its endpoint outlasts each pipeline that names it."""
    telemetry = hub.acquire_hub((plugin,))
    try:
        (shared,) = telemetry._shared
        observer = shared.built()
        assert isinstance(observer, PrometheusObserver)
        yield observer
    finally:
        hub.release_hub(telemetry)

"""Spans and metrics on standard output, for development: ``OTEL_TRACES_EXPORTER=console``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from beam_agents_telemetry.log_writer import StreamTarget
from beam_agents_telemetry.otlp_export import readable
from beam_agents_telemetry.otlp_metrics import metrics_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from beam_agents.signals import Snapshot
    from beam_agents_telemetry.otlp_spans import SpanData

__all__ = ["Both", "ConsoleMetrics", "ConsoleSpans"]

Item_contra = TypeVar("Item_contra", contravariant=True)


class _Console:
    """Writes lines; a full pipe holds up nobody but the thread that writes, and not beyond the close."""

    def __init__(self) -> None:
        self._target = StreamTarget("stdout")
        self._closing = threading.Event()

    def write(self, text: str) -> None:
        self._target.write(f"{text}\n".encode(), self._closing.is_set)

    def close(self) -> None:
        self._closing.set()


class ConsoleSpans:
    """Each span as one line of JSON, in the SDK's own form."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._console = _Console()

    def send(self, spans: Sequence[SpanData | ReadableSpan], /) -> None:
        """Write them."""
        for span in readable(spans, self._resource):
            self._console.write(span.to_json(indent=None))

    def flush(self, timeout_s: float) -> None:
        """It holds nothing."""

    def close(self) -> None:
        """Wait for room no more."""
        self._console.close()


class ConsoleMetrics:
    """Each snapshot as one line of JSON, in the SDK's own form."""

    def __init__(self, resource: Resource, *, exponential: bool) -> None:
        self._resource = resource
        self._exponential = exponential
        self._console = _Console()

    def send(self, snapshot: Snapshot, /) -> None:
        """Write it."""
        data = metrics_data(snapshot, self._resource, exponential=self._exponential)
        self._console.write(data.to_json(indent=None))

    def close(self) -> None:
        """Wait for room no more."""
        self._console.close()


class _Sink(Protocol[Item_contra]):
    def send(self, item: Item_contra, /) -> None: ...

    def close(self) -> None: ...


class Both(Generic[Item_contra]):
    """Two sinks as one; what one of them raises does not keep an item from the other."""

    def __init__(self, first: _Sink[Item_contra], second: _Sink[Item_contra]) -> None:
        self._first = first
        self._second = second

    def send(self, item: Item_contra, /) -> None:
        """Send it to both."""
        try:
            self._first.send(item)
        finally:
            self._second.send(item)

    def flush(self, timeout_s: float) -> None:
        """They hold nothing."""

    def close(self) -> None:
        """Close both."""
        self._first.close()
        self._second.close()

"""What leaves the process: spans and metrics by OTLP/HTTP, or spans by the application's provider."""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import uuid
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry import trace
from opentelemetry.context import (
    # Set by everything that exports, so that instrumented HTTP clients make no spans of it; it has no public
    # name outside of the package opentelemetry-instrumentation.
    _SUPPRESS_INSTRUMENTATION_KEY,
    Context,
    attach,
    set_value,
)
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, Status, StatusCode, set_span_in_context

from beam_agents.errors import PluginUnusable
from beam_agents_telemetry.otlp_encoding import SpanEncoder
from beam_agents_telemetry.otlp_http import BoundedSession
from beam_agents_telemetry.otlp_metrics import metrics_data
from beam_agents_telemetry.otlp_spans import MAX_EVENTS, SCOPE, SpanData

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from beam_agents.signals import Snapshot
    from beam_agents_telemetry.otlp_sampling import Sampling

__all__ = [
    "THREAD_PREFIX",
    "ApplicationSink",
    "ExportFailed",
    "ExporterSink",
    "MetricSender",
    "MetricSink",
    "SpanSink",
    "application_provider",
    "process_resource",
    "read_headers",
    "readable",
    "scope_of",
    "share_provider",
    "suppress_instrumentation",
]

THREAD_PREFIX: Final = "beam-agents-otlp"
"""How the names of the plugin's threads begin."""

DEFAULT_SERVICE: Final = "beam-agents"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
_VERSION: Final = version("beam-agents")


class ExportFailed(Exception):
    """A receiver did not take what was sent. It says no more: a receiver's words are not ours to log."""


def read_headers(path: str) -> dict[str, str] | None:
    """Return the headers of a file of ``name=value`` lines; None for no file.

    Raises:
        PluginUnusable: It cannot be read, or a line is of another form; that is named by its number alone.
    """
    if not path:
        return None
    headers: dict[str, str] = {}
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PluginUnusable(f"headers_file cannot be read: {error}") from error
    except UnicodeDecodeError:
        # Without the cause, whose text has a part of it.
        raise PluginUnusable("headers_file is no UTF-8 text") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise PluginUnusable(f"headers_file: line {number} is not name=value")
        headers[name.strip().lower()] = value.strip()
    return headers


def process_resource() -> Resource:
    """Return what this process is: the standard variables' attributes, a service name, an instance id."""
    resource = Resource.create()
    added: dict[str, str] = {}
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        added[SERVICE_NAME] = DEFAULT_SERVICE
    if SERVICE_INSTANCE_ID not in resource.attributes:
        # Two workers' counters are two series.
        added[SERVICE_INSTANCE_ID] = str(uuid.uuid4())
    return resource.merge(Resource(added))


def suppress_instrumentation() -> None:
    """Have instrumented libraries make no spans on this thread."""
    attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True))


class SpanSink(Protocol):
    """Where finished spans go. Used on one thread."""

    def send(self, spans: Sequence[SpanData | ReadableSpan], /) -> None:
        """Send spans.

        Raises:
            ExportFailed: They were not taken.
        """
        ...

    def flush(self, timeout_s: float) -> None:
        """Have what lies behind it send what it has."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class MetricSink(Protocol):
    """Where snapshots go. Used on one thread."""

    def send(self, snapshot: Snapshot, /) -> None:
        """Send one.

        Raises:
            ExportFailed: It was not taken.
        """
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class ExporterSink:
    """Sends spans to an OTLP/HTTP receiver, encoded here: the exporter's own way takes six times as long."""

    def __init__(
        self, endpoint: str, headers: Mapping[str, str] | None, timeout_s: float, resource: Resource
    ) -> None:
        _quieten()
        self._session = BoundedSession()
        self._exporter = OTLPSpanExporter(
            endpoint=f"{endpoint}/v1/traces" if endpoint else None,
            headers=headers,
            timeout=timeout_s,
            session=self._session,
        )
        self._encoder = SpanEncoder(resource, scope_of)

    def send(self, spans: Sequence[SpanData | ReadableSpan], /) -> None:
        """Export them, in one request."""
        self._session.body = self._encoder.encode(spans)
        try:
            if self._exporter.export(()) is not SpanExportResult.SUCCESS:
                raise ExportFailed
        finally:
            self._session.body = None

    def flush(self, timeout_s: float) -> None:
        """It holds nothing."""

    def close(self) -> None:
        """Stop retries and close the connections."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the exporter's own


def readable(spans: Sequence[SpanData | ReadableSpan], resource: Resource) -> list[ReadableSpan]:
    """Return spans as exporters read them."""
    return [_readable(each, resource) if isinstance(each, SpanData) else each for each in spans]


def _readable(span: SpanData, resource: Resource) -> ReadableSpan:
    events = BoundedList.from_seq(
        MAX_EVENTS, [Event(name, dict(attributes), at_ns) for name, attributes, at_ns in span.events]
    )
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=resource,
        attributes=span.attributes,
        events=events,
        links=span.links,
        kind=span.kind,
        status=Status(StatusCode.ERROR) if span.failed else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=scope_of(span.schema_url),
    )


def scope_of(schema_url: str) -> InstrumentationScope:
    """Return what made the spans, by what their names mean."""
    return InstrumentationScope(SCOPE, _VERSION, schema_url)


class ApplicationSink:
    """Gives spans to the processors of the application's own tracer provider.

    They get real spans, which they may add to. Only the ids and the sampling are ours: the application's
    sampler would decide span by span, and its ids are random.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._ids = _ForcedIds()
        # A provider does not tell its processors and limits in public; a second provider around the same
        # processors is the way to have other ids without changing the application's own.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=provider.resource,
            shutdown_on_exit=False,
            active_span_processor=provider._active_span_processor,  # noqa: SLF001 - as above
            id_generator=self._ids,
            span_limits=provider._span_limits,  # noqa: SLF001 - as above
        )

    def send(self, spans: Sequence[SpanData | ReadableSpan], /) -> None:
        """Start and end them, with the times that they had."""
        for each in spans:
            if isinstance(each, SpanData):
                self._emit(each)

    def _emit(self, data: SpanData) -> None:
        tracer = self._provider.get_tracer(SCOPE, _VERSION, schema_url=data.schema_url)
        parent = Context()
        if data.parent is not None:
            parent = set_span_in_context(NonRecordingSpan(data.parent), parent)
        self._ids.trace_id, self._ids.span_id = data.context.trace_id, data.context.span_id
        span = tracer.start_span(
            data.name,
            context=parent,
            kind=data.kind,
            attributes=data.attributes,
            links=data.links,
            start_time=data.start_ns,
        )
        for name, attributes, at_ns in data.events:
            span.add_event(name, dict(attributes), at_ns)
        if data.failed:
            span.set_status(StatusCode.ERROR)
        span.end(data.end_ns)

    def flush(self, timeout_s: float) -> None:
        """Flush the application's processors."""
        self._provider.force_flush(int(timeout_s * 1000))

    def close(self) -> None:
        """The provider is the application's to shut down."""


class _ForcedIds(IdGenerator):
    """Gives the next span the ids that it is to have. Used on one thread."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def application_provider() -> TracerProvider | None:
    """Return the tracer provider that the application has set for the process; None without one."""
    provider = trace.get_tracer_provider()
    return (
        provider
        if isinstance(provider, TracerProvider) and not isinstance(provider, _SharedProvider)
        else None
    )


class _Handover(SpanProcessor):
    """Hands ended spans of a process-wide provider to whoever takes them now."""

    take: Callable[[ReadableSpan], None] | None = None

    def on_end(self, span: ReadableSpan) -> None:
        take = self.take
        if take is not None and span.context is not None and span.context.trace_flags.sampled:
            take(span)


class _SharedProvider(TracerProvider):
    """The provider that is set for the process where the application has none. It stays, as such do."""

    def __init__(self, sampling: Sampling, resource: Resource) -> None:
        by_id = TraceIdRatioBased(sampling.ratio)
        sampler = ParentBased(by_id) if sampling.parent_based else by_id
        super().__init__(sampler, resource, shutdown_on_exit=False)
        self.handover = _Handover()
        self.add_span_processor(self.handover)


_provider_lock = threading.Lock()


def share_provider(
    sampling: Sampling, resource: Resource, take: Callable[[ReadableSpan], None]
) -> Callable[[], None]:
    """Set a tracer provider for the process, whose ended spans go to ``take``; return what ends that.

    The first one's sampling and resource stay: a process's provider can be set once.
    """
    with _provider_lock:
        provider = trace.get_tracer_provider()
        if not isinstance(provider, _SharedProvider):
            provider = _SharedProvider(sampling, resource)
            trace.set_tracer_provider(provider)
        handover = provider.handover
        handover.take = take

    def end() -> None:
        if handover.take is take:
            handover.take = None

    return end


def _renew() -> None:
    """Give a forked child a lock that nobody holds."""
    global _provider_lock  # noqa: PLW0603 - one per process is the point
    _provider_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)


class MetricSender:
    """Sends snapshots to an OTLP/HTTP receiver. Used on one thread."""

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str] | None,
        timeout_s: float,
        resource: Resource,
        *,
        exponential: bool,
    ) -> None:
        _quieten()
        self._exporter = OTLPMetricExporter(
            endpoint=f"{endpoint}/v1/metrics" if endpoint else None,
            headers=dict(headers) if headers is not None else None,
            timeout=timeout_s,
            session=BoundedSession(),
        )
        self._resource = resource
        self._exponential = exponential

    def send(self, snapshot: Snapshot, /) -> None:
        """Export a snapshot.

        Raises:
            ExportFailed: It was not taken. The next one has all of it, and more.
        """
        data = metrics_data(snapshot, self._resource, exponential=self._exponential)
        if self._exporter.export(data) is not MetricExportResult.SUCCESS:
            raise ExportFailed

    def close(self) -> None:
        """Stop retries and close the connections."""
        self._exporter.shutdown()


class _NotOurs(logging.Filter):
    """Keeps the exporters' own log lines off where they speak of our exports.

    Each failed request would be a line, or several, with a server's or an exception's text in it. We count
    them instead, and tell of them once.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName or "").startswith(THREAD_PREFIX)


_NOT_OURS: Final = _NotOurs()


def _quieten() -> None:
    for module in ("http.trace_exporter", "http.metric_exporter", "common._internal"):
        logging.getLogger(f"opentelemetry.exporter.otlp.proto.{module}").addFilter(_NOT_OURS)
    logging.getLogger("urllib3.connectionpool").addFilter(_NOT_OURS)

"""OpenTelemetry: traces and metrics to any OTLP/HTTP receiver, or to the application's tracer provider."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from opentelemetry import context as context_api
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, INVALID_SPAN_CONTEXT, NonRecordingSpan, set_span_in_context

from beam_agents.signals import Observer, Record, count_lost
from beam_agents_telemetry.options import OptionChecks
from beam_agents_telemetry.otlp_content import ContentAttributes, check_redact, load_redact
from beam_agents_telemetry.otlp_environment import (
    Environment,
    Overrides,
    read_environment,
    without_effect,
)
from beam_agents_telemetry.otlp_export import (
    THREAD_PREFIX,
    ApplicationSink,
    application_provider,
    share_provider,
    suppress_instrumentation,
)
from beam_agents_telemetry.otlp_metrics import MetricsLoop
from beam_agents_telemetry.otlp_options import base_url
from beam_agents_telemetry.otlp_process import DEFAULTS, ProcessSetup
from beam_agents_telemetry.otlp_queue import SendQueue
from beam_agents_telemetry.otlp_sampling import did_something, worth_keeping
from beam_agents_telemetry.otlp_spans import SpanData, span_context, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from beam_agents_telemetry.otlp_export import SpanSink

__all__ = ["OpenTelemetry", "OpenTelemetryObserver"]

_logger = logging.getLogger(__name__)

NAME: Final = "otlp"
_CHECKS: Final = OptionChecks(NAME)

_SHARE_TO_WAIT: Final = 0.9
"""How much of a bound is spent on waiting: the rest is for whoever waits for us to see that it is over."""


@dataclass(frozen=True, slots=True)
class OpenTelemetry:
    """The plugin ``otlp``: traces and metrics, to any receiver of OTLP by HTTP.

    Each option may also be given as a text, as in ``"otlp?endpoint=http://collector:4318&sample_ratio=0.1"``.

    Attributes:
        endpoint: The receiver's base URL: ``http://collector:4318``. Empty for what the standard variables
            (``OTEL_EXPORTER_OTLP_ENDPOINT``, …) say on each worker, else ``http://localhost:4318``.
        headers_file: An absolute path, there on every worker, of a file with one ``name=value`` per line: the
            headers of each request. Empty for ``OTEL_EXPORTER_OTLP_HEADERS``.
        sample_ratio: Which share of the traces is kept that no ``traceparent`` decides on, from 0 to 1.
            None for what ``OTEL_TRACES_SAMPLER`` says, else 0.01. Failures, retries and refused writes are
            kept whatever it is.
        traces: Whether spans are sent.
        metrics: Whether metrics are sent.
        metrics_period_s: Seconds between two exports of metrics. None for what
            ``OTEL_METRIC_EXPORT_INTERVAL`` says, else 15.
        exponential_histograms: Whether histograms are sent as exponential ones.
        detail: Whether the time from an activation's first save to its flush is a span as well.
        set_global: Whether a tracer provider is set for the whole process where the application has none, so
            that an agent's own spans are sent as well.
        timeout_s: Seconds that one request may take, retries included. None for what
            ``OTEL_EXPORTER_OTLP_TIMEOUT`` says, else 10.
        max_queued_spans: Spans that wait to be sent, at most; what comes on top is dropped and counted.
        max_batch_spans: Spans of one request, about.
        max_activation_spans: Spans of one activation, at most.
        batch_delay_s: Seconds that a span waits at most before it is sent.
        capture_content: For development: whether events, outputs, prompts, answers, and arguments and results
            of tools are on the spans, the first 8 KiB of each. They may hold personal data and credentials.
        redact: What makes of such content what may be shown, as ``package.module:function``: it takes the
            attribute's name and the bytes and returns a str, or None to leave it out.

    Raises:
        InvalidArgument: An option has a value that it may not have, or does not fit to another.
        InvalidArgumentType: An option is of a type that it may not be of.

    One of OpenTelemetry's standard variables that asks for what cannot be done raises InvalidArgument, too.
    """

    endpoint: str = ""
    headers_file: str = ""
    sample_ratio: float | None = None
    traces: bool = True
    metrics: bool = True
    metrics_period_s: float | None = None
    exponential_histograms: bool = False
    detail: bool = False
    set_global: bool = False
    timeout_s: float | None = None
    max_queued_spans: int = 8_192
    max_batch_spans: int = 512
    max_activation_spans: int = 512
    batch_delay_s: float = 2.0
    capture_content: bool = False
    redact: str = ""

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "endpoint": base_url(_CHECKS, "endpoint", self.endpoint),
            "headers_file": _CHECKS.path("headers_file", self.headers_file),
            "redact": check_redact(_CHECKS, self.redact),
        }
        for option, least, most in _NUMBERS:
            given = getattr(self, option)
            if given is not None or option not in DEFAULTS:
                checked[option] = _CHECKS.number(option, given, least, most)
        for option, at_least, at_most in _WHOLES:
            checked[option] = _CHECKS.whole(option, getattr(self, option), at_least, at_most)
        for option in _SWITCHES:
            checked[option] = _CHECKS.switch(option, getattr(self, option))
        for option, value in checked.items():
            object.__setattr__(self, option, value)
        self._check_fit()
        # The worker's counts, but most often they are alike, and here somebody is looking.
        if not self._environment().disabled and (unread := without_effect(os.environ)):
            _logger.warning("%s: these variables have no effect here: %s", NAME, ", ".join(unread))

    def _check_fit(self) -> None:
        if self.headers_file and not self.headers_file.startswith("/"):
            raise _CHECKS.problem("headers_file must be an absolute path, there on every worker")
        if not self.traces and not self.metrics:
            raise _CHECKS.problem("traces and metrics are both off: leave the plugin out")
        if self.capture_content and not self.traces:
            raise _CHECKS.problem("capture_content is about spans, and traces are off")
        if self.redact and not self.capture_content:
            raise _CHECKS.problem("redact is for capture_content, which is off")
        if self.max_queued_spans < self.max_activation_spans:
            raise _CHECKS.problem("max_queued_spans must be at least max_activation_spans")

    @property
    def name(self) -> str:
        """``"otlp"``."""
        return NAME

    def build(self) -> Observer:
        """Make the observer of this process.

        Raises:
            InvalidArgument: One of this process's variables asks for what cannot be done.
            PluginUnusable: A file or a function is not there that an option or a variable names.
        """
        environment = self._environment()
        if environment.disabled or not (environment.traces or environment.metrics):
            return Observer()
        kinds = {
            (True, False): OpenTelemetryObserver,
            (False, False): _TracesAlone,
            (True, True): _Capturing,
            (False, True): _CapturingAlone,
        }
        return kinds[bool(environment.metrics), self.capture_content](self, environment)

    def _environment(self) -> Environment:
        given = Overrides(
            traces=self.traces,
            metrics=self.metrics,
            endpoint=bool(self.endpoint),
            sample_ratio=self.sample_ratio is not None,
            timeout_s=self.timeout_s is not None,
            metrics_period_s=self.metrics_period_s is not None,
        )
        return read_environment(_CHECKS, os.environ, given)


_NUMBERS: Final = (
    ("sample_ratio", 0.0, 1.0),
    ("metrics_period_s", 0.1, 3_600.0),
    ("timeout_s", 0.1, 60.0),
    ("batch_delay_s", 0.01, 60.0),
)
_WHOLES: Final = (
    ("max_queued_spans", 1, 1_000_000),
    ("max_batch_spans", 1, 10_000),
    ("max_activation_spans", 2, 10_000),
)
_SWITCHES: Final = ("traces", "metrics", "exponential_histograms", "detail", "set_global", "capture_content")


class OpenTelemetryObserver(Observer):
    """Sends traces and metrics of this process. Its threads do all that may wait."""

    reads_aggregates: ClassVar[bool] = True

    def __init__(self, options: OpenTelemetry, environment: Environment) -> None:
        process = ProcessSetup(options, environment)
        self._traces = _Traces(options, process) if environment.traces else None
        self._metrics = _metrics_loop(process) if environment.metrics else None

    def activation_started(self, record: Record) -> None:
        """Decide whether its trace is kept, and make its span the current one of this thread."""
        if self._traces is not None:
            self._traces.started(record)

    def record(self, record: Record) -> None:
        """Queue its spans, if they are kept."""
        if self._traces is not None:
            self._traces.ended(record)

    def flush(self, timeout_s: float) -> None:
        """Send what is queued and a snapshot of the metrics, within the bound."""
        deadline = time.monotonic() + timeout_s * _SHARE_TO_WAIT
        if self._metrics is not None:
            self._metrics.ask()
        if self._traces is not None:
            self._traces.flush(deadline - time.monotonic())
        if self._metrics is not None:
            self._metrics.flush(deadline - time.monotonic())

    def close(self, timeout_s: float) -> None:
        """Send what is queued and a last snapshot, within the bound, and end the threads."""
        deadline = time.monotonic() + timeout_s * _SHARE_TO_WAIT
        if self._metrics is not None:
            self._metrics.begin_close()
        if self._traces is not None:
            self._traces.close(deadline - time.monotonic())
        if self._metrics is not None:
            self._metrics.close(deadline - time.monotonic())


class _TracesAlone(OpenTelemetryObserver):
    """Without metrics, the process need not sum up what records measure."""

    reads_aggregates: ClassVar[bool] = False


class _Capturing(OpenTelemetryObserver):
    """With content."""

    captures_content: ClassVar[bool] = True


class _CapturingAlone(_TracesAlone):
    """With content, without metrics."""

    captures_content: ClassVar[bool] = True


(_CURRENT_SPAN,) = set_span_in_context(INVALID_SPAN, Context())
"""The key of a context's span; it has no public name."""


class _CurrentSpan(NonRecordingSpan):
    """Stands for an activation's span while it runs: what an author's spans are parts of.

    Its ids are worked out when somebody asks: of most activations nobody does.
    """

    _context = INVALID_SPAN_CONTEXT

    def __init__(self, record: Record, sampled: bool) -> None:  # noqa: FBT001 - by its place, which is faster
        # The base class's own sets the context alone.
        self._record = record
        self._sampled = sampled

    def get_span_context(self) -> SpanContext:
        """Return the ids that the span will have, and whether its trace is kept as far as is known now."""
        if self._context is INVALID_SPAN_CONTEXT:
            record = self._record
            self._context = span_context(record.trace_id, record.span_id, sampled=self._sampled)
        return self._context


class _Traces:
    """Spans: which are kept, the current one of each thread, and their way out."""

    def __init__(self, options: OpenTelemetry, process: ProcessSetup) -> None:
        self._options = options
        self._sampling = process.sampling
        self._content = (
            ContentAttributes(load_redact(options.redact), NAME) if options.capture_content else None
        )
        # Between a record's start and its end, which come on one thread.
        self._running: dict[Record, tuple[Token[Context], bool]] = {}
        application = application_provider()
        self._sink: SpanSink = (
            ApplicationSink(application) if application is not None else process.span_sink()
        )
        self._queue: SendQueue[Record | ReadableSpan] = SendQueue(
            self._send,
            _lost,
            max_weight=options.max_queued_spans,
            batch_weight=options.max_batch_spans,
            period_s=options.batch_delay_s,
            name=f"{THREAD_PREFIX}-traces",
            on_thread=suppress_instrumentation,
        )
        self._unshare: Callable[[], None] | None = None
        if options.set_global and application is None:
            self._unshare = share_provider(
                process.sampling, process.resource, lambda span: self._queue.put(span, 1)
            )

    def started(self, record: Record) -> None:
        sampled = self._sampling.keeps(record)
        if sampled:
            record.sampled = True
        # As set_span_in_context() does it, in a third of the time.
        context = Context({**context_api.get_current(), _CURRENT_SPAN: _CurrentSpan(record, sampled)})
        self._running[record] = context_api.attach(context), sampled

    def ended(self, record: Record) -> None:
        known = self._running.pop(record, None)
        if known is not None:
            token, sampled = known
            context_api.detach(token)
        elif not did_something(record):
            return
        else:
            sampled = self._sampling.keeps(record)
        if sampled or worth_keeping(record):
            record.sampled = True
            weight = min(1 + len(record.steps), self._options.max_activation_spans)
            self._queue.put(record, weight)

    def _send(self, items: list[Record | ReadableSpan]) -> None:
        """Make spans of what was queued and send them. On the queue's thread."""
        spans: list[SpanData | ReadableSpan] = []
        for item in items:
            if isinstance(item, Record):
                made, left_out = spans_of(
                    item,
                    detail=self._options.detail,
                    max_spans=self._options.max_activation_spans,
                    content=self._content,
                )
                spans += made
                if left_out:
                    count_lost(NAME, "span_limit", amount=left_out)
            else:
                spans.append(item)
        self._sink.send(spans)

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if self._queue.flush(timeout_s):
            self._sink.flush(max(0.0, deadline - time.monotonic()))

    def close(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if self._unshare is not None:
            self._unshare()
        if self._queue.close(timeout_s):
            self._sink.flush(max(0.0, deadline - time.monotonic()))
        self._sink.close()


def _metrics_loop(process: ProcessSetup) -> MetricsLoop:
    sink = process.metric_sink()
    return MetricsLoop(
        sink.send,
        lambda error: _lost("metric_export", 1, error),
        sink.close,
        period_s=process.metrics_period_s,
        name=f"{THREAD_PREFIX}-metrics",
        on_thread=suppress_instrumentation,
    )


def _lost(reason: str, amount: int, error: BaseException | None) -> None:
    count_lost(NAME, reason, type(error).__name__ if error is not None else "", amount)

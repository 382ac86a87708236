"""Structured logs: each happening of a record as one JSON line, by structlog."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, cast

import structlog

from beam_agents.signals import Observer, catalogue, hear_faults, unhear_faults
from beam_agents_telemetry.log_repeats import Kind, Repeats
from beam_agents_telemetry.log_writer import FileTarget, LineWriter, StreamTarget
from beam_agents_telemetry.options import OptionChecks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from structlog.typing import EventDict, WrappedLogger

    from beam_agents.signals import AttributeValue, LogEvent, Record
    from beam_agents_telemetry.log_writer import Line, Target

__all__ = ["LoggingObserver", "StructuredLogs"]

NAME: Final = "logs"
_CHECKS: Final = OptionChecks(NAME)
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_STREAMS: Final = ("stderr", "stdout")

_SHOWN_KEY_CHARACTERS: Final = 200

_ALIKE: Final = ("backend", "error_type", "reason", "trigger", "plugin")
"""Attributes in which lines must agree, beside event, pipeline and agent, to count as repeats."""


@dataclass(frozen=True, slots=True, init=False)
class StructuredLogs:
    """The plugin ``logs``: what went wrong, one JSON line each, joined to traces by trace and span id.

    Attributes:
        file: The file that lines are appended to; empty for a stream.
        stream: ``"stderr"`` or ``"stdout"``, where there is no file.
        level: The least severity that is written: ``"info"``, ``"warning"`` or ``"error"``.
        show_keys: Whether lines show the entity's key, and not only its hash.
        repeats: Lines of a kind that are written in each window; the others are counted. 0 writes all.
        window_s: How long a window is, seconds.
    """

    file: str
    stream: str
    level: str
    show_keys: bool
    repeats: int
    window_s: float

    def __init__(
        self,
        *,
        file: str | os.PathLike[str] = "",
        stream: str = "stderr",
        level: str = "info",
        show_keys: bool | str = False,
        repeats: int | str = 5,
        window_s: float | str = 60.0,
    ) -> None:
        """Check the options; each may be a text, as in ``"logs?level=error&repeats=10"``.

        Raises:
            InvalidArgument: An option has a value that it may not have.
            InvalidArgumentType: An option is of a type that it may not be of.
        """
        put = object.__setattr__
        put(self, "file", _CHECKS.path("file", file))
        put(self, "stream", _CHECKS.choice("stream", stream, _STREAMS))
        put(self, "level", _CHECKS.choice("level", level, _LEVELS))
        put(self, "show_keys", _CHECKS.switch("show_keys", show_keys))
        put(self, "repeats", _CHECKS.whole("repeats", repeats, 0, 1_000_000))
        put(self, "window_s", _CHECKS.number("window_s", window_s, 0.001, 86_400))
        if self.file.endswith(("/", os.sep)) or os.path.isdir(self.file):  # noqa: PTH112 - the path is text
            raise _CHECKS.problem("file must be the path of a file; of a folder, add the file's name")
        if self.file and self.stream != _STREAMS[0]:
            raise _CHECKS.problem("file and stream go not together: give one of them")

    @property
    def name(self) -> str:
        """``"logs"``."""
        return NAME

    def build(self) -> LoggingObserver:
        """Make the observer, and start its thread."""
        return LoggingObserver(self)


class LoggingObserver(Observer):
    """Writes lines on a thread of its own; bundles only ever queue them.

    Args:
        config: The options.
    """

    def __init__(self, config: StructuredLogs) -> None:
        self._name = config.name
        self._least = _LEVELS[config.level]
        self._show_keys = config.show_keys
        self._repeats = Repeats(config.repeats, config.window_s)
        self._window_s = config.window_s
        target: Target = FileTarget(config.file) if config.file else StreamTarget(config.stream)
        self._writer = LineWriter(config.name, target, _Renderer(), self)
        hear_faults(self._plugin_failed)

    def record(self, record: Record) -> None:
        """Queue a line for each of the record's happenings."""
        for happening in record.happenings:
            event = happening.event
            if self._writes(event) and self._repeats.passes(_kind(event, record, happening.attributes)):
                line = _line(event, happening.at_ns)
                self._describe(record, line)
                line.update(happening.attributes)
                self._writer.put(line)

    def flush(self, timeout_s: float) -> None:
        """Wait until the lines are written, within the bound."""
        # Short of the bound: whoever waits would count an overrun, and nothing is lost.
        self._writer.flush(0.9 * timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write the lines, and what was held back; end the thread; all within the bound."""
        unhear_faults(self._plugin_failed)
        self._writer.close(timeout_s)

    def due(self, *, everything: bool) -> Iterator[Line]:
        """Return a line for each kind of line that was held back: how many, in the window that ended."""
        for kind, held in self._repeats.held_back(everything=everything):
            fields = dict(kind)
            event = cast("LogEvent", catalogue.lookup("event", fields.pop("event")))
            yield {**_line(event, time.time_ns()), **fields, "held_back": held, "window_s": self._window_s}

    def wait_s(self) -> float | None:
        """Return how long it is until a window ends, seconds; None where there is none."""
        return self._repeats.wait_s()

    def _plugin_failed(self, plugin: str, reason: str, error_type: str, problem: str) -> bool:
        if plugin == self._name:
            # What cannot write had better not tell of it.
            return False
        told = {"plugin": plugin, "reason": reason, "error_type": error_type}
        if problem:
            told["problem"] = problem
        self._writer.put({**_line(catalogue.EVENT_TELEMETRY_PLUGIN_FAILED, time.time_ns()), **told})
        return True

    def _writes(self, event: LogEvent) -> bool:
        return _LEVELS[event.severity] >= self._least

    def _describe(self, record: Record, line: Line) -> None:
        """Add what is known of where it happened. A health probe is of no pipeline, agent or key."""
        if not record.agent:
            return
        line["pipeline"] = record.pipeline
        line["agent"] = record.agent
        line["entity"] = record.entity
        if self._show_keys:
            line["entity_key"] = _shown(record.entity_key)
        line["trace_id"] = record.trace_id
        line["span_id"] = record.span_id
        line["attempt"] = record.attempt


class _Renderer:
    """Makes a line's bytes with a structlog logger of its own.

    All that structlog's global configuration could give is given here, so that neither sees the other.
    """

    def __init__(self) -> None:
        self._rendered = b""
        self._logger: _Logger = structlog.wrap_logger(
            cast("WrappedLogger", self),
            processors=[structlog.processors.add_log_level, _in_order, structlog.processors.JSONRenderer()],
            wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
            context_class=dict,
            cache_logger_on_first_use=False,
        )

    def __call__(self, line: Line) -> bytes:
        fields = dict(line)
        level, event = str(fields.pop("level")), str(fields.pop("event"))
        self._logger.log(_LEVELS[level], event, **fields)
        return self._rendered

    def _take(self, text: str) -> None:
        self._rendered = text.encode() + b"\n"

    # What structlog calls with the finished line.
    info = warning = error = _take


class _Logger(Protocol):
    def log(self, level: int, event: str, **fields: AttributeValue) -> object: ...


def _in_order(_logger: WrappedLogger, _method: str, fields: EventDict) -> EventDict:
    """Put first what a reader looks for first."""
    first = {name: fields.pop(name) for name in ("timestamp", "level", "event")}
    return {**first, **fields}


def _line(event: LogEvent, at_ns: int) -> Line:
    at = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    micros = at_ns % 1_000_000_000 // 1_000
    return {
        "timestamp": f"{at:%Y-%m-%dT%H:%M:%S}.{micros:06}Z",
        "level": event.severity,
        "event": event.name,
    }


def _kind(event: LogEvent, record: Record, attributes: Mapping[str, AttributeValue]) -> Kind:
    kind = [("event", event.name)]
    if record.agent:
        kind += ("pipeline", record.pipeline), ("agent", record.agent)
    kind += ((name, str(attributes[name])) for name in _ALIKE if name in attributes)
    return tuple(kind)


def _shown(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    return text if len(text) <= _SHOWN_KEY_CHARACTERS else text[:_SHOWN_KEY_CHARACTERS] + "…"

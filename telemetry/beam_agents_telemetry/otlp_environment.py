"""OpenTelemetry's standard variables: what they ask of the plugin ``otlp``, and what it cannot do of that.

They are read where the plugin is configured, so that what is wrong is told at once, and again on each worker,
whose environment counts. An option of the plugin comes before its variable. Values are never shown: headers
hold credentials, and anything may be in the wrong place.
"""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from beam_agents.errors import PluginUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from beam_agents_telemetry.options import OptionChecks

__all__ = ["CONSOLE", "OTLP", "Environment", "Overrides", "check_files", "read_environment", "without_effect"]

OTLP: Final = "otlp"
CONSOLE: Final = "console"
_NONE: Final = "none"

_Signal: TypeAlias = Literal["TRACES", "METRICS"]

# (share of the traces, None for that of the argument; whether an event's traceparent decides)
_SAMPLERS: Final[dict[str, tuple[float | None, bool]]] = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}
_AGGREGATIONS: Final = {"explicit_bucket_histogram": False, "base2_exponential_bucket_histogram": True}
# As the exporter reads them, which would log what it does not understand.
_HEADER: Final = re.compile(
    r"[ \t]*[\x21\x23-\x27\x2a\x2b\x2d\x2e0-9A-Z\x5e-\x7a\x7c\x7e]+[ \t]*"
    r"=[ \t]*[\x20\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*"
)
_ATTRIBUTE: Final = re.compile(r"\s*[^=\s][^=]*=.*", re.DOTALL)
_URL: Final = re.compile(r"https?://[^\s/?#]+\S*", re.IGNORECASE)

# What sets something else up that has an option here.
_OPTIONS: Final = {
    "OTEL_BSP_SCHEDULE_DELAY": "batch_delay_s",
    "OTEL_BSP_MAX_QUEUE_SIZE": "max_queued_spans",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "max_batch_spans",
    "OTEL_BSP_EXPORT_TIMEOUT": "timeout_s",
    "OTEL_METRIC_EXPORT_TIMEOUT": "timeout_s",
}


@dataclass(frozen=True, slots=True)
class Overrides:
    """Which options are given, and so come before their variables.

    Attributes:
        traces: Whether spans are sent at all.
        metrics: Whether metrics are.
        endpoint: Whether the receiver is given.
        sample_ratio: Whether the share of the traces is.
        timeout_s: Whether a request's time is.
        metrics_period_s: Whether the period is.
    """

    traces: bool
    metrics: bool
    endpoint: bool
    sample_ratio: bool
    timeout_s: bool
    metrics_period_s: bool


@dataclass(frozen=True, slots=True)
class Environment:
    """What the variables ask for; None where they ask for nothing.

    Attributes:
        disabled: Whether OpenTelemetry is off for the process.
        traces: Where spans go: :data:`OTLP`, :data:`CONSOLE`, both, or nowhere.
        metrics: Where metrics go, likewise.
        ratio: Which share of the traces is kept.
        parent_based: Whether an event's own ``traceparent`` decides where there is one.
        traces_timeout_s: Seconds that a request with spans may take.
        metrics_timeout_s: Seconds that one with metrics may take.
        metrics_period_s: Seconds between two exports of metrics.
        exponential: Whether histograms are exponential ones.
    """

    disabled: bool = False
    traces: tuple[str, ...] = (OTLP,)
    metrics: tuple[str, ...] = (OTLP,)
    ratio: float | None = None
    parent_based: bool = True
    traces_timeout_s: float | None = None
    metrics_timeout_s: float | None = None
    metrics_period_s: float | None = None
    exponential: bool = False


def read_environment(checks: OptionChecks, variables: Mapping[str, str], given: Overrides) -> Environment:
    """Return what a process's variables ask for. An empty one is as none, as the standard has it.

    Raises:
        InvalidArgument: A variable asks for what this plugin cannot do, or is of another form.
    """
    return _Reader(checks, variables, given).read()


def without_effect(variables: Mapping[str, str]) -> list[str]:
    """Return what is set that this plugin does not look at, each with the option that does the same."""
    return [
        f"{variable} (the option {option})"
        for variable, option in _OPTIONS.items()
        if variables.get(variable)
    ]


def check_files(variables: Mapping[str, str]) -> None:
    """Check that the files are there that the variables name.

    Raises:
        PluginUnusable: One is not there.
    """
    for kind in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        for prefix in ("", "TRACES_", "METRICS_"):
            variable = f"OTEL_EXPORTER_OTLP_{prefix}{kind}"
            path = variables.get(variable)
            if path and not pathlib.Path(path).exists():
                raise PluginUnusable(f"{variable} names a file that is not there: {path}")


@dataclass(frozen=True, slots=True)
class _Reader:
    checks: OptionChecks
    variables: Mapping[str, str]
    given: Overrides

    def read(self) -> Environment:
        if self._switch("OTEL_SDK_DISABLED"):
            return Environment(disabled=True, traces=(), metrics=())
        for variable, value in self._found("OTEL_RESOURCE_ATTRIBUTES"):
            self._check_pairs(variable, value, _ATTRIBUTE)
        traces = self._exporters("TRACES") if self.given.traces else ()
        metrics = self._exporters("METRICS") if self.given.metrics else ()
        for signal, exporters in (("TRACES", traces), ("METRICS", metrics)):
            if OTLP in exporters:
                self._check_receiver(signal)
        ratio, parent_based = (None, True) if self.given.sample_ratio or not traces else self._sampler()
        return Environment(
            traces=traces,
            metrics=metrics,
            ratio=ratio,
            parent_based=parent_based,
            traces_timeout_s=self._timeout_s("TRACES") if OTLP in traces else None,
            metrics_timeout_s=self._timeout_s("METRICS") if OTLP in metrics else None,
            metrics_period_s=self._period_s() if metrics else None,
            exponential=self._exponential() if metrics else False,
        )

    def _found(self, *variables: str) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of the first of these variables that is set, if one is."""
        for variable in variables:
            value = self.variables.get(variable, "").strip()
            if value:
                yield variable, value
                return

    def _of_signal(self, signal: str, what: str) -> Iterator[tuple[str, str]]:
        """Yield what is set for one signal, else for all."""
        return self._found(f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}")

    def _switch(self, variable: str) -> bool:
        return any(
            self.checks.choice(variable, value, ("true", "false")) == "true"
            for variable, value in self._found(variable)
        )

    def _exporters(self, signal: _Signal) -> tuple[str, ...]:
        """Return where a signal goes."""
        for variable, value in self._found(f"OTEL_{signal}_EXPORTER"):
            parts = [part.strip() for part in value.split(",") if part.strip()]
            words = {self.checks.choice(variable, part, (OTLP, CONSOLE, _NONE)) for part in parts}
            if _NONE in words and len(words) > 1:
                raise self.checks.problem(f"{variable} is none and something else: give one of them")
            if self.given.endpoint and words == {CONSOLE}:
                raise self.checks.problem(
                    f"{variable} is console, and endpoint is a receiver: give one of them"
                )
            return tuple(sorted(words - {_NONE}))
        return (OTLP,)

    def _check_receiver(self, signal: str) -> None:
        """Check what the exporter reads itself."""
        if not self.given.endpoint:
            for variable, value in self._of_signal(signal, "ENDPOINT"):
                if not _URL.fullmatch(value):
                    raise self.checks.refused(variable, "a URL like http://collector:4318", value)
            for variable, value in self._of_signal(signal, "PROTOCOL"):
                if value != "http/protobuf":
                    wanted = "http/protobuf, the one protocol that is spoken here (port 4318, not 4317)"
                    raise self.checks.refused(variable, wanted, value)
        for variable, value in self._of_signal(signal, "COMPRESSION"):
            self.checks.choice(variable, value, ("gzip", "deflate", "none"))
        for variable, value in self._of_signal(signal, "HEADERS"):
            self._check_pairs(variable, value, _HEADER)

    def _check_pairs(self, variable: str, value: str, form: re.Pattern[str]) -> None:
        for number, pair in enumerate(value.split(","), 1):
            if pair.strip() and not form.fullmatch(pair):
                wanted = "name=value pairs, URL-encoded, with commas between them"
                raise self.checks.problem(f"{variable} must be {wanted}; pair {number} is not")

    def _sampler(self) -> tuple[float | None, bool]:
        argument = "OTEL_TRACES_SAMPLER_ARG"
        for variable, value in self._found("OTEL_TRACES_SAMPLER"):
            ratio, parent_based = _SAMPLERS[self.checks.choice(variable, value, _SAMPLERS)]
            if ratio is None:
                ratio = 1.0
                for _, given in self._found(argument):
                    ratio = self.checks.number(argument, given, 0.0, 1.0)
            return ratio, parent_based
        for _ in self._found(argument):
            raise self.checks.problem(
                f"{argument} needs OTEL_TRACES_SAMPLER, or give the option sample_ratio"
            )
        return None, True

    def _timeout_s(self, signal: str) -> float | None:
        if not self.given.timeout_s:
            # The standard has milliseconds; OpenTelemetry for Python reads seconds.
            for variable, value in self._of_signal(signal, "TIMEOUT"):
                return self.checks.number(f"{variable}, in seconds,", value, 0.1, 60.0)
        return None

    def _period_s(self) -> float | None:
        if not self.given.metrics_period_s:
            for variable, value in self._found("OTEL_METRIC_EXPORT_INTERVAL"):
                return self.checks.number(f"{variable}, in milliseconds,", value, 100, 3_600_000) / 1_000
        return None

    def _exponential(self) -> bool:
        for variable, value in self._found("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"):
            self.checks.choice(variable, value, ("cumulative",))
        for variable, value in self._found("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION"):
            return _AGGREGATIONS[self.checks.choice(variable, value, _AGGREGATIONS)]
        return False

"""OpenTelemetry's standard variables: each is honoured, or it is told that it is not, without its value."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

import pytest

from beam_agents import AgentConfig
from beam_agents.errors import InvalidArgument, PluginUnusable
from beam_agents.signals import Observer
from beam_agents_telemetry.options import OptionChecks
from beam_agents_telemetry.otlp import OpenTelemetry, OpenTelemetryObserver
from beam_agents_telemetry.otlp_environment import Environment, Overrides, check_files, read_environment

if TYPE_CHECKING:
    import pathlib

NOTHING = Overrides(
    traces=True, metrics=True, endpoint=False, sample_ratio=False, timeout_s=False, metrics_period_s=False
)
EVERYTHING = Overrides(
    traces=True, metrics=True, endpoint=True, sample_ratio=True, timeout_s=True, metrics_period_s=True
)
MARK = "sk-secret"
OFF = Environment(disabled=True, traces=(), metrics=())
EXPONENTIAL = "base2_exponential_bucket_histogram"
PAIRS = "must be name=value pairs, URL-encoded, with commas between them"
O = "OTEL_EXPORTER_OTLP_"  # noqa: E741 - how most of them begin


def read(given: Overrides = NOTHING, **variables: str) -> Environment:
    return read_environment(OptionChecks("otlp"), variables, given)


def test_without_variables_nothing_is_asked_for() -> None:
    assert read() == Environment()
    # The standard has empty ones mean the same.
    names = [
        "OTEL_SDK_DISABLED",
        "OTEL_TRACES_SAMPLER",
        "OTEL_TRACES_EXPORTER",
        f"{O}ENDPOINT",
        f"{O}PROTOCOL",
    ]
    assert read(**dict.fromkeys(names, "")) == Environment()


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({"OTEL_SDK_DISABLED": "TRUE"}, OFF),
        ({"OTEL_SDK_DISABLED": "TRUE", f"{O}PROTOCOL": "grpc"}, OFF),
        ({"OTEL_SDK_DISABLED": "false"}, Environment()),
        ({"OTEL_TRACES_EXPORTER": "none"}, Environment(traces=())),
        ({"OTEL_METRICS_EXPORTER": "none"}, Environment(metrics=())),
        ({"OTEL_TRACES_EXPORTER": "console"}, Environment(traces=("console",))),
        ({"OTEL_TRACES_EXPORTER": " otlp, console ,"}, Environment(traces=("console", "otlp"))),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, Environment()),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, Environment(ratio=1.0, parent_based=False)),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, Environment(ratio=0.0, parent_based=False)),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            Environment(ratio=0.25, parent_based=False),
        ),
        ({"OTEL_TRACES_SAMPLER": "traceidratio"}, Environment(ratio=1.0, parent_based=False)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on"}, Environment(ratio=1.0)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, Environment(ratio=0.0)),
        (
            {"OTEL_TRACES_SAMPLER": "ParentBased_TraceIdRatio", "OTEL_TRACES_SAMPLER_ARG": "0"},
            Environment(ratio=0.0),
        ),
        ({f"{O}TIMEOUT": "3"}, Environment(traces_timeout_s=3.0, metrics_timeout_s=3.0)),
        (
            {f"{O}TIMEOUT": "3", f"{O}TRACES_TIMEOUT": "0.5"},
            Environment(traces_timeout_s=0.5, metrics_timeout_s=3.0),
        ),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "2500"}, Environment(metrics_period_s=2.5)),
        ({f"{O}METRICS_DEFAULT_HISTOGRAM_AGGREGATION": EXPONENTIAL}, Environment(exponential=True)),
        ({f"{O}METRICS_TEMPORALITY_PREFERENCE": "cumulative"}, Environment()),
        ({f"{O}PROTOCOL": "http/protobuf", f"{O}COMPRESSION": "GZIP"}, Environment()),
        (
            {f"{O}ENDPOINT": "https://c:4318/otlp/", f"{O}TRACES_ENDPOINT": "http://[::1]:1/x?y"},
            Environment(),
        ),
        ({f"{O}HEADERS": "authorization=Bearer a=b,x-team=agents%20all, "}, Environment()),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop,k=v%2Cw"}, Environment()),
    ],
)
def test_what_is_asked_for(variables: dict[str, str], asked: Environment) -> None:
    assert read(**variables) == asked


REFUSED = [
    ({"OTEL_SDK_DISABLED": MARK}, "OTEL_SDK_DISABLED must be one of true, false, not a text of 9 characters"),
    ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER must be one of otlp, console, none, not"),
    ({"OTEL_METRICS_EXPORTER": f"otlp,{MARK}"}, "OTEL_METRICS_EXPORTER must be one of otlp, console, none"),
    ({"OTEL_METRICS_EXPORTER": "none,otlp"}, "OTEL_METRICS_EXPORTER is none and something else"),
    ({"OTEL_TRACES_SAMPLER": "xray"}, "OTEL_TRACES_SAMPLER must be one of always_on, "),
    (
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"},
        "OTEL_TRACES_SAMPLER_ARG must be a number from 0.0 to 1.0",
    ),
    ({"OTEL_TRACES_SAMPLER_ARG": "0.5"}, "OTEL_TRACES_SAMPLER_ARG needs OTEL_TRACES_SAMPLER"),
    ({f"{O}PROTOCOL": "grpc"}, f"{O}PROTOCOL must be http/protobuf"),
    ({f"{O}METRICS_PROTOCOL": "http/json"}, f"{O}METRICS_PROTOCOL must be http/protobuf"),
    ({f"{O}ENDPOINT": f"user:{MARK}@collector:4318"}, f"{O}ENDPOINT must be a URL like http"),
    ({f"{O}TRACES_ENDPOINT": f"grpc://{MARK}:4317"}, f"{O}TRACES_ENDPOINT must be a URL like http"),
    ({f"{O}TIMEOUT": "10000"}, f"{O}TIMEOUT, in seconds, must be a number from 0.1 to 60.0"),
    ({f"{O}TIMEOUT": "0"}, f"{O}TIMEOUT, in seconds, must be a number"),
    ({f"{O}COMPRESSION": "zstd"}, f"{O}COMPRESSION must be one of gzip, deflate, none"),
    ({f"{O}HEADERS": f"a=b,{MARK}"}, f"{O}HEADERS {PAIRS}; pair 2"),
    ({f"{O}TRACES_HEADERS": f'a="{MARK}"'}, f"{O}TRACES_HEADERS {PAIRS}; pair 1"),
    ({"OTEL_RESOURCE_ATTRIBUTES": f"{MARK},a=b"}, f"OTEL_RESOURCE_ATTRIBUTES {PAIRS}; pair 1"),
    ({"OTEL_METRIC_EXPORT_INTERVAL": "1"}, "INTERVAL, in milliseconds, must be a number from 100"),
    ({f"{O}METRICS_TEMPORALITY_PREFERENCE": "delta"}, "PREFERENCE must be one of cumulative, not"),
    ({f"{O}METRICS_DEFAULT_HISTOGRAM_AGGREGATION": MARK}, "AGGREGATION must be one of explicit_"),
]


@pytest.mark.parametrize(("variables", "told"), REFUSED)
def test_what_cannot_be_done_is_told_where_it_is_configured_and_on_the_worker(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = OpenTelemetry()
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    for make in (OpenTelemetry, plugin.build):
        with pytest.raises(InvalidArgument) as raised:
            make()
        assert told in raised.value.problem
        assert raised.value.problem.startswith("otlp: ")
        assert MARK not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(ValueError, match=r"AgentConfig\.telemetry: plugin 'otlp' refused its options: OTEL_"):
        AgentConfig(telemetry=["otlp"])
    assert caplog.messages == []


def test_options_come_before_their_variables() -> None:
    variables = {
        f"{O}ENDPOINT": "collector:4317",
        f"{O}PROTOCOL": "grpc",
        f"{O}TIMEOUT": "10000",
        "OTEL_TRACES_SAMPLER": "xray",
        "OTEL_METRIC_EXPORT_INTERVAL": "1",
    }
    assert read(EVERYTHING, **variables) == Environment()
    with pytest.raises(InvalidArgument, match="OTEL_TRACES_EXPORTER is console, and endpoint is a receiver"):
        read(EVERYTHING, OTEL_TRACES_EXPORTER="console")
    traces_alone = Overrides(
        traces=True,
        metrics=False,
        endpoint=False,
        sample_ratio=False,
        timeout_s=False,
        metrics_period_s=False,
    )
    assert read(traces_alone, OTEL_METRICS_EXPORTER="prometheus") == Environment(metrics=())


@pytest.mark.parametrize(
    "variables",
    [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}],
)
def test_opentelemetry_may_be_off_for_the_process(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert type(OpenTelemetry("http://127.0.0.1:9").build()) is Observer


def test_what_has_no_effect_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", MARK)
    with caplog.at_level(logging.WARNING):
        plugin = OpenTelemetry("http://127.0.0.1:9", metrics=False)
        observer = plugin.build()
    observer.close(1.0)
    assert isinstance(observer, OpenTelemetryObserver)
    (told,) = caplog.messages
    assert "OTEL_BSP_SCHEDULE_DELAY (the option batch_delay_s)" in told
    assert MARK not in told


def test_files_are_looked_for_on_the_worker(tmp_path: pathlib.Path) -> None:
    check_files({f"{O}CERTIFICATE": str(tmp_path), "OTHER": "x"})
    missing = tmp_path / "none.pem"
    with pytest.raises(
        PluginUnusable, match=f"{O}TRACES_CLIENT_KEY names a file that is not there: {missing}"
    ):
        check_files({f"{O}TRACES_CLIENT_KEY": str(missing)})

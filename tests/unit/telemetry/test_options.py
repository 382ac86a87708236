"""Every option of every plugin of ours, as text and as an object: what is wrong is told at once, alike."""

from __future__ import annotations

import inspect
import re
import traceback
from pathlib import Path
from types import NoneType

import pytest

from beam_agents import AgentConfig
from beam_agents.errors import InvalidArgument
from beam_agents.signals.plugins import resolve_plugins
from beam_agents_telemetry.logs import StructuredLogs
from beam_agents_telemetry.otlp import OpenTelemetry
from beam_agents_telemetry.prometheus import PrometheusMetrics

PLUGINS = {"logs": StructuredLogs, "otlp": OpenTelemetry, "prometheus": PrometheusMetrics}
OPTIONS = [
    (name, option) for name, plugin in PLUGINS.items() for option in inspect.signature(plugin).parameters
]
NUMBERS = [
    (name, option)
    for name, option in OPTIONS
    if type(inspect.signature(PLUGINS[name]).parameters[option].default) in {int, float, NoneType}
]
MARK = "sk-secret"


def made(name: str, option: str, value: object) -> object:
    return PLUGINS[name](**{option: value})


def test_nothing_is_left_out() -> None:
    assert len(OPTIONS) > 30
    assert len(NUMBERS) > 10


@pytest.mark.parametrize(("name", "option"), OPTIONS)
@pytest.mark.parametrize("value", [None, b"1", ["1"], object(), 1j, b""])
def test_a_wrong_type_is_told(name: str, option: str, value: object) -> None:
    if value is None and inspect.signature(PLUGINS[name]).parameters[option].default is None:
        made(name, option, value)
        return
    with pytest.raises(TypeError, match=rf"^{name}: {option} must be .*, not of the type \w+$") as told:
        made(name, option, value)
    assert isinstance(told.value, InvalidArgument)


@pytest.mark.parametrize(("name", "option"), NUMBERS)
@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        "",
        " ",
        "1_0",
        " 5",
        "٣",
        "0x10",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "--1",
        "9" * 5_000,
        MARK,
    ],
)
def test_what_is_no_number_is_told(name: str, option: str, value: object) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"^{name}: {option} must be a (whole )?number from \S+ to \S+"
    ) as told:
        made(name, option, value)
    assert MARK not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize(("name", "option"), NUMBERS)
@pytest.mark.parametrize("value", [-1, 10**9, 10**400, float("nan"), float("inf"), -1e-9])
def test_a_number_out_of_its_range_is_told(name: str, option: str, value: float) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"^{name}: {option} must be a (whole )?number from \S+ to \S+"
    ):
        made(name, option, value)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_an_empty_text_is_told_where_it_comes_of_a_text(name: str, option: str) -> None:
    # ``prometheus?certfile=$CERTIFICATE`` without that variable would be without TLS.
    told = rf"^AgentConfig\.telemetry: plugin '{name}' has an empty '{option}'; leave it out for its default$"
    with pytest.raises(ValueError, match=told):
        AgentConfig(telemetry=[f"{name}?{option}="])


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_a_text_that_does_not_fit_is_told_without_it(name: str, option: str) -> None:
    text = f"{MARK}\0\ud800"
    with pytest.raises(InvalidArgument, match=rf"^{name}: {option} must be [^\0\ud800]+$") as told:
        made(name, option, text)
    assert MARK not in "".join(traceback.format_exception(told.value))
    with pytest.raises(
        ValueError, match=rf"^AgentConfig\.telemetry: plugin '{name}' refused its options: {option} "
    ) as told:
        AgentConfig(telemetry=[f"{name}?{option}={MARK}%00"])
    assert MARK not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("colour=red", r"has no option 'colour'; there: \w+, "),
        ("name=other", r"has no option 'name'; there: \w+, "),
        ("{first}=1&{first}=1", "has the option '{first}' more than once"),
        ("{first}", "has an option that is not written option=value"),
        ("=1", "has an option that is not written option=value"),
        ("{first}=1&", "has an option that is not written option=value"),
        ("{first}=1;{first}=2?", "refused its options: {first} must be "),
    ],
)
def test_a_bad_query_is_told(name: str, query: str, told: str) -> None:
    first = {"logs": "repeats", "otlp": "sample_ratio", "prometheus": "port"}[name]
    expected = rf"^AgentConfig\.telemetry: plugin '{name}' {told.format(first=re.escape(first))}"
    with pytest.raises(ValueError, match=expected):
        AgentConfig(telemetry=[f"{name}?{query.format(first=first)}"])


@pytest.mark.parametrize("word", ["true", "TRUE", "1", "yes", "on", "false", "0", "No", "off"])
def test_a_switch_takes_the_same_words_everywhere(word: str) -> None:
    meant = word.lower() in {"true", "1", "yes", "on"}
    assert resolve_plugins([f"logs?show_keys={word}"]) == (StructuredLogs(show_keys=meant),)
    assert resolve_plugins([f"otlp?detail={word}"]) == (OpenTelemetry(detail=meant),)


def test_a_path_may_be_one_of_pathlib() -> None:
    assert StructuredLogs(file=Path("/var/log/a")) == StructuredLogs(file="/var/log/a")
    assert OpenTelemetry(headers_file=Path("/etc/h")) == OpenTelemetry(headers_file="/etc/h")  # type: ignore[arg-type]  # taken, not advertised
    assert PrometheusMetrics(sd_dir=Path("/run/t")) == PrometheusMetrics(sd_dir="/run/t")  # type: ignore[arg-type]  # as above

"""What an operator may write as an option of the plugin ``otlp``, checked where it is written."""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import urlsplit

from beam_agents.errors import InvalidArgument, InvalidArgumentType

__all__ = ["boolean", "endpoint", "number", "path", "whole"]

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_PLUGIN: Final = "OpenTelemetry"


def boolean(name: str, value: object) -> bool:
    """Return a switch's state.

    Raises:
        TypeError: It is neither a bool nor a text.
        ValueError: The text is none of the known words.
    """
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise InvalidArgumentType(f"{_PLUGIN}.{name} must be a bool, not {type(value).__name__}")
    word = value.strip().lower()
    if word not in _TRUE | _FALSE:
        raise InvalidArgument(f"{_PLUGIN}.{name} must be true or false")
    return word in _TRUE


def number(name: str, value: object, *, at_least: float, at_most: float) -> float:
    """Return a number of an option.

    Raises:
        TypeError: It is neither a number nor a text.
        ValueError: It is no finite number, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidArgumentType(f"{_PLUGIN}.{name} must be a number, not {type(value).__name__}")
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not at_least <= found <= at_most:
        raise InvalidArgument(f"{_PLUGIN}.{name} must be a number from {at_least:g} to {at_most:g}")
    return found


def whole(name: str, value: object, *, at_least: int, at_most: int) -> int:
    """Return a whole number of an option; it raises what :func:`number` raises."""
    found = number(name, value, at_least=at_least, at_most=at_most)
    if found != int(found):
        raise InvalidArgument(f"{_PLUGIN}.{name} must be a whole number")
    return int(found)


def endpoint(name: str, value: object) -> str:
    """Return the base URL of an OTLP/HTTP receiver, without a slash at its end; empty for none.

    Raises:
        TypeError: It is no text.
        ValueError: It is no such URL, or it holds what may not travel with the pipeline.
    """
    if not isinstance(value, str):
        raise InvalidArgumentType(f"{_PLUGIN}.{name} must be a str, not {type(value).__name__}")
    if not value:
        return ""
    expected = f"{_PLUGIN}.{name} must look like http://host:4318 (https for TLS)"
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"{expected}: its host or port cannot be read") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise InvalidArgument(f"{expected}: scheme and host are needed")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(f"{expected}: credentials belong in headers_file or OTEL_EXPORTER_OTLP_HEADERS")
    if parts.query or parts.fragment:
        raise InvalidArgument(f"{expected}: it may have no query and no fragment")
    if any(character.isspace() or not character.isprintable() for character in value):
        raise InvalidArgument(f"{expected}: it may hold no spaces")
    for signal in ("/v1/traces", "/v1/metrics"):
        if parts.path.rstrip("/").endswith(signal):
            raise InvalidArgument(f"{expected}: leave {signal} out, it is added for each signal")
    return value.rstrip("/")


def path(name: str, value: object) -> str:
    """Return a file's absolute path; empty for none.

    Raises:
        TypeError: It is no text.
        ValueError: It is not absolute: workers have working directories of their own.
    """
    if not isinstance(value, str):
        raise InvalidArgumentType(f"{_PLUGIN}.{name} must be a str, not {type(value).__name__}")
    if value and not value.startswith("/"):
        raise InvalidArgument(f"{_PLUGIN}.{name} must be an absolute path, there on every worker")
    return value

"""What an operator may write as an endpoint of the plugin ``otlp``, checked where it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from beam_agents_telemetry.options import OptionChecks

__all__ = ["base_url"]

_WANTED: Final = "a URL like http://host:4318 (https for TLS)"


def base_url(checks: OptionChecks, option: str, given: object) -> str:
    """Return the base URL of an OTLP/HTTP receiver, without a slash at its end; empty for none.

    Raises:
        InvalidArgument: It is no such URL, or it holds what may not travel with the pipeline.
    """
    value = checks.text(option, given)
    if not value:
        return ""
    problem = _problem(value)
    if problem:
        raise checks.problem(f"{option} must be {_WANTED}: {problem}")
    return value.rstrip("/")


def _problem(value: str) -> str:
    """Return what is wrong with a URL, without a part of it; empty for nothing."""
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return "its host or port cannot be read"
    found = ""
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        found = "scheme and host are needed"
    elif parts.username is not None or parts.password is not None:
        found = "credentials belong in headers_file or OTEL_EXPORTER_OTLP_HEADERS"
    elif parts.query or parts.fragment:
        found = "it may have no query and no fragment"
    elif any(character.isspace() or not character.isprintable() for character in value):
        found = "it may hold no spaces"
    else:
        for signal in ("/v1/traces", "/v1/metrics"):
            if parts.path.rstrip("/").endswith(signal):
                found = f"leave {signal} out, it is added for each signal"
    return found

"""What the endpoint answers: the metrics, a sign of life, a page for people, and who may see them."""

from __future__ import annotations

import base64
import binascii
import hmac
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import make_wsgi_app

from beam_agents.signals.losses import count_lost
from beam_agents_telemetry.prometheus_server import Response
from beam_agents_telemetry.prometheus_status import read_status, status_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import CollectorRegistry

    from beam_agents_telemetry.prometheus_server import Request

__all__ = ["Credentials", "Pages", "read_password"]

_PLAIN: Final = (("Content-Type", "text/plain; charset=utf-8"),)
_PAGE: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Cache-Control", "no-store"),
    # The page loads nothing and runs nothing, whatever an agent's name may hold.
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


def read_password(file: str) -> bytes:
    """Return a password file's content, without the newline at its end.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is empty.
    """
    password = Path(file).read_bytes().rstrip(b"\r\n")
    if not password:
        raise ValueError(f"the password file {file} is empty; write the password into it")
    return password


class Credentials:
    """A user's name and a file with the password, which is read each time: it may be changed.

    Args:
        username: Who may see the pages.
        password_file: Where the password is.
    """

    def __init__(self, username: str, password_file: str) -> None:
        self._username = username.encode()
        self._password_file = password_file

    def match(self, authorization: str) -> bool:
        """Tell whether an Authorization header holds them; an unreadable file lets nobody in."""
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return False
        try:
            username, _, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
            expected = read_password(self._password_file)
        except (binascii.Error, ValueError, OSError):
            return False
        # Both are compared, always, so that the time taken tells nothing of either.
        known = hmac.compare_digest(username, self._username)
        return hmac.compare_digest(password, expected) and known


class Pages:
    """Answers requests.

    Args:
        plugin: The plugin's name, under which what fails is counted.
        registry: What ``/metrics`` tells.
        credentials: Who may see more than the sign of life; None for everyone.
    """

    def __init__(self, plugin: str, registry: CollectorRegistry, credentials: Credentials | None) -> None:
        self._plugin = plugin
        self._metrics = make_wsgi_app(registry)
        self._credentials = credentials
        self._by_path: dict[str, Callable[[Request], Response]] = {
            "/": self._status,
            "/metrics": self._exposition,
            "/healthz": self._health,
        }

    def respond(self, request: Request) -> Response:
        """Answer a request; what fails is counted, and told as nothing but a failure."""
        page = self._by_path.get(request.path)
        if page is None:
            return Response(HTTPStatus.NOT_FOUND, b"see / and /metrics\n", _PLAIN)
        if request.method != "GET":
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"use GET\n", (*_PLAIN, ("Allow", "GET, HEAD")))
        if page != self._health and not self._allowed(request):
            challenge = ("WWW-Authenticate", 'Basic realm="beam-agents", charset="UTF-8"')
            return Response(
                HTTPStatus.UNAUTHORIZED, b"a name and a password are needed\n", (*_PLAIN, challenge)
            )
        try:
            return page(request)
        except Exception as error:  # noqa: BLE001 - a scrape's fault ends here, as a count
            count_lost(self._plugin, "scrape", type(error).__name__)
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the worker's log\n", _PLAIN)

    def _allowed(self, request: Request) -> bool:
        return self._credentials is None or self._credentials.match(request.headers.get("authorization", ""))

    def _health(self, request: Request) -> Response:  # noqa: ARG002 - a page's signature
        return Response(HTTPStatus.OK, b"ok\n", _PLAIN)

    def _status(self, request: Request) -> Response:  # noqa: ARG002 - a page's signature
        return Response(HTTPStatus.OK, status_page(read_status()).encode(), _PAGE)

    def _exposition(self, request: Request) -> Response:
        """Let prometheus-client choose the format and write it."""
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
        }
        told: list[tuple[str, str]] = []
        body: Iterable[bytes] = self._metrics(environ, lambda _, headers: told.extend(headers))
        return Response(HTTPStatus.OK, b"".join(body), tuple(told))

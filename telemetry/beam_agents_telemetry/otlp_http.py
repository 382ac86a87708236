"""HTTP for the exporters with one deadline for a whole request.

The timeout of ``requests`` bounds each read, so that a server that sends a byte a second is waited for
without end, and one that never stops is read into memory. Here the deadline covers the answer as a whole, and
its size is bounded.
"""

from __future__ import annotations

import gzip
import io
import time
import zlib
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from urllib3 import ProxyManager

__all__ = ["BoundedSession"]

MAX_ANSWER_BYTES: Final = 65_536
"""A receiver's answer is a few bytes; what is longer is no answer."""

_REDIRECTION: Final = 3
"""The first digit of such an answer's status."""

_COMPRESSIONS: Final[dict[str | bytes, Callable[[bytes], bytes]]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}
"""By the header Content-Encoding, as the exporters set it."""


class BoundedSession(requests.Session):
    """A session whose requests end by their timeout. For one thread.

    Attributes:
        body: What the next requests carry in the place of what they are given, not compressed yet; None for
            what they are given. An exporter takes span objects alone: one that is given none sends this, with
            all that it knows of addresses, headers, compression and retries.
    """

    body: bytes | None = None

    def __init__(self) -> None:
        super().__init__()
        adapter = _BoundedAdapter()
        self.mount("http://", adapter)
        self.mount("https://", adapter)

    def send(self, request: requests.PreparedRequest, **options: object) -> requests.Response:
        """Send a request, with :attr:`body` where there is one."""
        if self.body is not None:
            compress = _COMPRESSIONS.get(request.headers.get("Content-Encoding", ""))
            request.prepare_body(compress(self.body) if compress else self.body, None)
        return super().send(request, **options)

    def merge_environment_settings(self, url, proxies, stream, verify, cert):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - handed on as they come
        """Let the certificate that OpenTelemetry's variables name win over ``REQUESTS_CA_BUNDLE``."""
        if verify is None and isinstance(self.verify, str):
            verify = self.verify
        return super().merge_environment_settings(url, proxies, stream, verify, cert)


class _BoundedAnswer(io.RawIOBase):
    """What a socket receives, until a deadline and up to a size."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        # The file object keeps the socket open when the connection lets go of it.
        self._file = connection.makefile("rb", buffering=0)
        self._connection = connection
        self._deadline_s = deadline_s
        self._left_bytes = MAX_ANSWER_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]  # a bytes-like object
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer did not end in time")
        if self._left_bytes <= 0:
            raise OSError("the answer is too long")
        self._connection.settimeout(left_s)
        count = self._file.readinto(buffer)
        self._left_bytes -= count or 0
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _BoundedAdapter(HTTPAdapter):
    """Makes connections whose answers have the deadline of the request that is being sent."""

    deadline_s: float = 0.0

    def init_poolmanager(self, *args: object, **options: object) -> None:
        super().init_poolmanager(*args, **options)  # type: ignore[arg-type]  # handed on as they come
        self.poolmanager.pool_classes_by_scheme = self._pools()

    def proxy_manager_for(self, proxy: str, **options: object) -> ProxyManager:
        manager: ProxyManager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = self._pools()
        return manager

    def _pools(self) -> dict[str, type[HTTPConnectionPool]]:
        adapter = self

        class Answer(HTTPResponse):
            def __init__(self, sock: socket.socket, *more: object, **named: object) -> None:
                super().__init__(sock, *more, **named)  # type: ignore[arg-type]  # as above
                self.fp.close()
                self.fp = io.BufferedReader(_BoundedAnswer(sock, adapter.deadline_s))

        class Connection(HTTPConnection):
            response_class = Answer

        class SecureConnection(HTTPSConnection):
            response_class = Answer

        class Pool(HTTPConnectionPool):
            ConnectionCls = Connection

        class SecurePool(HTTPSConnectionPool):
            ConnectionCls = SecureConnection

        return {"http": Pool, "https": SecurePool}

    def send(  # type: ignore[override]  # all but the timeout is handed on as it comes
        self,
        request: requests.PreparedRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - the method of requests
        timeout: float | None = None,
        verify: bool | str = True,  # noqa: FBT001, FBT002 - as above
        cert: str | tuple[str, str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send a request; its timeout is the time that it may take as a whole. A redirection is an error."""
        assert timeout is not None  # noqa: S101 - the exporters always give one
        self.deadline_s = time.monotonic() + timeout
        answer = super().send(request, stream, timeout, verify, cert, dict(proxies) if proxies else None)
        if answer.status_code // 100 == _REDIRECTION:
            # Not followed, as credentials are for one host alone; the exporters would take it for success.
            raise requests.RequestException(f"redirected ({answer.status_code})")
        return answer

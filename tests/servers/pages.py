"""A server of one page of text, for what scrapes or asks over HTTP."""

from __future__ import annotations

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from beam_agents.demo.outage.servers import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["serving_page"]


@contextmanager
def serving_page(make_page: Callable[[], str]) -> Iterator[int]:
    """Answer every request with a page, made anew each time, while the block runs; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = make_page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with serving(Handler) as port:
        yield port

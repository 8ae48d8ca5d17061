"""A small HTTP listener for Prometheus and health checks: `/metrics`, `/health/live`, `/health/ready`.

`/health` is the same as `/health/ready`; `/` is a page for browsers, where there is one.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, disable_created_metrics, generate_latest

from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.page import Page

disable_created_metrics()  # type: ignore[no-untyped-call]

Ready = Callable[[], "str | None"]
"""Returns None when ready, else a sentence that says why not."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(host: str, port: int, ready: Ready, page: Page | None = None) -> ThreadingHTTPServer:
    """Listen in a daemon thread; `port` 0 takes a free one (see `server_port`). Raises HelenusError CONFIG if it cannot
    listen there; its cause is the OSError.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(), CONTENT_TYPE_LATEST)
            elif self.path == "/health/live":
                self._answer(200, b"live\n")
            elif self.path in ("/health", "/health/ready"):
                reason = ready()
                self._answer(200 if reason is None else 503, f"{reason or 'ready'}\n".encode())
            elif self.path == "/" and page is not None:
                self._answer(200, page.body, "text/html; charset=utf-8", page.headers)
            else:
                self._answer(404, b"not found\n")

        def _answer(
            self,
            status: int,
            body: bytes,
            kind: str = "text/plain; charset=utf-8",
            headers: Mapping[str, str] | None = None,
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not worth a log line."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise HelenusError(Kind.CONFIG, f"cannot listen: {error.strerror}", f"{host}:{port}") from error
    threading.Thread(target=server.serve_forever, name="monitoring", daemon=True).start()
    return server

"""A receiver of OTLP over HTTP, in the test's process, and spans as receivers show them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span; ids in hexadecimal digits, `links` are (trace id, span id), times in ns."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()
    status: int = 0


class Receiver:
    """Keeps what it receives. It answers with `status_code`; `headers` are those of the last request."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.status_code = 200
        self.requests = 0
        self.headers: dict[str, str] = {}
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def received(self) -> list[ReceivedSpan]:
        return list(self.spans)

    def take(self, body: bytes) -> None:
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _attributes(resource_spans.resource.attributes)["service.name"]
            for scope_spans in resource_spans.scope_spans:
                self.spans += [_span(service, span) for span in scope_spans.spans]


def _span(service: str, span: Any) -> ReceivedSpan:
    links = tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links)
    return ReceivedSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        links,
        span.status.code,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Run a receiver on loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.requests += 1
            receiver.headers = {name.lower(): text for name, text in self.headers.items()}
            if receiver.status_code == 200:
                receiver.take(body)
            self.send_response(receiver.status_code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""Clients without a login that keep a listener busy with as little as they can, and servers that lead clients away."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

_OTHERS = 300
"""Descriptors of the test itself."""


def descriptors_for(connections: int) -> int:
    """Raise this process's limit of open files for so many connections; returns for how many it suffices."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHERS
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return min(connections, limit - _OTHERS)


@contextlib.contextmanager
def connected(port: int, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections that stay open, each of which sent this and nothing more. A listener may end them."""
    clients: list[socket.socket] = []
    try:
        for _ in range(descriptors_for(count)):
            try:
                client = socket.create_connection(("127.0.0.1", port), timeout=10)
            except OSError:  # its queue is full for the moment
                continue
            clients.append(client)
            with contextlib.suppress(OSError):
                client.sendall(sent)
        yield clients
    finally:
        for client in clients:
            client.close()


def has_ended(client: socket.socket, timeout: float = 60.0) -> bool:
    """Whether the listener ends a connection, though it may answer first."""
    client.settimeout(timeout)
    try:
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except (ConnectionError, ssl.SSLError):
        pass
    return True


@contextlib.contextmanager
def redirecting(target: str) -> Iterator[int]:
    """The port of a server that sends whoever asks to the same path of another address."""

    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_PUT = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Redirect) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def recording(status: int = 401) -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server that refuses all, and the logins that it was sent."""
    logins: list[str | None] = []

    class Record(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers["Authorization"])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Record) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", logins
        server.shutdown()
        thread.join()


def answer_to(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by their names in lower case, and body of the answer to these bytes, once the listener closes
    the connection. Status 0 if it says nothing.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        received = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(request)
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 16):
                received += part
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines)
    return int(([*first.split(" "), "0", "0"])[1]), {n.lower(): v.strip() for n, _, v in fields}, body

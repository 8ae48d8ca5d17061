"""The relay before a server: what it forwards late, and what it cuts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from bench.relay import Relay


@pytest.fixture
def echo_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(100):
                        connection.sendall(data)

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)  # `close` alone leaves `accept` waiting


def test_slow_and_cut(echo_port: int) -> None:
    with Relay(echo_port) as relay, socket.create_connection(("127.0.0.1", relay.port)) as client:
        with relay.slow(0.2):
            started = time.monotonic()
            client.sendall(b"late")
            assert client.recv(100) == b"late"
            assert time.monotonic() - started >= 0.4, "either way"
        relay.cut()
        assert client.recv(100) == b""

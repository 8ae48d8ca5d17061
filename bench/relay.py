"""A relay before a server, which loses connections as a network does: with what is asked, or with what is answered."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CONNECT_TIMEOUT_S = 5.0
_CHUNK = 1 << 16


class Relay:
    """Forwards connections to `port` of 127.0.0.1 to another port, in threads, while it is entered."""

    def __init__(self, target_port: int) -> None:
        self._target = "127.0.0.1", target_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._loses_answers = threading.Event()
        self._delay_s = 0.0

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # `close` alone leaves `accept` waiting
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections. New ones are forwarded."""
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def losing_answers(self) -> Iterator[None]:
        """The server gets what is sent to it, and nobody gets what it answers; in the end all connections are cut."""
        self._loses_answers.set()
        try:
            yield
        finally:
            self.cut()
            self._loses_answers.clear()

    @contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Each piece of at most 64 KiB, either way, is forwarded that much later."""
        self._delay_s = delay_s
        try:
            yield
        finally:
            self._delay_s = 0.0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # it is closed
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, _CONNECT_TIMEOUT_S)
        except OSError:  # the server is away
            client.close()
            return
        server.settimeout(None)
        pair = {client, server}
        with self._lock:
            self._connections |= pair
        requests = threading.Thread(target=self._forward, args=(client, server, None), daemon=True)
        requests.start()
        self._forward(server, client, self._loses_answers)
        requests.join()
        with self._lock:
            self._connections -= pair
        for connection in pair:
            connection.close()

    def _forward(self, source: socket.socket, sink: socket.socket, is_lossy: threading.Event | None) -> None:
        """Forward bytes until one side ends; then both do. While it `is_lossy`, drop them, and what follows, too."""
        has_lost = False
        with suppress(OSError):
            while chunk := source.recv(_CHUNK):
                if self._delay_s:
                    time.sleep(self._delay_s)
                has_lost = has_lost or (is_lossy is not None and is_lossy.is_set())
                if not has_lost:
                    sink.sendall(chunk)
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

"""A listening socket that clients cannot exhaust: few connections at once, each with a deadline.

asyncio accepts from it as from any other socket. What has to be done within a deadline is everything before a request
is whole: a handshake of TLS, headers and body. Then the server says how far the request is, and the connection is
closed when its client does not take the answer, or sends nothing more. All of it happens in the thread of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from dataclasses import dataclass

from helenus_schemas.service import descriptors

BACKLOG = 64
"""Connections that asyncio accepts at once, before it looks at any of them."""
_KERNEL_BACKLOG = 1024  # that the kernel keeps for us meanwhile: a client that finds it full tries again after a second
HEAD_BYTES = 16 << 10
"""The longest request line with all its headers, as in most HTTP servers."""
_MAX_CONNECTIONS = 128  # Prometheus, probes and a few operators need some ten
_DESCRIPTOR_SHARE = 4  # of the descriptors that the process may have, at most a fourth is for connections
_REQUEST_S = 10.0  # for a request, from the connection to the end of its body: it has at most a megabyte
_ANSWER_S = 30.0  # for a client to take the answer
_IDLE_S = 5.0  # between two requests, as uvicorn
_SWEEP_S = 1.0
_PAUSE_S = 0.2
_ENDED_AT_ONCE = 8  # are ended at once for a new one, so that not each of many new ones has to wait

Address = tuple[str, int]


@dataclass(eq=False)
class _Connection:
    """A client's socket. Times are monotonic, s; there is no deadline while its request is worked on."""

    socket: socket.socket
    deadline: float | None
    ended_at: float = 0.0

    def end(self) -> None:
        """Have its transport see the end of the stream, and close it. The descriptor is the transport's to close."""
        self.ended_at = time.monotonic()
        with contextlib.suppress(OSError):  # it has ended
            self.socket.shutdown(socket.SHUT_RDWR)


class BoundedListener(socket.socket):
    """A socket that listens. Beyond its bound a new connection takes the place of the one that has been idle for the
    longest, and is refused if none is.
    """

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_connections = (
            _MAX_CONNECTIONS
            if soft == resource.RLIM_INFINITY
            else max(4, min(_MAX_CONNECTIONS, soft // _DESCRIPTOR_SHARE))
        )
        # By the client's address; the one whose state changed last is the last.
        self._connections: dict[Address, _Connection] = {}
        self._ending: list[_Connection] = []
        self._spare = _open_spare()
        self._sweep: asyncio.TimerHandle | None = None

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept a connection; asyncio calls it. Raises BlockingIOError if there is nothing to accept now, or no
        room.
        """
        if self._is_full:
            self._forget_closed()
        if self._is_full:
            # Those that end take some turns of the loop to be closed; it comes back here with each.
            if not self._ending and not self._end_idle():
                self._accept_any()[0].close()
            elif self._ending and self._ending[0].ended_at < time.monotonic() - _PAUSE_S:
                time.sleep(_PAUSE_S / 10)  # a transport that waits for its peer: no need to come back at once
            raise BlockingIOError
        connection, address = self._accept_any()
        self._connections[address[:2]] = _Connection(connection, time.monotonic() + _REQUEST_S)
        self._schedule()
        return connection, address

    def _accept_any(self) -> tuple[socket.socket, tuple[str, int]]:
        try:
            return super().accept()
        except OSError as error:
            if not descriptors.are_exhausted(error):
                raise
        # asyncio would log it, and stop to accept for a second. Close it unseen, by a spare descriptor.
        self._end_idle()
        if self._spare is not None:
            os.close(self._spare)
            with contextlib.suppress(OSError):
                super().accept()[0].close()
        else:
            time.sleep(_PAUSE_S / 10)
        self._spare = _open_spare()
        raise BlockingIOError

    def listen(self, backlog: int = _KERNEL_BACKLOG, /) -> None:
        """Listen; asyncio calls it, and its `backlog` is about what it accepts at once."""
        super().listen(max(backlog, _KERNEL_BACKLOG))

    def close(self) -> None:
        """Close it, and nothing that was accepted from it."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        super().close()

    def work_on(self, address: Address) -> None:
        """Note that a request of this client is whole: its answer takes as long as it takes."""
        self._move(address, None)

    def begin_answer(self, address: Address) -> None:
        """Note that a client is sent its answer."""
        self._move(address, _ANSWER_S)

    def end_answer(self, address: Address) -> None:
        """Note that a client may send its next request."""
        self._move(address, _IDLE_S)

    def _move(self, address: Address, seconds: float | None) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.deadline = None if seconds is None else time.monotonic() + seconds
            self._connections[address] = connection

    @property
    def _is_full(self) -> bool:
        return len(self._connections) + len(self._ending) >= self._max_connections

    def _end_idle(self) -> bool:
        """End some connections that have been idle for the longest. Return whether there were any."""
        idle = [address for address, connection in self._connections.items() if connection.deadline is not None]
        for address in idle[:_ENDED_AT_ONCE]:
            self._end(address)
        return bool(idle)

    def _end(self, address: Address) -> None:
        connection = self._connections.pop(address)
        connection.end()
        self._ending.append(connection)

    def _schedule(self) -> None:
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._end_overdue)

    def _end_overdue(self) -> None:
        self._sweep = None
        self._forget_closed()
        now = time.monotonic()
        for address, connection in list(self._connections.items()):
            if connection.deadline is not None and connection.deadline < now:
                self._end(address)
        if self._connections or self._ending:
            self._schedule()

    def _forget_closed(self) -> None:
        """Forget the connections that their transports have closed."""
        closed = [address for address, connection in self._connections.items() if connection.socket.fileno() < 0]
        for address in closed:
            del self._connections[address]
        self._ending = [connection for connection in self._ending if connection.socket.fileno() >= 0]


def listen(host: str, port: int) -> BoundedListener:
    """Listen on this machine's address. Raises OSError, whose `strerror` says why in a few words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return BoundedListener(socket.create_server((host, port), family=family, backlog=BACKLOG))
    except OSError as error:
        # As getaddrinfo has it, whose words differ.
        has_none = error.errno is not None and error.errno < 0
        why = "the host has no address" if has_none else str(error.strerror).partition(" (while")[0]
        raise OSError(error.errno, why) from None


def _open_spare() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None

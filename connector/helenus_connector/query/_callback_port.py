"""PySpark's port for calls from Java, which opens with `foreachBatch`: it takes them from Spark's Java process alone.

Py4J asks nobody for a secret there, though it does at Java's port. So whoever may connect, as any user of the machine
may, could give a query batches that Spark never planned. For each connection the system knows the socket at its other
end, and which process has that open.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

_log = structlog.get_logger(__name__)
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""The system's connections. Those of IPv4 are in the second too, as Java opens them."""


def guard(context: Any) -> bool:
    """Have the port, which is not open yet, take connections from Spark's Java process alone. Returns whether that can
    be had: on Linux, with a Py4J as it is known.
    """
    try:
        gateway = context._gateway
        if not all(table.exists() for table in _TABLES[:1]):
            return False
        parameters = gateway.callback_server_parameters
        if not isinstance(parameters.ssl_context, ProcessGuard):
            if gateway.get_callback_server() is not None:
                return False
            parameters.ssl_context = ProcessGuard(int(context._jvm.java.lang.ProcessHandle.current().pid()))
    except AttributeError:
        return False
    return True


class ProcessGuard:
    """In the place of an `SSLContext` of Py4J's server, which gives it each connection once."""

    def __init__(self, process: int) -> None:
        self._process = process

    def wrap_socket(self, connection: socket.socket, server_side: bool) -> socket.socket:  # noqa: ARG002
        """Return a connection that the process has opened. Otherwise close it, and return one that has ended: an error
        here would close the port.
        """
        if is_opened_by(self._process, connection):
            return connection
        _log.warning("spark.call_refused", reason="another process has connected to PySpark's port for Java")
        connection.close()
        ended, other_end = socket.socketpair()
        other_end.close()
        return ended


def is_opened_by(process: int, connection: socket.socket) -> bool:
    """Return whether the other end of a connection of IPv4 on this machine is a socket that the process has open."""
    with suppress(OSError, ValueError):
        inode = _inode(connection.getpeername(), connection.getsockname())
        name = f"socket:[{inode}]"
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed since
                if inode and os.readlink(file) == name:  # noqa: PTH115
                    return True
    return False


def _inode(own: tuple[str, int], other: tuple[str, int]) -> int:
    """Return the number of the socket with this end and that other end; 0 if there is none, or nobody has it open."""
    ends = _shown(own), _shown(other)
    for table in _TABLES:
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if (_of_ipv4(fields[1]), _of_ipv4(fields[2])) == ends:
                return int(fields[9])
    return 0


def _shown(address: tuple[str, int]) -> str:
    """Return an address of IPv4 as the system's table has it: a word in this machine's order of bytes, and the port."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


def _of_ipv4(shown: str) -> str:
    """Return an address of the table as that of IPv4 that it stands for, if it does."""
    return shown.removeprefix("0000000000000000FFFF0000")

"""Which hosts processes have TCP connections to, as /proc shows it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TABLE = Path("/proc/net/tcp")
_ESTABLISHED, _OPENING = "01", "02"


def connected_hosts(processes: Iterable[Path], port: int) -> set[str]:
    """Return the addresses of IPv4 at whose `port` these processes, directories in /proc, have or open a connection."""
    inodes = {inode for process in processes for inode in _sockets(process)}
    hosts = set()
    for line in _TABLE.read_text().splitlines()[1:]:
        fields = line.split()
        remote, state, inode = fields[2], fields[3], fields[9]
        address, _, remote_port = remote.partition(":")
        if inode in inodes and int(remote_port, 16) == port and state in (_ESTABLISHED, _OPENING):
            hosts.add(socket.inet_ntoa(struct.pack("=I", int(address, 16))))
    return hosts


def _sockets(process: Path) -> set[str]:
    """The inodes of the sockets that a process has open; none once it ended."""
    inodes = set()
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                kind, _, inode = str(descriptor.readlink()).partition(":[")
                if kind == "socket":
                    inodes.add(inode.rstrip("]"))
    return inodes

"""Which ports are free, and an offset that no other starting stack takes at the same time.

An offset is claimed by listening at its `CLAIM` port: stacks of other users see that, and the kernel ends it with the
process.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from helenus_stack.errors import StackError
from helenus_stack.settings import Settings

CLAIM = 8090
"""Its last two digits are those of no server's port."""
STEP = 100
HIGHEST = 20_000
"""Above lie the ports that systems give to outgoing connections."""


def occupied_listeners(listeners: Iterable[tuple[str, int]]) -> list[str]:
    """Those of the listeners, as `address:port`, that another program has."""
    return [f"{address}:{port}" for address, port in listeners if not _free(address, port)]


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: connections that are closing don't count, only who listens.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise StackError(
                    "this machine has no such loopback address",
                    address,
                    f"run one node, or add it (macOS: sudo ifconfig lo0 alias {address})",
                ) from error
            return False
        return True


def hold(offset: int) -> socket.socket | None:
    """Keeps an offset from other stacks until the socket is closed, also while servers of it are down.

    None if another program claims it; the servers have their ports then.
    """
    try:
        return socket.create_server(("127.0.0.1", CLAIM + offset))
    except OSError:
        return None


@contextmanager
def claim(settings: Settings, offset: int | None) -> Iterator[Settings]:
    """The settings with a port offset whose ports are all free, claimed while the body starts the servers.

    The offset is the one given, else the lowest multiple of 100. Raises StackError if there is none.
    """
    for candidate in range(0, HIGHEST, STEP) if offset is None else [offset]:
        claimed = hold(candidate)
        if claimed is None:
            occupied = [f"127.0.0.1:{CLAIM + candidate}, by which another helenus-stack claims them"]
            continue
        with claimed:
            moved = replace(settings, port_offset=candidate)
            if not (occupied := occupied_listeners(moved.listeners)):
                yield moved
                return
    raise StackError(
        "ports are taken: " + ", ".join(occupied),
        f"port offset {candidate}",
        "stop what listens there, or choose other ports with --port-offset",
    )

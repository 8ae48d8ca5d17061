"""`bench.connections`: the hosts that a process has connections to."""

from __future__ import annotations

import socket
from pathlib import Path

from bench.connections import connected_hosts

SELF = [Path("/proc/self")]


def test_only_open_connections_to_the_port_count() -> None:
    with socket.create_server(("127.0.0.3", 0)) as server:
        port = server.getsockname()[1]
        assert connected_hosts(SELF, port) == set()
        with socket.create_connection(("127.0.0.3", port)), server.accept()[0]:
            assert connected_hosts(SELF, port) == {"127.0.0.3"}
            assert connected_hosts(SELF, port + 1) == set()
            assert connected_hosts([], port) == set()
        assert connected_hosts(SELF, port) == set()


def test_a_process_that_ended_has_none() -> None:
    assert connected_hosts([Path("/proc/no-such-process")], 9042) == set()

"""Who may call Python where Java does: the process that has the other end of a connection."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from helenus_connector.query._callback_port import ProcessGuard, guard, is_opened_by

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by Linux's /proc")
CONNECT = """
import socket, sys
family = getattr(socket, sys.argv[1])
with socket.socket(family, socket.SOCK_STREAM) as connection:
    connection.connect((sys.argv[2], int(sys.argv[3])))
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::ffff:127.0.0.1")])
def test_only_the_process_that_opened_a_connection_is_its_own(family: str, address: str) -> None:
    """Java opens those of IPv4 by sockets of IPv6."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", CONNECT, family, address, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            connection, _ = server.accept()
            with connection:
                assert is_opened_by(process.pid, connection)
                assert not is_opened_by(os.getpid(), connection)
                assert ProcessGuard(process.pid).wrap_socket(connection, True) is connection
                with capture_logs() as logs:
                    ended = ProcessGuard(os.getpid()).wrap_socket(connection, True)
                with ended:
                    assert ended.recv(1) == b""
                assert [entry["event"] for entry in logs] == ["spark.call_refused"]
                assert connection.fileno() == -1
            process.communicate()


def test_a_connection_that_nobody_has_open_any_more_is_nobody_s() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        connection, _ = server.accept()
        with connection:
            assert not is_opened_by(os.getpid(), connection)


def gateway(callback_server: object = None) -> Any:
    parameters = SimpleNamespace(ssl_context=None)
    return SimpleNamespace(callback_server_parameters=parameters, get_callback_server=lambda: callback_server)


def test_a_port_is_guarded_before_it_is_open_or_that_is_said() -> None:
    handle = SimpleNamespace(current=lambda: SimpleNamespace(pid=lambda: 7))
    java = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(ProcessHandle=handle)))
    guarded = SimpleNamespace(_gateway=gateway(), _jvm=java)
    assert guard(guarded)
    guarded._gateway.get_callback_server = object
    assert guard(guarded), "with the second query it is open, and guarded"
    assert not guard(SimpleNamespace(_gateway=gateway(object()), _jvm=java))
    assert not guard(SimpleNamespace())

"""A real Pulsar: up, found, kept data through a kill, and closed to who has no token."""

from __future__ import annotations

import os
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pulsar import AuthenticationToken, Client, InitialPosition

from helenus_stack.process import python_environment, python_module
from helenus_stack.secure import AGENT, STRANGER
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

# Away from the ports of test_stack.py too.
OFFSET = 3000 + os.getpid() % 60 * 100
TOPIC = "persistent://public/default/survives"
PATIENCE_S = 60
"""A broker that has just started loads its first topic for seconds, on a busy machine for many."""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = python_module("helenus_stack.cli", *map(str, arguments))
    return subprocess.run(command, env=python_environment(), capture_output=True, text=True)


def client(status: Status, user: str | None = None) -> Any:
    assert status.pulsar_url
    if user is None:
        return Client(status.pulsar_url, operation_timeout_seconds=PATIENCE_S)
    assert status.security
    token = AuthenticationToken(status.security.token(user))
    cafile = status.security.cafile
    return Client(status.pulsar_url, token, PATIENCE_S, tls_trust_certs_file_path=cafile)


def create(status: Status, topic: str, token: str = "") -> int:
    """The answer's code."""
    url = f"{status.pulsar_admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    request = urllib.request.Request(url, b"2", {"Content-Type": "application/json"}, method="PUT")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context(cafile=status.security.cafile) if status.security else None
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_messages_survive_a_kill_and_nobody_outside_can_connect(only_pulsar: Stack) -> None:
    stack, status = only_pulsar, only_pulsar.status()
    up = run("up", "--log", "pulsar", "pulsar", "--dir", stack.directory)
    assert (up.returncode, "nothing to start" in up.stderr) == (0, True), up.stderr
    offset = stack.settings.port_offset
    assert [server.name for server in status.servers] == ["cassandra1", "pulsar"]
    assert status.pulsar_url == f"pulsar://127.0.0.1:{6650 + offset}"
    assert not status.bootstrap_servers
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    ours = [line.split()[3] for line in listening.splitlines() if f"pid={status.servers[1].pid}," in line]
    assert {f"127.0.0.1:{port + offset}" for port in (6650, 8080, 3184)} <= set(ours)
    assert not [address for address in ours if not address.startswith("127.")]
    assert create(status, TOPIC) == 204
    talking = client(status)
    talking.create_producer(TOPIC).send(b"kept", partition_key="k")
    talking.close()
    stack.kill("pulsar")
    stack.start("pulsar")
    talking = client(status)
    consumer = talking.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    assert consumer.receive(PATIENCE_S * 1000).data() == b"kept"
    talking.close()


@pytest.mark.long  # ../integration/test_secure_pulsar.py has one
def test_a_secure_one_asks_for_a_token(tmp_path: Path) -> None:
    with Stack(tmp_path, only=["pulsar"], secure=True, log="pulsar", port_offset=OFFSET) as stack:
        status = stack.status()
        assert status.security
        assert create(status, TOPIC) == 401
        assert create(status, TOPIC, status.security.token(AGENT)) in (401, 403)
        assert create(status, TOPIC, status.security.token("admin")) == 204
        talking = client(status, AGENT)
        talking.create_producer(TOPIC).send(b"x")
        talking.close()
        stranger = client(status, STRANGER)
        with pytest.raises(Exception, match="Authorization"):
            stranger.create_producer(TOPIC)
        stranger.close()

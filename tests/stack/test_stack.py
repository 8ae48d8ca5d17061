"""Real servers: up, found, stopped, killed, started again, and never orphaned."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import RoundRobinPolicy
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from patience import eventually

from helenus_stack import jars, resolve
from helenus_stack.cassandra import united
from helenus_stack.errors import StackError
from helenus_stack.process import Process, python_environment, python_module
from helenus_stack.progress import Silent
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

# Away from the standard ports, so that a stack of the user's may run, or be started, meanwhile.
OFFSET = 10_000 + os.getpid() % 90 * 100
PASSWORDS = {"authenticator": "PasswordAuthenticator", "commitlog_sync_period": "100ms"}
SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "f", "type": "int"}]}'


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("stack")
    with Stack(directory, nodes=1, port_offset=OFFSET, cassandra_yaml=PASSWORDS) as stack:
        yield stack


def command(*arguments: str | Path) -> list[str]:
    return python_module("helenus_stack.cli", *map(str, arguments))


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), env=python_environment(), capture_output=True, text=True)


def pids(stack: Stack) -> dict[str, int | None]:
    return {server.name: server.pid for server in stack.status().servers}


def cassandra(stack: Stack, password: str = "cassandra") -> Any:
    return Cluster(
        stack.status().contact_points,
        port=stack.settings.cql_port,
        protocol_version=5,
        auth_provider=PlainTextAuthProvider("cassandra", password),
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy(), request_timeout=20)},
    )


def test_status_shows_all_addresses(stack: Stack) -> None:
    shown = run("status", "--json", "--dir", stack.directory)
    status = json.loads(shown.stdout)
    assert shown.returncode == 0
    assert status["ready"]
    assert status == json.loads(stack.status().json())
    (node,) = status["nodes"]
    assert Path(node["cdc_raw"]).is_dir()
    assert Path(node["cassandra_yaml"]).is_file()
    assert all(Path(server["log"]).stat().st_size for server in status["servers"])
    assert status["bootstrap_servers"] == f"127.0.0.1:{9092 + OFFSET}"


def test_up_when_up_changes_nothing(stack: Stack) -> None:
    before = pids(stack)
    second_up = run("up", "--dir", stack.directory)
    assert second_up.returncode == 0, second_up.stderr
    assert "nothing to start" in second_up.stderr
    assert pids(stack) == before


def test_other_settings_wait_for_a_restart(stack: Stack) -> None:
    before = pids(stack)
    second_up = run("up", "--heap", "600m", "--dir", stack.directory)
    assert "keep their settings until they are restarted" in second_up.stderr
    refused = run("up", "--port-offset", str(OFFSET + 100), "--dir", stack.directory)
    assert refused.returncode == 1
    assert f"runs with port offset {OFFSET}, not {OFFSET + 100}" in refused.stderr
    assert pids(stack) == before


def test_nobody_outside_this_machine_can_connect(stack: Stack) -> None:
    listening = [(address, pid) for pid in pids(stack).values() if pid for address in listeners(pid)]
    assert len(listening) >= 7
    assert not [address for address, _ in listening if not address.startswith("127.")]


def test_cassandra_keeps_what_it_logged_and_hands_out_segments(stack: Stack) -> None:
    cluster = cassandra(stack)
    session = cluster.connect()
    session.execute("CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE k.t (id int PRIMARY KEY, v text) WITH cdc = true")
    for i in range(100):
        session.execute("INSERT INTO k.t (id, v) VALUES (%s, 'x')", (i,))
    time.sleep(0.3)  # more than commitlog_sync_period
    cluster.shutdown()
    stack.kill("cassandra")
    assert [server.state for server in stack.status().servers] == ["stopped", "ready", "ready"]
    stack.start("cassandra")
    cluster = cassandra(stack)
    assert cluster.connect().execute("SELECT count(*) FROM k.t").one()[0] == 100
    cluster.shutdown()
    assert list(Path(stack.status().nodes[0].cdc_raw).glob("CommitLog-*.log"))
    assert "k" in stack.nodetool("tablestats", "k.t")


def test_a_wrong_password_is_refused(stack: Stack) -> None:
    cluster = cassandra(stack, "wrong")
    with pytest.raises(NoHostAvailable, match="AuthenticationFailed"):
        cluster.connect()
    cluster.shutdown()


@pytest.mark.long
def test_kafka_keeps_records(stack: Stack) -> None:
    bootstrap = {"bootstrap.servers": stack.status().bootstrap_servers}
    admin = AdminClient(bootstrap)
    admin.create_topics([NewTopic("t", 3, 1)])["t"].result(20)
    producer = Producer(bootstrap)
    producer.produce("t", b"value", b"key")
    assert producer.flush(20) == 0
    stack.kill("kafka")
    assert {server.name: server.state for server in stack.status().servers}["kafka"] == "stopped"
    stack.start("kafka")
    consumer = Consumer({**bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    record = consumer.poll(30)
    consumer.close()
    assert record is not None
    assert record.value() == b"value"


@pytest.mark.long
def test_the_registry_keeps_schemas(stack: Stack) -> None:
    url = {"url": stack.status().registry_url}
    with SchemaRegistryClient(url) as client:
        number = client.register_schema("s-value", Schema(SCHEMA, "AVRO"))
    stack.kill("registry")
    stack.start("registry")
    with SchemaRegistryClient(url) as client:
        assert client.get_latest_version("s-value").schema_id == number


def test_a_paused_server_is_seen_and_goes_on(stack: Stack) -> None:
    stack.pause("registry")
    assert {server.name: server.state for server in stack.status().servers}["registry"] == "paused"
    stack.resume("registry")
    assert stack.status().ready


def test_another_stack_finds_other_ports(stack: Stack, tmp_path: Path) -> None:
    refused = pytest.raises(StackError, match="ports are taken")
    with refused, Stack(tmp_path / "same", port_offset=OFFSET):
        pass
    assert not list((tmp_path / "same").glob("run/*"))
    with Stack(tmp_path / "other", only=["kafka"], port_offset=OFFSET + 100) as other:
        assert [server.state for server in other.status().servers] == ["stopped", "ready", "stopped"]
    assert [server.state for server in other.status().servers] == ["stopped"] * 3
    assert stack.status().ready


@pytest.mark.cluster
def test_three_nodes_see_each_other(tmp_path: Path) -> None:
    with Stack(tmp_path, only=["cassandra"], nodes=3, port_offset=OFFSET + 100) as three:
        assert three.status().contact_points == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        assert united(three.settings, three.directory)
        assert len({node.cdc_raw for node in three.status().nodes}) == 3
        three.kill("cassandra3")
        eventually(lambda: not united(three.settings, three.directory))
        three.start("cassandra3")
        assert united(three.settings, three.directory)


def test_a_server_that_cannot_start_is_reported_and_nothing_stays(tmp_path: Path) -> None:
    options = ["--port-offset", str(OFFSET + 100), "--kafka-property", "listeners=nonsense", "--dir", tmp_path]
    failed = run("up", "kafka", "registry", *options)
    assert failed.returncode == 1
    assert "nonsense" in failed.stderr, "the end of the log"
    assert f"kafka died while starting ({tmp_path / 'logs' / 'kafka.log'})" in failed.stderr
    assert not list(tmp_path.glob("run/*.pid"))


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Process]]:
    """An `up` that is on its way, and the process that it has just started."""
    options = ["registry", "--port-offset", str(OFFSET + 100), "--dir", tmp_path]
    registry = Process(tmp_path / "run" / "registry.pid")
    with subprocess.Popen(command("up", *options), env=python_environment(), stderr=subprocess.PIPE, text=True) as up:
        eventually(lambda: registry.pid is not None)
        yield up, registry
    run("down", "--dir", tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_stops_what_it_started(
    starting: tuple[subprocess.Popen[str], Process], number: signal.Signals
) -> None:
    up, registry = starting
    up.send_signal(number)
    assert up.wait(20) != 0
    assert registry.life == "stopped"


@pytest.mark.long
def test_servers_of_a_killed_up_are_found(starting: tuple[subprocess.Popen[str], Process], tmp_path: Path) -> None:
    up, registry = starting
    up.kill()
    up.wait(20)
    assert registry.pid, "nothing tied it to its starter"
    second_up = run("up", "registry", "--dir", tmp_path)
    assert second_up.returncode == 0, second_up.stderr
    assert "nothing to start" in second_up.stderr
    assert run("down", "--dir", tmp_path).returncode == 0
    assert registry.life == "stopped"


@pytest.mark.long
def test_in_the_foreground_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    options = ["registry", "--foreground", "--port-offset", str(OFFSET + 100), "--dir", tmp_path]
    registry = Process(tmp_path / "run" / "registry.pid")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command("up", *options), env=python_environment(), **pipes) as up:
        assert up.stdout
        assert any("ready" in line for line in up.stdout)
        assert registry.life == "running"
        up.kill()
        up.wait(20)
    eventually(lambda: registry.life == "stopped")


def test_ivy_delivers_what_maven_delivers(tmp_path: Path) -> None:
    # Two of the classifiers that one module has, an archive and a library in two versions.
    names = ("netty-tcnative-boringssl-static", "slf4j-api", "logback-core")
    locked = [artifact for server in ("cassandra", "kafka") for artifact in jars.read_lock(server)]
    wanted = [artifact for artifact in locked if artifact.name in names]
    assert len(wanted) == 9
    paths = jars.fetch(wanted, Silent(), resolve.ivy, tmp_path)
    assert all(path.exists() for path in paths)


def listeners(pid: int) -> list[str]:
    """Addresses on which a process listens; those of IPv6 as they are written in /proc, which never begins 127."""
    descriptors = [str(descriptor.readlink()) for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
    sockets = {name[8:-1] for name in descriptors if name.startswith("socket:")}
    rows = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()
    ]
    addresses = [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets]
    return [".".join(str(byte) for byte in reversed(bytes.fromhex(a))) if len(a) == 8 else a for a in addresses]

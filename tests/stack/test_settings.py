"""The configuration that servers are given, and the ports they share out."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from helenus_stack import cassandra, connect, kafka, ports, postgres, registry, secure
from helenus_stack.errors import StackError
from helenus_stack.settings import Settings
from helenus_stack.stack import Stack

JARS = [Path("/jars/jamm-0.4.0.jar"), Path("/jars/cassandra-all-5.0.9.jar")]
JAVA = Path("/java")


def test_nodes_share_the_ring_evenly(tmp_path: Path) -> None:
    nodes = [cassandra.configuration(Settings(nodes=3), i, tmp_path / str(i)) for i in range(3)]
    tokens = [int(str(node["initial_token"])) for node in nodes]
    assert tokens[0] == -(2**63)
    assert {tokens[1] - tokens[0], tokens[2] - tokens[1]} <= {2**64 // 3, 2**64 // 3 + 1}
    assert [node["listen_address"] for node in nodes] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert len({str(node["cdc_raw_directory"]) for node in nodes}) == 3


def test_nodes_of_data_centres_share_their_rings_and_racks_evenly(tmp_path: Path) -> None:
    settings = Settings(nodes=4, data_centers=2, racks=2)
    assert [settings.data_center(i) for i in range(4)] == ["datacenter1", "datacenter2", "datacenter1", "datacenter2"]
    assert [settings.rack(i) for i in range(4)] == ["rack1", "rack1", "rack2", "rack2"]
    tokens = [settings.token(i) for i in range(4)]
    assert len(set(tokens)) == 4
    assert tokens[2] - tokens[0] == tokens[3] - tokens[1] == 2**63
    cassandra.prepare(settings, 3, tmp_path / "cassandra4", JAVA, JARS)
    written = (tmp_path / "cassandra4" / "cassandra-rackdc.properties").read_text()
    assert written == "dc=datacenter2\nrack=rack2\n"
    assert cassandra.configuration(settings, 0, tmp_path)["endpoint_snitch"] == "GossipingPropertyFileSnitch"
    assert cassandra.configuration(Settings(nodes=2), 0, tmp_path)["endpoint_snitch"] == "SimpleSnitch"


def test_cassandra_yaml_is_what_agents_read(tmp_path: Path) -> None:
    settings = Settings(port_offset=100, cassandra_yaml={"commitlog_sync_period": "100ms"})
    command = cassandra.prepare(settings, 0, tmp_path / "cassandra1", JAVA, JARS)
    written = yaml.safe_load((tmp_path / "cassandra1" / "cassandra.yaml").read_text())
    assert written["cdc_enabled"] is True
    assert written["cdc_raw_directory"] == str(tmp_path / "cassandra1" / "cdc_raw")
    assert written["native_transport_port"] == 9142
    assert written["commitlog_sync_period"] == "100ms"
    assert command.environment["CLASSPATH"] == "/jars/jamm-0.4.0.jar:/jars/cassandra-all-5.0.9.jar"
    assert command.arguments[0] == "/java/bin/java"
    assert "-javaagent:/jars/jamm-0.4.0.jar" in command.arguments


def test_a_restarted_node_forgets_its_temporary_files(tmp_path: Path) -> None:
    leftover = tmp_path / "tmp" / "liblz4.so"
    leftover.parent.mkdir()
    leftover.touch()
    cassandra.prepare(Settings(), 0, tmp_path, JAVA, JARS)
    assert not leftover.exists()


def test_kafka_formats_its_folder_only_before_the_first_start(tmp_path: Path) -> None:
    settings = Settings(port_offset=100, kafka_properties={"message.max.bytes": "5"})
    first = kafka.prepare(settings, tmp_path, JAVA, JARS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").touch()
    later = kafka.prepare(settings, tmp_path, JAVA, JARS)
    assert f"@{tmp_path / 'format.arguments'}" in first.arguments[-1]
    assert "StorageTool" in (tmp_path / "format.arguments").read_text()
    assert not any("format.arguments" in argument for argument in later.arguments)
    properties = (tmp_path / "server.properties").read_text().splitlines()
    assert "listeners=PLAINTEXT://127.0.0.1:9192,CONTROLLER://127.0.0.1:9193" in properties
    assert "message.max.bytes=5" in properties


def test_every_listener_is_on_loopback_and_distinct() -> None:
    assert len(Settings(nodes=3).listeners) == 13
    assert len(Settings(log="pulsar").listeners) == 6
    listeners = Settings(nodes=3, log="both", secure=True, connect=True, postgres=True).listeners
    assert len(set(listeners)) == len(listeners) == 20
    assert all(address.startswith("127.0.0.") for address, _ in listeners)


def test_stacks_a_hundred_apart_never_meet() -> None:
    # One node more than a stack's own may join.
    listeners = Settings(nodes=5, log="both", secure=True, connect=True, postgres=True).listeners
    numbers = [port for address, port in listeners if address == "127.0.0.1"]
    assert len({port % ports.STEP for port in [*numbers, ports.CLAIM]}) == len(numbers) + 1


def test_settings_are_remembered_and_changed(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    saved = Settings(nodes=3, port_offset=200, cassandra_yaml={"a": {"b": 1}}, kafka_properties={"c": "d"})
    saved.save(path)
    assert Settings.changed(path, {"nodes": None, "heap": None}) == saved
    assert Settings.changed(path, {"nodes": 3, "heap": "1g"}) == replace(saved, heap="1g")


def test_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    Settings(nodes=3).save(tmp_path / "stack.json")
    with pytest.raises(StackError, match=r"made with nodes 3, not 1.*--delete"):
        Settings.changed(tmp_path / "stack.json", {"nodes": 1})


def test_data_of_another_version_are_refused(tmp_path: Path) -> None:
    Settings(cassandra="4.1").save(tmp_path / "stack.json")
    with pytest.raises(StackError, match=r"made with cassandra 4\.1, not 5\.0"):
        Settings.changed(tmp_path / "stack.json", {"cassandra": "5.0"})


def test_a_version_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"no Cassandra '2\.2'.*6\.0, 5\.0, 4\.1, 4\.0, 3\.11"):
        cassandra.servers(Settings(cassandra="2.2"), tmp_path)


def test_each_version_has_its_names_its_java_and_its_jars(tmp_path: Path) -> None:
    servers = {version: cassandra.servers(Settings(cassandra=version), tmp_path)[0] for version in cassandra.VERSIONS}
    assert {version: server.java for version, server in servers.items()} == {
        "6.0": 17,
        "5.0": 17,
        "4.1": 11,
        "4.0": 11,
        "3.11": 11,
    }
    assert len({server.lock for server in servers.values()}) == 5
    old = cassandra.configuration(Settings(cassandra="4.0"), 0, tmp_path)
    assert old["commitlog_sync_period_in_ms"] == 10_000
    assert "commitlog_sync_period" not in old


def test_a_secure_stack_hides_its_passwords(tmp_path: Path) -> None:
    settings = Settings(secure=True)
    access = secure.security(settings, tmp_path)
    assert access
    secure.prepare(settings, tmp_path)
    passwords = secure.read_passwords(Path(access.passwords))
    secure.prepare(settings, tmp_path)
    assert secure.read_passwords(Path(access.passwords)) == passwords, "made once"
    assert len(set(passwords.values())) == len(passwords) == 5
    command = kafka.prepare(settings, tmp_path / "kafka", JAVA, JARS)
    cassandra.prepare(settings, 0, tmp_path / "cassandra1", JAVA, JARS)
    secrets = [password for user, password in passwords.items() if user != secure.CASSANDRA_ADMIN]
    assert not [secret for secret in secrets if secret in " ".join(command.arguments)]
    holders = [p for p in tmp_path.rglob("*") if p.is_file() and any(s.encode() in p.read_bytes() for s in secrets)]
    assert {path.name for path in holders} == {"passwords.properties", "server.properties", "format.arguments"}
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    assert not [path for path in holders if path.parent.name == "kafka" and path.stat().st_mode & 0o077]


def test_a_stack_that_is_not_secure_has_no_secrets(tmp_path: Path) -> None:
    secure.prepare(Settings(), tmp_path)
    assert secure.security(Settings(), tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "[]", '{"nodez": 1}'])
def test_broken_settings_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(StackError, match=r"stack\.json"):
        Settings.changed(tmp_path / "stack.json", {})


def test_the_registry_keeps_schemas_in_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "apicurio.tar.gz"
    (tmp_path / "apicurio").mkdir()  # as if unpacked
    command = registry.prepare(Settings(), tmp_path / "registry", JAVA, [archive])
    assert (
        f"-Dapicurio.datasource.url=jdbc:h2:file:{tmp_path / 'registry' / 'schemas'};WRITE_DELAY=0" in command.arguments
    )
    assert command.folder == tmp_path / "apicurio"


def test_connect_reads_with_the_stacks_registry(tmp_path: Path) -> None:
    command = connect.prepare(Settings(port_offset=100), tmp_path, JAVA, JARS)
    assert command.arguments[-1] == str(tmp_path / "worker.properties")
    properties = (tmp_path / "worker.properties").read_text().splitlines()
    assert "bootstrap.servers=127.0.0.1:9192" in properties
    assert "listeners=http://127.0.0.1:8183" in properties
    for side in ("key", "value"):
        assert f"{side}.converter.apicurio.registry.url=http://127.0.0.1:8181/apis/registry/v2" in properties


def test_connect_needs_a_kafka(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"needs a Kafka.*--log both"):
        connect.server(Settings(log="pulsar"), tmp_path)


def test_a_secure_stack_has_no_connect(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="not set up for a secure stack"):
        connect.server(Settings(secure=True, connect=True), tmp_path)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PostgreSQL's, as if unpacked, on a machine that it is for."""
    (tmp_path / "postgresql").mkdir()
    monkeypatch.setattr(postgres.sys, "platform", "linux")
    monkeypatch.setattr(postgres.platform, "machine", lambda: "x86_64")
    return tmp_path / "postgresql.jar"


def test_postgres_makes_its_database_only_before_the_first_start(tmp_path: Path, archive: Path) -> None:
    first = postgres.prepare(Settings(), tmp_path, JAVA, [archive])
    (tmp_path / "data").mkdir()
    later = postgres.prepare(Settings(), tmp_path, JAVA, [archive])
    assert "initdb" in " ".join(first.arguments)
    assert "initdb" not in " ".join(later.arguments)
    assert "listen_addresses=127.0.0.1" in later.arguments
    assert (tmp_path / "pg_hba.conf").read_text() == "host helenus helenus 127.0.0.1/32 trust\n"


@pytest.mark.parametrize(("user", "started"), [(0, "setpriv"), (1000, "postgres")])
def test_postgres_is_never_root(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, user: int, started: str
) -> None:
    monkeypatch.setattr(postgres.os, "geteuid", lambda: user)
    (tmp_path / "data").mkdir()
    assert Path(postgres.prepare(Settings(), tmp_path, JAVA, [archive]).arguments[0]).name == started


def test_postgres_says_where_it_does_not_run(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.platform, "machine", lambda: "aarch64")
    with pytest.raises(StackError, match=r"for Linux on x86-64 \(linux aarch64\)"):
        postgres.prepare(Settings(), tmp_path, JAVA, [archive])


@pytest.mark.parametrize(("noted", "is_ready"), [(["1"] * 7 + ["ready   "], True), (["1"] * 7 + ["starting"], False)])
def test_postgres_is_ready_when_it_notes_so(tmp_path: Path, noted: list[str], is_ready: bool) -> None:
    assert not postgres.ready(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "postmaster.pid").write_text("\n".join(noted))
    assert postgres.ready(tmp_path) is is_ready


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_listener_makes_its_port_taken(listener: int) -> None:
    assert ports.occupied_listeners([("127.0.0.1", listener)]) == [f"127.0.0.1:{listener}"]
    assert ports.occupied_listeners([("127.0.0.2", listener)]) == []


def test_an_offset_that_is_taken_is_refused(cache: Path, listener: int) -> None:
    offset = listener - Settings().kafka_port
    refused = pytest.raises(StackError, match=rf"127\.0\.0\.1:{listener}.*--port-offset")
    with refused, ports.claim(Settings(), offset):
        pass


def test_stacks_that_start_together_get_different_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of two users, whose caches are not the same."""
    with ExitStack() as claims:
        claimed = []
        for user in ("one", "other"):
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / user))
            claimed.append(claims.enter_context(ports.claim(Settings(), None)))
        assert claimed[0].port_offset != claimed[1].port_offset
        assert json.dumps(claimed[0].listeners) != json.dumps(claimed[1].listeners)


def test_an_offset_that_is_held_is_given_to_no_other() -> None:
    with ports.claim(Settings(), None) as first:
        pass
    with ports.hold(first.port_offset) or nullcontext(), ports.claim(Settings(), None) as second:
        assert first.port_offset != second.port_offset


def test_a_stack_moves_to_another_version(tmp_path: Path) -> None:
    """A node takes it at its next start, also one that another process starts."""
    stack = Stack(tmp_path, cassandra="4.1", cassandra_yaml={"commitlog_segment_size": "4MiB"})
    with pytest.raises(StackError, match="no Cassandra"):
        stack.move_to("7.0")
    stack.move_to("5.0", {"storage_compatibility_mode": "NONE"})
    for each in (stack, Stack(tmp_path)):
        assert (each.settings.cassandra, each.settings.cassandra_yaml) == (
            "5.0",
            {"storage_compatibility_mode": "NONE"},
        )
        assert {server.lock for server in each.select(["cassandra"])} == {"cassandra"}

"""What an operator gets wrong: one clear message with the key or path and what to do, within seconds."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from integration.pipeline import Pipeline, free_port, script, write_properties
from patience import PATIENCE_S, eventually

from helenus_stack.java import spark_java_home
from helenus_stack.progress import Silent
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

CUSTOM = "'org.apache.cassandra.db.marshal.LexicalUUIDType'"


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, directory: Path) -> Pipeline:
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE bad WITH replication = {replication}")
    session.execute(
        "CREATE KEYSPACE bad_thrice WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    session.execute("CREATE TABLE bad_thrice.t (k int PRIMARY KEY, v int) WITH cdc = true")
    session.execute("CREATE TABLE bad.t (k int PRIMARY KEY, v int) WITH cdc = true")
    session.execute("CREATE TABLE bad.without_cdc (k int PRIMARY KEY, v int)")
    session.execute(f"CREATE TABLE bad.unmappable (k int PRIMARY KEY, v {CUSTOM}) WITH cdc = true")
    session.execute(f"CREATE TABLE bad.listed (k {CUSTOM} PRIMARY KEY, v int) WITH cdc = true")
    return Pipeline(status, directory)


def fails(command: str, *arguments: str) -> tuple[int, str]:
    """Run a command that must end by itself; returns its exit status and the last line it printed."""
    process = subprocess.run(
        [script(command), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in process.stderr, process.stderr
    return process.returncode, process.stderr.strip().splitlines()[-1]


def agent_file(pipeline: Pipeline, tmp_path: Path, **changes: object) -> str:
    values = {**pipeline.agent_properties(free_port()), "state.dir": tmp_path / "state"}
    values |= {key.replace("_", "."): value for key, value in changes.items()}
    return str(write_properties(tmp_path / "agent.properties", values))


def node_yaml(status: Status, tmp_path: Path, **changes: object) -> Path:
    settings = yaml.safe_load(Path(status.nodes[0].cassandra_yaml).read_text())
    path = tmp_path / "cassandra.yaml"
    path.write_text(yaml.safe_dump({**settings, **changes}))
    return path


CONFIGURATION = {
    "unknown property": (
        {"kafka_bootstrap_server": "x"},
        r"kafka\.bootstrap\.server: No such configuration property",
    ),
    "malformed property": ({"http_port": "many"}, r"http\.port=many: "),
}


@pytest.mark.parametrize("case", CONFIGURATION)
def test_agent_with_a_wrong_file(pipeline: Pipeline, tmp_path: Path, case: str) -> None:
    changes, pattern = CONFIGURATION[case]
    status, message = fails("helenus-agent", agent_file(pipeline, tmp_path, **changes))
    assert status == 2
    assert re.search(pattern, message), message
    assert "agent.properties" in message


def test_agent_on_a_node_without_cdc(pipeline: Pipeline, tmp_path: Path) -> None:
    path = node_yaml(pipeline.status, tmp_path, cdc_enabled=False)
    status, message = fails("helenus-agent", agent_file(pipeline, tmp_path, cassandra_config=path))
    assert status != 0
    assert "cdc_enabled" in message
    assert str(path) in message


def test_agent_without_access_to_cdc_raw(pipeline: Pipeline, tmp_path: Path) -> None:
    status, message = fails("helenus-agent", agent_file(pipeline, tmp_path, cdc_raw_dir=tmp_path / "nowhere"))
    assert status != 0
    assert str(tmp_path / "nowhere") in message


def test_agent_without_broker(pipeline: Pipeline, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    status, message = fails("helenus-agent", agent_file(pipeline, tmp_path, kafka_bootstrap_servers=address))
    assert status == 1
    assert address in message
    assert "bootstrap" in message


def test_agent_without_cassandra(pipeline: Pipeline, tmp_path: Path) -> None:
    port = free_port()
    status, message = fails("helenus-agent", agent_file(pipeline, tmp_path, cassandra_port=port))
    assert status == 1
    assert str(port) in message
    assert "cassandra.contact.points" in message


def connector_files(
    pipeline: Pipeline, tmp_path: Path, worker: dict[str, object], table: dict[str, object]
) -> list[str]:
    base = {
        "bootstrap.servers": pipeline.status.bootstrap_servers,
        "checkpoint.dir": tmp_path / "checkpoint",
        "listeners": f"http://127.0.0.1:{free_port()}",
    }
    first = write_properties(tmp_path / "worker.properties", {**base, **worker})
    second = write_properties(tmp_path / "t.properties", {**pipeline.connector_properties("bad.t"), **table})
    return [str(first), str(second)]


CONNECTOR: dict[str, tuple[dict[str, object], dict[str, object], int, str]] = {
    "unknown property": ({}, {"tasks.maximum": 1}, 2, r"tasks\.maximum: unknown property, did you mean tasks\.max\?"),
    "malformed property": ({"batch.interval.ms": "soon"}, {}, 2, r"batch\.interval\.ms=soon: "),
    "missing property": ({}, {"keyspace": ""}, 2, r"keyspace=: "),
    "no such table": ({}, {"table": "nothing"}, 1, r"no such table.*bad\.nothing.*create the table"),
    "table that is named wrongly": (
        {},
        {"table": "unmapable"},
        1,
        r"no such table.*bad\.unmapable.*did you mean unmappable\?.*create the table",
    ),
    "keyspace that is named wrongly": (
        {},
        {"keyspace": "bda"},
        1,
        r"no such table \(bda\.t\): the keyspace has no tables: did you mean bad\?.*create the table",
    ),
    "excluded column that is named wrongly": (
        {},
        {"column.exclude.list": "bad.t.w"},
        2,
        r"column\.exclude\.list=bad\.t\.w: no column matches w .*There are k, v",
    ),
    "excluded column of no table": (
        {},
        {"column.exclude.list": "bda.t.v"},
        2,
        r"column\.exclude\.list=bda\.t\.v: no table has such a column.*tables are bad\.t",
    ),
    "column that is named wrongly": ({}, {"columns": "k|w"}, 2, r"columns=k\|w: no column matches w .*There are k, v"),
    "table without cdc": ({}, {"table": "without_cdc"}, 1, r"no cdc = true.*bad\.without_cdc.*ALTER TABLE"),
    "type without Avro form": ({}, {"table": "unmappable"}, 1, r"bad\.unmappable: column v: "),
    "key type that is not supported": (
        {},
        {"table": "listed"},
        1,
        r"bad\.listed: column k: .*LexicalUUIDType",
    ),
    "unreachable broker": ({"bootstrap.servers": "127.0.0.1:9"}, {}, 1, r"127\.0\.0\.1:9\b.*bootstrap"),
    "unreachable registry": (
        {},
        {"value.converter.schema.registry.url": "http://127.0.0.1:9/r"},
        1,
        r"registry does not answer.*http://127\.0\.0\.1:9/r.*value\.converter\.schema\.registry\.url",
    ),
    "level of the gate that is none": ({}, {"gate": "two"}, 2, r"gate=two: "),
    "level that the keyspace cannot give": (
        {},
        {"keyspace": "bad_thrice", "gate": "all"},
        2,
        r"it needs reports of 3 replicas.*and 1 node can hold one.*gate=all, keyspace bad_thrice.*add nodes",
    ),
    "unreachable Cassandra": ({}, {"cassandra.port": 9}, 1, r"cannot connect to Cassandra.*port 9\b"),
}

# Each starts a worker, and is much like another one.
LONG = {
    "keyspace that is named wrongly",
    "excluded column of no table",
    "column that is named wrongly",
    "key type that is not supported",
    "level that the keyspace cannot give",
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case in LONG else []) for case in CONNECTOR]
)
def test_connector(pipeline: Pipeline, tmp_path: Path, case: str) -> None:
    worker, table, expected, pattern = CONNECTOR[case]
    status, message = fails("helenus-connector", *connector_files(pipeline, tmp_path, worker, table))
    assert re.search(pattern, message), message
    assert status == expected


def test_validate_asks_for_topics(pipeline: Pipeline, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": pipeline.status.bootstrap_servers, "log_level": "0"})
    for topic, partitions in (("bad-read", 3), ("bad-less", 2), ("bad-equal", 3)):
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
    for data, expected, pattern in (
        ("bad-less", 1, r"bad-read has 3 partitions, bad-less has 2 .*choose another data\.topic"),
        ("bad-equal", 0, "the servers refuse nothing"),
        ("bad-new", 0, "the servers refuse nothing"),
    ):
        files = connector_files(pipeline, tmp_path, {}, {"events.topic": "bad-read", "data.topic": data})
        command = [script("helenus-connector"), "validate", *files, "--connect"]
        java = {"JAVA_HOME": str(spark_java_home(Silent()))}
        process = subprocess.run(command, env={**os.environ, **java}, capture_output=True, text=True, timeout=90)
        assert re.search(pattern, process.stdout + process.stderr), (process.stdout, process.stderr)
        assert process.returncode == expected
    assert "bad-new" not in admin.list_topics(timeout=10).topics


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Status]:
    """A node that asks for a password."""
    overrides = {"authenticator": "PasswordAuthenticator"}
    with Stack(tmp_path_factory.mktemp("guarded"), only=("cassandra",), cassandra_yaml=overrides) as stack:
        yield stack.status()


@pytest.mark.long  # test_secure_connector.py has it
def test_a_wrong_password(pipeline: Pipeline, guarded: Status, tmp_path: Path) -> None:
    login = {"cassandra.port": guarded.cql_port, "cassandra.username": "cassandra", "cassandra.password": "wr0ng"}
    files = connector_files(pipeline, tmp_path, {}, login)
    agent = agent_file(pipeline, tmp_path, cassandra_config=guarded.nodes[0].cassandra_yaml, **_underscored(login))
    for command in (["helenus-connector", *files], ["helenus-agent", agent]):
        status, message = fails(*command)
        assert status == 1
        assert "refused the login" in message
        assert "cassandra.password" in message
        assert "wr0ng" not in message


@pytest.mark.long  # test_secure_connector.py has it
def test_a_right_password(pipeline: Pipeline, guarded: Status, tmp_path: Path) -> None:
    login = {"cassandra_port": guarded.cql_port, "cassandra_username": "cassandra", "cassandra_password": "cassandra"}
    pipeline.agent.arguments[1] = agent_file(
        pipeline, tmp_path, cassandra_config=guarded.nodes[0].cassandra_yaml, http_port=pipeline.agent.port, **login
    )
    pipeline.agent.start().ready()
    eventually(lambda: pipeline.agent.health()[0] == 200, "the agent is ready")
    assert pipeline.agent.stop() == 0


def _underscored(values: dict[str, object]) -> dict[str, object]:
    return {key.replace(".", "_"): value for key, value in values.items()}

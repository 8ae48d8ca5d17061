"""What an error advises is about its cause: the wrong key, address or right is named, and no other product."""

from __future__ import annotations

import ast
import http.server
import pickle
import shutil
import threading
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra.cluster import NoHostAvailable
from confluent_kafka import KafkaError

from helenus_agent.state import StateDirectory
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control._obstacles import find_obstacle
from helenus_connector.query import spark_session as spark
from helenus_connector.rest.client import WorkerClient
from helenus_connector.shape.encoding.registry import Registry
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service import cassandra
from helenus_schemas.settings.shared import CassandraSettings
from helenus_sinks.kafka.errors import broker_error
from helenus_sinks.pulsar._admin import Refused
from helenus_sinks.pulsar.errors import Answered, pulsar_error

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (
            KafkaError._TRANSPORT,
            Kind.BROKER_UNREACHABLE,
            "check bootstrap.servers, and",
        ),
        (KafkaError.SASL_AUTHENTICATION_FAILED, Kind.BROKER_REFUSED, "sasl.*"),
        (KafkaError._INVALID_ARG, Kind.CONFIG, "setting of librdkafka"),
    ],
)
def test_kafka_s_errors_are_about_kafka(code: int, kind: Kind, words: str) -> None:
    error = broker_error(KafkaError(code), "k:9092")
    assert error.kind is kind
    assert words in error.advice
    assert "pulsar" not in str(error).lower()


def test_no_error_of_pulsar_s_goes_without_advice_of_its_own() -> None:
    """That of the kind is Kafka's."""
    log = ROOT / "connector/helenus_connector/log"
    paths = [*(ROOT / "sinks/helenus_sinks/pulsar").glob("*.py"), *log.glob("*pulsar*.py")]
    calls = [n for path in paths for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and n.args]
    raised = [call for call in calls if ast.unparse(call.args[0]) == "kind" or "Kind.BROKER_" in ast.unparse(call)]
    named = {name: [c for c in raised if ast.unparse(c.func) == name] for name in ("HelenusError", "TopicError")}
    assert len([call for call in raised if ast.unparse(call.func) in ("pulsar_error", "Answered")]) >= 10
    for name, needed in (("HelenusError", 4), ("TopicError", 5)):
        for call in named[name]:
            assert len(call.args) == needed, ast.unparse(call)


def test_pulsar_s_errors_are_about_pulsar() -> None:
    for error in (
        Answered(Kind.BROKER_REFUSED, "no"),
        Refused(503, "no"),
        pulsar_error(Kind.BROKER_UNREACHABLE, "away"),
    ):
        assert "pulsar." in pickle.loads(pickle.dumps(error)).advice
    assert "bootstrap.servers" not in pulsar_error(Kind.BROKER_UNREACHABLE, "away").advice


def test_a_second_agent(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path)
    with pytest.raises(HelenusError) as caught:
        StateDirectory(tmp_path)
    first.close()
    assert "another agent" in caught.value.what
    assert "stop the other agent" in caught.value.advice
    assert "disk" not in str(caught.value)


@pytest.mark.parametrize(("status", "words"), [(404, "check the path"), (500, "read the registry's log")])
def test_a_registry_that_answers_something_else(status: int, words: str, tmp_path: Path) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/wrong"
        properties = {"name": "n", "keyspace": "ks", "table": "t", "value.converter.schema.registry.url": url}
        registry = Registry(ConnectorSettings.from_properties(properties, "test"), tmp_path / "ids")
        with pytest.raises(HelenusError) as caught:
            registry.check()
        registry.close()
        server.shutdown()
    assert caught.value.kind is Kind.REGISTRY_UNREACHABLE
    assert f"the registry answered {status}" in caught.value.what
    assert words in caught.value.advice
    assert "is up" not in str(caught.value)


def test_a_data_centre_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the driver does it: it knows the nodes, and takes none of them for one to ask."""

    class Cluster:
        def __init__(self, *args: Any, **more: Any) -> None:
            hosts = [SimpleNamespace(datacenter=name) for name in ("datacenter1", "dc2", "dc2")]
            self.metadata = SimpleNamespace(all_hosts=lambda: hosts)

        def connect(self) -> None:
            raise NoHostAvailable("Unable to connect to any servers", {})

        def shutdown(self) -> None: ...

    monkeypatch.setattr(cassandra, "Cluster", Cluster)
    with pytest.raises(HelenusError) as caught:
        cassandra.connect(CassandraSettings.from_properties({"cassandra.local.dc": "dc1"}, "test"))
    assert caught.value.kind is Kind.CONFIG
    assert "no node is in the data centre dc1" in caught.value.what
    assert caught.value.advice == "set cassandra.local.dc to one of datacenter1, dc2"
    for right in ({}, {"cassandra.local.dc": "dc2"}):
        with pytest.raises(HelenusError) as caught:
            cassandra.connect(CassandraSettings.from_properties(right, "test"))
        assert caught.value.kind is Kind.CASSANDRA_UNREACHABLE


def test_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(HelenusError, match="install a Java 17") as caught:
        spark.check_java()
    assert "properties file" not in str(caught.value)


def test_a_table_without_cdc() -> None:
    columns = (Column("p", CqlType("int"), "partition_key", 0), Column("v", CqlType("int")))
    properties = {"name": "n", "keyspace": "Ks", "table": "t", "output.format": "json"}
    settings = ConnectorSettings.from_properties(properties, "test")
    session = SimpleNamespace(cluster=SimpleNamespace(metadata=SimpleNamespace(all_hosts=list)))
    error = find_obstacle(settings, Table("Ks", "t", uuid.UUID(int=1), columns), session)
    assert error is not None
    assert error.advice == 'ALTER TABLE "Ks".t WITH cdc = true'


def test_an_address_with_a_login() -> None:
    with pytest.raises(HelenusError) as caught:
        WorkerClient("http://me:secret@127.0.0.1:1")
    assert caught.value.advice == "give it with --user"

"""Schemas never block: with the registry away, records go on in Avro, and their schemas are registered later."""

from __future__ import annotations

import io
import json
import signal
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from integration.pipeline import Pipeline
from patience import eventually

from helenus_schemas.avro.canonical import guid
from helenus_sinks.kafka.log import KafkaLog
from helenus_stack.records import SCHEMA_TOPIC, messages, schemas_by_guid
from helenus_stack.stack import Stack
from helenus_stack.status import Status

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

KEYSPACE = "later"
DEFER = {"key_schema_registration": "defer", "value_schema_registration": "defer"}


class TopicClient(SchemaRegistryClient):
    """Confluent's client, which finds a schema by its GUID in the topic, and does not trust what is there."""

    def __init__(self, status: Status) -> None:
        super().__init__({"url": status.registry_url})
        self._status = status

    def get_schema_by_guid(self, guid_text: str, fmt: str | None = None) -> Schema:
        schema = schemas_by_guid(self._status.bootstrap_servers)[uuid.UUID(guid_text)]
        assert str(guid(schema)) == guid_text
        return Schema(schema, "AVRO")


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    pipeline = Pipeline(status.only("kafka"), tmp_path_factory.mktemp("later"))
    session.execute(
        f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    session.execute(f"CREATE TABLE {KEYSPACE}.t (k int PRIMARY KEY, v text) WITH cdc = true")
    try:
        pipeline.agent.start().ready()
        pipeline.connect(f"{KEYSPACE}.t", **DEFER).start().ready()
        yield pipeline
    finally:
        pipeline.stop()


@pytest.fixture(scope="module")
def client(status: Status) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": status.registry_url})
    yield client
    client.close()


@contextmanager
def away(stack: Stack) -> Iterator[None]:
    stack.stop("registry")
    try:
        yield
    finally:
        stack.start("registry")


def entries(status: Status) -> dict[str, Any]:
    """The topic's entries, by their keys; not what others wrote there, which is no JSON."""
    pairs = ((message.key().decode(), message.value()) for message in messages(status.bootstrap_servers, SCHEMA_TOPIC))
    return {key: json.loads(value) for key, value in pairs if value and value.startswith(b"{")}


def frames(status: Status, topic: str) -> list[tuple[int, int]]:
    """The first bytes of keys and values."""
    records = messages(status.bootstrap_servers, topic)
    return [(message.key()[0], -1 if message.value() is None else message.value()[0]) for message in records]


def published(pipeline: Pipeline, table: str, **columns: object) -> bool:
    """Whether a record has these values."""
    try:
        records = pipeline.records(table)
    except KeyError:
        return False
    return any(columns.items() <= {**(r.value or {}), **r.key}.items() for r in records)


def read_by_confluent(status: Status, topic: str) -> list[tuple[Any, Any]]:
    """Keys and values as Confluent's deserializer gives them."""
    client = TopicClient(status)
    try:
        read = AvroDeserializer(client)
        return [
            (
                read(message.key(), SerializationContext(topic, MessageField.KEY)),
                read(message.value(), SerializationContext(topic, MessageField.VALUE)),
            )
            for message in messages(status.bootstrap_servers, topic)
        ]
    finally:
        client.close()


def is_registered(pipeline: Pipeline) -> bool:
    name = f"{KEYSPACE}-t"
    return pipeline.connector.total("helenus_connector_schemas_deferred", connector=name) == 0


@pytest.mark.long
def test_an_altered_table_goes_on_and_its_schemas_come_later_in_their_order(
    pipeline: Pipeline, stack: Stack, status: Status, session: Any, client: SchemaRegistryClient
) -> None:
    table, topic = f"{KEYSPACE}.t", f"data-{KEYSPACE}.t"
    session.execute(f"INSERT INTO {table} (k, v) VALUES (1, 'before')")
    eventually(lambda: published(pipeline, table, v="before"), "a record with the registry")
    with away(stack):
        session.execute(f"ALTER TABLE {table} ADD a text")
        session.execute(f"INSERT INTO {table} (k, a) VALUES (1, 'first')")
        eventually(lambda: published(pipeline, table, a="first"), "a record of the altered table")
        session.execute(f"ALTER TABLE {table} ADD b text")
        session.execute(f"INSERT INTO {table} (k, b) VALUES (2, 'second')")
        eventually(lambda: published(pipeline, table, b="second"), "a record of the table altered again")
        assert {frame[0] for frame in frames(status, topic)} == {0}, "keys keep their bytes"
        assert {frame[1] for frame in frames(status, topic)} == {0, 1}
        assert pipeline.connector.health()[0] == 200
        eventually(
            lambda: pipeline.connector.total("helenus_connector_schemas_deferred", state="deferred") == 2,
            "two schemas wait",
        )
        deferred = [
            e for e in entries(status).values() if e["subject"] == f"{topic}-value" and e["state"] == "deferred"
        ]
        assert len(deferred) == 2
        assert read_by_topic(status, topic)[-1] == {"v": None, "a": None, "b": "second"}
    eventually(lambda: client.get_versions(f"{topic}-value") == [1, 2, 3], "both are registered")
    versions = [client.get_version(f"{topic}-value", number).schema.schema_str for number in (1, 2, 3)]
    assert [("a" in names(text), "b" in names(text)) for text in versions] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    eventually(lambda: is_registered(pipeline), "the worker says so")
    assert client.get_versions(f"{topic}-key") == [1]
    session.execute(f"INSERT INTO {table} (k, b) VALUES (3, 'third')")
    eventually(lambda: published(pipeline, table, b="third"), "a record with the registry again")
    eventually(lambda: goes_on_by_id(pipeline, session, status, table, topic), "records name the registry's id again")
    read = read_by_confluent(status, topic)
    assert ({"k": 2}, {"v": None, "a": None, "b": "second"}) in read
    assert ({"k": 3}, {"v": None, "a": None, "b": "third"}) in read
    pipeline.converges(table)


def is_waiting(entry: dict[str, Any]) -> bool:
    """Whether it waits for the registry, and is one of ours, whose GUID is that of its schema."""
    return entry["state"] == "deferred" and entry["guid"] == str(guid(entry["schema"]))


def has_state(status: Status, subject: str, state: str) -> bool:
    return {e["state"] for e in entries(status).values() if e["subject"] == subject} == {state}


def names(text: str) -> set[str]:
    return {field["name"] for field in json.loads(text)["fields"]}


def read_by_topic(status: Status, topic: str) -> list[Any]:
    """Values of GUIDs as the topic alone lets them be read: the registry is away."""
    schemas = schemas_by_guid(status.bootstrap_servers)
    values = [message.value() for message in messages(status.bootstrap_servers, topic)]
    return [
        fastavro.schemaless_reader(io.BytesIO(value[17:]), json.loads(schemas[uuid.UUID(bytes=value[1:17])]), None)
        for value in values
        if value and value[0] == 1
    ]


def goes_on_by_id(pipeline: Pipeline, session: Any, status: Status, table: str, topic: str) -> bool:
    text = str(time.monotonic())
    session.execute(f"INSERT INTO {table} (k, v) VALUES (4, '{text}')")
    eventually(lambda: published(pipeline, table, v=text), "a record")
    return frames(status, topic)[-1] == (0, 0)


@pytest.mark.long
def test_a_new_table_and_a_worker_killed_meanwhile(
    pipeline: Pipeline, stack: Stack, status: Status, session: Any, client: SchemaRegistryClient
) -> None:
    """Its keys have the GUID for good; what waits is registered by the worker that starts next."""
    table, topic = f"{KEYSPACE}.new", f"data-{KEYSPACE}.new"
    with away(stack):
        session.execute(f"CREATE TABLE {table} (k int, c int, v text, PRIMARY KEY (k, c)) WITH cdc = true")
        pipeline.connector.stop()
        pipeline.connect(f"{KEYSPACE}.t", table, **DEFER).start()
        session.execute(f"INSERT INTO {table} (k, c, v) VALUES (1, 1, 'one')")
        eventually(lambda: published(pipeline, table, v="one"), lambda: f"a record\n{pipeline.connector.tail()}")
        assert set(frames(status, topic)) == {(1, 1)}
        pipeline.connector.kill()
    pipeline.connector.start().ready()
    eventually(lambda: set(client.get_subjects()) >= {f"{topic}-key", f"{topic}-value"}, "both are registered")
    for part in ("key", "value"):
        subject = f"{topic}-{part}"
        eventually(partial(has_state, status, subject, "registered"), "the topic says so")
        states = [e for e in entries(status).values() if e["subject"] == subject]
        registered = client.get_latest_version(f"{topic}-{part}").schema.schema_str
        assert json.loads(registered) == json.loads(states[0]["schema"])
    session.execute(f"DELETE FROM {table} WHERE k = 1 AND c = 1")
    session.execute(f"INSERT INTO {table} (k, c, v) VALUES (2, 2, 'two')")
    eventually(lambda: published(pipeline, table, v="two"), "a record with the registry")
    assert {key for key, _ in frames(status, topic)} == {1}, "keys keep their bytes"
    eventually(lambda: frames(status, topic)[-1] == (1, 0), "values name the registry's id")
    keys = {message.key() for message in messages(status.bootstrap_servers, topic)}
    assert len(keys) == 2
    assert ({"k": 2, "c": 2}, {"v": "two"}) in read_by_confluent(status, topic)
    pipeline.converges(table)


@pytest.mark.long
def test_a_schema_that_is_refused_later_is_named_and_can_be_taken(
    pipeline: Pipeline, stack: Stack, status: Status, session: Any, client: SchemaRegistryClient
) -> None:
    """BACKWARD refuses a blob in place of a decimal; NONE takes it."""
    table, topic = f"{KEYSPACE}.t", f"data-{KEYSPACE}.t"
    eventually(lambda: is_registered(pipeline), "nothing waits")
    session.execute(f"ALTER TABLE {table} ADD price decimal")
    session.execute(f"INSERT INTO {table} (k, v, price) VALUES (6, 'priced', 1.5)")
    eventually(lambda: published(pipeline, table, v="priced"), "a record with the decimal")
    with away(stack):
        session.execute(f"ALTER TABLE {table} DROP price")
        session.execute(f"ALTER TABLE {table} ADD price blob")
        session.execute(f"INSERT INTO {table} (k, price) VALUES (7, 0x01)")
        eventually(lambda: published(pipeline, table, k=7, price=b"\x01"), "a record of the altered table")
    eventually(
        lambda: pipeline.connector.total("helenus_connector_schemas_deferred", state="refused") == 1, "it is counted"
    )
    assert "schema.refused" in pipeline.connector.log.read_text()
    with urllib.request.urlopen(f"http://127.0.0.1:{pipeline.connector.port}/health", timeout=30) as answer:
        assert "1 refused" in json.loads(answer.read())["message"]
    session.execute(f"INSERT INTO {table} (k, price) VALUES (7, 0x02)")
    eventually(lambda: "registry refuses" in pipeline.connector.health()[1], "the table stops, and says why")
    refused = [e for e in entries(status).values() if e["state"] == "refused"]
    assert [e["subject"] for e in refused] == [f"{topic}-value"]
    client.set_compatibility(f"{topic}-value", "NONE")
    pipeline.call_rest("POST", f"{KEYSPACE}-t/restart?includeTasks=true")
    eventually(lambda: is_registered(pipeline), "it is registered")
    session.execute(f"INSERT INTO {table} (k, v) VALUES (6, 'without the dropped column')")
    session.execute(f"INSERT INTO {table} (k, price) VALUES (8, 0x02)")
    eventually(
        lambda: published(pipeline, table, k=8, price=b"\x02"), lambda: f"it goes on\n{pipeline.connector.tail()}"
    )
    pipeline.converges(table)


def test_what_others_write_to_the_topic_is_not_trusted(
    pipeline: Pipeline, status: Status, session: Any, client: SchemaRegistryClient
) -> None:
    """No JSON, another GUID, a subject of somebody else's: nothing is registered, nothing stops."""
    session.execute(f"INSERT INTO {KEYSPACE}.t (k, v) VALUES (0, 'plain')")
    eventually(lambda: published(pipeline, f"{KEYSPACE}.t", v="plain"), "the subject is there")
    eventually(lambda: is_registered(pipeline), "nothing waits")
    KafkaLog({"bootstrap.servers": str(status.bootstrap_servers)}).create(
        SCHEMA_TOPIC, 1, {"cleanup.policy": "compact"}
    )
    schema = '{"type":"record","name":"evil","fields":[]}'
    foreign = {"subject": "payments-value", "schemaType": "AVRO", "schema": schema, "guid": str(guid(schema))}
    foreign |= {"id": None, "state": "deferred", "reason": "", "order": -1}
    wrong = {**foreign, "subject": f"data-{KEYSPACE}.t-value", "guid": str(uuid.uuid4())}
    producer = Producer({"bootstrap.servers": status.bootstrap_servers})
    for key, value in (
        ("x", "no JSON"),
        (f"{wrong['guid']} {wrong['subject']}", json.dumps(wrong)),
        (f"{foreign['guid']} payments-value", json.dumps(foreign)),
    ):
        producer.produce(SCHEMA_TOPIC, value, key)
    assert producer.flush(30) == 0
    eventually(
        lambda: pipeline.connector.log.read_text(errors="replace").count("schemas.entry_ignored") >= 2,
        "both are ignored",
    )
    time.sleep(6)
    assert "payments-value" not in client.get_subjects()
    assert not [e for e in client.get_versions(f"data-{KEYSPACE}.t-value") if "evil" in str(e)]
    assert is_registered(pipeline)


@pytest.mark.long
def test_a_worker_killed_right_after_its_schema_is_in_the_topic(
    pipeline: Pipeline, stack: Stack, status: Status, session: Any, client: SchemaRegistryClient
) -> None:
    """And its first records, which are not marked yet: the next worker goes on by the same GUID."""
    table, topic = f"{KEYSPACE}.t", f"data-{KEYSPACE}.t"
    pipeline.connector.stop()
    pipeline.connector.start(HELENUS_FAILPOINT=f"connector.after-flush:1@{pipeline.directory / 'killed'}").ready()
    with away(stack):
        session.execute(f"ALTER TABLE {table} ADD c text")
        session.execute(f"INSERT INTO {table} (k, c) VALUES (9, 'nine')")
        eventually((pipeline.directory / "killed").exists, "a Python worker is killed")
        eventually(lambda: published(pipeline, table, c="nine"), "a record, still")
        pipeline.connector.kill()
        pipeline.connector.start()
        session.execute(f"INSERT INTO {table} (k, c) VALUES (10, 'ten')")
        eventually(lambda: published(pipeline, table, c="ten"), lambda: f"goes on\n{pipeline.connector.tail()}")
        waiting = [key for key, e in entries(status).items() if key.endswith(f" {topic}-value") and is_waiting(e)]
        assert len(waiting) == 1
    eventually(lambda: is_registered(pipeline), "it is registered")
    assert "c" in names(client.get_latest_version(f"{topic}-value").schema.schema_str)
    assert pipeline.connector.process is not None
    assert pipeline.connector.process.poll() not in (-signal.SIGSEGV,)
    pipeline.converges(table)

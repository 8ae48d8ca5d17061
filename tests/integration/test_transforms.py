"""Transforms on the real path: a chain of three and a predicate, into topics of their own, and Debezium's row."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from integration.pipeline import Lasting, Pipeline
from patience import eventually

from helenus_stack.records import messages
from helenus_stack.status import Status

pytestmark = pytest.mark.integration

KAFKA = "org.apache.kafka.connect.transforms."
CHAIN = {
    "transforms": "rename,stamp,route",
    "transforms.rename.type": f"{KAFKA}ReplaceField$Value",
    "transforms.rename.renames": "v:number",
    "transforms.rename.exclude": "secret",
    "transforms.stamp.type": f"{KAFKA}InsertField$Value",
    "transforms.stamp.timestamp.field": "written",
    "transforms.stamp.static.field": "origin!",
    "transforms.stamp.static.value": "cassandra",
    "transforms.stamp.predicate": "gone",
    "transforms.stamp.negate": "true",
    "transforms.route.type": f"{KAFKA}RegexRouter",
    "transforms.route.regex": r"data-(.*)\.(.*)",
    "transforms.route.replacement": "$1_$2",
    "predicates": "gone",
    "predicates.gone.type": f"{KAFKA}predicates.RecordIsTombstone",
}
ROW = {
    "output.format": "debezium",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "transforms": "unwrap,key",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.add.fields": "op,table",
    "transforms.unwrap.delete.tombstone.handling.mode": "delete-to-tombstone",
    "transforms.key.type": f"{KAFKA}ExtractField$Key",
    "transforms.key.field": "k",
}


CONVERTED = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
    "value.converter.value.subject.name.strategy": "TopicRecordNameStrategy",
}


@pytest.fixture(scope="module")
def pipeline(status: Status, session: Any, lasting: Lasting) -> Iterator[Pipeline]:
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE smt WITH replication = {replication}")
    for name in ("chained", "unwrapped", "converted"):
        session.execute(f"CREATE TABLE smt.{name} (k int PRIMARY KEY, v int, secret text) WITH cdc = true")
    with lasting("kafka").connected(
        {"smt.chained": CHAIN, "smt.unwrapped": ROW, "smt.converted": CONVERTED}
    ) as pipeline:
        yield pipeline


def written(pipeline: Pipeline, topic: str, count: int) -> list[Any]:
    """The messages of a topic, once there are so many."""
    servers = pipeline.status.bootstrap_servers
    eventually(lambda: len(list(messages(servers, topic))) >= count, f"{count} records in {topic}")
    return list(messages(servers, topic))


def test_a_chain_of_three_with_a_predicate(pipeline: Pipeline, session: Any) -> None:
    session.execute("INSERT INTO smt.chained (k, v, secret) VALUES (1, 5, 'x') USING TIMESTAMP 1700000000123456")
    written(pipeline, "smt_chained", 1)
    session.execute("DELETE FROM smt.chained WHERE k = 1")
    row, gone = written(pipeline, "smt_chained", 2)[:2]
    client = SchemaRegistryClient({"url": pipeline.status.registry_url})
    subjects = client.get_subjects()

    def read(data: bytes) -> Any:
        schema = json.loads(client.get_schema(int.from_bytes(data[1:5], "big")).schema_str)
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), fastavro.parse_schema(schema), None)

    assert read(row.key()) == read(gone.key()) == {"k": 1}
    value = read(row.value())
    assert (value["number"], value["origin"], int(value["written"].timestamp() * 1000)) == (
        5,
        "cassandra",
        1700000000123,
    )
    assert "secret" not in value
    assert gone.value() is None
    client.close()
    assert {"smt_chained-key", "smt_chained-value"} <= set(subjects)
    assert "data-smt.chained-value" not in subjects
    with pipeline.log() as log:
        topics = log.topics()
    assert topics["smt_chained"] == topics["events-smt.chained"]
    assert not list(messages(pipeline.status.bootstrap_servers, "data-smt.chained"))


def test_rows_out_of_envelopes(pipeline: Pipeline, session: Any) -> None:
    session.execute("INSERT INTO smt.unwrapped (k, v) VALUES (2, 6)")
    written(pipeline, "data-smt.unwrapped", 1)
    session.execute("DELETE FROM smt.unwrapped WHERE k = 2")
    row, gone = written(pipeline, "data-smt.unwrapped", 2)[:2]
    assert json.loads(row.key()) == json.loads(gone.key()) == 2
    expected = {"k": 2, "v": 6, "secret": None, "__op": "r", "__table": "unwrapped"}
    assert json.loads(row.value()) == expected
    assert gone.value() is None


def test_text_and_protobuf_in_place_of_avro(pipeline: Pipeline, session: Any) -> None:
    """The bytes are those of Protobuf's specification: field 1 is the text: columns are in the order of names."""
    session.execute("INSERT INTO smt.converted (k, v, secret) VALUES (3, 7, 'x')")
    (row,) = written(pipeline, "data-smt.converted", 1)[:1]
    assert row.key() == b"Struct{k=3}"
    assert (row.value()[:1], row.value()[5:]) == (b"\0", b"\0\x0a\x01x\x10\x07")
    client = SchemaRegistryClient({"url": pipeline.status.registry_url})
    schema = client.get_schema(int.from_bytes(row.value()[1:5], "big"))
    subjects = client.get_subjects()
    client.close()
    assert schema.schema_type == "PROTOBUF"
    assert "message converted" in str(schema.schema_str)
    assert [subject for subject in subjects if subject.startswith("data-smt.converted")] != ["data-smt.converted-value"]

"""What the stack reads from Pulsar: every form of records, by the version of the schema that each message has."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import fastavro
import pytest

from helenus_schemas.event.change import Change
from helenus_schemas.event.datastax import sorted_value
from helenus_schemas.event.wire import encode
from helenus_sinks.log import DeclaredSchemas
from helenus_sinks.pulsar.config import PulsarConfig
from helenus_sinks.pulsar.log import PulsarLog
from helenus_stack.errors import StackError
from helenus_stack.readers import Reader, reader
from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration

KEY = {"type": "record", "name": "r", "fields": [{"name": "k", "type": "int"}]}
OLD = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "int"], "default": None}]}
NEW = {**OLD, "fields": [{"name": "b", "type": ["null", "string"], "default": None}, *OLD["fields"]]}


@pytest.fixture(scope="module")
def stack(only_pulsar: Stack) -> Stack:
    return only_pulsar


@pytest.fixture(scope="module")
def topics(stack: Stack) -> Iterator[Reader]:
    with closing(reader(stack.status())) as topics:
        yield topics


@pytest.fixture
def log(stack: Stack) -> Iterator[PulsarLog]:
    status = stack.status()
    assert status.pulsar_url
    with closing(PulsarLog(PulsarConfig(status.pulsar_url, status.pulsar_admin_url))) as log:
        yield log


def avro(schema: Any, **values: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), values)
    return out.getvalue()


def schemas(value: Any, kind: Any = "AVRO", key: Any = KEY) -> DeclaredSchemas:
    return DeclaredSchemas(None if key is None else json.dumps(key), json.dumps(value), kind)


def test_avro_records_by_their_schemas(topics: Reader, log: PulsarLog) -> None:
    assert log.create("data-avro", 2, {}) == 2
    assert not list(topics.messages("data-avro"))
    for partition in (0, 1):
        key = avro(KEY, k=partition)
        log.declare("data-avro", schemas(OLD))
        log.append("data-avro", partition, key, avro(OLD, a=-1), [("writetime", b"7")])
        log.declare("data-avro", schemas(NEW))
        log.append("data-avro", partition, key, avro(NEW, a=2, b="x"))
        log.append("data-avro", partition, key, None)
        log.append("data-avro", partition, None, None, [("scope", b"table")])
    log.flush(30)
    records = [topics.record(message) for message in topics.messages("data-avro")]
    assert [r.partition for r in records] == [0, 0, 0, 0, 1, 1, 1, 1], "partition by partition"
    assert [(r.key, r.value, r.schema_id) for r in records[4:]] == [
        ({"k": 1}, {"a": -1}, 0),
        ({"k": 1}, {"b": "x", "a": 2}, 1),
        ({"k": 1}, None, None),
        ({}, None, None),
    ]
    assert [r.headers for r in records[:4]] == [{"writetime": b"7"}, {}, {}, {"scope": b"table"}]
    assert [r.offset for r in records[:4]] == sorted({r.offset for r in records[:4]})


@pytest.mark.parametrize(("topic", "key_schema"), [("data-json", None), ("data-kv-json", KEY)])
def test_json_records(topics: Reader, log: PulsarLog, topic: str, key_schema: Any) -> None:
    """Keys are text where the schema has none for them, else base64."""
    log.create(topic, 1, {})
    log.declare(topic, schemas(OLD, "JSON", key_schema))
    for value in (b'{"a":1}', b"{}" if key_schema is None else None):
        log.append(topic, 0, b'{"k":1}', value)
    log.flush(30)
    records = [topics.record(message) for message in topics.messages(topic)]
    assert [(r.key, r.value, r.is_json) for r in records] == [({"k": 1}, {"a": 1}, True), ({"k": 1}, None, True)]


def test_messages_without_a_schema(topics: Reader, log: PulsarLog) -> None:
    log.create("dlq", 1, {})
    log.append("dlq", 0, b"\xff", b"\0")
    log.flush(30)
    (message,) = topics.messages("dlq")
    assert (message.topic(), message.partition(), message.key(), message.value()) == ("dlq", 0, b"\xff", b"\0")


def test_new_messages_are_followed(topics: Reader, log: PulsarLog) -> None:
    for name in ("complete", "new"):
        log.create(name, 3, {})
        log.append(name, 1, b"k", sorted_value(encode(Change("0" * 32, None, write_time=1))))
    log.flush(30)
    assert {"complete", "new"} <= topics.topics()
    topics.follow("complete", whole=True)
    topics.follow("new", whole=False)
    first = topics.arrival(30)
    assert first is not None
    assert (first.topic(), first.partition(), topics.change(first).write_time) == ("complete", 1, 1)
    assert topics.arrival(0.5) is None
    log.append("new", 2, b"k", sorted_value(encode(Change("0" * 32, None, write_time=2))))
    log.flush(30)
    second = topics.arrival(30)
    assert second is not None
    assert (second.topic(), second.partition(), topics.change(second).write_time) == ("new", 2, 2)


def test_no_such_topic_and_no_broker(topics: Reader, stack: Stack) -> None:
    assert not list(topics.messages("missing"))
    with pytest.raises(StackError, match="TopicNotFound"):
        topics.follow("missing", whole=True)
    stack.stop("pulsar")
    with pytest.raises(StackError):
        topics.topics()

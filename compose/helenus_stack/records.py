"""Records of a data topic as a sink sees them: Avro by fastavro, or JSON. And messages of Kafka, with their schemas."""

from __future__ import annotations

import hashlib
import io
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient

GONE = b"{}"
"""The value of a delete in the form `json`."""
FRAME = 5
"""Bytes before the Avro in the Confluent wire format, by a schema's id."""
GUID_FRAME = 17
"""Those by a schema's GUID, of records that were written while the registry was away."""
SCHEMA_TOPIC = "helenus-schemas"
"""The topic that has the schemas of these."""
PATIENCE_S = 60
"""How long a broker may take for an answer: a machine that runs everything is slow at times."""
_WAIT_S = 0.1
"""For as many messages as there are offsets: the end of a transaction takes one, and has no message."""


@dataclass(frozen=True)
class Record:
    """A record: key and value by column, value None for a delete, which the form `json` writes as an empty object.

    `timestamp` in ms. `schema_id` is that of its value in the registry, or its GUID, or the schema's version on
    Pulsar, None without one. A key is empty in what Pulsar has without one: the delete marker of a whole table.
    """

    partition: int
    offset: int
    timestamp: int
    key: dict[str, Any]
    value: dict[str, Any] | None
    headers: dict[str, bytes]
    schema_id: int | uuid.UUID | None
    is_json: bool = False


class Avro:
    """Decodes Avro of one schema."""

    def __init__(self, schema: Any) -> None:
        self._logical, self._plain = fastavro.parse_schema(schema), fastavro.parse_schema(bare(schema))

    def decode(self, data: bytes) -> dict[str, Any]:
        """The record in these bytes. Dates and times that Python cannot hold stay numbers. Raises ValueError."""
        try:
            return read(data, self._logical)
        except (OverflowError, ValueError):
            return read(data, self._plain)


class Decoder:
    """Decodes the Confluent wire format, and JSON."""

    def __init__(self, registry_url: str, find_by_guid: Callable[[uuid.UUID], str] | None = None) -> None:
        self._registry = SchemaRegistryClient({"url": registry_url})
        self._find_by_guid = find_by_guid or (lambda guid: str(self._registry.get_schema_by_guid(str(guid)).schema_str))
        self._schemas: dict[int | uuid.UUID, Avro] = {}

    def close(self) -> None:
        """Let go of the registry."""
        self._registry.close()

    def record(self, message: Message) -> Record:
        """A consumed message as a Record. Raises ValueError if it is not in the wire format."""
        value = message.value()
        return Record(
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            self.decode(message.key()),
            None if value in (None, GONE) else self.decode(value),
            dict(message.headers() or ()),
            None if value is None or is_json(value) else _schema_id(value),
            is_json(message.key()),
        )

    def decode(self, data: bytes) -> dict[str, Any]:
        """The record in these bytes, as `Avro.decode` gives it."""
        if is_json(data):
            return from_json(data)
        number = _schema_id(data)
        if number not in self._schemas:
            if isinstance(number, uuid.UUID):
                text = self._find_by_guid(number)
            else:
                text = str(self._registry.get_schema(number).schema_str)
            self._schemas[number] = Avro(json.loads(text))
        return self._schemas[number].decode(data[FRAME if isinstance(number, int) else GUID_FRAME :])


def bare(schema: Any) -> Any:
    """A schema without its logical types."""
    if isinstance(schema, dict):
        return {name: bare(value) for name, value in schema.items() if name != "logicalType"}
    return [bare(branch) for branch in schema] if isinstance(schema, list) else schema


def read(data: bytes, schema: Any) -> dict[str, Any]:
    """The record in these bytes, all of them. Raises ValueError."""
    source = io.BytesIO(data)
    record = fastavro.schemaless_reader(source, schema, None)
    if source.read(1):
        raise ValueError("bytes are left after a record")
    assert isinstance(record, dict)
    return record


def from_json(data: bytes) -> dict[str, Any]:
    """The object in these bytes."""
    record = json.loads(data)
    assert isinstance(record, dict)
    return record


def is_json(data: bytes) -> bool:
    """Whether a key or value is JSON, and not in the Confluent wire format."""
    return data[:1] == b"{"


def _schema_id(data: bytes) -> int | uuid.UUID:
    if data[:1] == b"\1" and len(data) > GUID_FRAME:
        return uuid.UUID(bytes=data[1:GUID_FRAME])
    if data[:1] != b"\0" or len(data) < FRAME:
        raise ValueError("not the Confluent wire format")
    return int.from_bytes(data[1:FRAME], "big")


def schemas_by_guid(bootstrap_servers: str, login: Mapping[str, str] | None = None) -> dict[uuid.UUID, str]:
    """The schemas in the topic of those that wait for the registry."""
    values = (message.value() for message in messages(bootstrap_servers, SCHEMA_TOPIC, login))
    return dict(filter(None, map(_schema_with_guid, values)))


def _schema_with_guid(value: bytes | None) -> tuple[uuid.UUID, str] | None:
    """A schema, with the GUID that its text has, whatever its entry says; None for what is no entry: others may write
    to the topic too.
    """
    try:
        document = json.loads(value or b"null")
        text = document["schema"]
        return uuid.UUID(bytes=hashlib.md5(text.encode(), usedforsecurity=False).digest()), text
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def messages(bootstrap_servers: str, topic: str, login: Mapping[str, str] | None = None) -> Iterator[Message]:
    """All messages of a topic of Kafka from its start to what its end is now, partition by partition."""
    config = {"bootstrap.servers": bootstrap_servers, "group.id": "helenus-stack", "enable.auto.commit": "false"}
    consumer = Consumer({**config, "enable.partition.eof": "true", **(login or {})})
    try:
        topic_metadata = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        for number in topic_metadata.partitions:
            topic_partition = TopicPartition(topic, number)
            start, end = consumer.get_watermark_offsets(topic_partition, timeout=PATIENCE_S)
            offset = start
            consumer.assign([TopicPartition(topic, number, start)])
            deadline = time.monotonic() + PATIENCE_S
            while offset < end:
                fetched = consumer.consume(min(10_000, end - offset), timeout=_WAIT_S)
                if fetched:
                    deadline = time.monotonic() + PATIENCE_S
                elif time.monotonic() > deadline:
                    raise TimeoutError(f"no message within {PATIENCE_S} s: {topic_partition}, offset {offset}")
                for message in fetched:
                    error = message.error()
                    if error is None:
                        offset = message.offset() + 1
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:
                        offset = message.offset()
                    else:
                        raise KafkaException(error)
    finally:
        consumer.close()

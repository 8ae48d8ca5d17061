"""Records of a data topic as a sink sees them, decoded by fastavro with the registry's schemas."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient


@dataclass(frozen=True)
class Record:
    """A record: key and value by column, value None for a delete; `timestamp` in ms, `schema_id` of its value."""

    partition: int
    offset: int
    timestamp: int
    key: dict[str, Any]
    value: dict[str, Any] | None
    headers: dict[str, bytes]
    schema_id: int | None


class Decoder:
    """Decodes the Confluent wire format."""

    def __init__(self, registry_url: str) -> None:
        self._registry = SchemaRegistryClient({"url": registry_url})
        self._schemas: dict[int, Any] = {}

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
            None if value is None else self.decode(value),
            dict(message.headers() or ()),
            None if value is None else _schema_id(value),
        )

    def decode(self, data: bytes) -> dict[str, Any]:
        """The Avro record in these bytes."""
        number = _schema_id(data)
        if number not in self._schemas:
            self._schemas[number] = fastavro.parse_schema(json.loads(self._registry.get_schema(number).schema_str))
        source = io.BytesIO(data[5:])
        record = fastavro.schemaless_reader(source, self._schemas[number], None)
        if source.read(1):
            raise ValueError(f"bytes are left behind a record of schema {number}")
        assert isinstance(record, dict)
        return record


def _schema_id(data: bytes) -> int:
    if data[:1] != b"\0" or len(data) < 5:
        raise ValueError("not the Confluent wire format")
    return int.from_bytes(data[1:5], "big")


def messages(bootstrap_servers: str, topic: str) -> Iterator[Message]:
    """All messages of a topic from its start to what its end is now, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "helenus-stack", "enable.auto.commit": "false"}
    )
    try:
        known = consumer.list_topics(topic, timeout=10).topics[topic]
        for number in known.partitions:
            place = TopicPartition(topic, number)
            start, end = consumer.get_watermark_offsets(place, timeout=10)
            at = start
            consumer.assign([TopicPartition(topic, number, start)])
            while at < end:
                for message in consumer.consume(min(10_000, end - at), timeout=10) or _nothing(topic, number, at):
                    if message.error():
                        raise KafkaException(message.error())
                    at = message.offset() + 1
                    yield message
    finally:
        consumer.close()


def _nothing(topic: str, partition: int, offset: int) -> list[Message]:
    raise TimeoutError(f"no message within 10 s: topic {topic}, partition {partition}, offset {offset}")

"""`helenus-stack watch`: shows what arrives in a topic, decoded."""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Iterator

import fastavro
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from helenus_schemas.avro import key_schema
from helenus_schemas.change import decode
from helenus_schemas.table import read_tables
from helenus_stack.cql import session
from helenus_stack.errors import StackError
from helenus_stack.records import Decoder
from helenus_stack.show import key_text, value_text
from helenus_stack.status import Status

_POLL_SECONDS = 0.2


def watch(status: Status, topic: str, whole: bool) -> Iterator[str]:
    """A line for every message that comes, or with `whole` for those that are there too; never ends.

    Topics of events and of records are decoded. Raises StackError if there is no such topic.
    """
    where = status.bootstrap_servers
    consumer = Consumer({**status.kafka(), "group.id": "helenus-stack", "enable.auto.commit": "false"})
    try:
        known = consumer.list_topics(timeout=10).topics
        if topic not in known:
            there = ", ".join(sorted(name for name in known if not name.startswith("_"))) or "none"
            raise StackError(f"there is no topic {topic}", where, f"topics are: {there}")
        text = _events(status, topic) if topic.startswith("events-") else _records(status)
        places = [TopicPartition(topic, number) for number in known[topic].partitions]
        for place in places:
            low, high = consumer.get_watermark_offsets(place, timeout=10)
            place.offset = low if whole else high
        consumer.assign(places)
        while True:
            message = consumer.poll(_POLL_SECONDS)
            if message is not None and message.error():
                raise KafkaException(message.error())
            if message is not None:
                at = datetime.datetime.fromtimestamp(message.timestamp()[1] / 1000)
                yield f"{at:%H:%M:%S.%f}"[:-3] + f"  {text(message)}"
    except KafkaException as error:
        raise StackError(f"Kafka: {error.args[0].str()}", where, "look at the broker's log") from error
    finally:
        consumer.close()


def _records(status: Status) -> Callable[[Message], str]:
    decoder = Decoder(status.registry_url)

    def text(message: Message) -> str:
        record = decoder.record(message)
        return f"{key_text(record.key)} {value_text(record.value)}"

    return text


def _events(status: Status, topic: str) -> Callable[[Message], str]:
    name = topic.removeprefix("events-")
    with session(status) as connected:
        table = next((t for t in read_tables(connected).values() if t.full_name == name), None)
    if table is None:
        raise StackError(f"there is no table {name}", topic, "an event's key can be read with its table only")
    schema = fastavro.parse_schema(key_schema(table))

    def text(message: Message) -> str:
        key = fastavro.schemaless_reader(io.BytesIO(message.key()), schema, None)
        change = decode(message.value())
        return f"{key_text(key)} {change.scope.name}, written at {change.write_time} µs, digest {change.digest}"

    return text

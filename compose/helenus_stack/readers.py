"""Reads a stack's topics, on Kafka or Pulsar. Only this module distinguishes the two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from helenus_connector.log.events import Message
from helenus_schemas.event.change import Change
from helenus_schemas.event.wire import decode
from helenus_stack.errors import StackError
from helenus_stack.records import FRAME, Decoder, Record, messages, schemas_by_guid
from helenus_stack.status import Status

_TIMEOUT = 10
AWAY = "start it with helenus-stack up, or look at the broker's log"
"""What to do about a broker that refuses or doesn't answer."""


class Reader(Protocol):
    """Reads topics. Close it at the end. Every method raises StackError if the brokers refuse, or are away."""

    frame: int
    """How many bytes are before the Avro in a record's key."""

    def topics(self) -> set[str]:
        """The topics that there are."""
        ...

    def messages(self, topic: str) -> Iterator[Message]:
        """All messages of a topic from its start to what its end is now, partition by partition."""
        ...

    def follow(self, topic: str, whole: bool) -> None:
        """From now on `arrival` gives what comes to a topic; with `whole`, also what is there."""
        ...

    def arrival(self, seconds: float) -> Message | None:
        """The next message of the topics that are followed, in order within a partition; None if none comes in time."""
        ...

    def record(self, message: Message) -> Record:
        """A message of a data topic as a Record. Raises ValueError if it is none."""
        ...

    def change(self, message: Message) -> Change:
        """A message of an events topic as a Change. Raises ValueError if it is none."""
        ...

    def close(self) -> None:
        """Let go of the brokers."""
        ...


def reader(status: Status) -> Reader:
    """For the topics of a stack's Log; of Kafka's, if the stack has both."""
    if status.log == "kafka":
        return KafkaReader(status)
    from helenus_stack.pulsar_reader import PulsarReader

    return PulsarReader(status)


class KafkaReader:
    """The `Reader` of Kafka, with the stack's registry."""

    frame = FRAME

    def __init__(self, status: Status) -> None:
        self._where, self._login = status.bootstrap_servers, status.kafka()
        self._decoder = Decoder(status.registry_url, lambda guid: schemas_by_guid(self._where, self._login)[guid])
        config = {"group.id": "helenus-stack", "enable.auto.commit": "false", "log_level": "0"}
        self._consumer = Consumer({**self._login, **config})
        self._asking = Consumer({**self._login, **config})  # the other's questions wait for what it fetches

    def topics(self) -> set[str]:
        with _stack_errors(self._where):
            return {name for name in self._consumer.list_topics(timeout=_TIMEOUT).topics if not name.startswith("_")}

    def messages(self, topic: str) -> Iterator[Message]:
        with _stack_errors(self._where):
            yield from messages(self._where, topic, self._login)

    def follow(self, topic: str, whole: bool) -> None:
        with _stack_errors(self._where):
            topic_metadata = self._asking.list_topics(topic, timeout=_TIMEOUT).topics[topic]
            places = [TopicPartition(topic, number) for number in topic_metadata.partitions]
            for topic_partition in places:
                offset = (
                    OFFSET_BEGINNING
                    if whole
                    else self._asking.get_watermark_offsets(topic_partition, timeout=_TIMEOUT)[1]
                )
                topic_partition.offset = offset
            self._consumer.incremental_assign(places)

    def arrival(self, seconds: float) -> Message | None:
        with _stack_errors(self._where):
            polled = self._consumer.poll(seconds)
            error = polled.error() if polled is not None else None
            if error is not None and not error.retriable():
                raise KafkaException(error)
            message: Message | None = polled if error is None else None
            return message

    def record(self, message: Message) -> Record:
        return self._decoder.record(message)

    def change(self, message: Message) -> Change:
        return decode(message.value() or b"")

    def close(self) -> None:
        self._consumer.close()
        self._asking.close()
        self._decoder.close()


@contextmanager
def _stack_errors(where: str) -> Iterator[None]:
    """Errors of the client as StackError."""
    try:
        yield
    except KafkaException as error:
        raise StackError(f"Kafka: {error.args[0].str()}", where, AWAY) from error

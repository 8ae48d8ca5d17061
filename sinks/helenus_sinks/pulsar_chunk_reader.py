"""Reads records of Pulsar whose values are in chunks (`errors.large.record=chunk`), for consumers of data topics.

    client = pulsar.Client("pulsar://localhost:6650")
    consumer = client.subscribe("data-shop.orders", "mine")     # of any type, also one that reads what is compacted
    reader = PulsarChunkReader(client)
    message = consumer.receive()
    record = reader.read(message)
    record.value                                    # as the topic would have it if it took records of this size

A record without chunks is returned as it is, at the cost of a look at its properties. Chunks are read from the topic
`chunks-<topic>`, by a reader of their own: the consumer acknowledges as ever. It needs pulsar-client.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any, NamedTuple

import pulsar

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.chunks import (
    CHUNK_HEADER,
    HEADER,
    LEFT_OUT,
    MAX_BYTES,
    BadChunks,
    ChunkJoiner,
    MessageChunkReference,
    chunk_topic,
)
from helenus_sinks.pulsar.errors import pulsar_error

__all__ = ["BadChunks", "PulsarChunkReader", "WholeMessage"]

_SLICE_MS = 1000
_QUEUED = 2
"""Chunks that a broker may send ahead: each may have as many bytes as it takes."""


class WholeMessage(NamedTuple):
    """A record with its whole value: the bytes, which have the schema version of the message, and its properties.

    Without `is_whole` the chunks are no longer there: `value` and `properties` are those of the smaller record, whose
    property `left_out` names the columns that are null.
    """

    value: bytes
    properties: dict[str, str]
    is_whole: bool


class PulsarChunkReader:
    """Reads the chunks of records, with the connections and the login of a `client` of pulsar-client. It reads values
    of at most `max_bytes`, and holds one at a time. Nothing that a property says is believed beyond that: it names
    messages of the topic of chunks, no other topic.
    """

    def __init__(self, client: pulsar.Client, max_bytes: int = MAX_BYTES, timeout_s: float = 30.0) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    def read(self, message: pulsar.Message) -> WholeMessage:
        """Return the record of a message, with its whole value. Raises BadChunks if its property, or its chunks, are
        none that a connector wrote, or the value is larger than allowed; HelenusError BROKER_UNREACHABLE if the brokers
        do not answer within the timeout, and TOPIC_MISSING: call it again.
        """
        properties = message.properties()
        text = properties.get(HEADER)
        if text is None:
            return WholeMessage(message.data(), properties, True)
        reference = MessageChunkReference.parse(text.encode(), self._max_bytes)
        whole = self.value(message.topic_name(), reference)
        if whole is None:
            return WholeMessage(message.data(), properties, False)
        own = (HEADER, LEFT_OUT)
        return WholeMessage(whole, {name: content for name, content in properties.items() if name not in own}, True)

    def value(self, topic: str, reference: MessageChunkReference) -> bytes | None:
        """Return the value of a record of this topic, or partition of a topic, by its full name; None if its chunks are
        gone. Raises as `read`.
        """
        namespace, _, name = topic.partition("-partition-")[0].rpartition("/")
        chunks = f"{namespace}/{chunk_topic(name)}"
        try:
            return self._value(chunks, reference)
        except pulsar.TopicNotFound:
            raise HelenusError(Kind.TOPIC_MISSING, "the topic of chunks is gone", chunks) from None
        except pulsar.PulsarException as error:
            refused = isinstance(error, (pulsar.AuthenticationError, pulsar.AuthorizationError))
            kind = Kind.BROKER_REFUSED if refused else Kind.BROKER_UNREACHABLE
            raise pulsar_error(kind, f"Pulsar: {error or type(error).__name__}", f"topic {chunks}") from None

    def _value(self, chunks: str, reference: MessageChunkReference) -> bytes | None:
        partitions = self._client.get_topic_partitions(chunks)
        partition = f"{chunks}-partition-{reference.partition}"
        if partitions == [chunks]:
            raise HelenusError(Kind.TOPIC_MISSING, "the topic of chunks is gone", chunks)
        if partition not in partitions:
            raise BadChunks(f"{chunks} has no partition {reference.partition}")
        (ledger, entry), last = reference.message_ids
        start = pulsar.MessageId(reference.partition, ledger, entry, -1)
        joiner, deadline = ChunkJoiner(reference), time.monotonic() + self._timeout_s
        with closing(
            self._client.create_reader(partition, start, start_message_id_inclusive=True, receiver_queue_size=_QUEUED)
        ) as reader:
            for _ in range(reference.most_messages):
                message = _next_message(reader, deadline)
                if message is None or _id_of(message) > last:
                    return None
                header = message.properties().get(CHUNK_HEADER)
                joiner.add(None if header is None else header.encode(), message.data())
                if joiner.is_complete:
                    return joiner.value()
                deadline = time.monotonic() + self._timeout_s
        return None


def _next_message(reader: Any, deadline: float) -> Any:
    """Return the next message, None at the end of the topic. Raises pulsar.Timeout."""
    while reader.has_message_available():
        try:
            return reader.read_next(_SLICE_MS)
        except pulsar.Timeout:
            if time.monotonic() > deadline:
                raise
    return None


def _id_of(message: Any) -> tuple[int, int]:
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id()

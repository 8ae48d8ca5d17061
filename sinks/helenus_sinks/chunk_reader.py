"""Reads records of Kafka whose values are in chunks (`errors.large.record=chunk`), for consumers of data topics.

    reader = ChunkReader({"bootstrap.servers": "localhost:9092"})
    message = consumer.poll(1.0)                    # of confluent-kafka, with any group, assignment and position
    record = reader.read(message)
    record.value                                    # as the topic would have it if it took records of this size

A record without chunks is returned as it is, at the cost of a look at its headers. For one with chunks a second
consumer reads these, from the topic `chunks-<topic>`: the positions of the first one stay what they were, so it may
begin anywhere, and commit as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.chunks import (
    CHUNK_HEADER,
    HEADER,
    MAX_BYTES,
    BadChunks,
    ChunkJoiner,
    ChunkReference,
    chunk_topic,
    whole_headers,
)
from helenus_sinks.kafka.partition_reader import OffsetsGone, PartitionReader

__all__ = ["BadChunks", "ChunkReader", "WholeRecord"]


class WholeRecord(NamedTuple):
    """A record with its whole value.

    Without `is_whole` the chunks are no longer there: `value` and `headers` are those of the smaller record, whose
    header `left_out` names the columns that are null. In a compacted topic another record of the key follows then. In
    one with another retention, the chunks expired before the record was read.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    is_whole: bool


class ChunkReader:
    """Reads the chunks of records. `config` is librdkafka's, as a consumer's: brokers, TLS, login. It reads values of
    at most `max_bytes`, and holds one at a time. Nothing that a header says is believed beyond that: it names offsets
    of the topic of chunks, no other topic. For one thread at a time. Raises HelenusError CONFIG for wrong settings.
    """

    def __init__(self, config: Mapping[str, str], max_bytes: int = MAX_BYTES, timeout_s: float = 30.0) -> None:
        # A chunk of a transaction that was aborted has another id: so nothing waits for transactions that are open.
        self._reader = PartitionReader(config, timeout_s, is_committed=False)
        self._max_bytes = max_bytes
        self._partitions: dict[str, int] = {}

    def read(self, message: Any) -> WholeRecord:
        """Return the record of a message, with its whole value. Raises BadChunks if its header, or its chunks, are none
        that a connector wrote, or the value is larger than allowed; HelenusError BROKER_UNREACHABLE if the brokers do
        not answer within the timeout, and as the Log for missing rights: call it again.
        """
        key, value, headers = message.key(), message.value(), list(message.headers() or ())
        header = next((content for name, content in headers if name == HEADER), None)
        if header is None:
            return WholeRecord(key, value, headers, True)
        whole = self.value(message.topic(), ChunkReference.parse(header, self._max_bytes))
        if whole is None:
            return WholeRecord(key, value, headers, False)
        return WholeRecord(key, whole, whole_headers(headers), True)

    def value(self, topic: str, reference: ChunkReference) -> bytes | None:
        """Return the value of a record of this topic; None if its chunks are gone. If the topic of chunks ends before
        them, it waits for them until the timeout. Raises as `read`.
        """
        joiner, chunks = ChunkJoiner(reference), chunk_topic(topic)
        if chunks not in self._partitions:
            self._partitions[chunks] = self._reader.partitions(chunks)
        if reference.partition >= self._partitions[chunks]:
            raise BadChunks(f"{chunks} has no partition {reference.partition}")
        end = reference.last + 1
        try:
            with closing(self._reader.records(chunks, reference.partition, reference.offset, end)) as records:
                for record in records:
                    if record.offset() > reference.last:
                        break
                    joiner.add(dict(record.headers() or ()).get(CHUNK_HEADER), record.value())
                    if joiner.is_complete:
                        return joiner.value()
        except OffsetsGone:
            return None
        except HelenusError as error:
            # An end before the last chunk may be that of a broker that has just become the leader: it learns later what
            # is acknowledged. After the timeout it is another topic's, deleted and made again, or mirrored.
            if error.kind is not Kind.BROKER_UNREACHABLE or self._reader.end(chunks, reference.partition) >= end:
                raise
        return None

    def close(self) -> None:
        """End the connections."""
        self._reader.close()

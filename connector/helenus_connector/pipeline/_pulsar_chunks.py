"""Records that are too large for their topic on Pulsar, in chunks: `errors.large.record=chunk`.

The topic of chunks has as many partitions as the data topic, and the same retention. It is not compacted: Pulsar's
compaction makes a copy and frees nothing, retention alone deletes what a topic has. So the chunks of an obsolete record
go when that does, and nobody has to know which rows have some. Its producers need no epochs: a reader finds chunks by
the message ids in a record, and the records of a worker that no longer owns the data topic are refused.

    1 append the chunks, and wait: then their message ids are known
    2 append the smaller record, with the header `chunks`
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, Shape, ShapedRecord
from helenus_connector.pipeline._large_records import HEAD_BYTES, TIMEOUT_S, LargeRecords
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.names import counted
from helenus_schemas.service.failpoints import reach
from helenus_sinks.chunks import (
    CHUNK_HEADER,
    LEFT_OUT,
    MessageChunkReference,
    chunk_header,
    chunk_topic,
    split_value,
)
from helenus_sinks.log import Headers, Log
from helenus_sinks.pulsar.log import PulsarLog


class PulsarChunks(LargeRecords):
    """`LargeRecords` on Pulsar. Raises PARTITIONS_CHANGED for a topic of chunks with another number of partitions."""

    _topics: frozenset[str] = frozenset()
    """The topics of chunks that are there."""

    def begin_batch(self) -> None:
        """Do nothing: what a batch leaves is with the brokers."""

    def end_batch(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: it has no connections of its own."""

    def append(
        self, log: Log, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        """Append a record without chunks, as `Log.append`."""
        log.append(topic, partition, key, value, headers)

    def delete_scope(self, log: Log, topic: str, resolved: ResolvedKey) -> None:
        """Do nothing: retention deletes chunks."""

    def append_large(
        self, log: Log, resolved: ResolvedKey, shaped: ShapedRecord, shape: Shape, append: Callable[[Record], None]
    ) -> bool:
        """Write a record in chunks, as `LargeRecords`; not one that lacks a column anyhow: of two properties with the
        name `left_out` readers have one.
        """
        if any(name == LEFT_OUT for name, _ in shaped.record.headers):
            return False
        return super().append_large(log, resolved, shaped, shape, append)

    def _record_bytes(self, log: Log) -> int:
        assert isinstance(log, PulsarLog)
        return log.largest_record() - HEAD_BYTES

    def _chunk_bytes(self, log: Log, key: bytes) -> int:  # noqa: ARG002
        return self._record_bytes(log)

    def _append_chunks(
        self,
        log: Log,
        topic: str,
        partition: int,
        key: bytes,  # noqa: ARG002
        event_key: bytes,  # noqa: ARG002
        value: bytes,
        chunk_bytes: int,
    ) -> MessageChunkReference:
        assert isinstance(log, PulsarLog)
        self._create(log, topic)
        chunk_id = uuid.uuid4().hex
        chunks = [
            (chunk, [(CHUNK_HEADER, chunk_header(chunk_id, number))])
            for number, chunk in enumerate(split_value(value, chunk_bytes))
        ]
        first, last = log.store(chunk_topic(topic), partition, chunks, TIMEOUT_S)
        reach("connector.after-chunks")
        digest = hashlib.sha256(value).hexdigest()
        return MessageChunkReference(
            chunk_id, len(chunks), len(value), digest, partition, "{}:{}".format(*first), "{}:{}".format(*last)
        )

    def _create(self, log: Log, topic: str) -> None:
        """Create the topic of a data topic's chunks, if this has not seen it."""
        name = chunk_topic(topic)
        if name in self._topics:
            return
        count = log.topics().get(topic)
        if count is None:
            raise HelenusError(Kind.TOPIC_MISSING, "the data topic is gone", topic)
        present = log.create(name, count, self._settings.chunk_creation(topic).config)
        if present != count:
            problem = f"it has {counted(present, 'partition')}, where {topic} has {count}"
            advice = "delete it if no record has chunks in it; the connector makes it again"
            raise HelenusError(Kind.PARTITIONS_CHANGED, problem, name, advice)
        self._topics |= {name}

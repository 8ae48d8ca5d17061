"""Records that are too large for their topic on Kafka, in chunks: `errors.large.record=chunk`.

The topic of chunks has two partitions for each partition p of the data topic: p has the chunks, as
`helenus_sinks.chunks` says, and `partitions + p` has the keys of rows with chunks: by each record's key the number of
its chunks (u32, big-endian) and the row's event key; null for a row that has none any more. Only so can the chunks be
deleted of a row that is deleted, or small again: Kafka can't be asked what it has of a key. The writer of a data
partition is the only one of these two, and reads the second in each batch, before its first record. The header `table`
says whose row it is: a transform may route records of several tables to one topic.

    1 find the smaller record that fits. If none does, the former record and its chunks stay
    2 note the row, and wait until the brokers have that: whatever is killed later, its chunks can be found
    3 append the chunks, and wait: then their offsets are known. Readers take no reference to many more offsets than
      chunks, so nothing else of this writer may lie between
    4 append nulls for what an earlier value had more, and the smaller record, with the header `chunks`

A smaller record of a row that had chunks is followed by nulls for these. Once they are acknowledged, the row is noted
as one without chunks: by the next batch, since records of two partitions may be stored in any order.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from helenus_connector.cassandra_rows.clustering_bounds import covering
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.event_content import decode_key
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.pipeline._large_records import HEAD_BYTES, TIMEOUT_S, LargeRecords
from helenus_connector.pipeline._table_version import TableVersion, TableVersions
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.names import counted
from helenus_schemas.service.failpoints import reach
from helenus_sinks.chunks import (
    CHUNK_HEADER,
    ChunkReference,
    chunk_header,
    chunk_key,
    chunk_topic,
    split_value,
)
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.partition_reader import BEGINNING, OffsetsGone, PartitionReader
from helenus_sinks.log import Headers, Log

_COUNT = struct.Struct(">I")
_TABLE_HEADER = "table"


@dataclass(slots=True)
class _Partition:
    """The rows with chunks of one partition of a data topic: by record key the number of chunks, and the event key.
    `next_offset` is where the noted keys are read on, None before the first. `obsolete` are keys whose chunks are null.
    Where the topic is not compacted, no keys are noted and no chunks deleted: it `is_kept` says that they are. It
    `has_queued_nulls` if nulls for chunks may not be acknowledged yet.
    """

    rows: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    next_offset: int | None = None
    is_current: bool = False
    is_kept: bool = True
    has_queued_nulls: bool = False
    obsolete: list[bytes] = field(default_factory=list)


class ChunkedRecords(LargeRecords):
    """`LargeRecords` on Kafka. Raises PARTITIONS_CHANGED for a topic of chunks with another number of partitions."""

    def __init__(self, settings: ConnectorSettings, versions: TableVersions) -> None:
        super().__init__(settings, versions)
        self._table = f"{settings.keyspace}.{settings.table}".encode()
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._counts: dict[str, int] = {}  # of the data topics' partitions
        self._reader: PartitionReader | None = None
        self._has_begun = False

    def begin_batch(self) -> None:
        """Begin a batch, or the next attempt at it: after one that did not end, it is not known what was noted, and
        whether the topics are still there.
        """
        if self._has_begun:
            self._partitions.clear()
            self._counts.clear()
        for partition in self._partitions.values():
            partition.is_current = False
        self._has_begun = True

    def end_batch(self) -> None:
        """End a batch whose records are acknowledged, or committed."""
        self._has_begun = False

    def append(
        self, log: Log, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        """Append a record without chunks, as `Log.append`, and nulls for the chunks that its row had."""
        rows = self._rows(log, topic, partition)
        log.append(topic, partition, key, value, headers)
        if key is not None and key in rows.rows:
            self._delete_chunks(log, topic, partition, rows, key)

    def delete_scope(self, log: Log, topic: str, resolved: ResolvedKey) -> None:
        """Append nulls for the chunks of the rows in a delete marker's scope: those that live follow."""
        rows = self._rows(log, topic, resolved.partition)
        covers = _scope_test(resolved, self._versions.current) if rows.rows else None
        for key in [key for key, (_, event_key) in rows.rows.items() if covers is not None and covers(event_key)]:
            self._delete_chunks(log, topic, resolved.partition, rows, key)

    def close(self) -> None:
        """Close the connections."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _record_bytes(self, log: Log) -> int:
        return log.largest - HEAD_BYTES

    def _chunk_bytes(self, log: Log, key: bytes) -> int:
        return self._record_bytes(log) - len(key)

    def _append_chunks(
        self, log: Log, topic: str, partition: int, key: bytes, event_key: bytes, value: bytes, chunk_bytes: int
    ) -> ChunkReference:
        assert isinstance(log, KafkaLog)
        chunks, rows = chunk_topic(topic), self._rows(log, topic, partition)
        count = -(-len(value) // chunk_bytes)
        former_count, _ = rows.rows.get(key, (0, b""))
        # 2. note the row: each time, as a former writer of the partition may be about to note that it has none
        if rows.is_kept:
            noted = self._counts[topic] + partition
            note = _COUNT.pack(max(count, former_count)) + event_key
            log.append(chunks, noted, key, note, [(_TABLE_HEADER, self._table)])
            rows.rows[key] = max(count, former_count), event_key
            if former_count < count or rows.has_queued_nulls:
                log.deliver(TIMEOUT_S)
                rows.has_queued_nulls = False
                reach("connector.chunks-noted")
        # 3. append the chunks
        first = self._get_reader(log).end(chunks, partition)
        chunk_id = uuid.uuid4().hex
        for number, chunk in enumerate(split_value(value, chunk_bytes)):
            header = (CHUNK_HEADER, chunk_header(chunk_id, number))
            log.append(chunks, partition, chunk_key(key, number), chunk, [header])
            if number:
                reach("connector.between-chunks")
        log.deliver(TIMEOUT_S)
        last = self._get_reader(log).end(chunks, partition) - 1
        if rows.is_kept:
            rows.next_offset = self._get_reader(log).end(chunks, noted)  # its own notes need no reading
        reach("connector.after-chunks")
        for number in range(count, former_count):
            log.append(chunks, partition, chunk_key(key, number), None)
            rows.has_queued_nulls = True
        digest = hashlib.sha256(value).hexdigest()
        return ChunkReference(chunk_id, count, len(value), digest, partition, first, last)

    def _delete_chunks(self, log: Log, topic: str, partition: int, rows: _Partition, key: bytes) -> None:
        count, _ = rows.rows.pop(key)
        for number in range(count):
            log.append(chunk_topic(topic), partition, chunk_key(key, number), None)
        rows.has_queued_nulls = True
        rows.obsolete.append(key)  # not yet: nulls and note may be stored in any order

    def _rows(self, log: Log, topic: str, partition: int) -> _Partition:
        """Return the rows with chunks of a partition, as they were noted when the batch began and by the batch."""
        rows = self._partitions.setdefault((topic, partition), _Partition())
        if rows.is_current:
            return rows
        chunks, noted = chunk_topic(topic), self._count(log, topic) + partition
        rows.is_current, rows.has_queued_nulls = True, False
        rows.is_kept = "compact" in self._settings.creation_of(topic).config.get("cleanup.policy", "")
        if not rows.is_kept:
            return rows
        # Up to the very end: of a transaction that was just committed, brokers may not show the records yet.
        end = self._get_reader(log).end(chunks, noted)
        if end > (rows.next_offset or 0):
            assert isinstance(log, KafkaLog)
            log.start()  # one that a former producer of this name left open ends now
            try:
                self._read_notes(log, rows, chunks, noted, rows.next_offset, end)
            except OffsetsGone:  # retention took what was next
                self._read_notes(log, rows, chunks, noted, None, end)
            rows.next_offset = end
        for key in rows.obsolete:
            if key not in rows.rows:
                log.append(chunks, noted, key, None)
        rows.obsolete.clear()
        return rows

    def _read_notes(self, log: Log, rows: _Partition, chunks: str, noted: int, offset: int | None, end: int) -> None:
        start = BEGINNING if offset is None else offset
        with closing(self._get_reader(log).records(chunks, noted, start, end)) as messages:
            for message in messages:
                # Notes of other tables are not for this one: its scopes must delete no chunk of theirs.
                if message.value() is None or dict(message.headers() or ()).get(_TABLE_HEADER) == self._table:
                    _read_note(rows, message.key(), message.value(), f"{chunks} {noted}, offset {message.offset()}")

    def _count(self, log: Log, topic: str) -> int:
        """Return how many partitions a data topic has; its topic of chunks is there then."""
        if topic not in self._counts:
            count = log.topics().get(topic)
            if count is None:
                raise HelenusError(Kind.TOPIC_MISSING, "the data topic is gone", topic)
            name = chunk_topic(topic)
            present = log.create(name, 2 * count, *self._settings.creation_of(topic))
            if present != 2 * count:
                problem = f"it has {counted(present, 'partition')}, where {topic} has {count}: it needs {2 * count}"
                advice = "delete it if no record has chunks in it; the connector makes it again"
                raise HelenusError(Kind.PARTITIONS_CHANGED, problem, name, advice)
            self._counts[topic] = count
        return self._counts[topic]

    def _get_reader(self, log: Log) -> PartitionReader:
        if self._reader is None:
            assert isinstance(log, KafkaLog)
            self._reader = log.partition_reader()
        return self._reader


def _read_note(rows: _Partition, key: bytes | None, note: bytes | None, where: str) -> None:
    """Read what another writer noted, or this one before it was started."""
    if key is None or (note is not None and len(note) < _COUNT.size):
        raise HelenusError(Kind.BATCH_FAILED, "it is not the number of a row's chunks: who else writes there?", where)
    if note is None:
        rows.rows.pop(key, None)
    else:
        rows.rows[key] = _COUNT.unpack_from(note)[0], note[_COUNT.size :]


def _scope_test(resolved: ResolvedKey, version: TableVersion) -> Callable[[bytes], bool]:
    """Return a function that says whether a row, by its event key, is in the scope of a marker."""
    if resolved.scope is Scope.TABLE:
        return lambda _: True
    codec, covers = version.codec, covering(version.table)[0]
    key_columns = len(version.table.partition_key)
    partition_key, bounds = tuple(resolved.values[:key_columns]), resolved.bounds

    def is_covered(event_key: bytes) -> bool:
        try:
            values = decode_key(codec, event_key)
        except Malformed:
            return False  # of an earlier table of this name, with another key
        if tuple(values[:key_columns]) != partition_key:
            return False
        clustering = values[key_columns:]
        return bounds is None or (None not in clustering and covers(clustering, bounds))

    return is_covered

"""Step 4 of a stage: append a record, or handle what has no record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import marker_topic
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.shape import Record, ShapedRecord
from helenus_connector.pipeline._chunked_records import ChunkedRecords
from helenus_connector.pipeline._large_records import LargeRecords
from helenus_connector.pipeline._table_version import TableVersions
from helenus_connector.pipeline._undeliverable import Undeliverable
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.shape.row.row import is_marker, without_scope
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.names import counted
from helenus_sinks.log import Log

_RELEASED_HEADER = ("gate", b"released")
"""A header: fewer replicas reported the change than the gate's level asks for."""


class RecordAppender:
    """Appends the records of one table's stage, and counts them. `chunked` writes them where some may have chunks."""

    def __init__(self, settings: ConnectorSettings, versions: TableVersions, undeliverable: Undeliverable) -> None:
        self._marker_topic = None if settings.markers else marker_topic(settings.data)
        self._keeps_rows = settings.state == "rows"
        self._versions = versions
        self._undeliverable = undeliverable
        self.chunked = _large_records(settings, versions) if settings.has_chunks else None
        self._creation_of = settings.creation_of
        self._routed_topics: set[str] = set()  # that are there, with the data topic's number of partitions
        self.has_begun = False
        """Whether a batch has begun, and has not ended: the next one follows a failure."""

    def begin_batch(self) -> None:
        """Begin a batch, or the next attempt at it. After one that did not end, topics are looked for again: somebody
        may have deleted one.
        """
        if self.has_begun:
            self._routed_topics.clear()
        self.has_begun = True
        if self.chunked is not None:
            self.chunked.begin_batch()

    def end_batch(self) -> None:
        """End a batch whose records are acknowledged, or committed."""
        self.has_begun = False
        if self.chunked is not None:
            self.chunked.end_batch()

    def close(self) -> None:
        """Close the connections that it has itself."""
        if self.chunked is not None:
            self.chunked.close()

    def ordinary_append(self, log: Log) -> Callable[..., None]:
        """Return the function, called as `Log.append`, by which records are appended that need nothing else of this."""
        return log.append if self.chunked is None else partial(self.chunked.append, log)

    def append(self, log: Log, resolved: ResolvedKey, outcome: BatchOutcome, shaped: ShapedRecord | None) -> None:
        """Append a record, or count and dead-letter what has none. Raises as the Log, and as `Undeliverable`."""
        if shaped is None:
            outcome.unpublished += 1
        elif shaped.cause is not None:
            outcome.unpublished += 1
            self._undeliverable.bury_row(log, resolved, shaped.key, shaped.cause, self._versions.is_altered)
        else:
            try:
                self._append_record(log, resolved, outcome, shaped.record, shaped.topic)
            except HelenusError as error:
                if error.kind is not Kind.RECORD_TOO_LARGE:
                    raise
                outcome.too_large += 1
                if self._append_in_chunks(log, resolved, outcome, shaped):
                    return
                append = partial(self._append_record, log, resolved, outcome, topic=shaped.topic)
                self._undeliverable.replace_large_record(
                    log, resolved, shaped, self._versions.current.shape, append, error
                )

    def _append_in_chunks(self, log: Log, resolved: ResolvedKey, outcome: BatchOutcome, shaped: ShapedRecord) -> bool:
        if self.chunked is None:
            return False
        if shaped.topic is not None and shaped.topic not in self._routed_topics:
            self._create_topic(log, shaped.topic)
        append = partial(self._append_record, log, resolved, outcome, topic=shaped.topic, has_chunks=True)
        return self.chunked.append_large(log, resolved, shaped, self._versions.current.shape, append)

    def _append_record(
        self,
        log: Log,
        resolved: ResolvedKey,
        outcome: BatchOutcome,
        record: Record,
        topic: str | None = None,
        has_chunks: bool = False,
    ) -> None:
        if topic is not None and topic not in self._routed_topics:
            self._create_topic(log, topic)
        if resolved.is_released:
            record = record._replace(headers=[*record.headers, _RELEASED_HEADER])
        if self._marker_topic is not None and resolved.read_rows is not None and is_marker(record):
            log.append(self._marker_topic, resolved.partition, *record)
            # Where rows are kept, their static columns have records by themselves.
            if not self._versions.current.table.statics or resolved.scope is Scope.TABLE or self._keeps_rows:
                return
            record = without_scope(record)  # what is left is the record of the static columns
        topic = topic or self._versions.current.topic
        if self.chunked is None or has_chunks:
            log.append(topic, resolved.partition, *record)
        else:
            if resolved.read_rows is not None and is_marker(record):
                self.chunked.delete_scope(log, topic, resolved)
            self.chunked.append(log, topic, resolved.partition, *record)
        resolved.records += 1
        outcome.records += 1

    def _create_topic(self, log: Log, topic: str) -> None:
        """Create a topic that a transform routes records to, if it is missing: with as many partitions as the data
        topic, as a record's partition is that of its key in each. Raises HelenusError PARTITIONS_CHANGED too.
        """
        data_topic = self._versions.current.topic
        partitions = log.topics().get(data_topic)
        if partitions is None:
            raise HelenusError(Kind.TOPIC_MISSING, "the data topic is gone", data_topic)
        present = log.create(topic, partitions, *self._creation_of(topic))
        if present != partitions:
            problem = f"a transform routes to a topic of {counted(present, 'partition')}, {data_topic} has {partitions}"
            advice = "route to another topic, or delete that one if it is not needed; the connector makes it again"
            raise HelenusError(Kind.PARTITIONS_CHANGED, problem, topic, advice)
        self._routed_topics.add(topic)


def _large_records(settings: ConnectorSettings, versions: TableVersions) -> LargeRecords:
    if settings.needs_registry:
        return ChunkedRecords(settings, versions)
    from helenus_connector.pipeline._pulsar_chunks import PulsarChunks  # of an extra

    return PulsarChunks(settings, versions)

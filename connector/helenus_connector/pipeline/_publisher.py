"""Steps 3 and 4 of a stage: make the records of a group of keys, and append them.

An ordinary key has one record, shaped together with those of its group. Any other key is published by itself.

This module runs as it is, and compiled by Cython with the types of `_publisher.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import ResolverBatch, RowsFailed
from helenus_connector.interfaces.shape import Record
from helenus_connector.pipeline._image_digest import digest_of, digest_of_record
from helenus_connector.pipeline._record_appender import RecordAppender
from helenus_connector.pipeline._table_version import TableVersions
from helenus_connector.pipeline._undeliverable import Undeliverable
from helenus_connector.pipeline._untraced import StageTrace
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Log

COMPILED = not __file__.endswith(".py")


class Publisher:
    """Publishes the keys that a batch resolved, and notes in each `ResolvedKey` what was published."""

    def __init__(self, versions: TableVersions, appender: RecordAppender, undeliverable: Undeliverable) -> None:
        self._versions = versions
        self._appender = appender
        self._undeliverable = undeliverable

    def traced(self, trace: StageTrace) -> Publisher:
        """Return what publishes a batch with this trace."""
        versions = trace.traced_versions(self._versions)
        return self if versions is self._versions else Publisher(versions, self._appender, self._undeliverable)

    def publish(self, log: Log, batch: ResolverBatch, group: Sequence[ResolvedKey], outcome: BatchOutcome) -> None:
        """Append the records of some keys of a batch. Raises as the Log, and as `Undeliverable`."""
        # 3. shape
        shaped = self._versions.current.shape.rows(group)
        ordinary: list[ResolvedKey] = []
        records: list[Record | None] = []
        for resolved_key, record in zip(group, shaped, strict=True):
            if record is None or resolved_key.last_digest is not None or resolved_key.is_released:
                records.append(None)
            else:
                records.append(record)
                ordinary.append(resolved_key)
        # 4. append
        batch.note_publishing(ordinary)
        append, topic = self._appender.ordinary_append(log), self._versions.current.topic
        record_count, newest_write_time = 0, None
        for resolved_key, record in zip(group, records, strict=True):
            if record is None:
                self._publish_key(log, batch, resolved_key, outcome)
                continue
            try:
                append(topic, resolved_key.partition, record[0], record[1], record[2])
            except HelenusError as error:
                if error.kind is not Kind.RECORD_TOO_LARGE:
                    raise
                self._publish_key(log, batch, resolved_key, outcome)
                continue
            if not resolved_key.is_confirmed:
                resolved_key.digest = digest_of_record(record)
            resolved_key.published, resolved_key.records = True, 1
            record_count += 1
            written = resolved_key.newest
            if written is not None and (newest_write_time is None or written > newest_write_time):
                newest_write_time = written
        outcome.records += record_count
        _note_write_time(newest_write_time, outcome)

    def _publish_key(self, log: Log, batch: ResolverBatch, resolved: ResolvedKey, outcome: BatchOutcome) -> None:
        """Append the records of one key, unless its image is the published one."""
        if resolved.failure is not None:
            self._undeliverable.bury_key(log, resolved, resolved.failure)
            return
        shape = self._versions.current.shape
        try:
            # 3. shape
            records = shape.records(resolved)
            if resolved.last_digest:
                resolved.digest = digest_of(records)
                if resolved.digest == resolved.last_digest:
                    return
                records = shape.records(resolved)  # rows of a marker are read once more
            # 4. append
            batch.note_publishing([resolved])
            if resolved.is_confirmed:
                for shaped in records:
                    self._appender.append(log, resolved, outcome, shaped)
            else:
                append = partial(self._appender.append, log, resolved, outcome)
                resolved.digest = digest_of(records, append)
        except RowsFailed as error:
            batch.note_failure(error)
            return
        except Malformed as error:  # of the cells of a change
            failure = HelenusError(Kind.POISON_EVENT, str(error), self._versions.current.table.full_name)
            self._undeliverable.bury_key(log, resolved, failure)
            return
        resolved.published = True
        _note_write_time(resolved.newest, outcome)


def _note_write_time(write_time: int | None, outcome: BatchOutcome) -> None:
    """Note a write time, if it is the newest."""
    newest = outcome.newest_write_time
    if write_time is not None and (newest is None or write_time > newest):
        outcome.newest_write_time = write_time

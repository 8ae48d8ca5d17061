"""Steps 3 and 4 of a stage: the keys of a group get their records, and these go to the producer.

A key of which nothing is out of the ordinary has one record, shaped with those of its group. Any other takes its own
way.

It runs as it is, and compiled by Cython with the types of `_publish.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.interfaces.resolver import Resolver, RowsFailed
from helenus_connector.interfaces.shape import Record
from helenus_connector.pipeline._image_digest import digest_of, digest_of_record
from helenus_connector.pipeline._record_appender import RecordAppender
from helenus_connector.pipeline._table_version import TableVersions
from helenus_connector.pipeline._undeliverable import Undeliverable
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Log

COMPILED = not __file__.endswith(".py")


class Publisher:
    """Publishes what a stage's resolver resolved. What it published is noted in each `ResolvedKey`."""

    def __init__(
        self, resolver: Resolver, versions: TableVersions, appending: RecordAppender, undeliverable: Undeliverable
    ) -> None:
        self._resolver = resolver
        self._versions = versions
        self._appending = appending
        self._undeliverable = undeliverable

    def publish(self, log: Log, group: Sequence[ResolvedKey], outcome: BatchOutcome) -> None:
        """Append the records of some keys. Raises as the Log, and as `Undeliverable`."""
        # 3. shape
        shaped = self._versions.now.shape.rows(group)
        ordinary: list[ResolvedKey] = []
        records: list[Record | None] = []
        for one, record in zip(group, shaped, strict=True):
            if record is None or one.last_digest is not None or one.is_released:
                records.append(None)
            else:
                records.append(record)
                ordinary.append(one)
        # 4. append
        self._resolver.note_publishing(ordinary)
        append, topic = log.append, self._versions.now.topic
        count, newest = 0, None
        for one, record in zip(group, records, strict=True):
            if record is None:
                self._one(log, one, outcome)
                continue
            try:
                append(topic, one.partition, record[0], record[1], record[2])
            except HelenusError as error:
                if error.kind is not Kind.RECORD_TOO_LARGE:
                    raise
                self._one(log, one, outcome)
                continue
            if not one.is_confirmed:
                one.digest = digest_of_record(record)
            one.published, one.records = True, 1
            count += 1
            written = one.newest
            if written is not None and (newest is None or written > newest):
                newest = written
        outcome.records += count
        _note(newest, outcome)

    def _one(self, log: Log, resolved: ResolvedKey, outcome: BatchOutcome) -> None:
        """Append the records of one key, unless nothing is new about them."""
        if resolved.failure is not None:
            self._undeliverable.key(log, resolved, resolved.failure)
            return
        shape = self._versions.now.shape
        try:
            # 3. shape
            records = shape.records(resolved)
            if resolved.last_digest:
                resolved.digest = digest_of(records)
                if resolved.digest == resolved.last_digest:
                    return
                records = shape.records(resolved)  # rows of a marker are read once more
            # 4. append
            self._resolver.note_publishing([resolved])
            if resolved.is_confirmed:
                for shaped in records:
                    self._appending.append(log, resolved, outcome, shaped)
            else:
                append = partial(self._appending.append, log, resolved, outcome)
                resolved.digest = digest_of(records, append)
        except RowsFailed as error:
            self._resolver.note_failure(error)
            return
        except Malformed as error:  # of the cells of a change
            failure = HelenusError(Kind.POISON_EVENT, str(error), self._versions.now.table.full_name)
            self._undeliverable.key(log, resolved, failure)
            return
        resolved.published = True
        _note(resolved.newest, outcome)


def _note(written: int | None, outcome: BatchOutcome) -> None:
    """Note a write time, if it is the newest."""
    known = outcome.newest_write_time
    if written is not None and (known is None or written > known):
        outcome.newest_write_time = written

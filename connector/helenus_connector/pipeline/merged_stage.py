"""What is done with what was merged of one table's events: `state=rows`. Knows no Spark.

    1 resolve  what the records show of it       4 ask      rows of events without cells are read, and come as events
    2 shape    what they look like               5 flush    wait for the brokers' acknowledgement
    3 append   records to the data topic's producer

Whatever raises leaves the batch to be done again, from the state that it began with: so nothing is marked, and nothing
is handed back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from helenus_connector.cassandra_rows import budget
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.state import marker_topic
from helenus_connector.interfaces.event import Event, Gap, parse_gap
from helenus_connector.interfaces.merged_change import GapEvent, MergedChange, PoisonEvent, ReadRequest, RowChange
from helenus_connector.interfaces.resolved_key import ResolvedKey
from helenus_connector.pipeline._cell_requests import Append, CellRequests
from helenus_connector.pipeline._record_appender import RecordAppender
from helenus_connector.pipeline._table_version import TableVersions
from helenus_connector.pipeline._undeliverable import Undeliverable
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.resolve.merge import StateResolver
from helenus_connector.shape.encoding.registry import RecordSchemas, Registry
from helenus_connector.shape.row.row import shown_table
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode, without_frames
from helenus_sinks.log import Log

FLUSH_TIMEOUT_S = 60.0
_GROUP_SIZE = 500
"""Rows that are shaped together, which costs less for each."""
_ROW = Scope.ROW


class MergedStage:
    """The work on one table's merged rows in one process. `log` takes records, `append` events.

    Call `begin`, `take` or `take_all` for the rows, `end` and `confirm`: they raise HelenusError, and then the batch is
    to be repeated.
    """

    def __init__(
        self,
        settings: ConnectorSettings,
        session: Any,
        log: Log,
        append: Append,
        directory: Path,
        schemas: RecordSchemas | None = None,
    ) -> None:
        self.settings = settings
        self.log = log
        self.append = append
        self._session = session
        self._name = f"{settings.keyspace}.{settings.table}"
        self._registry = None if log.keeps_schemas else schemas or Registry(settings, directory / "schemas")
        self._versions = TableVersions(settings, session, self._registry)
        self._budget = budget.budget_for(directory, settings)
        self._undeliverable = Undeliverable(settings)
        self._appender = RecordAppender(settings, self._versions, self._undeliverable)
        self._table: Table | None = None
        self._begin()

    def begin(self, table: Table) -> None:
        """Begin a batch. `table` is the table's current definition, with all its columns."""
        self._begin()
        is_repeated = self._appender.has_begun
        self._appender.begin_batch()
        if self._table != table:
            self._table = table
            self._cell_requests = CellRequests(self.settings, self._session, table, self._append_event, self._budget)
        self._versions.follow(self.log, is_repeated=is_repeated)
        version = self._versions.current
        self._resolver = StateResolver(self.settings.events, version.table, version.codec)
        if version.schemas is not None:
            self.log.declare(version.topic, version.schemas)
            if not self.settings.markers:
                self.log.declare(marker_topic(self.settings.data), version.schemas)

    def _begin(self) -> None:
        self.outcome = BatchOutcome()
        self._requests: list[ReadRequest] = []
        self._events: list[tuple[int, bytes, bytes]] | None = None

    def take(self, merged: MergedChange) -> None:
        """Publish a merged row, or the merged scope of a delete; keep a request for `end`."""
        match merged:
            case RowChange():
                self._publish(merged)
            case ReadRequest():
                self._requests.append(merged)
            case PoisonEvent(event, failure):
                self._bury_poison(event, failure)
            case GapEvent(event):
                self.outcome.gaps.append(_gap(event))

    def take_all(self, changes: Iterable[MergedChange]) -> None:
        """Take changes as `take` does each: rows that follow one another are shaped together."""
        group: list[RowChange] = []
        for merged in changes:
            if type(merged) is RowChange and merged.scope is _ROW:
                group.append(merged)
                if len(group) < _GROUP_SIZE:
                    continue
                self._publish_rows(group)
                group = []
                continue
            self._publish_rows(group)
            group = []
            self.take(merged)
        self._publish_rows(group)

    def _publish_rows(self, changes: Sequence[RowChange]) -> None:
        """Publish rows, in order. One without an ordinary record is published by itself."""
        resolve = self._resolver.resolved
        resolved_changes: list[RowChange] = []
        resolved_keys: list[ResolvedKey] = []
        for change in changes:
            try:
                resolved = resolve(change)  # 1. resolve
            except Malformed as error:
                assert change.event is not None
                self._bury_poison(change.event, str(error))
                continue
            if resolved is not None:
                resolved_changes.append(change)
                resolved_keys.append(resolved)
        version = self._versions.current
        records = version.shape.rows(resolved_keys)  # 2. shape
        append, topic = self._appender.ordinary_append(self.log), version.topic
        newest, count = self.outcome.newest_write_time, 0
        for change, resolved, record in zip(resolved_changes, resolved_keys, records, strict=True):
            if record is None:
                self._publish(change)
                continue
            try:
                append(topic, resolved.partition, record[0], record[1], record[2])  # 3. append
            except HelenusError as error:
                if error.kind is not Kind.RECORD_TOO_LARGE:
                    raise
                self._publish(change)
                continue
            count += 1
            written = resolved.newest
            if written is not None and (newest is None or written > newest):
                newest = written
        self.outcome.records += count
        if newest is not None:
            self.outcome.newest_write_time = max(newest, self.outcome.newest_write_time or newest)

    def _publish(self, change: RowChange) -> None:
        try:
            resolved = self._resolver.resolved(change)  # 1. resolve
            if resolved is None:
                return
            for shaped in self._versions.current.shape.records(resolved):  # 2. shape
                self._appender.append(self.log, resolved, self.outcome, shaped)  # 3. append
        except Malformed as error:
            assert change.event is not None
            self._bury_poison(change.event, str(error))
            return
        if resolved.newest is not None:
            self.outcome.newest_write_time = max(resolved.newest, self.outcome.newest_write_time or resolved.newest)

    def check(self, columns: Set[tuple[str, CqlType]]) -> None:
        """Raise HelenusError BATCH_FAILED if rows were merged by a definition with a column that is unknown where
        records are made: they would omit it, and the state would move on.
        """
        assert self._table is not None
        table_columns = {column.name: column.type for column in self._table.values}
        published_columns = {column.name: column.type for column in shown_table(self._table, self.settings).values}
        record_columns = {column.name: column.type for column in self._versions.current.table.values}
        if not columns <= table_columns.items() or not published_columns.items() <= record_columns.items():
            problem = "the table was altered while a batch of it was under way, and not each process knows it yet"
            raise HelenusError(Kind.BATCH_FAILED, problem, self._name)

    def end(self, flush: Callable[[float], None] | None = None) -> BatchOutcome:
        """Return the outcome of the batch, once its records are acknowledged: by the log's `flush`, or another one. Its
        events may not be yet. With another one the events come last: a transaction that has some keeps all other
        readers of their topic waiting.
        """
        if self._versions.is_altered():
            raise HelenusError(Kind.BATCH_FAILED, "the table was altered while a batch of it was under way", self._name)
        (flush or self.log.flush)(FLUSH_TIMEOUT_S)  # 4. flush: rows are read next, which may take long
        self._events = None if flush is None else []
        self._cell_requests.answer(self._requests, self.outcome)  # 5. ask
        for event in self._events or ():
            self.append(*event)
        return self.outcome

    def confirm(self) -> None:
        """Note that the records of the batch are acknowledged, or committed, and will not be dropped: without it, the
        batch counts as failed.
        """
        self._appender.end_batch()

    def close(self) -> None:
        """Close all but the session and the Log, which others use too."""
        self._budget.close()
        self._appender.close()
        if self._registry is not None:
            self._registry.close()

    def _append_event(self, partition: int, key: bytes, value: bytes) -> None:
        if self._events is None:
            self.append(partition, key, value)
        else:
            self._events.append((partition, key, value))

    def _bury_poison(self, event: Event, reason: str) -> None:
        cause = HelenusError(Kind.POISON_EVENT, reason, self._name)
        self.outcome.dead_lettered += self._undeliverable.bury_events(self.log, [(event, cause)])


def _gap(event: Event) -> Gap:
    return parse_gap(event, decode(without_frames(None, event.value or b"")[1]))

"""Events without cells, for a table whose rows are kept: their rows are read as cells, which are appended as events.

A snapshot asks for each key in this way, and so does an event that was too large for its cells, or that leaves a row in
doubt. What is read becomes a Change with cells. Its `segment` is when it was read, by the node's clock, its `position`
the time of the batch that asked, both in ms since the epoch; its `part` is how many disturbances the partition had
then; `write_time` and `effect` are those of the event that asked. `state.rows` merges it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from cassandra import ConsistencyLevel

from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.cell_reader import CellReader, ReadRow, UnreadReason
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.event_content import decode_event
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import ReadRequest
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cells, Deletion, Liveness
from helenus_schemas.event.cells_writer import encode_cells
from helenus_schemas.event.change import FIRST_COLUMN, Change, Effect, Origin, Scope, column_bit
from helenus_schemas.event.wire import encode, request

_KEYS_AT_ONCE = 500
_log = structlog.get_logger(__name__)

Append = Callable[[int, bytes, bytes], None]
"""Appends an event: its partition, key and value."""


class CellRequests:
    """Answers events without cells of one version of a table. `append` puts events on their topic.

    A write that a read does not show yet is read again, until it is `settle.min.age.ms` old: by then each replica has
    it, or it was overwritten.
    """

    def __init__(
        self, settings: ConnectorSettings, session: Any, table: Table, append: Append, budget: ReadBudget | None = None
    ) -> None:
        self._table = table
        self._codec = KeyCodec(table)
        self._reader = CellReader(session, table, settings, budget)
        self._consistency: int = getattr(ConsistencyLevel, settings.query_consistency)
        self._patience_s = settings.settle_min_age_ms / 1000
        self._append = append

    def answer(self, requests: Sequence[ReadRequest], outcome: BatchOutcome) -> None:
        """Read the requested rows, each once, and append their cells; for a key that can't be read now, append a
        request to read it later. Raises as `CellReader`, CASSANDRA_READ if the replicas of all keys are unavailable,
        and TABLE_UNSUPPORTED for an event of more than a row, which no read can answer.
        """
        by_key: dict[tuple[Key, Scope], list[tuple[ReadRequest, Change]]] = {}
        for requested in requests:
            change, values = self._decode_request(requested)
            if change.scope is Scope.STATIC:
                values = values[: self._codec.partition_columns]
            by_key.setdefault((values, change.scope), []).append((requested, change))
        keys = list(by_key)
        for index in range(0, len(keys), _KEYS_AT_ONCE):
            chunk = keys[index : index + _KEYS_AT_ONCE]
            began_ms = int(time.time() * 1000)
            statements_before = self._reader.statements
            answers = list(self._reader.read(chunk, self._consistency))
            outcome.keys_read += len(chunk)
            outcome.statements += self._reader.statements - statements_before
            self._check_answers(answers)
            for key, row in zip(chunk, answers, strict=True):
                for requested, change in by_key[key]:
                    if isinstance(row, UnreadReason):
                        # It is not read again at once: that may be what is too much for its replicas.
                        self._append(requested.partition, requested.key, request(change.scope, Origin.STATE))
                        continue
                    answer = self._answer(requested.event, change, row, began_ms)
                    if answer is not None:
                        answer = answer._replace(part=requested.disturbances)
                        if answer.cells is not None:
                            answer = answer._replace(position=requested.requested_at * 1000)
                        self._append(requested.partition, requested.key, encode(answer))

    def _check_answers(self, answers: Sequence[ReadRow | UnreadReason | None]) -> None:
        """Log keys that can't be read. Raises HelenusError CASSANDRA_READ if nothing answers."""
        unread = [answer for answer in answers if isinstance(answer, UnreadReason)]
        if not unread:
            return
        error = unread[0].error
        if len(unread) == len(answers) and all(answer.is_away for answer in unread):
            raise error
        _log.warning("state.rows_unreadable", table=self._table.full_name, rows=len(unread), reason=error.what)

    def _decode_request(self, requested: ReadRequest) -> tuple[Change, Key]:
        """Return a request as a Change, that of its event or one of the state, and the values of its key."""
        event = requested.event
        if event is None:
            deleted_to = requested.deleted_to
            effect = int(Effect.LIVE) if deleted_to is None else 0
            change = Change(None, None, requested.scope, write_time=deleted_to, effect=effect, origin=Origin.STATE)
            return change, self._codec.decode(requested.key)
        change, key = decode_event(event, self._codec)
        if change.scope not in (Scope.ROW, Scope.STATIC):
            problem = "the delete of more than a row, without its write time: no read can say what it took away"
            where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, problem, where, "set cells.include.list of the agents")
        return change, self._codec.decode(key)

    def _answer(self, event: Event | None, change: Change, row: ReadRow | None, began_ms: int) -> Change | None:
        """Return the event to append: the row's cells, or a request to read it again. None for a row that was deleted
        since it was requested, which is an event of its own. `began_ms` is when the read began, since the epoch.
        """
        if event is not None and change.origin is Origin.LOG:
            return self._log_answer(event, change, row, began_ms)
        if row is None and event is not None and change.origin is not Origin.REPAIR:
            return None
        read_at_ms = began_ms if row is None else row.read_at_ms
        cells, gone_at = self._cells(row), change.write_time if event is None else None
        if change.origin is Origin.REPAIR:  # what the state has is wrong
            gone_at = int((read_at_ms / 1000 - self._patience_s) * 1e6)
            if row is None:
                cells = cells._replace(deletion=Deletion(gone_at, read_at_ms // 1000))
        answer = _read_answer(change.scope, change.origin, read_at_ms, began_ms, cells)
        return answer._replace(write_time=gone_at, effect=0 if gone_at is not None else int(Effect.LIVE))

    def _log_answer(self, event: Event, change: Change, row: ReadRow | None, began_ms: int) -> Change:
        """Answer an event of a commit log, which says without a read whether the row itself was written or deleted."""
        asked_at = min(
            _first_asked_at(event, change), began_ms / 1000
        )  # the agent's clock may be ahead of this one, by years
        if not _shows(change, row) and began_ms / 1000 - asked_at < self._patience_s:
            return change._replace(digest=None, node=None, foreign=False, segment=int(asked_at * 1000), cells=None)
        read_at_ms = began_ms if row is None else row.read_at_ms
        written = event.timestamp * 1000 if change.write_time is None else change.write_time
        cells, effect, expires = self._cells(row), change.effect, change.expires_at
        lives = expires is None or expires > read_at_ms // 1000
        # One that has a write time was asked for until it is sure that it is deleted, be it by what is not known here.
        is_sure = change.write_time is not None and effect & Effect.LIVE
        if row is None and is_sure and lives:
            effect &= ~int(Effect.ROW)
        if effect & Effect.ROW:
            ttl = None if expires is None else max(1, expires - written // 1_000_000)
            cells = cells._replace(liveness=Liveness(written, ttl, expires))
        if change.effect & Effect.GONE:
            cells = cells._replace(deletion=Deletion(written, read_at_ms // 1000))
        return _read_answer(change.scope, Origin.STATE, read_at_ms, began_ms, cells)._replace(
            write_time=written, effect=effect
        )

    def _cells(self, row: ReadRow | None) -> Cells:
        if row is not None:
            return row.cells
        return Cells(self._table.id.bytes, bytes.fromhex(self._table.schema_id), {})


def _read_answer(scope: Scope, origin: Origin, read_at_ms: int, began_ms: int, cells: Cells) -> Change:
    return Change(None, None, scope, segment=read_at_ms, position=began_ms, origin=origin, cells=encode_cells(cells))


def _first_asked_at(event: Event, change: Change) -> float:
    """Return when a key was requested first, s since the epoch: a repeated request has that time in place of a
    segment's.
    """
    return (change.segment if change.digest is None and change.segment >= 0 else event.timestamp) / 1000


def _shows(change: Change, row: ReadRow | None) -> bool:
    """Return whether a read shows what a change wrote, or something newer. A change that only deletes writes nothing
    that a read could show.
    """
    if not change.effect & Effect.LIVE or change.write_time is None:
        return True
    columns = change.effect >> FIRST_COLUMN
    if change.effect & Effect.ROW and not columns:
        return row is not None
    return row is not None and any(
        cell.write_time >= change.write_time
        for cell in row.cells.cells
        if not columns or change.effect & column_bit(cell.column)
    )

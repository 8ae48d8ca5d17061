"""Events without cells, for a table whose rows are kept: their rows are read as cells, which come as events.

A snapshot asks for each key in this way, and so does an event that was too large for its cells. What is read merges
with what the log says, in whatever order both come: it has the write times that Cassandra has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from cassandra import ConsistencyLevel

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate.event import decoded
from helenus_connector.interfaces.gate import Event
from helenus_connector.pipeline.outcome import Outcome
from helenus_connector.reread.cells import CellReader
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, Cells, Deletion
from helenus_schemas.event.cells_writer import encode_cells
from helenus_schemas.event.change import Change, Effect, Origin, Scope
from helenus_schemas.event.wire import encode

_AT_ONCE = 500

Append = Callable[[int, bytes, bytes], None]
"""Appends an event: its partition, key and value."""


class Asked:
    """Answers events without cells of one version of a table. `append` puts events on their topic.

    A write that a read does not show yet is asked again, until it is `settle.min.age.ms` old: by then each replica has
    it, or it was overwritten.
    """

    def __init__(self, settings: ConnectorSettings, session: Any, table: Table, append: Append) -> None:
        self._table = table
        self._codec = KeyCodec(table)
        self._reader = CellReader(session, table, settings)
        self._consistency: int = getattr(ConsistencyLevel, settings.query_consistency)
        self._patience_s = settings.settle_min_age_ms / 1000
        self._append = append

    def answer(self, events: Sequence[Event], outcome: Outcome) -> None:
        """Read their rows, and append what is there. Raises as `CellReader`, and TABLE_UNSUPPORTED for an event of more
        than a row, which no read can answer.
        """
        for at in range(0, len(events), _AT_ONCE):
            asked = [self._change(event) for event in events[at : at + _AT_ONCE]]
            width = self._codec.partition_columns
            keys = [(values[:width] if c.scope is Scope.STATIC else values, c.scope) for _, c, values in asked]
            found = self._reader.read(keys, self._consistency)
            outcome.keys_read += len(keys)
            outcome.statements += len(keys)
            for (event, change, _), cells in zip(asked, found, strict=True):
                value = self._answer(event, change, cells, time.time())
                if value is not None:
                    self._append(event.partition, event.key or b"", value)

    def _change(self, event: Event) -> tuple[Event, Change, tuple[bytes | None, ...]]:
        change, key = decoded(event, self._codec)
        if change.scope not in (Scope.ROW, Scope.STATIC):
            what = "the delete of more than a row, without its write time: no read can say what it took away"
            where = f"topic {event.topic}, partition {event.partition}, offset {event.offset}"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, what, where, "set cells.include.list of the agents")
        return event, change, self._codec.decode(key)

    def _answer(self, event: Event, change: Change, cells: Cells | None, now: float) -> bytes | None:
        is_of_log = change.origin is Origin.LOG
        if is_of_log and not _shows(change, cells) and now - _since(event, change) < self._patience_s:
            asked_at = int(_since(event, change) * 1000)
            return encode(change._replace(digest=None, node=None, foreign=False, segment=asked_at))
        gone_at = None
        if is_of_log:
            gone_at = event.timestamp * 1000 if change.write_time is None else change.write_time
        elif change.origin is Origin.REPAIR:  # what the state has is wrong
            gone_at = int((now - self._patience_s) * 1e6)
        if cells is None and gone_at is not None and not (is_of_log and change.effect & Effect.LIVE):
            cells = Cells(self._table.id.bytes, bytes(16), {}, deletion=Deletion(gone_at, int(now)))
        elif cells is not None and gone_at is not None:
            cells = _with_tombstones(cells, Deletion(gone_at, int(now)))
        if cells is None or not (cells.cells or cells.liveness or cells.deletion):
            return None  # it was deleted since, which is an event of its own
        origin = Origin.STATE if is_of_log else change.origin
        return encode(Change(None, None, change.scope, origin=origin, cells=encode_cells(cells)))


def _with_tombstones(cells: Cells, gone: Deletion) -> Cells:
    """With what a read does not show: that columns were deleted by then. Of a column of many cells only what is older
    than each that is there.
    """
    there: dict[str, int] = {}
    for cell in cells.cells:
        there[cell.column] = min(cell.write_time, there.get(cell.column, cell.write_time))
    many = {
        name: gone._replace(write_time=min(gone.write_time, there.get(name, gone.write_time + 1) - 1))
        for name, t in cells.columns.items()
        if t.multicell
    }
    single = [
        Cell(name, gone.write_time, None, deleted_at=gone.deleted_at)
        for name, t in cells.columns.items()
        if not t.multicell and name not in there
    ]
    return cells._replace(deletions=many, cells=(*cells.cells, *single))


def _since(event: Event, change: Change) -> float:
    """When a key was asked for first, s since the epoch: an event that asks again has it where others have a segment's
    time.
    """
    return (change.segment if change.digest is None and change.segment else event.timestamp) / 1000


def _shows(change: Change, cells: Cells | None) -> bool:
    """Whether a read shows what a change did, or something newer."""
    if cells is None:
        return not change.effect & Effect.LIVE
    if not change.effect & Effect.LIVE or change.write_time is None:
        return True
    return any(cell.write_time >= change.write_time for cell in cells.cells)

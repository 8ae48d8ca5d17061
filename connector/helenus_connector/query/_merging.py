"""The operator of a query with state: merges a partition's events into its rows, and gives what became of them.

    source → groupBy(place).transformWithStateInPandas(`Merging`) → stage

It reads no row. What it gives depends on its state, the events and the batch's time alone, so that a repeated batch
gives the same. Spark keeps its state with the checkpoint, and goes back to that of the batch before, if one fails.
"""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from helenus_connector.control.plan import Plan
from helenus_connector.interfaces.gate import Event
from helenus_connector.query import sessions
from helenus_connector.query.garbage import freeze
from helenus_connector.query.packs import Note, unpacked
from helenus_connector.query.sessions import end_with_parent
from helenus_connector.reread.definition import definition
from helenus_connector.state.merged import Merged
from helenus_connector.state.rows import Rows
from helenus_connector.state.spark_store import SparkStore
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Scope

MERGED = "notes binary, merged binary, ended binary"
"""Of each partition a row with its note, rows of what was merged, as `packed`, and a row with a pickled `Ended`."""
_PACK = 500
_PACK_BYTES = 1 << 20
_definitions: dict[str, tuple[object, Table]] = {}


class Ended(NamedTuple):
    """What is left of a partition's batch: when something of it expires next, s since the epoch, and what was counted.

    `read` events came in; `merged` are those that changed something, `unchanged` those that did not.
    """

    partition: int
    due: float | None
    read: int
    merged: int
    rows: int


class Merging(StatefulProcessor):
    """`plan` is a saved `Plan`. Raises HelenusError for what must not be passed over, by which the batch fails."""

    def __init__(self, plan: bytes) -> None:
        self._plan = plan

    def init(self, handle: StatefulProcessorHandle) -> None:
        end_with_parent()
        self._store = SparkStore(handle)
        self._now = Plan.loads(self._plan)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: ARG002, N802, N803
        settings = next(iter(self._now.connectors.values()))
        found = in_turn(rows)
        notes: list[Note] = pickle.loads(next(found)[0] or b"")
        for note in notes:
            if note.error is not None:
                raise note.error
        yield _frame(notes=pickle.dumps(notes))
        table = self._table(settings)
        place = notes[0]
        merging = Rows(table, KeyCodec(table), self._store)
        later: list[Note] = []
        read = 0

        def events() -> Iterator[Event]:
            nonlocal read
            for about, pack in found:
                for note in pickle.loads(about) if about is not None else ():
                    if note.error is not None:
                        raise note.error
                    later.append(note)
                if pack is not None:
                    for event in unpacked(pack):
                        read += 1
                        yield event

        merged = 0
        for pack, count in packed(merging.take(events(), place.now)):
            merged += count
            yield _frame(merged=pack)
        if later:
            yield _frame(notes=pickle.dumps(later))
        ended = Ended(place.partition, merging.next_due, read, merged, merging.count)
        yield _frame(ended=pickle.dumps(ended))
        freeze("merging")

    def close(self) -> None:
        pass

    def _table(self, settings: Any) -> Table:
        """The table as it is now: one small read says whether any schema changed."""
        known = _definitions.get(settings.events)
        new = definition(sessions.of(settings), settings, None if known is None else known[0])
        if new is not None:
            known = _definitions[settings.events] = new
        assert known is not None
        return known[1]


def in_turn(frames: Iterator[pd.DataFrame]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Notes and events of one partition's rows, by `turn`. They nearly always come in it. Raises BATCH_FAILED."""
    early: dict[int, tuple[bytes | None, bytes | None]] = {}
    turn = 0
    for frame in frames:
        for at, notes, events in zip(frame["turn"], frame["notes"], frame["events"], strict=True):
            early[at] = notes, events
            while (there := early.pop(turn, None)) is not None:
                yield there
                turn += 1
    if early:
        raise HelenusError(Kind.BATCH_FAILED, f"row {turn} of a partition's events is missing")


def packed(merged: Iterator[Merged]) -> Iterator[tuple[bytes, int]]:
    """Many in one piece of bytes, and how many: what `unpacked_merged` takes."""
    pack: list[tuple[object, ...]] = []
    size = 0
    for m in merged:
        bounds = m.bounds and tuple(b and (b.inclusive, b.values) for b in m.bounds)
        before, after = (None if row is None else dict(row) for row in (m.before, m.after))
        pack.append((*m[:2], int(m.scope), bounds, m.op, before, after, *m[7:9], m.event and tuple(m.event)))
        size += sum(len(value or b"") for row in (before, after) for value in (row or {}).values())
        if len(pack) == _PACK or size >= _PACK_BYTES:
            yield marshal.dumps(pack), len(pack)
            pack, size = [], 0
    if pack:
        yield marshal.dumps(pack), len(pack)


def unpacked_merged(pack: bytes) -> list[Merged]:
    """What a process of this run packed."""
    return [_merged(*fields) for fields in marshal.loads(pack)]


def _merged(
    partition: int, key: bytes, scope: int, bounds: Any, op: str, before: Any, after: Any, at: Any, expires: Any, event: Any
) -> Merged:
    limits = bounds and tuple(None if b is None else Bound(*b) for b in bounds)
    asked = None if event is None else Event._make(event)
    return Merged(partition, key, Scope(scope), limits, op, before, after, at, expires, asked)


def _frame(**fields: bytes) -> pd.DataFrame:
    return pd.DataFrame({name: [fields.get(name)] for name in ("notes", "merged", "ended")})

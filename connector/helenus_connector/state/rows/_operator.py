"""The operator of `state=rows` on Spark: merges a place's events into its rows, and gives what became of them.

    source → groupBy(place).transformWithStateInPandas(`RowsOperator`) → stage

It reads no row. What it gives depends on its state, the events and the batch's time alone, so that a repeated batch
gives the same. Spark keeps the state with the checkpoint, and goes back to that of the batch before, if one fails.
"""

from __future__ import annotations

import marshal
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange
from helenus_connector.query.cassandra_sessions import end_with_parent
from helenus_connector.query.event_packs import PartitionNote, unpack_events
from helenus_connector.state.rows._merge import RowMerge
from helenus_connector.state.store.pages import Pages
from helenus_connector.state.store.spark_store import SparkStore
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Bound, Scope
from helenus_schemas.service.failpoints import reach

OUTPUT = "notes binary, merged binary, ended binary"
"""Of each place a row with its notes, rows of what was merged, as `packed`, and a row with a pickled `PlaceResult`."""
_PACK = 500
_PACK_BYTES = 1 << 20


class PlaceResult(NamedTuple):
    """What a batch leaves of a place: when something of it expires next, s since the epoch, and what was counted.

    `read` events came in. `copies`, `outdated` and `unchanged` of them as of `RowMerge`; `kept` are the rows of the
    place, `waiting` the times that are noted for them. Changes of a row came without their cells from the nodes
    `light`, and with them from `celled`. `columns` are those of the definition by which they were merged.
    `disturbances` as of `RowMerge`.
    """

    partition: int
    next_due: float | None
    read: int
    copies: int
    outdated: int
    unchanged: int
    row_count: int
    waiting_count: int
    nodes_without_cells: frozenset[str] = frozenset()
    nodes_with_cells: frozenset[str] = frozenset()
    columns: frozenset[tuple[str, CqlType]] = frozenset()
    disturbances: int = 0


class RowsOperator(StatefulProcessor):
    """Takes rows of the source's `PLACED`, grouped by place. `table` gives the table as it is now, given True as all
    nodes have it; `patience_s`, `markers`, `is_whole`, `has_snapshots`, and by partition `proven`, as of `RowMerge`.
    Raises HelenusError for what must not be passed over: then the batch fails, and is done again as a whole.
    """

    def __init__(
        self,
        table: Callable[..., Table],
        patience_s: int,
        markers: bool,
        is_whole: bool,
        proven: Mapping[int, int] | None = None,
        has_snapshots: bool = True,
    ) -> None:
        self._table = table
        self._more = patience_s, markers, is_whole, has_snapshots
        self._proven = proven or {}
        self._store: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        end_with_parent()
        self._store = SparkStore.opened(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ARG002, N802, N803
        found = in_turn(rows)
        notes = _notes(next(found)[0])
        yield _frame(notes=pickle.dumps(notes))
        (place, *_), table = notes, self._table()
        store = Pages(self._store)
        given = table, KeyCodec(table), store, place.partition, table.gc_grace_s
        proven = self._proven.get(place.partition, 0)
        patience_s, markers, is_whole, has_snapshots = self._more
        merging = RowMerge(
            *given, patience_s, markers, is_whole, lambda: self._table(True).id, proven, has_snapshots=has_snapshots
        )
        later: list[PartitionNote] = []
        read = 0

        def events() -> Iterator[Event]:
            nonlocal read
            for about, pack in found:
                later.extend(notes_left := _notes(about))
                merging.reporting_nodes.update(*(note.copies for note in notes_left))
                for event in unpack_events(bytes(pack)) if pack is not None else ():
                    read += 1
                    yield event

        for pack in packed(merging.take(events(), place.now, has_lost=any(note.lost for note in notes))):
            yield _frame(merged=pack)
        store.flush()
        reach("state.after-merge")
        if later:
            yield _frame(notes=pickle.dumps(later))
        left_out = Counter[str]()
        for note in later:
            left_out.update(note.copies)
        copies = left_out.total()
        counts = (
            read + copies,
            merging.copies + copies,
            merging.outdated,
            merging.unchanged,
            merging.row_count,
            merging.waiting_count,
        )
        nodes = frozenset(merging.nodes_without_cells), frozenset(merging.nodes_with_cells) | left_out.keys()
        columns = frozenset((column.name, column.type) for column in table.values)
        ended = PlaceResult(place.partition, merging.next_due, *counts, *nodes, columns, merging.disturbances)
        yield _frame(ended=pickle.dumps(ended))

    def close(self) -> None:
        pass


def in_turn(frames: Iterable[Any]) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Notes and events of one place's rows, by their `turn`, which they nearly always come in. Raises BATCH_FAILED."""
    early: dict[int, tuple[bytes | None, bytes | None]] = {}
    turn = 0
    for frame in frames:
        for at, notes, events in zip(frame["turn"], frame["notes"], frame["events"], strict=True):
            early[int(at)] = notes, events
            while (there := early.pop(turn, None)) is not None:
                yield there
                turn += 1
    if early or not turn:
        raise HelenusError(Kind.BATCH_FAILED, f"row {turn} of a place's events is missing")


def packed(merged: Iterable[MergedChange]) -> Iterator[bytes]:
    """Many in one piece of bytes: what `unpacked_merged` takes."""
    pack: list[tuple[object, ...]] = []
    size = 0
    for m in merged:
        bounds = m.bounds and tuple(b and (b.inclusive, b.values) for b in m.bounds)
        before, after = (None if row is None else dict(row) for row in (m.before, m.after))
        event = None if m.event is None else tuple(m.event)
        fields = m.partition, m.key, int(m.scope), bounds, m.op, before, after, *m[7:9], event, m.failure
        pack.append((*fields, m.disturbances))
        size += sum(len(value or b"") for row in (before, after) for value in (row or {}).values())
        size += 0 if m.event is None else len(m.event.value or b"")
        if len(pack) == _PACK or size >= _PACK_BYTES:
            yield marshal.dumps(pack)
            pack, size = [], 0
    if pack:
        yield marshal.dumps(pack)


def unpacked_merged(pack: bytes) -> Iterator[MergedChange]:
    """What a process of this run packed."""
    for partition, key, scope, bounds, op, before, after, at, expires, event, *others in marshal.loads(pack):
        limits = bounds and tuple(None if bound is None else Bound(*bound) for bound in bounds)
        asked = None if event is None else Event._make(event)
        yield MergedChange(partition, key, Scope(scope), limits, op, before, after, at, expires, asked, *others)


def _notes(data: bytes | None) -> list[PartitionNote]:
    """Raises the error of a note: state must not move on past events that were not read."""
    notes: list[PartitionNote] = [] if data is None else pickle.loads(bytes(data))
    for note in notes:
        if note.error is not None:
            raise note.error
    return notes


def _frame(**fields: bytes) -> Any:
    import pandas as pd

    return pd.DataFrame({name: [fields.get(name)] for name in ("notes", "merged", "ended")})

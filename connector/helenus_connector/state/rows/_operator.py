"""The operator of `state=rows` on Spark: merges a partition's events into its rows, and gives the changes.

    source → groupBy(place).transformWithStateInPandas(`RowsOperator`) → stage

It reads no row. Its changes depend on its state, the events, the batch's time and rules, the table's definition and the
nodes' version alone, so that a repeated batch gives the same unless the table was altered, or the last node of
Cassandra 3.x upgraded, meanwhile. Spark keeps the state with the checkpoint, and goes back to that of the batch before,
if one fails.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.store import Store
from helenus_connector.query import worker_process
from helenus_connector.query.event_packs import PartitionNote, unpack_events
from helenus_connector.query.garbage import freeze
from helenus_connector.state.rows._change_pack import pack_changes
from helenus_connector.state.rows._merge import TopicPartitionMerger
from helenus_connector.state.store.pages import Pages
from helenus_connector.state.store.spark_store import SparkStore
from helenus_connector.state.store.versions import refuse_unknown_versions
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.failpoints import reach

OUTPUT = "notes binary, merged binary, ended binary"
"""Of each partition a row with its notes, rows of packed changes, and a row with a pickled `PlaceResult`."""
TurnRow = tuple[bytes | None, bytes | None]
"""The notes and the events of a row of `PLACED`."""


class PlaceResult(NamedTuple):
    """The result of a batch for one topic partition: when something of it expires next, s since the epoch, and counts.

    `read` events came in. `copies`, `outdated`, `unchanged`, `row_count`, `calendar_entry_count`,
    `nodes_without_cells`, `nodes_with_cells` and `disturbances` as of `TopicPartitionMerger`. `columns` are those of
    the definition by which the events were merged.
    """

    partition: int
    next_due: float | None
    read: int
    copies: int
    outdated: int
    unchanged: int
    row_count: int
    calendar_entry_count: int
    nodes_without_cells: frozenset[str] = frozenset()
    nodes_with_cells: frozenset[str] = frozenset()
    columns: frozenset[tuple[str, CqlType]] = frozenset()
    disturbances: int = 0


@dataclass(frozen=True)
class MergeRules:
    """What the merge of a batch goes by, as of `TopicPartitionMerger`; `proven_up_to` by partition. A batch has its
    own, in its offset: so it is repeated by the same.
    """

    patience_s: int
    markers: bool
    trusts_absence: bool
    has_snapshots: bool = True
    proven_up_to: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return them in JSON's types."""
        return {**asdict(self), "proven_up_to": {str(number): count for number, count in self.proven_up_to.items()}}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> MergeRules:
        """Return the rules of these fields, of which a later version may have more."""
        fields = {name: value for name, value in fields.items() if name in cls.__dataclass_fields__}
        proven_up_to = {int(number): count for number, count in fields["proven_up_to"].items()}
        return cls(**{**fields, "proven_up_to": proven_up_to})


class MergedRow(NamedTuple):
    """A row of `OUTPUT`."""

    notes: bytes | None = None
    merged: bytes | None = None
    ended: bytes | None = None


class PlaceMerge:
    """The merge of the places of one task or of one batch, by the definition of the table as of its first place: the
    batch's events were read before. `table` and `is_cassandra_3` are as of `RowsOperator`.
    """

    def __init__(self, table: Callable[..., Table], is_cassandra_3: Callable[[], bool]) -> None:
        self._table, self._is_cassandra_3 = table, is_cassandra_3
        self._definition: Table | None = None

    def merge(self, rows: Iterator[TurnRow], below: Store) -> Iterator[MergedRow]:
        """Merge a place's rows of the source's `PLACED`, in their turns, into its store, and give those of `OUTPUT`.
        Raises HelenusError for what must not be skipped: then the batch fails, and is repeated as a whole.
        """
        return refuse_unknown_versions(self._merge(rows, below))

    def _merge(self, rows: Iterator[TurnRow], below: Store) -> Iterator[MergedRow]:
        notes = _notes(next(rows)[0])
        yield MergedRow(notes=pickle.dumps(notes))
        table = self._definition = self._definition or self._table()
        (first_note, *_), store = notes, Pages(below)
        table_fields = table, KeyCodec(table), store, first_note.partition, table.gc_grace_s
        rules = MergeRules.from_json(first_note.rules)
        merger = TopicPartitionMerger(
            *table_fields,
            rules.patience_s,
            rules.markers,
            rules.trusts_absence,
            lambda: self._table(True).id,
            rules.proven_up_to.get(first_note.partition, 0),
            has_snapshots=rules.has_snapshots,
            is_cassandra_3=self._is_cassandra_3(),
        )
        later_notes: list[PartitionNote] = []
        read_count = 0

        def events() -> Iterator[Event]:
            nonlocal read_count
            for note_bytes, pack in rows:
                later_notes.extend(row_notes := _notes(note_bytes))
                merger.reporting_nodes.update(*(note.copies for note in row_notes))
                for event in unpack_events(bytes(pack)) if pack is not None else ():
                    read_count += 1
                    yield event

        for pack in pack_changes(merger.take(events(), first_note.now, has_lost=any(note.lost for note in notes))):
            yield MergedRow(merged=pack)
        store.flush()
        reach("state.after-merge")
        if later_notes:
            yield MergedRow(notes=pickle.dumps(later_notes))
        copies_left_out = Counter[str]()
        for note in later_notes:
            copies_left_out.update(note.copies)
        copies = copies_left_out.total()
        counts = (
            read_count + copies,
            merger.copies + copies,
            merger.outdated,
            merger.unchanged,
            merger.row_count,
            merger.calendar_entry_count,
        )
        nodes = frozenset(merger.nodes_without_cells), frozenset(merger.nodes_with_cells) | copies_left_out.keys()
        columns = frozenset((column.name, column.type) for column in table.values)
        result = PlaceResult(first_note.partition, merger.next_due, *counts, *nodes, columns, merger.disturbances)
        yield MergedRow(ended=pickle.dumps(result))


class RowsOperator(StatefulProcessor):
    """Takes rows of the source's `PLACED`, grouped by place. `table` gives the current table, given True as all nodes
    have it, and `request_table` asks for it ahead; what `is_cassandra_3` gives is as of `TopicPartitionMerger`. Raises
    as `PlaceMerge`.
    """

    def __init__(
        self,
        table: Callable[..., Table],
        is_cassandra_3: Callable[[], bool],
        request_table: Callable[[], None] | None = None,
    ) -> None:
        self._place_merge = PlaceMerge(table, is_cassandra_3)
        self._request_table = request_table
        self._store: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        worker_process.end_with_parent()
        if self._request_table is not None:
            self._request_table()
        self._store = SparkStore.open(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: ARG002, N802, N803
        import pandas as pd

        for row in self._place_merge.merge(in_turn(_rows_of(rows)), self._store):
            yield pd.DataFrame({name: [field] for name, field in row._asdict().items()})

    def close(self) -> None:
        freeze(("operator", worker_process.count("definition")))


def _rows_of(frames: Iterable[Any]) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    for frame in frames:
        yield from zip(frame["turn"], frame["notes"], frame["events"], strict=True)


def in_turn(rows: Iterable[tuple[int, bytes | None, bytes | None]]) -> Iterator[TurnRow]:
    """Return the notes and events of a partition's rows, ordered by their `turn`, in which they nearly always come.
    Raises BATCH_FAILED if one is missing.
    """
    early_rows: dict[int, TurnRow] = {}
    turn = 0
    for row_turn, notes, events in rows:
        early_rows[int(row_turn)] = notes, events
        while (next_row := early_rows.pop(turn, None)) is not None:
            yield next_row
            turn += 1
    if early_rows or not turn:
        raise HelenusError(Kind.BATCH_FAILED, f"row {turn} of a place's events is missing")


def _notes(data: bytes | None) -> list[PartitionNote]:
    """Unpack notes. Raises the error of a note: state must not move on past events that were not read."""
    notes: list[PartitionNote] = [] if data is None else pickle.loads(bytes(data))
    for note in notes:
        if note.error is not None:
            raise note.error
    return notes

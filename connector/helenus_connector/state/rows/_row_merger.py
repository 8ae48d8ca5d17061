"""Merges an event into one row: the cells of a mutation, or those that a read found.

Cassandra decides by write times, unless the tombstone that hides a write may have been purged or dropped by a TRUNCATE:
then the row is in doubt, and a read decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from helenus_connector.cassandra_rows.clustering_bounds import covering
from helenus_connector.state.rows._cell_merge import MergeResult, merge_update
from helenus_connector.state.rows._cell_rules import NEVER, Doubts
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_read import ReadMerger, RowRead
from helenus_connector.state.rows._row_store import STATIC_PREFIX, RowStore
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.event.cells import Cells
from helenus_schemas.event.change import Change, Scope

_CLOCK_SKEW_S = 600
"""By so much sooner than gc_grace_seconds a tombstone is no longer relied on, as clocks differ: ten minutes, far more
than NTP leaves, and little of the usual ten days, as each write that such a tombstone hides costs a read.
"""
_ALWAYS = 1 << 62
"""A time after that of any tombstone: then none is relied on."""


class RowMerger:
    """Merges events into the rows of one topic partition, in one batch. `gc_grace_s`: for how long Cassandra keeps
    tombstones. `patience_s`: after which time a read shows all that was written before. `is_cassandra_3` as of
    `_cell_rules.wins`.
    """

    def __init__(
        self, table: Table, row_store: RowStore, gc_grace_s: int, patience_s: int, is_cassandra_3: bool
    ) -> None:
        self._table, self._row_store = table, row_store
        self._gc_grace_s, self._patience_s, self._is_cassandra_3 = gc_grace_s, patience_s, is_cassandra_3
        self._lists = frozenset(c.name for c in table.values if c.type.multicell and c.type.name == "list")
        self._covers_row, _ = covering(table)
        self._row_read_merger = self._make_read_merger(Scope.ROW, table.regulars)
        self._static_read_merger = self._make_read_merger(Scope.STATIC, table.statics)

    def _make_read_merger(self, scope: Scope, columns: Sequence[Column]) -> ReadMerger:
        names = {column.name for column in columns}
        schema = bytes.fromhex(self._table.schema_id)
        lists, dropped_at = self._lists & names, self._table.dropped_at
        return ReadMerger(scope, schema, names, lists, dropped_at, self._patience_s, self._is_cassandra_3)

    def merge_mutation(
        self, row: CellRow, name: bytes, partition_key: bytes, update: Cells, logged_at: int
    ) -> MergeResult:
        """Merge a mutation's cells, which were logged at a time, s since the epoch."""
        floor, doubts = self._find_doubts(row, name, partition_key, logged_at)
        return merge_update(row, update, floor, self._table.dropped_at, self._lists, doubts)

    def _find_doubts(self, row: CellRow, name: bytes, partition_key: bytes, logged_at: int) -> tuple[int, Doubts]:
        """Return up to which write time deletions of the partition and of ranges delete a row, and where that is in
        doubt.

        What was logged while Cassandra kept a tombstone is hidden by it, also when that is purged: a compaction keeps a
        tombstone while there is something older.
        """
        history = self._row_store.history
        soft_before = logged_at - self._gc_grace_s + _CLOCK_SKEW_S
        floor = firm_floor = NEVER
        if self._row_store.has_partitions:
            partition, clustering = (
                self._row_store.get_partition(partition_key),
                self._row_store.clustering_values(name),
            )
            floor = partition.deletion_floor(clustering, self._covers_row)
            # By gc_grace alone, before `_ALWAYS`: a TRUNCATE also removes the partition's deletions that are known here
            # (`ScopeMerger.truncate`), so these came after it. A row's own may be older: they stay until it is read.
            if floor != NEVER:
                firm_floor = partition.deletion_floor(clustering, self._covers_row, soft_before)
        if row.proven_up_to < history.disturbances and not row.is_empty():
            soft_before = _ALWAYS  # a TRUNCATE may have dropped its tombstones
        return floor, Doubts(history.horizon, soft_before, firm_floor, logged_at, self._is_cassandra_3)

    def merge_read(self, row: CellRow, name: bytes, partition_key: bytes, change: Change, cells: Cells) -> bool:
        """Merge the cells that a read found. Return whether that changes the row. The last word also lifts deletions
        that would hide what it found.
        """
        read_merger = self._static_read_merger if name[:1] == STATIC_PREFIX else self._row_read_merger
        read = RowRead.from_change(change, cells)
        history, floor = self._row_store.history, NEVER
        partition = self._row_store.get_partition(partition_key) if self._row_store.has_partitions else None
        clustering = self._row_store.clustering_values(name)
        if partition is not None:
            floor = partition.deletion_floor(clustering, self._covers_row)
        if read_merger.is_last(row, read) and cells.cells:
            history.raise_horizon(row.lift_deletions(cells.cells))
            oldest = min(cell.write_time for cell in cells.cells)
            if partition is not None and oldest <= floor:
                history.raise_horizon(partition.lift_deletions(clustering, self._covers_row, oldest))
                self._row_store.changed_partitions[partition_key] = None
                floor = partition.deletion_floor(clustering, self._covers_row)
        changed = read_merger.merge(row, read, floor, self._row_store.now)
        if row.proven_up_to < history.disturbances and not row.is_empty():
            row.proven_up_to, changed = history.disturbances, True
        return changed

"""Merges ordinary mutations into the rows of a topic partition without decoding any: `_row_update` does it by bytes.

An event that is not ordinary is left to `TopicPartitionMerger`, which merges all kinds: a delete, a collection, static
columns, an older write, a row that is unknown, in doubt or to be read, whatever comes after a TRUNCATE.

It runs as it is, and compiled by Cython with the types of `_ordinary_merge.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import GapEvent, PoisonEvent, RowChange
from helenus_connector.state.rows._replica_reports import ReplicaReport
from helenus_connector.state.rows._row_bytes import has_seen
from helenus_connector.state.rows._row_store import ROW_PREFIX, RowStore
from helenus_connector.state.rows._row_update import RowUpdater, UpdateColumns
from helenus_connector.state.rows._table_check import TableCheck
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.cells import decode_cells, width_of
from helenus_schemas.event.change import Scope
from helenus_schemas.event.own_format import Match, match_cells

COMPILED = not __file__.endswith(".py")
_ROW = Scope.ROW
_IDS_END = 33
"""Before it are a version of one byte, and two ids."""
_SCOPE = 73
"""Where an event of our agents has its scope; 0 is a row's."""
_MAX_PLANS = 1000
"""Updates of a table name a few combinations of columns; a hostile topic may name any number."""
_MAX_RUN_BYTES = 1 << 20
"""Bytes of rows after which a run ends: its changes are in memory together, and the same row may be in each of them."""
_new = tuple.__new__
_RowChange = RowChange
_ROW_BYTE = ROW_PREFIX[0]


class OrdinaryMerger:
    """Merges the ordinary mutations of one topic partition in one batch. `nodes` are those that reported them, `copies`
    and `unchanged` are counted as by `TopicPartitionMerger`. After what that merged by itself, call `follow`.
    """

    def __init__(self, table: Table, row_store: RowStore, check: TableCheck, partition: int, gc_grace_s: int) -> None:
        self._row_store, self._check, self._partition = row_store, check, partition
        plain_names = [c.name for c in table.regulars if not c.type.multicell and c.name not in table.dropped_at]
        self._updater = RowUpdater([c.name for c in table.regulars], plain_names, gc_grace_s)
        self._has_statics = bool(table.statics)
        self._has_partitions = row_store.has_partitions
        self._is_on = False
        self._plans: dict[bytes, UpdateColumns | None] = {}
        self.nodes = set[bytes]()
        self.copies = self.unchanged = 0

    def follow(self, trusts_absence: bool) -> None:
        """Follow the partition's history: what the next mutations are merged by."""
        row_store = self._row_store
        history = row_store.history
        self._is_on = not self._has_statics and not history.truncations
        self._updater.begin(row_store.now, row_store.purge_clock, history.horizon, history.disturbances, trusts_absence)

    def merge_run(
        self, reports: Sequence[ReplicaReport | GapEvent | PoisonEvent], start: int
    ) -> tuple[int, list[RowChange]]:
        """Merge a run of reports from the number `start` on. It ends before one that is not ordinary, or after enough
        bytes. Return the number of the first report that was not merged, and the changes, in order.
        """
        changes: list[RowChange] = []
        rows, row_bytes, size = self._row_store.rows, self._row_store.row_bytes, 0
        for number in range(start, len(reports)):
            if size > _MAX_RUN_BYTES:
                return number, changes
            report = reports[number]
            if not isinstance(report, ReplicaReport):
                return number, changes
            event, name, key, mutation, _, node, match = report
            if match is None or mutation is None or name[0] != _ROW_BYTE:
                return number, changes
            if name in rows or name not in row_bytes:
                return number, changes
            stored = row_bytes[name]
            if stored is not None and has_seen(stored, mutation):
                self.copies += 1
                continue
            if not self._merge(event, name, key, mutation, node, match, stored, changes):
                return number, changes
            size += len(row_bytes[name] or b"")
        return len(reports), changes

    def _merge(
        self,
        event: Event,
        name: bytes,
        key: bytes,
        mutation: bytes,
        node: bytes | None,
        match: Match,
        stored: bytes | None,
        changes: list[RowChange],
    ) -> bool:
        """Merge an event that is no copy, and append its change, if the row shows something of it. Return whether it is
        ordinary.
        """
        value = event[5]
        if not self._is_on or value is None or value[_SCOPE] != 0:
            return False
        cells = match_cells(match)
        if cells is None:
            return False
        row_store = self._row_store
        try:
            size, offset = read_long(cells, _IDS_END)
            offset += size
            columns = None if size < 0 else self._columns_of(cells, offset)
            if columns is None:
                return False
            page = -1
            if self._has_partitions:
                if not row_store.hides_nothing(name):
                    return False
                if stored is None:
                    page = row_store.next_page(name)
            elif stored is None:
                row_store.resolve_key(key)
        except (IndexError, Malformed):
            return False
        updated = self._updater.merge(columns, cells, offset, mutation, stored, page)
        if updated is None:
            return False
        data, before, after, write_time, expires, due_at, is_changed = updated
        row_store.put_row_bytes(name, data, due_at)
        if node is not None:
            self.nodes.add(node)
        if not is_changed:
            self.unchanged += 1
            return True
        op = "c" if before is None else "u"
        fields = self._partition, key, _ROW, op, before, after, write_time, expires, event, None
        changes.append(_new(_RowChange, fields))
        return True

    def _columns_of(self, cells: bytes, end: int) -> UpdateColumns | None:
        """Return the columns that an update names before `end`; None if it is not ordinary. Raises SchemaChanged."""
        if cells[0] != 2 or end > len(cells):  # 1 as an Avro long
            return None
        head = cells[:end]
        return self._plans[head] if head in self._plans else self._plan(head, cells)

    def _plan(self, head: bytes, cells: bytes) -> UpdateColumns | None:
        """Return the columns of updates that begin as this one; None if they are not ordinary. Raises SchemaChanged."""
        update = decode_cells(cells, _ROW)
        plan: UpdateColumns | None = None
        if self._check.is_of_table(update) and not any(t.multicell for t in update.columns.values()):
            plan = self._updater.plan_columns([(name, width_of(t)) for name, t in update.columns.items()])
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[head] = plan
        return plan

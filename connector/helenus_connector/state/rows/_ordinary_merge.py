"""Merges ordinary mutations into the rows of a topic partition without decoding any: `_row_update` does it by bytes.

An event that is not ordinary is left to `TopicPartitionMerger`, which merges all kinds: a delete, a collection, static
columns, an older write, a row that is unknown, in doubt or to be read, whatever comes after a TRUNCATE.

It runs as it is, and compiled by Cython with the types of `_ordinary_merge.pxd`: the results are the same.
"""

from __future__ import annotations

from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.state.rows._replica_reports import ReplicaReport
from helenus_connector.state.rows._row_store import ROW_PREFIX, RowStore
from helenus_connector.state.rows._row_update import RowUpdater, UpdateColumns
from helenus_connector.state.rows._table_check import TableCheck
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.cells import decode_cells, width_of
from helenus_schemas.event.change import Scope
from helenus_schemas.event.own_format import match_cells

COMPILED = not __file__.endswith(".py")
_ROW = Scope.ROW
_IDS_END = 33
"""Before it are a version of one byte, and two ids."""
_SCOPE = 73
"""Where an event of our agents has its scope; 0 is a row's."""
_MAX_PLANS = 1000
"""Updates of a table name a few combinations of columns; a hostile topic may name any number."""
_new = tuple.__new__


class OrdinaryMerger:
    """Merges the ordinary mutations of one topic partition in one batch. `nodes` are those that reported them. After
    what `TopicPartitionMerger` merged by itself, `follow` is to be called.
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

    def follow(self, trusts_absence: bool) -> None:
        """Follow the partition's history: what the next mutations are merged by."""
        row_store = self._row_store
        history = row_store.history
        self._is_on = not self._has_statics and not history.truncations
        self._updater.begin(row_store.now, row_store.purge_clock, history.horizon, history.disturbances, trusts_absence)

    def merge(self, report: ReplicaReport) -> tuple[RowChange | None] | None:
        """Merge an event that is no copy. Return its change, None if the row shows nothing of it; nothing of this if
        it is not ordinary.
        """
        event, name, key, mutation, _, node, match = report
        row_store = self._row_store
        if not self._is_on or match is None or event.value[_SCOPE] != 0 or name in row_store.rows:  # type: ignore[index]
            return None
        cells = match_cells(match)
        if cells is None or name not in row_store.row_bytes or name[:1] != ROW_PREFIX or mutation is None:
            return None
        try:
            size, offset = read_long(cells, _IDS_END)
            offset += size
            columns = None if size < 0 else self._columns_of(cells, offset)
            if columns is None:
                return None
            stored = row_store.row_bytes[name]
            page = -1
            if self._has_partitions:
                if not row_store.hides_nothing(name):
                    return None
                if stored is None:
                    page = row_store.next_page(name)
            elif stored is None:
                row_store.resolve_key(key)
        except (IndexError, Malformed):
            return None
        updated = self._updater.merge(columns, cells, offset, mutation, stored, page)
        if updated is None:
            return None
        data, before, after, write_time, expires, due_at, is_changed = updated
        row_store.put_row_bytes(name, data, due_at)
        if node is not None:
            self.nodes.add(node)
        if not is_changed:
            return (None,)
        op = "c" if before is None else "u"
        fields = self._partition, key, _ROW, op, before, after, write_time, expires, event, None
        return (_new(RowChange, fields),)

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

"""The rows as they were and are, and the changes that follow from the difference."""

from __future__ import annotations

from collections.abc import Mapping

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_store import STATIC_PREFIX, RowStore
from helenus_connector.state.rows._row_values import RowValues, ShownRow
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Scope


class RowImages:
    """The rows of one topic partition in one batch, as they were last published and as they are. `partition` is the
    topic's.

    `cause` names the mutation that is merged: what it did to static columns is not in the `before` of its rows.
    """

    def __init__(self, table: Table, row_store: RowStore, partition: int) -> None:
        self._row_store, self.partition, self._has_statics = row_store, partition, bool(table.statics)
        self._statics_before: dict[bytes, tuple[object, Mapping[str, bytes | None]]] = {}
        self.cause: object = None
        self._row_values = RowValues(table.regulars, table.dropped_at)
        self._static_values = RowValues(table.statics, table.dropped_at)

    def values_for(self, name: bytes) -> RowValues:
        """Return what makes the values of a row, or of static columns, of this name."""
        return self._static_values if name[:1] == STATIC_PREFIX else self._row_values

    def last_shown(self, name: bytes, row: CellRow) -> ShownRow | None:
        """Return a row as it was last published; None: it did not live."""
        if name not in self._row_store.shown_rows:
            self._row_store.shown_rows[name] = self.values_for(name).show(row, self._row_store.now)
        return self._row_store.shown_rows[name]

    def record_change(
        self,
        name: bytes,
        key: bytes,
        before: ShownRow | None,
        event: Event | None,
        write_time: int | None,
        may_have_lived: bool = False,
    ) -> RowChange | None:
        """Return the change of a row; None if it is as it was. One that does not live and `may_have_lived`, as nothing
        of it was stored, has a change too.
        """
        after = self._row_store.shown_rows[name] = self.values_for(name).show(
            self._row_store.rows[name], self._row_store.now
        )
        if name[:1] == STATIC_PREFIX and before != after:
            values_before = self._static_values.nulls if before is None else before.values
            self._statics_before[self._row_store.resolve_key(key)[0]] = self.cause, values_before
        if before == after and (after is not None or not may_have_lived):
            return None
        return self.make_record(name, key, before, after, event, write_time)

    def make_record(
        self,
        name: bytes,
        key: bytes,
        before: ShownRow | None,
        after: ShownRow | None,
        event: Event | None,
        write_time: int | None,
    ) -> RowChange:
        """Make the change of a row as it was and is, with its static columns as they were and are."""
        op = "d" if after is None else "c" if before is None else "u"
        values_before, values_after = (None if row is None else row.values for row in (before, after))
        scope = Scope.STATIC if name[:1] == STATIC_PREFIX else Scope.ROW
        if scope is Scope.ROW and self._has_statics:
            statics = self._statics(key)
            cause, statics_before = self._statics_before.get(self._row_store.resolve_key(key)[0], (None, statics))
            if cause is None or cause != self.cause:
                statics_before = statics
            values_before = None if values_before is None else {**values_before, **statics_before}
            values_after = None if values_after is None else {**values_after, **statics}
        changed_at, expires = (write_time, None) if after is None else (after.write_time, after.expires)
        return RowChange(self.partition, key, scope, op, values_before, values_after, changed_at, expires, event)

    def forget_statics(self) -> None:
        """Forget static columns as they were before the last mutations."""
        self._statics_before.clear()

    def _statics(self, key: bytes) -> Mapping[str, bytes | None]:
        name = STATIC_PREFIX + self._row_store.resolve_key(key)[0]
        shown = self.last_shown(name, self._row_store.get_row(name))
        return self._static_values.nulls if shown is None else shown.values

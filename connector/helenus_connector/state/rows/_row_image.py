"""What a row that is kept shows, and what a record says of how that changed."""

from __future__ import annotations

from collections.abc import Mapping

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import MergedChange
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_store import OF_STATIC, RowStore
from helenus_connector.state.rows._row_values import RowValues, ShownRow
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Scope


class RowImages:
    """Of one place and one batch: `kept` has its rows, and what they showed before. `partition` is the topic's.

    `cause` names the mutation that is merged: what it did to static columns is not in the `before` of its rows.
    """

    def __init__(self, table: Table, kept: RowStore, partition: int) -> None:
        self._kept, self.partition, self._has_statics = kept, partition, bool(table.statics)
        self._statics_before: dict[bytes, tuple[object, Mapping[str, bytes | None]]] = {}
        self.cause: object = None
        self._of_rows = RowValues(table.regulars, table.dropped_at)
        self._of_statics = RowValues(table.statics, table.dropped_at)

    def of(self, name: bytes) -> RowValues:
        """What shows a row, or static columns, of this name."""
        return self._of_statics if name[:1] == OF_STATIC else self._of_rows

    def show(self, name: bytes, row: CellRow) -> ShownRow | None:
        """What a row was last said to be; None: it did not live."""
        if name not in self._kept.shown:
            self._kept.shown[name] = self.of(name).shown(row, self._kept.now)
        return self._kept.shown[name]

    def said(
        self,
        name: bytes,
        key: bytes,
        before: ShownRow | None,
        event: Event | None,
        write_time: int | None,
        is_unknown: bool = False,
    ) -> MergedChange | None:
        """What became of a row; None if it is as it was. One that is unknown may have lived before."""
        after = self._kept.shown[name] = self.of(name).shown(self._kept.rows[name], self._kept.now)
        if name[:1] == OF_STATIC and before != after:
            shown = self._of_statics.nothing if before is None else before.values
            self._statics_before[self._kept.home(key)[0]] = self.cause, shown
        if before == after and (after is not None or not is_unknown):
            return None
        return self.record(name, key, before, after, event, write_time)

    def record(
        self,
        name: bytes,
        key: bytes,
        before: ShownRow | None,
        after: ShownRow | None,
        event: Event | None,
        write_time: int | None,
    ) -> MergedChange:
        """A row as it was and is, with its static columns as they were and are."""
        op = "d" if after is None else "c" if before is None else "u"
        old, new = (None if shown is None else shown.values for shown in (before, after))
        scope = Scope.STATIC if name[:1] == OF_STATIC else Scope.ROW
        if scope is Scope.ROW and self._has_statics:
            statics = self._statics(key)
            cause, statics_before = self._statics_before.get(self._kept.home(key)[0], (None, statics))
            if cause is None or cause != self.cause:
                statics_before = statics
            old = None if old is None else {**old, **statics_before}
            new = None if new is None else {**new, **statics}
        at, expires = (write_time, None) if after is None else (after.write_time, after.expires)
        return MergedChange(self.partition, key, scope, None, op, old, new, at, expires, event)

    def forget_statics(self) -> None:
        """Let go of static columns as they were before the last mutations."""
        self._statics_before.clear()

    def _statics(self, key: bytes) -> Mapping[str, bytes | None]:
        name = OF_STATIC + self._kept.home(key)[0]
        shown = self.show(name, self._kept.row(name))
        return self._of_statics.nothing if shown is None else shown.values

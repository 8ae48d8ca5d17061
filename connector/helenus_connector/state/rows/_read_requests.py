"""Requests to have rows read: at once by the stage, which appends what it finds to the events topic, or planned.

A read at once may come before a write can be read, so it takes away little. A planned one, of `patience_s` later, is
the last word on its row (`reads`). Many requests are planned one after the other, so that no batch has them all.
"""

from __future__ import annotations

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import ASK, MergedChange
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_store import OF_STATIC, RowStore
from helenus_schemas.event.change import Scope

_AT_ONCE = 10_000
"""Requests of one partition's batch that are made at once: some seconds of reads. Others are planned."""
_PER_SECOND = 1_000
"""Planned requests a second: what a small cluster reads beside its own work."""


class ReadRequests:
    """Of one topic partition and one batch. `patience_s`: after which time a read shows all that was written before."""

    def __init__(self, kept: RowStore, partition: int, patience_s: int) -> None:
        self._kept, self._partition, self._patience_s = kept, partition, patience_s
        self._made = self._planned = 0
        self._statics: set[bytes] = set()

    def for_event(self, event: Event) -> MergedChange:
        """Have the row of an event read, which says what was written, and what is sure without a read."""
        return self._request(event.partition, event.key or b"", Scope.ROW, None, event)

    def for_row(self, name: bytes, since: int | None = None) -> MergedChange:
        """Have a row read, whatever event says something of it. What it does not show is gone if it was written up to
        `since`, µs.
        """
        scope = Scope.STATIC if name[:1] == OF_STATIC else Scope.ROW
        return self._request(self._partition, name[1:], scope, since, None)

    def for_statics(self, home: bytes) -> MergedChange | None:
        """Have a partition's static columns read, once a batch; None if they are, or are known."""
        name = OF_STATIC + home
        if name in self._statics or self._kept.knows(name):
            return None
        self._statics.add(name)
        return self.for_row(name)

    def plan(self, row: CellRow) -> None:
        """Have a row read once `patience_s` are over, as the last word. The caller has it kept."""
        late = max(0, self._planned - _AT_ONCE) // _PER_SECOND
        self._planned += 1
        row.read_at = self._kept.now + self._patience_s + late

    def prove(self, name: bytes, row: CellRow, since: int | None = None) -> MergedChange | None:
        """Have a row read as the last word later; and at once, unless that is planned already, or too many are."""
        is_planned = row.read_at > self._kept.now
        self.plan(row)
        if is_planned or self._made >= _AT_ONCE:
            return None
        self._made += 1
        return self.for_row(name, since)

    def is_in_doubt(self, row: CellRow) -> bool:
        """Return whether a row that an event changed lives by a guess. What is to be read later is read once no event
        came for as long.
        """
        if row.read_at:
            row.read_at = self._kept.now + self._patience_s
        return row.is_guess(self._kept.now)

    def _request(
        self, partition: int, key: bytes, scope: Scope, since: int | None, event: Event | None
    ) -> MergedChange:
        history = self._kept.history
        asked = None, ASK, None, None, since, self._kept.now, event, None, history.disturbances
        return MergedChange(partition, key, scope, *asked)

"""Requests to have rows read: at once by the stage, which appends what it reads to the events topic, or planned.

A read at once may come before a write is visible, so it removes little. A planned one, `patience_s` later, is the last
word on its row (`_row_read`). Many requests are planned one after the other, so that no batch has them all.
"""

from __future__ import annotations

from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.merged_change import ReadRequest
from helenus_connector.state.rows._row import CellRow
from helenus_connector.state.rows._row_store import STATIC_PREFIX, RowStore
from helenus_schemas.event.change import Scope

_MAX_REQUESTS = 10_000
"""Rows of one topic partition that `request_proof` has read at once in a batch: some seconds of reads. It plans the
reads of the others, and `plan_read` spreads planned reads over time from as many on.

Not counted are requests for an event, for static columns, for rows that a delete of many leaves in doubt, and for those
that are due, which are all that became due since the last batch.
"""
_PLANNED_PER_SECOND = 1_000
"""Planned requests a second: what a small cluster reads beside its own work."""


class ReadRequests:
    """Makes the read requests of one topic partition in one batch. `patience_s`: after which time a read shows all that
    was written before.
    """

    def __init__(self, row_store: RowStore, partition: int, patience_s: int) -> None:
        self._row_store, self._partition, self._patience_s = row_store, partition, patience_s
        self._requested_count = self._planned_count = 0
        self._requested_statics: set[bytes] = set()

    def for_event(self, event: Event) -> ReadRequest:
        """Request a read of an event's row. The event says what was written, and what is sure without a read. One of a
        partition names no row, also where the partition is one: that one is requested by `for_row`.
        """
        return self._make_request(event.partition, event.key or b"", Scope.ROW, event=event)

    def for_row(self, name: bytes, deleted_to: int | None = None) -> ReadRequest:
        """Request a read of a row without an event. What the read does not find is gone if it was written up to
        `deleted_to`, µs.
        """
        scope = Scope.STATIC if name[:1] == STATIC_PREFIX else Scope.ROW
        return self._make_request(self._partition, name[1:], scope, deleted_to)

    def for_statics(self, partition_key: bytes) -> ReadRequest | None:
        """Request a read of a partition's static columns, once a batch; None if they are requested, or known."""
        name = STATIC_PREFIX + partition_key
        if name in self._requested_statics or self._row_store.has_row(name):
            return None
        self._requested_statics.add(name)
        return self.for_row(name)

    def plan_read(self, row: CellRow) -> None:
        """Plan a read of a row once `patience_s` are over, as the last word. The caller puts the row."""
        delay_s = max(0, self._planned_count - _MAX_REQUESTS) // _PLANNED_PER_SECOND
        self._planned_count += 1
        row.reread_at = self._row_store.now + self._patience_s + delay_s

    def request_proof(self, name: bytes, row: CellRow, deleted_to: int | None = None) -> ReadRequest | None:
        """Plan a read of a row as the last word, and request one at once, unless one is planned already, or
        `_MAX_REQUESTS` were requested so. The caller puts the row.
        """
        is_planned = row.reread_at > self._row_store.now
        self.plan_read(row)
        if is_planned or self._requested_count >= _MAX_REQUESTS:
            return None
        self._requested_count += 1
        return self.for_row(name, deleted_to)

    def postpone_read(self, row: CellRow) -> None:
        """Postpone the planned read of a row that an event changed, if there is one, until no event came for
        `patience_s`. The caller puts the row.
        """
        if row.reread_at:
            row.reread_at = self._row_store.now + self._patience_s

    def _make_request(
        self, partition: int, key: bytes, scope: Scope, deleted_to: int | None = None, event: Event | None = None
    ) -> ReadRequest:
        disturbances = self._row_store.history.disturbances
        return ReadRequest(partition, key, scope, self._row_store.now, deleted_to, event, disturbances)

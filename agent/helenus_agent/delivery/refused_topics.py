"""Tables whose topics the broker refuses: why they are left out, and when they are tried again.

Such a table does not delay the others: its changes are counted as skipped, and segments are removed as usual. Its topic
is tried with a gap event and nothing else. So the consumers know that they missed something before they receive the
next change, and a try that fails does not affect the other tables.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection

import structlog

from helenus_agent import metrics
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError

_AGAIN = (1.0, 60.0)  # s between two tries: at first, at most
_ADVICE = "its changes are counted as skipped; its topic is tried again, and receives a gap event first"
_log = structlog.get_logger(__name__)


class RefusedTopics:
    """`summary` says for health checks what is left out and why, None if nothing is."""

    def __init__(self) -> None:
        self.summary: str | None = None
        self._why: dict[uuid.UUID, HelenusError] = {}
        self._wait = 0.0
        self._next = 0.0
        self._last = -math.inf

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a try; the first is at once, for those that an earlier run left out."""
        return time.monotonic() >= self._next

    def add(self, table: Table, error: HelenusError) -> None:
        """It is refused, or still is; that is logged once."""
        if table.id not in self._why:
            _log.error("table.refused", table=table.full_name, why=str(error), advice=_ADVICE)
        self._why[table.id] = error

    def remove(self, table: Table) -> None:
        """It is not refused any more."""
        self._why.pop(table.id, None)

    def wait(self) -> None:
        """A try failed: wait for the next one, longer each time."""
        first, most = _AGAIN
        now = time.monotonic()
        self._wait = first if now - self._last > 2 * most else min(self._wait * 2, most)
        self._last = now
        self._next = now + self._wait

    def update(self, tables: Collection[Table]) -> None:
        """These are left out now, and no others."""
        metrics.REFUSED.set(len(tables))
        unknown = "its topic was refused"
        left_out = [f"{table.full_name} is left out: {self._why.get(table.id, unknown)}" for table in tables]
        self.summary = "; ".join(left_out) or None

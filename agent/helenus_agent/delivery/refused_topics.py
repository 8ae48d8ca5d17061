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

_RETRY_S = (1.0, 60.0)  # s between two tries: at first, at most
_ADVICE = "its changes are counted as skipped; its topic is tried again, and receives a gap event first"
_log = structlog.get_logger(__name__)


class RefusedTopics:
    """`summary` says for health checks what is left out and why, None if nothing is."""

    def __init__(self) -> None:
        self.summary: str | None = None
        self._errors: dict[uuid.UUID, HelenusError] = {}
        self._wait_s = 0.0
        self._next_try_at = 0.0
        self._last_failure_at = -math.inf

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a try; the first is at once, for those that an earlier run left out."""
        return time.monotonic() >= self._next_try_at

    def add(self, table: Table, error: HelenusError) -> None:
        """Note that a table is refused; log it the first time."""
        if table.id not in self._errors:
            _log.error("table.refused", table=table.full_name, why=str(error), advice=_ADVICE)
        self._errors[table.id] = error

    def remove(self, table: Table) -> None:
        """Note that a table is not refused any more."""
        self._errors.pop(table.id, None)

    def postpone(self) -> None:
        """Postpone the next try after a failed one, longer each time."""
        first_wait, max_wait = _RETRY_S
        now = time.monotonic()
        self._wait_s = first_wait if now - self._last_failure_at > 2 * max_wait else min(self._wait_s * 2, max_wait)
        self._last_failure_at = now
        self._next_try_at = now + self._wait_s

    def update(self, tables: Collection[Table]) -> None:
        """Set which tables are left out now."""
        metrics.REFUSED.set(len(tables))
        unknown = "its topic was refused"
        left_out = [f"{table.full_name} is left out: {self._errors.get(table.id, unknown)}" for table in tables]
        self.summary = "; ".join(left_out) or None

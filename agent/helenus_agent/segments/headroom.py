"""How full cdc_raw is.

Cassandra limits it by cdc_total_space. At the limit it refuses writes to CDC tables; with cdc_block_writes: false it
deletes the oldest segments instead, read or not.
"""

from __future__ import annotations

import structlog

from helenus_agent import metrics

_EARLY = (metrics.LOW, metrics.CRITICAL)
_log = structlog.get_logger(__name__)


class Headroom:
    """Watches the size of cdc_raw against its `limit` in bytes (None: not known). `blocks`: as cdc_block_writes."""

    def __init__(self, limit: int | None = None, blocks: bool = True) -> None:
        self.set(limit, blocks)
        self._crossed = 0

    def set(self, limit: int | None, blocks: bool) -> None:
        """Set the limit to watch against."""
        self._limit = limit
        self._blocks = blocks

    def watch(self, used: int) -> None:
        """Warn when so many bytes are more than 80 or 95 % of the limit; once, until they are less again."""
        if not self._limit:
            return
        crossed = sum(used >= part * self._limit for part in _EARLY)
        if crossed > self._crossed:
            then = "refuses writes to CDC tables" if self._blocks else "deletes the oldest segments, read or not"
            _log.warning(
                "cdc_raw.fills",
                used=used,
                limit=self._limit,
                percent=round(100 * used / self._limit),
                advice=f"when it is full Cassandra {then}: see that the broker keeps up, or raise cdc_total_space",
            )
        self._crossed = crossed

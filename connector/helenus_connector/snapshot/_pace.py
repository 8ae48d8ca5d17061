"""How many keys a snapshot may scan now: `snapshot.max.rate`, and `snapshot.max.lag`."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLICE = 20_000
_FEWEST = 100
_QUIET_S = 60.0
_QUIET = 15


class Rate:
    """Rows per second of one connector's snapshots. What was scanned above it is waited for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._left = 0.0

    def may(self, rate: int, tasks: int) -> int:
        """How many rows a slice may scan now; 0: wait. `tasks` slices run at once."""
        if not rate:
            return _SLICE
        now = self._clock()
        self._left = min(self._left + (now - self._at) * rate, float(rate))
        self._at = now
        if self._left <= 0:
            return 0
        return max(1, min(_SLICE, rate // (2 * tasks)))

    def took(self, rows: int, rate: int) -> None:
        """So many rows are being scanned; fewer than nothing: that many were not there."""
        if rate:
            self._left -= rows


def unprocessed(most: int, changed_at: float, now: float) -> int:
    """How many events of a table may be unprocessed: `most`, and 15 times as many while nothing waits behind them, as
    its last change was processed a minute ago. Times are monotonic s.
    """
    return most if now - changed_at < _QUIET_S else most * _QUIET


def room(most: int, behind: int, flying: int) -> int:
    """How many keys a slice may scan: `most` events may be unprocessed, `behind` are, and `flying` are on the way.

    Half of `most` at once: the next slice is scanned while the connector processes the one before.
    """
    share = min(_SLICE, max(_FEWEST, most // 2))
    return share if most - behind - flying >= share else 0

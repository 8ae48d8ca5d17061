"""Limit how many keys a snapshot may scan now, by `snapshot.max.rate` and `snapshot.max.lag`."""

from __future__ import annotations

import time
from collections.abc import Callable

_MAX_SLICE = 20_000
_MIN_SLICE = 100
_QUIET_S = 60.0
_QUIET_FACTOR = 15
_MAX_REST_S = 5.0
_IDLE_S = 2.0


class ScanRate:
    """Limits the rows per second of one connector's snapshots, on average: after too many rows it waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refilled_at = clock()
        self._remaining = 0.0

    def allowed_rows(self, rate: int, tasks: int) -> int:
        """Return how many rows a slice may scan now; 0: wait. `tasks` slices run at once."""
        if not rate:
            return _MAX_SLICE
        now = self._clock()
        self._remaining = min(self._remaining + (now - self._refilled_at) * rate, float(rate))
        self._refilled_at = now
        if self._remaining <= 0:
            return 0
        return max(1, min(_MAX_SLICE, rate // (2 * tasks)))

    def count_rows(self, rows: int, rate: int) -> None:
        """Count rows that a slice is going to scan; a negative number: rows that it did not find."""
        if rate:
            self._remaining -= rows


def is_quiet(changed_at: float, now: float) -> bool:
    """Return whether no change waits behind a snapshot's events: the last change was processed a minute ago.
    Monotonic s.
    """
    return now - changed_at >= _QUIET_S


def free_keys(max_unprocessed: int, behind: int, in_flight: int) -> int:
    """Return how many keys a slice may scan of a quiet table: 15 times `max_unprocessed` events may be unprocessed,
    `behind` are, and `in_flight` are on the way.

    Half of that at once: the next slice is scanned while the connector processes the one before.
    """
    max_unprocessed *= _QUIET_FACTOR
    half = min(_MAX_SLICE, max(_MIN_SLICE, max_unprocessed // 2))
    return half if max_unprocessed - behind - in_flight >= half else 0


class ScanTurns:
    """Lets a snapshot and the changes of a table take turns. Keys are scanned for so many events as may be
    unprocessed, and once these are processed, none for half as long as that took.

        5,000 keys: scanned and processed in 0.4 s; nothing for 0.2 s; the next 5,000 keys

    So a third of the changes wait for no event of the snapshot, and the others for half a turn on average.
    """

    def __init__(self) -> None:
        self._turn_began_at: float | None = None
        self._remaining = 0
        self._ends: dict[str, int] | None = None
        self._scanned = self._rests_until = 0.0

    def free_keys(
        self,
        max_unprocessed: int,
        tasks: int,
        behind: int,
        is_flying: bool,
        now: float,
        ends: Callable[[], dict[str, int]],
        is_past: Callable[[dict[str, int]], bool],
    ) -> int:
        """Return how many keys the next slice may scan at the time `now`, monotonic s; 0: none now. `ends` gives the
        ends of the events topic, and `is_past` says whether the connector is past such ends.
        """
        if self._turn_began_at is None:
            if is_flying or behind >= max_unprocessed or now < self._rests_until:
                return 0
            self._turn_began_at, self._remaining, self._ends = now, max_unprocessed, None
        if self._remaining > 0:
            return min(self._remaining, _MAX_SLICE, max(_MIN_SLICE, -(-max_unprocessed // tasks)))
        if not is_flying:
            if self._ends is None:
                self._ends, self._scanned = ends(), now
            # Of a topic that was made again, the ends of before may never be reached.
            is_idle = behind == 0 and now - self._scanned > _IDLE_S
            if is_past(self._ends) or is_idle:
                self._rests_until = now + min((now - self._turn_began_at) / 2, _MAX_REST_S)
                self._turn_began_at = None
        return 0

    def count_rows(self, rows: int) -> None:
        """Count keys that a slice is going to scan."""
        self._remaining -= rows

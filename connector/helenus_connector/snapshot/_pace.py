"""How many keys a snapshot may scan now: `snapshot.max.rate`, and `snapshot.max.lag`."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLICE = 20_000
_FEWEST = 100
_QUIET_S = 60.0
_QUIET = 15
_LONGEST_REST_S = 5.0
_IDLE_S = 2.0


class ScanRate:
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


def is_quiet(changed_at: float, now: float) -> bool:
    """Whether nothing waits behind a snapshot's events: the last change was processed a minute ago. Monotonic s."""
    return now - changed_at >= _QUIET_S


def room(most: int, behind: int, flying: int) -> int:
    """How many keys a slice may scan of a quiet table: 15 times `most` events may be unprocessed, `behind` are, and
    `flying` are on the way.

    Half of that at once: the next slice is scanned while the connector processes the one before.
    """
    most *= _QUIET
    share = min(_SLICE, max(_FEWEST, most // 2))
    return share if most - behind - flying >= share else 0


class ScanTurns:
    """Of a table that changes: a snapshot and the changes take turns. Keys are scanned for so many events as may be
    unprocessed, and once these are processed, none for half as long as that took.

        5,000 keys: scanned and processed in 0.4 s; nothing for 0.2 s; the next 5,000 keys

    So a third of the changes wait for no event of the snapshot, and the others for half a turn on average.
    """

    def __init__(self) -> None:
        self._began: float | None = None
        self._left = 0
        self._ends: dict[str, int] | None = None
        self._scanned = self._rests_until = 0.0

    def room(
        self,
        most: int,
        tasks: int,
        behind: int,
        is_flying: bool,
        now: float,
        ends: Callable[[], dict[str, int]],
        is_past: Callable[[dict[str, int]], bool],
    ) -> int:
        """How many keys the next slice may scan at the time `now`, monotonic s; 0: none now. `ends` gives the ends of
        the events topic, and `is_past` says whether the connector is past such ends.
        """
        if self._began is None:
            if is_flying or behind >= most or now < self._rests_until:
                return 0
            self._began, self._left, self._ends = now, most, None
        if self._left > 0:
            return min(self._left, _SLICE, max(_FEWEST, -(-most // tasks)))
        if not is_flying:
            if self._ends is None:
                self._ends, self._scanned = ends(), now
            # Of a topic that was made again, the ends of before may never be reached.
            is_idle = behind == 0 and now - self._scanned > _IDLE_S
            if is_past(self._ends) or is_idle:
                self._rests_until = now + min((now - self._began) / 2, _LONGEST_REST_S)
                self._began = None
        return 0

    def took(self, keys: int) -> None:
        """A slice scans so many."""
        self._left -= keys

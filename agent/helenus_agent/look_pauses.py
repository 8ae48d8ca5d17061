"""Pauses between two looks at the commit log.

A store to mapped memory wakes nobody, so the log is polled. A look that finds nothing reads some bytes; it and the
wake-up take 24 to 48 µs of CPU.
"""

from __future__ import annotations

import time

_QUIET_S = 5.0  # without anything to read, after which there are fewer looks
_QUIET_PAUSE_S = 0.08  # between two of these, at least
_SHORTEST_S = 0.002  # after a change, so that one is seen after 1 ms on average; 1 % of a core
_MANY = 5  # changes in a look, with which the shortest pause is so many times as long: 100 looks a second for any rate
_PAUSES = 100  # a look follows after this part of the time since the last change, which waits for 1 % of that at most


class LookPauses:
    """Pauses of a reader, of `longest_s` at most, except when nothing is written."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._read_at = self._changed_at = 0.0
        self._changes = 1

    def note_read(self, changes: int) -> None:
        """Note that something was read just now, with so many changes of followed tables."""
        self._read_at = time.monotonic()
        if changes:
            self._changed_at, self._changes = self._read_at, changes

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing was written for a while."""
        return now - self._read_at > _QUIET_S

    def pause_s(self, now: float, reads_ahead: bool, may_be_long: bool) -> float:
        """Return how long to sleep. Who does not read ahead of the sync markers has nothing new for 100 ms or more."""
        if may_be_long and self.is_quiet(now):
            return max(self._longest_s, _QUIET_PAUSE_S)
        if not reads_ahead:
            return self._longest_s
        shortest_s = _SHORTEST_S * min(self._changes, _MANY)
        return min(max((now - self._changed_at) / _PAUSES, shortest_s), self._longest_s)

"""How fast a table is read: a budget of rows a second that the tasks of a host share, and that shrinks on timeouts.

One small memory-mapped file under a lock. A reader takes what it is about to ask for, and waits until the budget has
paid for what it took. A timeout halves what was really read lately; calm seconds bring the rate back by and by. Time is
the machine's monotonic clock, which its processes share.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import structlog

from helenus_connector.config.connector import ConnectorSettings

_log = structlog.get_logger(__name__)
_LEAST = 100.0
"""Rows a second that are always allowed."""
_GROWTH = 1.1
"""By which the rate grows in a second without timeouts: from half to whole in seven."""
_FORGOTTEN_S = 60.0
"""A timeout this long ago changes nothing."""
_ONE_TROUBLE_S = 1.0
"""Timeouts within this time are of one trouble: requests run side by side."""
_ALONE_S = 0.02
"""How long a task counts its rows alone before it reports them to the others, where there is no limit."""
_REMEMBERED_S = 30.0
"""How long what was read counts: a timeout is heard of long after its statement, when nothing else may be read."""


@dataclass(slots=True)
class _State:
    """`left`: rows that are paid for, negative if more were taken, at time `at`. `lately`: rows of the last second, and
    `best` the most that was.

    `rate` is what was allowed right after the last timeout, at `since`; 0 if there was none.
    """

    left: float = 0.0
    at: float = 0.0
    lately: float = 0.0
    best: float = 0.0
    rate: float = 0.0
    since: float = 0.0


def budget_for(directory: Path, settings: ConnectorSettings) -> ReadBudget:
    """A connector's budget on this host: that of all its tables, for changes, snapshots and verifications. `directory`
    is that of its query in this run.
    """
    name = hashlib.md5(settings.name.encode(), usedforsecurity=False).hexdigest()
    return ReadBudget(directory / f"{name}.budget", settings.query_max_rate)


class ReadBudget:
    """The budget in `path`, of `most` rows a second at any time; 0 for no limit but what timeouts make."""

    def __init__(
        self,
        path: Path,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._most = float(most) or math.inf
        self._clock = clock
        self._sleep = sleep
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.ftruncate(self._file, _LAYOUT.size)
        self._map = mmap.mmap(self._file, _LAYOUT.size)
        self._unreported = 0

    def take(self, rows: int) -> None:
        """Take rows from the budget, and wait until it has them."""
        self._unreported += rows
        state = _State(*_LAYOUT.unpack_from(self._map))
        if self._most == math.inf and not state.rate and 0 <= self._clock() - state.at < _ALONE_S:
            return  # a lock for every statement would cost a tenth of reading
        with self._state() as (state, now):
            rows, self._unreported = self._unreported, 0
            rate = self._rate(state, now)
            passed = now - state.at
            state.lately = state.lately * math.exp(-passed) + rows
            state.best = max(state.best * math.exp(-passed / _REMEMBERED_S), state.lately)
            state.left = 0.0 if rate == math.inf else min(state.left + passed * rate, rate) - rows
            state.at = now
            wait = -state.left / rate
        if wait > 0:
            self._sleep(wait)

    def timed_out(self) -> None:
        """The cluster was too slow: read half as fast from now on."""
        with self._state() as (state, now):
            if state.rate and now - state.since < _ONE_TROUBLE_S:
                return
            rate = self._rate(state, now)
            passed = now - state.at
            state.lately = state.lately * math.exp(-passed) + self._unreported
            self._unreported = 0
            state.best = max(state.best * math.exp(-passed / _REMEMBERED_S), state.lately)
            # What would be allowed by now says nothing: it grows on while less is read.
            state.rate = max(_LEAST, min(rate, state.best) / 2)
            state.since = state.at = now
            state.left = min(state.left, 0.0)
        _log.warning("query.slowed_down", rows_per_second=round(state.rate), reason="Cassandra timed out")

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        os.close(self._file)

    def _rate(self, state: _State, now: float) -> float:
        if not state.rate or now - state.since > _FORGOTTEN_S:
            return self._most
        return min(self._most, state.rate * math.pow(_GROWTH, now - state.since))

    @contextmanager
    def _state(self) -> Iterator[tuple[_State, float]]:
        """What the host's tasks know, and what time it is. What is done with it is written, one task at a time."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            state, now = _State(*_LAYOUT.unpack_from(self._map)), self._clock()
            if not state.at or max(state.at, state.since) > now:  # new, or of before the machine started
                state = _State(left=0.0 if self._most == math.inf else self._most, at=now)
            yield state, now
            _LAYOUT.pack_into(self._map, 0, *astuple(state))
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


_LAYOUT = struct.Struct("=6d")

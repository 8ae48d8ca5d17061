"""Limits how fast a table is read: a budget of rows per second that the tasks of a host share. Timeouts reduce it.

The state is one small memory-mapped file under a lock. A reader takes the rows that it is about to request, and waits
until the budget covers them. A timeout halves the rate that was actually reached lately; seconds without timeouts
restore it gradually. Times are of the machine's monotonic clock, which its processes share.
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
_MIN_RATE = 100.0
"""Rows a second that are always allowed."""
_GROWTH = 1.1
"""Growth of the rate per second without timeouts: from half to full in seven seconds."""
_FORGET_AFTER_S = 60.0
"""A timeout this long ago changes nothing."""
_SAME_INCIDENT_S = 1.0
"""Timeouts within this time count as one incident: requests run concurrently."""
_REPORT_INTERVAL_S = 0.02
"""How long a task counts its rows by itself before it reports them to the others, if there is no limit."""
_REMEMBERED_S = 30.0
"""How long a peak counts: a timeout is reported long after its statement was sent, when nothing else may be read."""


@dataclass(slots=True)
class _State:
    """The content of the file. `paid_rows` are the rows that the budget covers, negative if more were taken, at the
    time `updated_at`. `recent_rows` are the rows of the last second, and `peak_rows` the most of them lately.

    `slowed_rate` is the rate allowed right after the last timeout, at `slowed_at`; 0 if there was none.
    """

    paid_rows: float = 0.0
    updated_at: float = 0.0
    recent_rows: float = 0.0
    peak_rows: float = 0.0
    slowed_rate: float = 0.0
    slowed_at: float = 0.0


def budget_for(directory: Path, settings: ConnectorSettings) -> ReadBudget:
    """Return a connector's budget on this host, which all its tables share for changes, snapshots and verifications.
    `directory` is that of its query in this run.
    """
    name = hashlib.md5(settings.name.encode(), usedforsecurity=False).hexdigest()
    return ReadBudget(directory / f"{name}.budget", settings.query_max_rate)


class ReadBudget:
    """The budget in the file `path`, of `max_rate` rows per second; 0 for no limit except after timeouts."""

    def __init__(
        self,
        path: Path,
        max_rate: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._max_rate = float(max_rate) or math.inf
        self._clock = clock
        self._sleep = sleep
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.ftruncate(self._file, _LAYOUT.size)
        self._map = mmap.mmap(self._file, _LAYOUT.size)
        self._unreported = 0

    def take(self, rows: int) -> None:
        """Take rows from the budget, and wait until it covers them."""
        self._unreported += rows
        state = _State(*_LAYOUT.unpack_from(self._map))
        if (
            self._max_rate == math.inf
            and not state.slowed_rate
            and 0 <= self._clock() - state.updated_at < _REPORT_INTERVAL_S
        ):
            return  # a lock for every statement would cost a tenth of reading
        with self._locked_state() as (state, now):
            rows, self._unreported = self._unreported, 0
            rate = self._rate(state, now)
            passed = now - state.updated_at
            state.recent_rows = state.recent_rows * math.exp(-passed) + rows
            state.peak_rows = max(state.peak_rows * math.exp(-passed / _REMEMBERED_S), state.recent_rows)
            state.paid_rows = 0.0 if rate == math.inf else min(state.paid_rows + passed * rate, rate) - rows
            state.updated_at = now
            wait = -state.paid_rows / rate
        if wait > 0:
            self._sleep(wait)

    def note_timeout(self) -> None:
        """Note that the cluster was too slow: halve the rate."""
        with self._locked_state() as (state, now):
            if state.slowed_rate and now - state.slowed_at < _SAME_INCIDENT_S:
                return
            rate = self._rate(state, now)
            passed = now - state.updated_at
            state.recent_rows = state.recent_rows * math.exp(-passed) + self._unreported
            self._unreported = 0
            state.peak_rows = max(state.peak_rows * math.exp(-passed / _REMEMBERED_S), state.recent_rows)
            # What would be allowed by now says nothing: it grows on while less is read.
            state.slowed_rate = max(_MIN_RATE, min(rate, state.peak_rows) / 2)
            state.slowed_at = state.updated_at = now
            state.paid_rows = min(state.paid_rows, 0.0)
        _log.warning("query.slowed_down", rows_per_second=round(state.slowed_rate), reason="Cassandra timed out")

    def close(self) -> None:
        """Close the file."""
        self._map.close()
        os.close(self._file)

    def _rate(self, state: _State, now: float) -> float:
        if not state.slowed_rate or now - state.slowed_at > _FORGET_AFTER_S:
            return self._max_rate
        return min(self._max_rate, state.slowed_rate * math.pow(_GROWTH, now - state.slowed_at))

    @contextmanager
    def _locked_state(self) -> Iterator[tuple[_State, float]]:
        """Give the state and the current time under the host's lock; write the state back afterwards."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            state, now = _State(*_LAYOUT.unpack_from(self._map)), self._clock()
            if (
                not state.updated_at or max(state.updated_at, state.slowed_at) > now
            ):  # new, or of before the machine started
                state = _State(paid_rows=0.0 if self._max_rate == math.inf else self._max_rate, updated_at=now)
            yield state, now
            _LAYOUT.pack_into(self._map, 0, *astuple(state))
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


_LAYOUT = struct.Struct("=6d")

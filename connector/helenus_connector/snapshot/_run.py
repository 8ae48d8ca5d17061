"""One snapshot while it runs: which stretches are scanned now, what comes back, when it is complete."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import pause
from helenus_connector.control.status import Task
from helenus_connector.log.choice import event_schemas, events_log
from helenus_connector.snapshot._pace import ScanTurns, is_quiet, room
from helenus_connector.snapshot._ring import TokenStretch
from helenus_connector.snapshot._scan import ScanResult
from helenus_connector.snapshot.snapshot_store import Snapshot, SnapshotStore
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import Action, HelenusError
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import request

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_SAY_S = 10.0
_REFUSALS = 4  # of the same keys: a paging state, or a table that is altered, is refused once or twice
_LAGS_S = 10.0
_SHORT_S = 30.0
_FLUSH_S = 30.0


@dataclass(eq=False)
class SnapshotRun:
    """A snapshot that is not over, of a table as it is now.

    `flying` are the slices that are scanned, with the keys that each may take. `behind` is how many events of the table
    were unprocessed at `asked_at`, monotonic s; `retry_at` is when to go on after a failure, likewise. `looks_again`:
    the table may not be what it was. `has_begun`: its first event is appended; until then one slice is scanned at once.
    """

    snapshot: Snapshot
    task: Task
    table: Table
    partitions: int
    store: SnapshotStore
    flying: dict[Future[ScanResult], tuple[TokenStretch, int]] = field(default_factory=dict)
    behind: int = 0
    asked_at: float = 0.0
    retry_at: float = 0.0
    looks_again: bool = False
    turns: ScanTurns = field(default_factory=ScanTurns)
    has_begun: bool = False
    _failures: int = 0
    _lags_since: float | None = None
    _went_on_at: float | None = None
    _short_since: float | None = None
    _said_at: float = field(default_factory=time.monotonic)

    @property
    def in_flight(self) -> int:
        """Keys that the slices on their way may still append."""
        return sum(most for _, most in self.flying.values())

    @property
    def needs_mark(self) -> bool:
        """Return whether the last event is to be appended once more, marked as such. Debezium's records of Cassandra
        have no such mark: there a snapshot of N rows is N records.
        """
        has_mark = self.task.settings.output_format != "debezium-cassandra"
        return has_mark and self.snapshot.last is not None and not self.snapshot.marked

    def room(self, tasks: int, ends: Callable[[], dict[str, int]], is_past: Callable[[dict[str, int]], bool]) -> int:
        """Return how many keys a slice may scan now, of `tasks` at once. `ends`, `is_past`: see `ScanTurns`."""
        most, now = self.task.settings.snapshot_max_lag, time.monotonic()
        if is_quiet(self.task.changed_at, now):
            self.turns = ScanTurns()
            return room(most, self.behind, self.in_flight)
        return self.turns.room(most, tasks, self.behind, bool(self.flying), now, ends, is_past)

    def goes_on(self, now: float | None) -> None:
        """Count the time in which it goes on, up to `now`, monotonic s; None while it does not."""
        if now is not None and self._went_on_at is not None and not self.snapshot.is_over:
            self.snapshot.seconds += now - self._went_on_at
        self._went_on_at = now

    def lags(self) -> None:
        """Nothing may be scanned now, as too many events are unprocessed: after some seconds that is why it waits."""
        now = time.monotonic()
        self._lags_since = self._lags_since or now
        if not self.flying and now - self._lags_since > _LAGS_S and self.retry_at < now:
            self.snapshot.waiting = f"{self.behind:,} events of the table are not processed yet (snapshot.max.lag)"

    def fly(self, future: Future[ScanResult], stretch: TokenStretch, most: int) -> None:
        """A slice is on its way."""
        self.turns.took(most)
        self.flying[future] = stretch, most
        if self._lags_since is not None:
            self._lags_since = self.snapshot.waiting = None

    def next(self, most: int, tasks: int) -> TokenStretch | None:
        """A stretch that no slice is at, None if there is none. The longest one is divided while tasks are idle."""
        flying = [one for one, _ in self.flying.values()]
        free = [one for one in self.snapshot.left if one not in flying]
        if not free:
            return None
        longest = max(free, key=lambda one: one.share)
        if len(free) < tasks - len(flying) and self._expects(longest) > most:
            self._divide(longest)
            return self.next(most, tasks)
        return free[0] if not self.has_begun else longest

    def collect(self) -> int:
        """Take what slices brought; returns how many of the keys that they were to read they did not."""
        unused = 0
        done = [(future, future.result()) for future in self.flying if future.done()]
        if not done:
            return 0
        with self.store.changing():
            for future, scanned in done:
                stretch, most = self.flying.pop(future)
                unused += most - scanned.read
                self._apply(stretch, scanned)
        return unused

    def _apply(self, stretch: TokenStretch, scanned: ScanResult) -> None:
        one = self.snapshot
        at = one.left.index(stretch)
        if scanned.error is not None:
            self._failed(scanned.error, scanned.is_refused)
            if scanned.is_refused:
                one.left[at] = stretch.again()
            return
        self._failures, one.waiting = 0, None
        self.has_begun |= scanned.rows > 0
        one.left[at : at + 1] = [] if scanned.left is None else [scanned.left]
        one.rows += scanned.rows
        one.skipped += scanned.skipped
        if scanned.last is not None and not stretch.statics:
            one.last = scanned.last

    def _failed(self, error: HelenusError, is_refused: bool) -> None:
        one = self.snapshot
        self._failures += 1
        self.looks_again = True  # is the table still what it was?
        is_hopeless = is_refused and one.where and self._failures > _REFUSALS
        if (error.action is Action.RETRY or is_refused) and not is_hopeless:
            wait = pause(self._failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self.retry_at, one.waiting = time.monotonic() + wait, str(error)
            where = {"connector": one.connector, "table": self.task.table}
            _log.warning("snapshot.retry", **where, error=str(error), retry_in_s=round(wait, 1))
        else:
            end(one, "FAILED", str(error))

    def is_short(self, ends: Mapping[str, int]) -> bool:
        """Whether the events topic, with its `ends` now, has for half a minute had fewer events than when the scan
        ended: those of the snapshot are lost, as the topic was deleted. A broker that just came back may say so too.
        """
        now = time.monotonic()
        # Pulsar says -1 of a partition whose messages it has all removed.
        if not any(0 <= ends.get(partition, -1) < end for partition, end in self.snapshot.ends.items()):
            self._short_since = None
            return False
        self._short_since = self._short_since or now
        return now - self._short_since > _SHORT_S

    def say(self) -> None:
        """Log how far it is, every some seconds."""
        now = time.monotonic()
        if now - self._said_at < _SAY_S:
            return
        self._said_at = now
        shown = self.snapshot.shown()
        fields = ("state", "rows", "done", "rate", "eta_s", "waiting")
        where = {"connector": self.snapshot.connector, "table": self.task.table}
        _log.info("snapshot.progress", **where, **{name: shown.get(name) for name in fields})

    def _divide(self, stretch: TokenStretch) -> None:
        halves = stretch.halves()
        if halves is not None:
            at = self.snapshot.left.index(stretch)
            with self.store.changing():
                self.snapshot.left[at : at + 1] = halves

    def _expects(self, stretch: TokenStretch) -> float:
        """About how many keys are left in a stretch, by those that there were elsewhere; 0 if it can't be divided."""
        done = self.snapshot.done
        if self.snapshot.where or stretch.halves() is None or done <= 0:
            return 0.0
        return self.snapshot.rows / done * stretch.share / self.snapshot.whole


def mark(worker: WorkerSettings, run: SnapshotRun) -> None:
    """Append the event of the row that was scanned last once more, marked as such. Raises HelenusError."""
    log = events_log(worker)
    topic = run.task.events
    assert run.snapshot.last is not None
    partition, key = run.snapshot.last
    try:
        if log.keeps_schemas:
            log.declare(topic, event_schemas(run.table))
        log.append(topic, partition, bytes.fromhex(key), request(Scope.ROW, Origin.SNAPSHOT_LAST))
        log.flush(_FLUSH_S)
    finally:
        log.close()


def end(snapshot: Snapshot, state: Any, error: str | None = None) -> None:
    """A snapshot is over, if it is not yet: what an operator stopped stays so. The caller saves it."""
    if snapshot.is_over:
        return
    snapshot.state, snapshot.error, snapshot.ended, snapshot.waiting = state, error, time.time(), None
    fields: dict[str, Any] = {"connector": snapshot.connector, "table": snapshot.table, "rows": snapshot.rows}
    seconds = round(snapshot.ended - snapshot.started, 1)
    if state == "FAILED":
        _log.error("snapshot.failed", **fields, seconds=seconds, error=error)
    else:
        _log.info("snapshot.ended", **fields, seconds=seconds, state=state)

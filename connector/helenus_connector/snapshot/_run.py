"""Keep the state of one snapshot while it runs: which stretches are scanned, their results, when it is complete."""

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
from helenus_connector.snapshot._pace import ScanTurns, free_keys, is_quiet
from helenus_connector.snapshot._ring import TokenStretch
from helenus_connector.snapshot._scan import ScanResult
from helenus_connector.snapshot.snapshot_store import Snapshot, SnapshotStore
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import Action, HelenusError
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import request

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_LOG_S = 10.0
_REFUSALS = 4  # of the same keys: a paging state, or a table that is altered, is refused once or twice
_LAGS_S = 10.0
_SHORT_S = 30.0
_FLUSH_S = 30.0


@dataclass(eq=False)
class SnapshotRun:
    """A snapshot that is not over, of a table as it is now.

    `flying` are the slices that are scanned, with the keys that each may take. `behind` is how many events of the table
    were unprocessed at `measured_at`, monotonic s; `retry_at` is when to go on after a failure, likewise.
    `must_check_table`: the table may not be what it was. `has_begun`: its first event is appended; until then one slice
    is scanned at once.
    """

    snapshot: Snapshot
    task: Task
    table: Table
    partitions: int
    store: SnapshotStore
    flying: dict[Future[ScanResult], tuple[TokenStretch, int]] = field(default_factory=dict)
    behind: int = 0
    measured_at: float = 0.0
    retry_at: float = 0.0
    must_check_table: bool = False
    turns: ScanTurns = field(default_factory=ScanTurns)
    has_begun: bool = False
    _failures: int = 0
    _lags_since: float | None = None
    _running_since: float | None = None
    _short_since: float | None = None
    _logged_at: float = field(default_factory=time.monotonic)

    @property
    def in_flight(self) -> int:
        """Return how many keys the running slices may still append."""
        return sum(max_keys for _, max_keys in self.flying.values())

    @property
    def needs_mark(self) -> bool:
        """Return whether the last event is to be appended once more, marked as such. Debezium's records of Cassandra
        have no such mark: there a snapshot of N rows is N records.
        """
        has_mark = self.task.settings.output_format != "debezium-cassandra"
        return has_mark and self.snapshot.last is not None and not self.snapshot.marked

    def free_keys(
        self, tasks: int, ends: Callable[[], dict[str, int]], is_past: Callable[[dict[str, int]], bool]
    ) -> int:
        """Return how many keys a slice may scan now, of `tasks` at once. `ends`, `is_past`: see `ScanTurns`."""
        max_lag, now = self.task.settings.snapshot_max_lag, time.monotonic()
        if is_quiet(self.task.changed_at, now):
            self.turns = ScanTurns()
            return free_keys(max_lag, self.behind, self.in_flight)
        return self.turns.free_keys(max_lag, tasks, self.behind, bool(self.flying), now, ends, is_past)

    def count_running_time(self, now: float | None) -> None:
        """Count the time in which it goes on, up to `now`, monotonic s; None while it does not."""
        if now is not None and self._running_since is not None and not self.snapshot.is_over:
            self.snapshot.seconds += now - self._running_since
        self._running_since = now

    def note_lag(self) -> None:
        """Note that too many events are unprocessed to scan now; after some seconds that is why the snapshot waits."""
        now = time.monotonic()
        self._lags_since = self._lags_since or now
        if not self.flying and now - self._lags_since > _LAGS_S and self.retry_at < now:
            self.snapshot.waiting = f"{self.behind:,} events of the table are not processed yet (snapshot.max.lag)"

    def add_slice(self, future: Future[ScanResult], stretch: TokenStretch, max_keys: int) -> None:
        """Add a slice that was submitted."""
        self.turns.count_rows(max_keys)
        self.flying[future] = stretch, max_keys
        if self._lags_since is not None:
            self._lags_since = self.snapshot.waiting = None

    def next_stretch(self, max_keys: int, tasks: int) -> TokenStretch | None:
        """Return a stretch that no slice scans, None if there is none. Divide the longest one while tasks are idle."""
        scanned = [stretch for stretch, _ in self.flying.values()]
        free = [stretch for stretch in self.snapshot.left if stretch not in scanned]
        if not free:
            return None
        longest = max(free, key=lambda stretch: stretch.remaining_share)
        if len(free) < tasks - len(scanned) and self._estimate_keys(longest) > max_keys:
            self._divide_stretch(longest)
            return self.next_stretch(max_keys, tasks)
        return free[0] if not self.has_begun else longest

    def collect(self) -> int:
        """Apply the results of finished slices; return how many of the keys that they were to read they did not."""
        unused = 0
        results = [(future, future.result()) for future in self.flying if future.done()]
        if not results:
            return 0
        with self.store.changing():
            for future, scanned in results:
                stretch, max_keys = self.flying.pop(future)
                unused += max_keys - scanned.read
                self._apply_result(stretch, scanned)
        return unused

    def _apply_result(self, stretch: TokenStretch, result: ScanResult) -> None:
        snapshot = self.snapshot
        index = snapshot.left.index(stretch)
        if result.error is not None:
            self._retry_or_fail(result.error, result.is_refused)
            if result.is_refused:
                snapshot.left[index] = stretch.without_paging()
            return
        self._failures, snapshot.waiting = 0, None
        self.has_begun |= result.rows > 0
        snapshot.left[index : index + 1] = [] if result.left is None else [result.left]
        snapshot.rows += result.rows
        snapshot.skipped += result.skipped
        if result.last is not None and not stretch.statics:
            snapshot.last = result.last

    def _retry_or_fail(self, error: HelenusError, is_refused: bool) -> None:
        snapshot = self.snapshot
        self._failures += 1
        self.must_check_table = True  # is the table still what it was?
        is_permanent = is_refused and snapshot.where and self._failures > _REFUSALS
        if (error.action is Action.RETRY or is_refused) and not is_permanent:
            wait = pause(self._failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self.retry_at, snapshot.waiting = time.monotonic() + wait, str(error)
            where = {"connector": snapshot.connector, "table": self.task.table}
            _log.warning("snapshot.retry", **where, error=str(error), retry_in_s=round(wait, 1))
        else:
            end_snapshot(snapshot, "FAILED", str(error))

    def is_short(self, ends: Mapping[str, int]) -> bool:
        """Return whether the events topic, with its `ends` now, has for half a minute had fewer events than when the
        scan ended: those of the snapshot are lost, as the topic was deleted. A broker that just came back may say so
        too.
        """
        now = time.monotonic()
        # Pulsar says -1 of a partition whose messages it has all removed.
        if not any(
            0 <= ends.get(partition, -1) < end_snapshot for partition, end_snapshot in self.snapshot.ends.items()
        ):
            self._short_since = None
            return False
        self._short_since = self._short_since or now
        return now - self._short_since > _SHORT_S

    def log_progress(self) -> None:
        """Log how far it is, every some seconds."""
        now = time.monotonic()
        if now - self._logged_at < _LOG_S:
            return
        self._logged_at = now
        shown = self.snapshot.shown()
        fields = ("state", "rows", "done", "rate", "eta_s", "waiting")
        where = {"connector": self.snapshot.connector, "table": self.task.table}
        _log.info("snapshot.progress", **where, **{name: shown.get(name) for name in fields})

    def _divide_stretch(self, stretch: TokenStretch) -> None:
        halves = stretch.halves()
        if halves is not None:
            index = self.snapshot.left.index(stretch)
            with self.store.changing():
                self.snapshot.left[index : index + 1] = halves

    def _estimate_keys(self, stretch: TokenStretch) -> float:
        """Estimate the keys left in a stretch from the density elsewhere; 0 if it can't be divided."""
        scanned_share = self.snapshot.scanned_share
        if self.snapshot.where or stretch.halves() is None or scanned_share <= 0:
            return 0.0
        return self.snapshot.rows / scanned_share * stretch.remaining_share / self.snapshot.whole


def append_last_event(worker: WorkerSettings, run: SnapshotRun) -> None:
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


def end_snapshot(snapshot: Snapshot, state: Any, error: str | None = None) -> None:
    """End a snapshot, unless it is over: what an operator stopped stays so. The caller saves it."""
    if snapshot.is_over:
        return
    snapshot.state, snapshot.error, snapshot.ended, snapshot.waiting = state, error, time.time(), None
    fields: dict[str, Any] = {"connector": snapshot.connector, "table": snapshot.table, "rows": snapshot.rows}
    seconds = round(snapshot.ended - snapshot.started, 1)
    if state == "FAILED":
        _log.error("snapshot.failed", **fields, seconds=seconds, error=error)
    else:
        _log.info("snapshot.ended", **fields, seconds=seconds, state=state)

"""Run the snapshots of a worker's connectors: begin them, limit their rate, complete them.

    1 begin     as snapshot.mode says, or as an operator asks
    2 scan      slices of the ring, as Spark jobs of one task
    3 publish   wait until the connector is past the events
    4 complete  the last event once more, marked as such

A snapshot is one more source of events. It appends the keys that are there to the events topic, and the connector reads
each row as it does after a change: so no row can be overwritten by an older image of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import pause, turn_pause
from helenus_connector.control.connectors import Connectors, UnderWay, UnknownConnector
from helenus_connector.control.documents import Document
from helenus_connector.control.status import Connector, Task
from helenus_connector.snapshot import _metrics
from helenus_connector.snapshot._jobs import SnapshotJobs
from helenus_connector.snapshot._pace import ScanRate
from helenus_connector.snapshot._publishing import ASK_S, SnapshotPublishing
from helenus_connector.snapshot._run import SnapshotRun, end_snapshot
from helenus_connector.snapshot._scan import ScanSlice
from helenus_connector.snapshot._tables import SnapshotTables
from helenus_connector.snapshot.request import SnapshotRequest, checked_request
from helenus_connector.snapshot.snapshot_store import Snapshot, SnapshotFile, SnapshotStore, new_snapshot
from helenus_schemas.errors import HelenusError, Kind, reason
from helenus_schemas.service.logs import setup

_log = structlog.get_logger(__name__)
_TURN_S, _IDLE_S = 0.1, 1.0
_LOOK_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_SLICE_S = 1.0
_FIRST = 2_000  # keys of the first slice: the connector begins while others are scanned
_GRACE_S = 3.0


class Snapshots:
    """All snapshots of a worker, saved in `document`, a file by default. `start` begins its thread; any thread may call
    the other methods.

    Methods that take a connector's name raise Unknown; all raise as the document does if it can't be saved.
    """

    def __init__(self, worker: WorkerSettings, connectors: Connectors, document: Document | None = None) -> None:
        self._worker = worker
        self._connectors = connectors
        self.store = SnapshotStore(document or SnapshotFile(worker.checkpoint_dir.absolute()))
        self._publishing = SnapshotPublishing(worker, connectors, self.store)
        self._tables = SnapshotTables()
        self._asking = threading.Lock()  # of the tables, which are for one thread at a time
        self._runs: dict[tuple[str, str], SnapshotRun] = {}
        self._rates: dict[str, ScanRate] = {}
        self._fresh: set[tuple[str, str]] = set()
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._look_at = 0.0
        self._paused: set[tuple[str, str]] = set()
        self._retries: dict[tuple[str, str], tuple[int, float]] = {}
        connectors.on_delete = self.forget

    def begin(self, name: str, tables: Sequence[str] = (), requested: SnapshotRequest | None = None) -> list[Snapshot]:
        """Begin a snapshot of these tables of a connector, by default of all. Raises UnderWay, and HelenusError CONFIG
        if there is no such table, and for a `where` that is not of the partition key; then none is begun.
        """
        requested = requested or SnapshotRequest()
        begun: list[Snapshot] = []
        for task in self._tasks(name, tables):
            with self._asking:
                table = self._tables.read_definition(task.settings)
                request = checked_request(requested, table)
                if request.where:
                    self._tables.check(task.settings, table, request.where)
            begun.append(self._new_snapshot(task, table.id, "signal", request, bool(table.statics)))
        with self.store.changing():
            for snapshot in begun:
                table_snapshots = self.store.for_table(name, snapshot.table)
                if table_snapshots.snapshot is not None and not table_snapshots.snapshot.is_over:
                    raise UnderWay(f"a snapshot of {snapshot.table} is under way", name)
            for snapshot in begun:
                self.store.for_table(name, snapshot.table).begin(snapshot)
        self._look_at = 0.0
        self._changed.set()
        return begun

    def last_snapshots(self, name: str, tables: Sequence[str] = ()) -> list[Snapshot]:
        """Return the last snapshot of each table of a connector, or of some. Raises HelenusError CONFIG if there is no
        such table.
        """
        snapshots = {snapshot.table: snapshot for snapshot in self.store.snapshots(name)}
        self._tasks(name, [table for table in tables if table not in snapshots])
        return [snapshot for table, snapshot in snapshots.items() if not tables or table in tables]

    def stop(self, name: str, tables: Sequence[str] = ()) -> list[Snapshot]:
        """End the snapshots of a connector that are under way, or those of some tables. What is appended to the events
        topic is published all the same. Raises HelenusError CONFIG as `last_snapshots` does; then none is ended.
        """
        running = [snapshot for snapshot in self.last_snapshots(name, tables) if not snapshot.is_over]
        with self.store.changing():
            for snapshot in running:
                end_snapshot(snapshot, "STOPPED")
        self._changed.set()
        return running

    def pause(self, name: str, paused: bool) -> list[Snapshot]:
        """Pause the snapshots of a connector that are under way, or have them go on."""
        running = [snapshot for snapshot in self.last_snapshots(name) if not snapshot.is_over]
        with self.store.changing():
            for snapshot in running:
                snapshot.is_paused = paused
        self._changed.set()
        return running

    def forget(self, name: str) -> None:
        """Forget the snapshots of a connector that was deleted. Its offsets in signal topics stay."""
        self._fresh = {table for table in self._fresh if table[0] != name}
        with self.store.changing():
            self.store.forget(name)
        self._changed.set()

    def need(self, task: Task, why: str) -> None:
        """Note that changes of a table were lost: with snapshot.mode=when_needed another snapshot makes up for them.
        Returns when that is on disk.
        """
        if task.settings.snapshot_mode != "when_needed":
            return
        with self.store.changing():
            self.store.for_table(task.connector, task.settings.table).needed = why
        self._changed.set()

    def renew(self, task: Task) -> None:
        """Forget the snapshots of a table that are over, complete or stopped, as what they fed starts from the
        beginning. Returns when that is on disk.
        """
        with self.store.changing():
            self.store.for_table(task.connector, task.settings.table).forget_ended()
        self._fresh.discard((task.connector, task.settings.table))
        self._changed.set()

    def has_all(self, task: Task) -> bool:
        """Return whether the rows that existed before are on a table's topic and processed, or are not to be."""
        snapshots = self.store.for_table(task.connector, task.settings.table)
        return task.settings.snapshot_mode == "never" or bool(snapshots.complete)

    def start(self, spark: Any) -> None:
        """Run snapshots on this session from now on."""
        self._thread = threading.Thread(target=self._run, args=(SnapshotJobs(spark),), name="snapshots", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End within seconds. Slices that are under way are done again at the next start."""
        self._stopping.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_GRACE_S)

    def _run(self, jobs: SnapshotJobs) -> None:
        while not self._stopping.is_set():
            begun = time.thread_time()
            try:
                self._turn(jobs)
            except Exception as error:  # a full disk; and a bug of ours must not end all snapshots
                if not self._stopping.is_set():
                    _log.error("snapshots.error", error=reason(error))
                    self._stopping.wait(_FIRST_PAUSE_S)
            # A slice that is done wakes it too: what it has to look for itself is the connector's lag, and the rate.
            goes_on = any(run.snapshot.waiting is None for run in list(self._runs.values()))
            self._changed.wait(_TURN_S if goes_on else turn_pause(time.thread_time() - begun, _IDLE_S))
            self._changed.clear()
        self._publishing.disconnect()
        self._tables.close()

    def _turn(self, jobs: SnapshotJobs) -> None:
        tasks = {
            (name, task.settings.table): (connector, task)
            for name, connector in self._connectors.all().items()
            for task in list(connector.tasks.values())
        }
        # 1. Begin what is due, and go on with what was interrupted: both are looked for once in a while.
        now = time.monotonic()
        looks = now >= self._look_at
        if looks:
            self._look_at = now + _LOOK_S
            self._begin_due(tasks)
        # 2. Advance what runs.
        for name, run in list(self._runs.items()):
            if self._may_advance(name, run, tasks.get(name)):
                self._run_guarded(name, partial(self._advance, run, jobs))
                run.count_running_time(None if run.snapshot.waiting else now)
                run.log_progress()
        # 3. End the connectors that are to do nothing else.
        if looks:
            self._end_initial_only(tasks)
            _metrics.show(self.store.snapshots(), set(tasks))

    def _begin_due(self, tasks: Mapping[tuple[str, str], tuple[Connector, Task]]) -> None:
        """Begin snapshots, or go on with them, for the tables that have no run, as far as nothing prevents it."""
        for name, (connector, task) in tasks.items():
            if name in self._runs:
                continue
            obstacle = _obstacle(connector, task)
            if obstacle is None:
                self._run_guarded(name, partial(self._begin_or_continue, task))
            elif (snapshot := self.store.for_table(*name).snapshot) is not None and not snapshot.is_over:
                snapshot.waiting = obstacle

    def _may_advance(
        self, name: tuple[str, str], run: SnapshotRun, connector_task: tuple[Connector, Task] | None
    ) -> bool:
        """Count what a run has scanned, and return whether it may go on. One that is over, or that has to wait, is
        removed.
        """
        self._rate(name[0]).count_rows(-run.collect(), run.task.settings.snapshot_max_rate)
        if run.snapshot.is_over or self.store.for_table(*name).snapshot is not run.snapshot:
            del self._runs[name]  # or its connector was deleted
            return False
        obstacle = "its table is not the connector's now" if connector_task is None else _obstacle(*connector_task)
        if connector_task is None or obstacle is not None or connector_task[1] is not run.task:
            run.count_running_time(None)
            run.snapshot.waiting = obstacle
            if not run.flying:
                del self._runs[name]  # others take its turn; when it can go on, it does, with the table as it is
            return False
        if run.snapshot.is_paused:
            run.count_running_time(None)
            run.snapshot.waiting = "it is paused"
            self._paused.add(name)
            return False
        if name in self._paused:
            self._paused.remove(name)
            run.snapshot.waiting = None
        return True

    def _run_guarded(self, name: tuple[str, str], step: Callable[[], None]) -> None:
        """Run a step for a table. If a server does not answer, retry it after a pause; other tables go on."""
        failures, retry_at = self._retries.get(name, (0, 0.0))
        if time.monotonic() < retry_at:
            return
        try:
            step()
            if self._retries.pop(name, None) and (snapshot := self.store.for_table(*name).snapshot) is not None:
                snapshot.waiting = None
        except HelenusError as error:
            wait = pause(failures + 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self._retries[name] = failures + 1, time.monotonic() + wait
            where = {"connector": name[0], "table": name[1]}
            _log.warning("snapshot.waiting", **where, reason=str(error), retry_in_s=round(wait, 1))
            if (snapshot := self.store.for_table(*name).snapshot) is not None:
                snapshot.waiting = str(error)
            if error.kind is Kind.BROKER_UNREACHABLE:
                self._publishing.disconnect()

    def _begin_or_continue(self, task: Task) -> None:
        """Go on with a table's snapshot, or begin one if it is time."""
        snapshots = self.store.for_table(task.connector, task.settings.table)
        name = (task.connector, task.settings.table)
        snapshot, cause = snapshots.snapshot, None
        if snapshot is None or snapshot.is_over:
            if task.settings.snapshot_mode == "never":
                return
            with self._asking:
                table_id = self._tables.table_id(task.settings)
            cause = table_id and snapshots.cause(task.settings.snapshot_mode, table_id, name in self._fresh)
            if not cause:
                return
        active = [run for (name, _), run in self._runs.items() if name == task.connector]
        is_full = len(active) >= task.settings.snapshot_tables_parallel
        if snapshot is not None and not snapshot.is_over and is_full:
            snapshot.waiting = "it waits for other tables: snapshot.tables.parallel"
            return
        with self._asking:
            table = self._tables.read_definition(task.settings)
        if cause:
            snapshot = self._new_snapshot(task, table.id, cause, SnapshotRequest(), bool(table.statics))
            with self.store.changing():
                snapshots.begin(snapshot)
        assert snapshot is not None
        if snapshot.is_whole:
            self._fresh.add(name)
        if is_full:
            return
        partitions = self._publishing.partitions(task)
        if not partitions:
            return
        if str(table.id) != snapshot.table_id:
            self._fail_replaced(snapshot)
            return
        where = {"connector": task.connector, "table": task.table}
        _log.info(
            "snapshot.started", **where, cause=snapshot.cause, done=round(snapshot.scanned_share, 4), rows=snapshot.rows
        )
        snapshot.waiting = None
        self._runs[name] = SnapshotRun(snapshot, task, table, partitions, self.store, has_begun=snapshot.rows > 0)

    @staticmethod
    def _new_snapshot(task: Task, table_id: object, cause: str, part: SnapshotRequest, has_statics: bool) -> Snapshot:
        return new_snapshot(task.connector, task.settings.table, str(table_id), cause, part, has_statics)

    def _advance(self, run: SnapshotRun, jobs: SnapshotJobs) -> None:
        snapshot = run.snapshot
        if time.monotonic() < run.retry_at:
            return
        if run.must_check_table and not self._check_table(run):
            return
        if snapshot.state == "PUBLISHING":
            self._publishing.advance(run)
        elif not snapshot.left and not run.flying:
            self._publishing.begin(run)
        else:
            self._submit_slices(run, jobs)

    def _submit_slices(self, run: SnapshotRun, jobs: SnapshotJobs) -> None:
        """Submit slices, as many as may be scanned now."""
        settings = run.task.settings
        rate, max_slices = self._rate(settings.name), jobs.max_slices
        while sum(len(other_run.flying) for other_run in self._runs.values()) < max_slices:
            if run.flying and not run.has_begun:
                return  # it shows how dense the table is, and no other is to be the first
            if time.monotonic() - run.measured_at > ASK_S:
                run.behind, run.measured_at = self._publishing.behind(run), time.monotonic()
            ends, is_past = partial(self._publishing.ends, run), partial(self._publishing.is_past, run)
            max_keys = run.free_keys(max_slices, ends, is_past)
            if not max_keys:
                return run.note_lag()
            max_keys = min(max_keys, rate.allowed_rows(settings.snapshot_max_rate, max_slices))
            if not max_keys:
                return
            if not run.has_begun:
                max_keys = min(max_keys, _FIRST)
            stretch = run.next_stretch(max_keys, max_slices)
            if stretch is None:
                return
            slice_ = ScanSlice(
                self._worker,
                settings,
                run.table,
                stretch,
                run.snapshot.where,
                run.partitions,
                max_keys,
                _SLICE_S,
                not run.has_begun,
                setup(),
            )
            rate.count_rows(max_keys, settings.snapshot_max_rate)
            future = jobs.submit(slice_)
            future.add_done_callback(lambda _: self._changed.set())
            run.add_slice(future, stretch, max_keys)

    def _check_table(self, run: SnapshotRun) -> bool:
        """Read the table's definition again; return whether it is still the table that the snapshot is of."""
        with self._asking:
            try:
                table = self._tables.read_definition(run.task.settings)
            except HelenusError as error:
                if error.kind is not Kind.TABLE_MISSING:
                    raise
                self._fail_replaced(run.snapshot)
                return False
        if str(table.id) != run.snapshot.table_id:
            self._fail_replaced(run.snapshot)
            return False
        run.table, run.must_check_table = table, False
        return True

    def _fail_replaced(self, snapshot: Snapshot) -> None:
        with self.store.changing():
            end_snapshot(snapshot, "FAILED", "the table was dropped, or recreated, while the snapshot was under way")

    def _end_initial_only(self, tasks: Mapping[tuple[str, str], tuple[Connector, Task]]) -> None:
        """Stop the connectors that only had to publish what was there."""
        names = {name for (name, _), (_, task) in tasks.items() if task.settings.snapshot_mode == "initial_only"}
        for name in names:
            connector_tasks = [
                (connector, task) for (connector_name, _), (connector, task) in tasks.items() if connector_name == name
            ]
            snapshots = [self.store.for_table(name, task.settings.table) for _, task in connector_tasks]
            if not connector_tasks[0][0].is_scanned:
                continue  # a pattern may name more tables
            if connector_tasks[0][0].wanted == "RUNNING" and all(table.is_published for table in snapshots):
                _log.info("connector.stopped", connector=name, reason="snapshot.mode=initial_only: it is complete")
                with suppress(UnknownConnector):
                    self._connectors.set_wanted(name, "STOPPED")

    def _tasks(self, name: str, tables: Sequence[str]) -> list[Task]:
        with self._connectors.lock:
            tasks = dict(self._connectors.get(name).tasks)
        if unknown := [table for table in tables if table not in tasks]:
            existing = ", ".join(sorted(tasks)) or "none yet"
            advice = "name a table of the connector, without its keyspace"
            raise HelenusError(Kind.CONFIG, f"there is no table {unknown[0]}, but {existing}", name, advice)
        return [tasks[table] for table in tables or tasks]

    def _rate(self, name: str) -> ScanRate:
        return self._rates.setdefault(name, ScanRate())


def _obstacle(connector: Connector, task: Task) -> str | None:
    """Return why a table's snapshot can't go on now, None if it can."""
    if connector.wanted != "RUNNING":
        return f"the connector is {connector.wanted.lower()}"
    if reason := connector.error or task.error:
        return str(reason)
    return None if task.ready else "its topics are not there yet"

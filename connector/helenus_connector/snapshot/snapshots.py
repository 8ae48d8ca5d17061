"""The snapshots of a worker's connectors: when they begin, how fast they go, when they are complete.

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
from helenus_connector.control.backoff import pause
from helenus_connector.control.connectors import Connectors, UnderWay, UnknownConnector
from helenus_connector.control.status import Connector, Task
from helenus_connector.log.choice import planner
from helenus_connector.log.events import Planner, behind, ends
from helenus_connector.snapshot import _metrics
from helenus_connector.snapshot._jobs import SnapshotJobs
from helenus_connector.snapshot._pace import ScanRate
from helenus_connector.snapshot._run import SnapshotRun, append_last_event, end_snapshot
from helenus_connector.snapshot._scan import ScanSlice
from helenus_connector.snapshot._tables import SnapshotTables
from helenus_connector.snapshot.request import SnapshotRequest, checked_request
from helenus_connector.snapshot.snapshot_store import Snapshot, SnapshotStore, new_snapshot
from helenus_schemas.errors import HelenusError, Kind, reason
from helenus_schemas.service.logs import setup

_log = structlog.get_logger(__name__)
_TURN_S, _IDLE_S = 0.1, 1.0
_LOOK_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_ASK_S = 0.2
_SLICE_S = 1.0
_FIRST = 2_000  # keys of the first slice: the connector begins while others are scanned
_GRACE_S = 3.0
_LOST = "the events topic is shorter than it was: events of the snapshot were lost before they were published"


class Snapshots:
    """All snapshots of a worker. `start` begins its thread; any thread may call the other methods.

    Methods that take a connector's name raise Unknown; all raise HelenusError(STATE) if their file can't be written.
    """

    def __init__(self, worker: WorkerSettings, connectors: Connectors) -> None:
        self._worker = worker
        self._connectors = connectors
        self.store = SnapshotStore(worker.checkpoint_dir.absolute() / "snapshots")
        self._tables = SnapshotTables()
        self._asking = threading.Lock()  # of the tables, which are for one thread at a time
        self._runs: dict[tuple[str, str], SnapshotRun] = {}
        self._rates: dict[str, ScanRate] = {}
        self._fresh: set[tuple[str, str]] = set()
        self._planner: Planner | None = None
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._look_at = 0.0
        self._held: set[tuple[str, str]] = set()
        self._failing: dict[tuple[str, str], tuple[int, float]] = {}
        connectors.on_delete = self.forget

    def begin(self, name: str, tables: Sequence[str] = (), asked: SnapshotRequest | None = None) -> list[Snapshot]:
        """Begin a snapshot of these tables of a connector, by default of all. Raises UnderWay, and HelenusError CONFIG
        if there is no such table, and for a `where` that is not of the partition key; then none is begun.
        """
        asked = asked or SnapshotRequest()
        begun: list[Snapshot] = []
        for task in self._tasks(name, tables):
            with self._asking:
                table = self._tables.read_definition(task.settings)
                wanted = checked_request(asked, table)
                if wanted.where:
                    self._tables.check(task.settings, table, wanted.where)
            begun.append(self._new(task, table.id, "signal", wanted, bool(table.statics)))
        with self.store.changing():
            for one in begun:
                known = self.store.of(name, one.table)
                if known.snapshot is not None and not known.snapshot.is_over:
                    raise UnderWay(f"a snapshot of {one.table} is under way", name)
            for one in begun:
                self.store.of(name, one.table).begin(one)
        self._look_at = 0.0
        self._changed.set()
        return begun

    def of(self, name: str, tables: Sequence[str] = ()) -> list[Snapshot]:
        """The last snapshot of each table of a connector, or of some. Raises HelenusError CONFIG if there is no such
        table.
        """
        there = {one.table: one for one in self.store.snapshots(name)}
        self._tasks(name, [table for table in tables if table not in there])
        return [one for table, one in there.items() if not tables or table in tables]

    def stop(self, name: str, tables: Sequence[str] = ()) -> list[Snapshot]:
        """End the snapshots of a connector that are under way, or those of some tables. What is appended to the events
        topic is published all the same. Raises HelenusError CONFIG as `of` does; then none is ended.
        """
        there = [one for one in self.of(name, tables) if not one.is_over]
        with self.store.changing():
            for one in there:
                end_snapshot(one, "STOPPED")
        self._changed.set()
        return there

    def pause(self, name: str, paused: bool) -> list[Snapshot]:
        """Pause the snapshots of a connector that are under way, or have them go on."""
        there = [one for one in self.of(name) if not one.is_over]
        with self.store.changing():
            for one in there:
                one.is_paused = paused
        self._changed.set()
        return there

    def forget(self, name: str) -> None:
        """A connector was deleted, and its snapshots with it. Where it is in its topics of signals stays."""
        self._fresh = {place for place in self._fresh if place[0] != name}
        with self.store.changing():
            self.store.forget(name)
        self._changed.set()

    def need(self, task: Task, why: str) -> None:
        """Changes of a table were lost: with snapshot.mode=when_needed another snapshot makes up for them. Returns when
        that is on disk.
        """
        if task.settings.snapshot_mode != "when_needed":
            return
        with self.store.changing():
            self.store.of(task.connector, task.settings.table).needed = why
        self._changed.set()

    def renew(self, task: Task) -> None:
        """What snapshots of a table fed starts from the beginning: those that are over count no longer, be they
        complete or stopped. Returns when that is on disk.
        """
        with self.store.changing():
            self.store.of(task.connector, task.settings.table).forget_ended()
        self._fresh.discard((task.connector, task.settings.table))
        self._changed.set()

    def has_all(self, task: Task) -> bool:
        """Whether the rows of before are on a table's topic and processed, or are not to be."""
        known = self.store.of(task.connector, task.settings.table)
        return task.settings.snapshot_mode == "never" or bool(known.complete)

    def start(self, spark: Any) -> None:
        """SnapshotRun snapshots on this session from now on."""
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
            try:
                self._turn(jobs)
            except Exception as error:  # a full disk; and a bug of ours must not end all snapshots
                if not self._stopping.is_set():
                    _log.error("snapshots.error", error=reason(error))
                    self._stopping.wait(_FIRST_PAUSE_S)
            # A slice that is done wakes it too: what it has to look for itself is the connector's lag, and the rate.
            goes_on = any(run.snapshot.waiting is None for run in list(self._runs.values()))
            self._changed.wait(_TURN_S if goes_on else _IDLE_S)
            self._changed.clear()
        self._forget_planner()
        self._tables.close()

    def _turn(self, jobs: SnapshotJobs) -> None:
        tasks = {
            (name, task.settings.table): (connector, task)
            for name, connector in self._connectors.all().items()
            for task in list(connector.tasks.values())
        }
        now = time.monotonic()
        looks = now >= self._look_at
        if looks:
            self._look_at = now + _LOOK_S
            for place, (connector, task) in tasks.items():
                if place in self._runs:
                    continue
                waits = _goes_on(connector, task)
                if waits is None:
                    self._guarded(place, partial(self._due, task))
                elif (one := self.store.of(*place).snapshot) is not None and not one.is_over:
                    one.waiting = waits
        for place, run in list(self._runs.items()):
            self._rate(place[0]).count_rows(-run.collect(), run.task.settings.snapshot_max_rate)
            if run.snapshot.is_over or self.store.of(*place).snapshot is not run.snapshot:
                del self._runs[place]  # or its connector was deleted
                continue
            there = tasks.get(place)
            waits = "its table is not the connector's now" if there is None else _goes_on(*there)
            if there is None or waits is not None or there[1] is not run.task:
                run.count_running_time(None)
                run.snapshot.waiting = waits
                if not run.flying:
                    del self._runs[place]  # others take its turn; when it can go on, it does, with the table as it is
                continue
            if run.snapshot.is_paused:
                run.count_running_time(None)
                run.snapshot.waiting = "it is paused"
                self._held.add(place)
                continue
            if place in self._held:
                self._held.remove(place)
                run.snapshot.waiting = None
            self._guarded(place, partial(self._advance, run, jobs))
            run.count_running_time(None if run.snapshot.waiting else now)
            run.log_progress()
        if looks:
            self._end_initial_only(tasks)
            _metrics.show(self.store.snapshots(), set(tasks))

    def _guarded(self, place: tuple[str, str], step: Callable[[], None]) -> None:
        """Do this for a table. If a server does not answer, it is tried again after a pause; other tables go on."""
        failures, at = self._failing.get(place, (0, 0.0))
        if time.monotonic() < at:
            return
        try:
            step()
            if self._failing.pop(place, None) and (one := self.store.of(*place).snapshot) is not None:
                one.waiting = None
        except HelenusError as error:
            wait = pause(failures + 1, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            self._failing[place] = failures + 1, time.monotonic() + wait
            where = {"connector": place[0], "table": place[1]}
            _log.warning("snapshot.waiting", **where, reason=str(error), retry_in_s=round(wait, 1))
            if (one := self.store.of(*place).snapshot) is not None:
                one.waiting = str(error)
            if error.kind is Kind.BROKER_UNREACHABLE:
                self._forget_planner()

    def _due(self, task: Task) -> None:
        """Go on with a table's snapshot, or begin one if it is time."""
        known = self.store.of(task.connector, task.settings.table)
        place = (task.connector, task.settings.table)
        one, cause = known.snapshot, None
        if one is None or one.is_over:
            if task.settings.snapshot_mode == "never":
                return
            with self._asking:
                now = self._tables.table_id(task.settings)
            cause = now and known.cause(task.settings.snapshot_mode, now, place in self._fresh)
            if not cause:
                return
        active = [run for (name, _), run in self._runs.items() if name == task.connector]
        is_full = len(active) >= task.settings.snapshot_tables_parallel
        if one is not None and not one.is_over and is_full:
            one.waiting = "it waits for other tables: snapshot.tables.parallel"
            return
        with self._asking:
            table = self._tables.read_definition(task.settings)
        if cause:
            one = self._new(task, table.id, cause, SnapshotRequest(), bool(table.statics))
            with self.store.changing():
                known.begin(one)
        assert one is not None
        if one.is_whole:
            self._fresh.add(place)
        if is_full:
            return
        partitions = self._broker().partitions([task.events])[task.events]
        if not partitions:
            return
        if str(table.id) != one.table_id:
            self._replaced(one)
            return
        where = {"connector": task.connector, "table": task.table}
        _log.info("snapshot.started", **where, cause=one.cause, done=round(one.done, 4), rows=one.rows)
        one.waiting = None
        self._runs[place] = SnapshotRun(one, task, table, partitions, self.store, has_begun=one.rows > 0)

    @staticmethod
    def _new(task: Task, table_id: object, cause: str, asked: SnapshotRequest, has_statics: bool) -> Snapshot:
        return new_snapshot(task.connector, task.settings.table, str(table_id), cause, asked, has_statics)

    def _advance(self, run: SnapshotRun, jobs: SnapshotJobs) -> None:
        one = run.snapshot
        if time.monotonic() < run.retry_at:
            return
        if run.must_check_table and not self._is_same(run):
            return
        if one.state == "PUBLISHING":
            self._publish(run)
        elif not one.left and not run.flying:
            self._scanned(run)
        else:
            self._fly(run, jobs)

    def _fly(self, run: SnapshotRun, jobs: SnapshotJobs) -> None:
        """Submit slices, as many as may be scanned now."""
        settings = run.task.settings
        rate, at_once = self._rate(settings.name), jobs.max_slices
        while sum(len(other.flying) for other in self._runs.values()) < at_once:
            if run.flying and not run.has_begun:
                return  # it shows how dense the table is, and no other is to be the first
            if time.monotonic() - run.measured_at > _ASK_S:
                run.behind, run.measured_at = self._behind(run), time.monotonic()
            most = run.free_keys(at_once, partial(self._ends, run), partial(self._is_past, run))
            if not most:
                return run.note_lag()
            most = min(most, rate.allowed_rows(settings.snapshot_max_rate, at_once))
            if not most:
                return
            if not run.has_begun:
                most = min(most, _FIRST)
            stretch = run.next_stretch(most, at_once)
            if stretch is None:
                return
            slice_ = ScanSlice(
                self._worker,
                settings,
                run.table,
                stretch,
                run.snapshot.where,
                run.partitions,
                most,
                _SLICE_S,
                not run.has_begun,
                setup(),
            )
            rate.count_rows(most, settings.snapshot_max_rate)
            future = jobs.submit(slice_)
            future.add_done_callback(lambda _: self._changed.set())
            run.add_slice(future, stretch, most)

    def _scanned(self, run: SnapshotRun) -> None:
        one, at = run.snapshot, self._ends(run)
        with self.store.changing():
            if not one.is_over:  # stopped meanwhile
                one.ends, one.state = at, "PUBLISHING"

    def _publish(self, run: SnapshotRun) -> None:
        """Complete a snapshot once the connector is past its events; then its last one once more, marked as such."""
        one = run.snapshot
        if time.monotonic() - run.measured_at < _ASK_S:
            return
        run.measured_at = time.monotonic()
        at = self._ends(run)
        if run.is_short(at):
            with self.store.changing():
                if run.task.settings.snapshot_mode == "when_needed":
                    self.store.of(one.connector, one.table).needed = _LOST
                end_snapshot(one, "FAILED", _LOST)
            return
        if not self._is_past(run, one.ends):
            return
        if run.needs_mark:
            append_last_event(self._worker, run)
            at = self._ends(run)
            with self.store.changing():
                one.ends, one.marked = at, True
            return
        with self.store.changing():
            if one.is_whole and not one.is_over:
                self.store.of(one.connector, one.table).complete = one.table_id
            end_snapshot(one, "COMPLETE")

    def _is_same(self, run: SnapshotRun) -> bool:
        """Whether the table is still the one that the snapshot is of; its definition is read again."""
        with self._asking:
            try:
                table = self._tables.read_definition(run.task.settings)
            except HelenusError as error:
                if error.kind is not Kind.TABLE_MISSING:
                    raise
                self._replaced(run.snapshot)
                return False
        if str(table.id) != run.snapshot.table_id:
            self._replaced(run.snapshot)
            return False
        run.table, run.must_check_table = table, False
        return True

    def _replaced(self, one: Snapshot) -> None:
        with self.store.changing():
            end_snapshot(one, "FAILED", "the table was dropped, or recreated, while the snapshot was under way")

    def _behind(self, run: SnapshotRun) -> int:
        """How many events of the table are not processed."""
        unread = behind(run.task.events, self._connectors.at(run.task), self._ends(run))
        return sum(map(self._broker().size, unread))

    def _is_past(self, run: SnapshotRun, ends: Mapping[str, int]) -> bool:
        return not behind(run.task.events, self._connectors.at(run.task), ends)

    def _ends(self, run: SnapshotRun) -> dict[str, int]:
        return ends(self._broker(), run.task.events, run.partitions)

    def _end_initial_only(self, tasks: Mapping[tuple[str, str], tuple[Connector, Task]]) -> None:
        """Stop the connectors that only had to publish what was there."""
        names = {name for (name, _), (_, task) in tasks.items() if task.settings.snapshot_mode == "initial_only"}
        for name in names:
            own = [(connector, task) for (other, _), (connector, task) in tasks.items() if other == name]
            known = [self.store.of(name, task.settings.table) for _, task in own]
            if not own[0][0].looked:
                continue  # a pattern may name more tables
            if own[0][0].wanted == "RUNNING" and all(one.is_published for one in known):
                _log.info("connector.stopped", connector=name, reason="snapshot.mode=initial_only: it is complete")
                with suppress(UnknownConnector):
                    self._connectors.want(name, "STOPPED")

    def _tasks(self, name: str, tables: Sequence[str]) -> list[Task]:
        with self._connectors.lock:
            tasks = dict(self._connectors.get(name).tasks)
        if unknown := [table for table in tables if table not in tasks]:
            known = ", ".join(sorted(tasks)) or "none yet"
            advice = "name a table of the connector, without its keyspace"
            raise HelenusError(Kind.CONFIG, f"there is no table {unknown[0]}, but {known}", name, advice)
        return [tasks[table] for table in tables or tasks]

    def _rate(self, name: str) -> ScanRate:
        return self._rates.setdefault(name, ScanRate())

    def _broker(self) -> Planner:
        self._planner = self._planner or planner(self._worker)
        return self._planner

    def _forget_planner(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def _goes_on(connector: Connector, task: Task) -> str | None:
    """Why a table's snapshot can't go on now, None if it can."""
    if connector.wanted != "RUNNING":
        return f"the connector is {connector.wanted.lower()}"
    if reason := connector.error or task.error:
        return str(reason)
    return None if task.ready else "its topics are not there yet"

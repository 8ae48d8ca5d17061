"""A worker: many connectors on one Spark session, a streaming query for each of their groups."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from helenus_connector import metrics
from helenus_connector._data_sources import DataSources
from helenus_connector._group_member import GroupMember
from helenus_connector._reports import ConnectorReports, log_topics
from helenus_connector._table_scans import TableScans
from helenus_connector._threads import run_in_thread
from helenus_connector.config.run_directory import make, remove
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import ReasonLog, turn_pause
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.fences import fence_all, owned
from helenus_connector.control.keyspaces import Keyspaces
from helenus_connector.control.offsets import claim
from helenus_connector.control.tables import TableDefinitions
from helenus_connector.control.topics import TopicQueries
from helenus_connector.gate.cache import prune
from helenus_connector.history import History
from helenus_connector.journal.committed import CommittedPositions
from helenus_connector.query.batch_spans import BatchSpans
from helenus_connector.query.events_query import EventsQuery
from helenus_connector.query.garbage import DRIVER_SEARCH_AFTER, freeze
from helenus_connector.query.query_runner import NO_BATCH
from helenus_connector.query.small_batches import SmallBatches
from helenus_connector.query.spark_session import load_modules, start_session
from helenus_connector.rest.server import (
    RestListener,
    application,
    member_application,
    serve,
    serve_member,
    serve_standby,
)
from helenus_connector.schema_registration.registrar import SchemaRegistrar
from helenus_connector.shape.encoding.registry import registry_memory
from helenus_connector.snapshot.signals import Signals
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_connector.state.keys.queries import KeysQueries
from helenus_connector.verify.verifications import Verifications
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.service import descriptors

if TYPE_CHECKING:
    from helenus_connector.state.rows.query import RowsQuery

_log = structlog.get_logger(__name__)
_TURN_S, _STARTING_S, _TOPICS_S = 1.0, 0.5, 1.0
_STATES_S, _GRACE_S = 5.0, 3.0
_TOPICS, _SAVING = "topics of all connectors", "saving"
_NO_SPARK = "starting: Spark is not there yet"


class Worker:
    """Runs connectors until `stop` is called, or until all that its files name have failed.

    `files` are the properties of connectors by name, as they were written. `spans` trace batches, if that is wanted.
    `small_batches` may have its process already, and so may `small_row_batches`, those of `state=rows`.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        files: Mapping[str, Mapping[str, str]],
        spans: BatchSpans | None = None,
        small_batches: SmallBatches | None = None,
        small_row_batches: SmallBatches | None = None,
    ) -> None:
        self.worker = worker
        self._spans = spans
        self._small_batches = small_batches or SmallBatches(worker)
        self._small_row_batches = small_row_batches or SmallBatches(worker)
        self._keyspaces = Keyspaces(worker.model, files)
        self._topics = TopicQueries(worker)
        self.connectors = Connectors(worker, self._topics.earliest)
        self.snapshots: Snapshots
        self.signals: Signals
        self.verifications: Verifications
        self._data_sources = DataSources(worker, self.connectors, files)
        self.connectors.files = lambda: self._keyspaces.files_without_tables() | self._data_sources.failed_connectors()
        self._registrar = SchemaRegistrar(worker, self.connectors, run_in_thread)
        self.connectors.broker_positions = CommittedPositions(worker)
        self._scan: Future[None] | None = None
        self._has_scanned = False
        self._wait_reasons = ReasonLog()
        self._queries: dict[str, EventsQuery | RowsQuery] = {}
        self._followers: KeysQueries | None = None
        self._spark_start: Future[Any] | None = None
        self._is_loaded = False
        self._spark: Any = None
        self._stopping = threading.Event()
        self._table_scans = TableScans(
            self.connectors,
            self._keyspaces,
            TableDefinitions(registry_memory(worker.checkpoint_dir)),
            self._may_wait,
            self._stopping.is_set,
        )
        self._member = GroupMember(worker, self.connectors.changed) if worker.group_id else None
        self._started = time.monotonic()
        self._topics_created_at = self._states_reported_at = self._lag_reported_at = 0.0
        self._reports = ConnectorReports(self.connectors)
        self._history = History()
        self._missing_topics: set[metrics.Labels] = set()

    def stop(self) -> None:
        """Ask the worker to end; `run` returns within seconds. A running batch is repeated at the next start."""
        self._stopping.set()
        self.connectors.ending = True
        self.connectors.changed.set()
        self._topics.hurry(_GRACE_S)
        for query in list(self._queries.values()):
            query.stop()
        if self._followers is not None:
            self._followers.stop()

    def ready(self) -> str | None:
        """Return why something that should run does not, or None."""
        return self.connectors.first_obstacle() or self.health()

    def health(self) -> str | None:
        """Return what is wrong with the worker itself, whatever its connectors' status, or None."""
        troubles = [query.trouble() for query in list(self._queries.values())]
        starting = None if self._spark is not None else _NO_SPARK
        waiting = None if self._queries or not self._is_wanted() else NO_BATCH
        reason = next(filter(None, [self._reports.away, *troubles, starting, waiting]), None)
        return None if reason is None else str(reason)

    def run(self) -> bool:
        """Run until `stop`, or until another worker leads the group: then returns True, and a new one is to stand by.
        Raises HelenusError if every connector has failed and came from a file: then only a new start of the worker
        helps. Raises ConfigError for a configuration that cannot work.
        """
        directory = self.worker.checkpoint_dir.absolute()
        stand_by = partial(serve_standby, self.worker)
        with owned(directory, self._may_stand_by, self._stopping.is_set, stand_by) as is_ours:
            if is_ours:
                self._started = time.monotonic()  # servers have the same time to come when a standby takes over
                self._run()
        return self._member is not None and not self._stopping.is_set()

    def _run(self) -> None:
        directory = make()
        listener: RestListener | None = None
        try:
            if self._member is not None:
                listener = serve_member(self.worker, self._member.leader_url, self._member.reason)
                if not self._lead(self._member, directory):
                    return
            try:
                self._load_saved()
                if self._member is not None and self._is_loaded:
                    self._member.show_status(self.connectors)
                listener = self._serve(listener) if self._is_loaded else listener  # it is asked to stop
                while not self._stopping.is_set() and (self._member is None or self._member.leads):
                    begun = time.thread_time()
                    self._turn(directory)
                    is_starting = self._spark is None or not self._all_run()
                    pause_s = _STARTING_S if is_starting else turn_pause(time.thread_time() - begun, _TURN_S)
                    self.connectors.changed.wait(pause_s)
                    self.connectors.changed.clear()
            except HelenusError as error:
                if self._member is None or error.kind is not Kind.NOT_OWNER:
                    raise
                _log.warning("group.waiting", group=self.worker.group_id, reason=str(error))  # the next leader goes on
            finally:
                if self._member is not None and listener is not None and not self._member.leads:
                    listener.show(member_application(self.worker, self._member.leader_url, self._member.reason))
                    self._member.leave()
                self._end_work()
        finally:
            if self._member is not None:
                self._member.leave()
            self._end_spark()
            if listener is not None:
                listener.shutdown()
            remove(directory)

    def _lead(self, member: GroupMember, directory: Path) -> bool:
        """Start Spark, and wait until it is this worker's turn to lead its group; returns False if it is to stop."""
        self._spark_start = spark_start = run_in_thread(lambda: self._start_spark(directory))

        def starting() -> str | None:
            if not spark_start.done():
                return _NO_SPARK
            spark_start.result()
            return None

        def warm_up() -> Future[None]:
            from helenus_connector.query.stream import warm_up

            return run_in_thread(lambda: warm_up(self.worker, spark_start.result(), directory))

        if not member.lead(starting, self._stopping.is_set, self._may_wait, warm_up):
            return False
        self._started = time.monotonic()
        self.connectors.document, self.connectors.term = member.connectors, member.term
        self.connectors.broker_positions = member.positions()
        return True

    def _serve(self, listener: RestListener | None) -> RestListener:
        """Have the listener, or a new one, answer for the connectors."""
        resources = self.connectors, self.snapshots, self.verifications
        if listener is None:
            return serve(self.worker, *resources, self._history, self.ready, self.health)
        listener.show(application(self.worker, *resources, self._history, self.ready, self.health))
        return listener

    def _turn(self, directory: Path) -> None:
        """Do what is due. What may take long has a thread of its own: the scan of tables, and the start of Spark."""
        # 1. tables
        if self._scan is None or self._scan.done():
            if self._scan is not None:
                with descriptors.exhaustion_tolerated(), self._absence_tolerated():
                    self._scan.result()
                self._end_if_all_failed()
                self._has_scanned = True
            self._scan = run_in_thread(lambda: self._table_scans.scan(directory))
        with descriptors.exhaustion_tolerated(), self._absence_tolerated():
            self._data_sources.turn()
        # 2. Spark takes seconds to load: it begins while tables are read, unless there may be nothing to run.
        if self._spark_start is None and (self._has_scanned or self._is_wanted()):
            self._spark_start = run_in_thread(lambda: self._start_spark(directory))
            self._spark_start.add_done_callback(lambda _: self.connectors.changed.set())
        # 3. topics
        if time.monotonic() - self._topics_created_at > _TOPICS_S:
            self._topics_created_at = time.monotonic()
            with descriptors.exhaustion_tolerated():
                self._create_topics()
        # 4. queries, snapshots and verifications, from when Spark is there
        if self._spark_start is not None and self._spark_start.done() and self._spark is None:
            self._spark = self._spark_start.result()
            self._small_batches.start()  # not before: a standby does not need what takes memory
            if self._has_state() or not self._small_batches.are_taken:
                load_modules(self._spark)
            states = None if self._member is None else self._member.state_directories
            self._followers = KeysQueries(self.worker, self.connectors, directory, self._spark, states)
            self.snapshots.start(self._spark)
            self.signals.start()
            self.verifications.start(self._spark, directory)
        if self._spark is not None:
            with descriptors.exhaustion_tolerated():
                self._run_due_work(directory)
            if self._member is not None:
                self._member.renew_positions(self.connectors)
        self._reports.note_hindrances(self._queries, _NO_SPARK if self._spark is None else NO_BATCH)

    @contextlib.contextmanager
    def _absence_tolerated(self) -> Iterator[None]:
        """Go on though the brokers do not answer, where they have what a worker of a group saves: it is saved later."""
        try:
            yield
        except HelenusError as error:
            if self._member is None or error.action is not Action.RETRY:
                raise
            if self._wait_reasons.is_due(_SAVING, str(error)):
                _log.warning("group.waiting", group=self.worker.group_id, reason=str(error))

    def _end_work(self) -> None:
        """Stop all that runs, then wait until it has ended."""
        self.connectors.ending = True
        if not self._is_loaded:
            return
        for query in self._queries.values():
            query.stop()
        self.signals.close()
        self.snapshots.close()
        self.verifications.close()
        if self._followers is not None:
            self._followers.stop()
            self._followers.join()
        for query in self._queries.values():
            query.join()
        self._small_batches.close()
        self._small_row_batches.close()

    def _end_spark(self) -> None:
        """Stop Spark, and close what asks other servers."""
        if self._spark_start is not None and self._spark_start.exception() is None:
            with contextlib.suppress(Exception):  # it may be gone
                self._spark_start.result().stop()
        if self._scan is None or wait([self._scan], _GRACE_S).done:
            self._table_scans.tables.close()
        self._data_sources.close()
        self._topics.close()

    def _load_saved(self) -> None:
        """Read what is saved; in a group, when the brokers answer. Raises HelenusError."""
        while not self._is_loaded and not self._stopping.is_set():
            with self._absence_tolerated():
                self._load()
            if not self._is_loaded:
                if self._member is not None and not self._member.leads:
                    raise HelenusError(Kind.NOT_OWNER, "another worker leads by now", self.worker.group_id)
                self._stopping.wait(_TURN_S)

    def _load(self) -> None:
        """Read what is kept in checkpoint.dir, which is this worker's alone by now: another one may have changed it."""
        saved = self.connectors.document.read()
        files = {**self._keyspaces.properties_of(list(saved)), **self._keyspaces.others}
        self.connectors.load(files, self._data_sources.saved_sources(saved))
        self.snapshots = Snapshots(
            self.worker, self.connectors, None if self._member is None else self._member.snapshots
        )
        self.signals = Signals(self.worker, self.connectors, self.snapshots)
        self.verifications = Verifications(self.worker, self.connectors)
        self._is_loaded = True

    def _start_spark(self, directory: Path) -> Any:
        fence_all(self.worker.checkpoint_dir.absolute(), self._stopping.is_set)
        return start_session(self.worker, directory, self._has_state())

    def _has_state(self) -> bool:
        """Return whether queries may have state. A standby knows no connectors yet."""
        states = (connector.settings.state for connector in self.connectors.all().values())
        return self.worker.state_checkpoint_dir != "" or any(state != "none" for state in states)

    def _run_due_work(self, directory: Path) -> None:
        """Do what is due: queries of new groups, changed plans, lag."""
        now = time.monotonic()
        for group in self._groups() - self._queries.keys():
            try:
                query = self._new_query(group, directory)
            except HelenusError as error:
                self.connectors.fail_group(group, error)
                continue
            self._queries[group] = query
            query.start(self._spark)
        self._end_empty_groups(directory)
        for query in self._queries.values():
            if query.failure is not None and not self._stopping.is_set() and not query.is_stopped:
                raise query.failure
            query.refresh()
        self._registrar.turn(directory)
        # What follows the data comes after it: at a start, Spark begins the queries of changes first.
        if self._followers is not None and self._all_run():
            freeze("worker", DRIVER_SEARCH_AFTER)
            self._followers.turn()
        if now - self._lag_reported_at > self._reports.lag_every_s:
            self._lag_reported_at = now
            self._reports.report_lag(self._topics)
        if now - self._states_reported_at > _STATES_S:
            self._states_reported_at = now
            self._reports.report_states()
            self._history.note(now)

    def _all_run(self) -> bool:
        """Return whether all queries have done a batch."""
        return all(query.is_running for query in self._queries.values())

    def _new_query(self, group: str, directory: Path) -> EventsQuery | RowsQuery:
        journals = None if self._member is None else self._member.journals
        if self._has_rows(group):
            from helenus_connector.state.rows.query import RowsQuery  # with Arrow, which others need not load

            states = None if self._member is None else self._member.state_directories
            self._small_row_batches.start()
            of_rows = self.snapshots, states, journals, self._small_row_batches
            return RowsQuery(self.worker, self.connectors, group, directory, *of_rows)
        more = self.snapshots.need, self._spans, journals, self._small_batches
        return EventsQuery(self.worker, self.connectors, group, directory, *more)

    def _end_empty_groups(self, directory: Path) -> None:
        """End the queries that no connector has any more, or whose `state` is another. One that comes again gets
        another.
        """
        groups = {c.settings.query_group for c in self.connectors.all().values()}
        for group, query in list(self._queries.items()):
            if group not in groups or query.keeps_rows != self._has_rows(group):
                query.stop()
            if query.is_stopped and query.is_over:
                del self._queries[group]
                prune(directory / group, {})
                _log.info("query.ended", group=group)

    def _may_wait(self) -> bool:
        """Return whether servers that start with the worker, and tables that are made later, still have time."""
        return (time.monotonic() - self._started) * 1000 < self.worker.startup_timeout_ms

    def _may_stand_by(self) -> bool:
        """Return whether to go on waiting for another worker that has `checkpoint.dir`."""
        timeout_ms = self.worker.standby_timeout_ms
        if timeout_ms is None:
            return self._may_wait()
        return timeout_ms < 0 or (time.monotonic() - self._started) * 1000 < timeout_ms

    def _end_if_all_failed(self) -> None:
        connectors = self.connectors.all()
        if not connectors and (failure := self._keyspaces.common_failure()):
            raise failure
        errors: list[HelenusError] = []
        for connector in connectors.values():
            unscanned_error = None if connector.is_scanned or self._may_wait() else connector.trouble
            error = connector.failure() or unscanned_error
            if error is None:
                return
            errors.append(error)
        # One that was changed over REST can be changed again, here and now, and one of a data source by a statement.
        if self.worker.data_source_template is not None:
            return
        if not connectors or any(not c.is_as_in_file or c.wanted != "RUNNING" for c in connectors.values()):
            return
        # One whose records another worker has stays: what starts it again would have it take them back.
        if not any(connector.has_lost_records for connector in connectors.values()):
            raise errors[0]

    def _is_wanted(self) -> bool:
        return any(c.wanted == "RUNNING" for c in self.connectors.all().values())

    def _has_rows(self, group: str) -> bool:
        """Return whether a connector of this group keeps rows."""
        of_group = (c.settings for c in self.connectors.all().values() if c.settings.query_group == group)
        return any(settings.state == "rows" for settings in of_group)

    def _groups(self) -> set[str]:
        return {c.settings.query_group for c in self.connectors.all().values() if c.is_scanned and not c.error}

    def _create_topics(self) -> None:
        connectors = [
            c for c in self.connectors.all().values() if c.wanted == "RUNNING" and c.is_scanned and not c.error
        ]
        waiting = [t for c in connectors for t in list(c.tasks.values()) if not t.ready and not t.error]
        if not waiting:
            return
        reason: HelenusError | None = None
        try:
            self._topics.create_topics(claim(self.connectors, waiting))
            self._wait_reasons.forget(_TOPICS)
        except HelenusError as error:
            reason = error
            if self._wait_reasons.is_due(_TOPICS, str(error)):
                _log.warning("topics.waiting", reason=str(error))
        for task in waiting:
            missing = f"waits for its events topic {task.events}: the agent makes it when it starts"
            task.waiting = None if task.ready or task.error else reason or missing
            if reason is None:
                log_topics(task, self._missing_topics)

"""A streaming query of Spark for the connectors of one group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from helenus_connector import metrics
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.checkpoint import planned
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.fences import fence
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.positions import overlaid
from helenus_connector.control.status import Task
from helenus_connector.control.topic_ownership import TopicOwnership
from helenus_connector.journal.pulsar_journals import GroupPosition, PulsarJournals
from helenus_connector.journal.recovery import DriverMemory, JournalOfRun
from helenus_connector.journal.support import NOT_FENCED, not_supported, obstacle
from helenus_connector.query._driver_batch import DriverBatches
from helenus_connector.query._planning_thread import PlanningThread
from helenus_connector.query._spark_job import Function, SparkJobs
from helenus_connector.query._worker_task import TopicResult
from helenus_connector.query.batch_metrics import note_failed_attempt
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.batch_spans import BatchSpans
from helenus_connector.query.handover import MicroBatch
from helenus_connector.query.query_runner import QueryRunner
from helenus_connector.query.small_batches import SmallBatches
from helenus_connector.query.spark_session import task_slots
from helenus_connector.query.stream import new_session, read_stream
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.owners import RecordsOwner

_log = structlog.get_logger(__name__)
_POLL_S = 0.1
"""Between looks whether the worker ends meanwhile."""
_UNDECIDED_S = 10.0
"""Servers that are slow to answer hold up the other tables of a group for no longer."""
_LATE_TASKS_S = 5.0
"""How long tasks of a run that ended may go on, on other hosts: Spark kills a Python worker within 2 s. There may be no
fence that shows its end.
"""


class EventsQuery(QueryRunner):
    """Runs from `start` until `stop`, or until `failure`, which ends the worker. `directory` is the run's own.
    `report_loss` is called with a task and the reason why changes of its table are missing. `spans` trace its batches.
    `journals` are those of a group's leader on Pulsar, which has what waits of all topics there. `small_batches` has
    the worker's process for those.

    Raises HelenusError(STATE) if the files next to its checkpoint can't be read.
    """

    check_every_s = 0.5  # a call of Java's each time, and there may be hundreds of queries

    def __init__(
        self,
        worker: WorkerSettings,
        connectors: Connectors,
        group: str,
        directory: Path,
        report_loss: Callable[[Task, str], None],
        spans: BatchSpans | None = None,
        journals: PulsarJournals | None = None,
        small_batches: SmallBatches | None = None,
    ) -> None:
        super().__init__(f"query.group {group}", f"query-{group}", group, worker.checkpoint_dir.absolute() / group)
        self._worker = worker
        self._report_loss = report_loss
        self._spans = spans
        self._small_batches = small_batches
        self._connectors = connectors
        self._group = group
        self._directory = directory
        self._held_positions = connectors.held_positions(group)
        self._unconfirmed = connectors.unconfirmed_keys(group)
        self._waiting = connectors.waiting_changes(group)
        self._lock = threading.RLock()
        self._plan: QueryPlan | None = None
        self._slots = 1
        self._start = 0
        self._session: Any = None
        self._planning: PlanningThread | None = None
        self._journals = journals
        self._ownership = TopicOwnership(worker, group, connectors.term, None if journals is None else journals.epochs)
        self._journal: JournalOfRun | None = None
        self._warned_of: set[str] = set()
        # Topics that were to be published exactly once if possible, and can't be:
        self._repeating: set[str] = set()
        self._joined_at: dict[str, float] = {}

    def start(self, spark: Any) -> None:
        """Start the query, in a thread of its own."""
        self._slots = task_slots(spark)
        self.refresh()
        super().start(spark)

    def refresh(self) -> tuple[QueryPlan, Mapping[str, Task]]:
        """Return the current plan and its tasks by events topic. A plan that changed is saved for the planner."""
        with self._lock:
            plan, tasks = self._current_plan()
            if self._plan is None or plan != self._plan:
                plan.save()
                self._plan = plan
            return self._plan, tasks

    def _current_plan(self) -> tuple[QueryPlan, Mapping[str, Task]]:
        with self._connectors.lock:
            tasks = self._connectors.running_tasks(self._group, time.monotonic())
            tasks = {topic: task for topic, task in tasks.items() if self._has_joined(topic, task)}
            journaled = {} if self._journal is None else dict(self._journal.topics)
            once = journaled if self._journals is None else {}
            group_connectors = (c for c in self._connectors.all().values() if c.settings.query_group == self._group)
            topics = {task.events for connector in group_connectors for task in connector.tasks.values()}
            self._ownership.forget_others(topics)
            # Before the held positions: so positions of a later epoch are not taken for ones of this.
            tables = self._held_positions.epochs(topics)
            held_offsets = {
                topic: offsets for topic, offsets in self._held_positions.offsets().items() if topic in tasks
            }
            plan = QueryPlan(
                self._worker,
                {topic: task.settings for topic, task in tasks.items()},
                str(self._directory),
                self._group,
                held_offsets,
                {topic: tables[topic] for topic in tasks},
                self._slots,
                self._start,
                tables,
                owner=self._ownership.owner,
                exactly_once={topic: past for topic, past in once.items() if topic in tasks},
                restored=frozenset(journaled.keys() & tasks.keys() - once.keys()),
            )
            return plan, tasks

    def _has_joined(self, topic: str, task: Task) -> bool:
        """Return whether a task's topic can be read in this run: one that is published exactly once joins at the start
        of a run alone, where it learns from the broker how far it is. One that was away for long leaves the run.
        """
        if not self._has_journal(task.settings) or topic in self._repeating:
            return True
        journal, now = self._journal, time.monotonic()
        if journal is None or journal.connectors.get(topic) != task.connector:
            return False
        # By then the caches have forgotten which changes it published.
        is_known = now - self._joined_at.get(topic, now) < task.settings.cache_expire_after_ms / 1000
        if is_known:
            self._joined_at[topic] = now
        else:
            journal.leave(topic)
        return is_known

    def _has_journal(self, settings: ConnectorSettings) -> bool:
        """Return whether what waits of a connector is in a journal."""
        return self._journals is not None or settings.exactly_once_support != "disabled"

    def is_wanted(self) -> bool:
        """Return whether the run is to go on: not if a task waits for the next one to join."""
        if self.is_stopped:
            return False
        with self._connectors.lock:
            connectors = self._connectors.all().values()
            if not any(self._has_journal(connector.settings) for connector in connectors):
                return True  # asked twice a second, and there may be a thousand tasks
            tasks = self._connectors.running_tasks(self._group, time.monotonic())
            return all(self._has_joined(topic, task) for topic, task in tasks.items())

    def away_file(self) -> Path | None:
        """Return the file where the planner writes why it can plan no batch, or None before there is a plan."""
        return None if self._plan is None else self._plan.away_file

    def note_failure(self, error: HelenusError) -> float:
        """Report why a run failed. After any error there is another run: the error of a single table ends no run."""
        metrics.ERRORS.labels(error.kind.value).inc()
        are_tasks_over = self._worker.is_local or self._ownership.owner is not None  # or fenced by the next run
        restart_in_s = self.backoff_s if are_tasks_over else max(self.backoff_s, _LATE_TASKS_S)
        self.last_error = error
        _log.warning("query.failed", group=self._group, error=str(error), restart_in_s=restart_in_s)
        return restart_in_s

    def release(self) -> None:
        """Let other groups write this group's data topics, once none of its tasks runs any more. The end of the worker
        does not wait for that.
        """
        until = time.monotonic() + (0.0 if self._worker.is_local else _LATE_TASKS_S)
        while time.monotonic() < until and not self._connectors.ending:
            time.sleep(_POLL_S)
        if fence(self.checkpoint, lambda: self._connectors.ending) is not None:
            self._connectors.note_written_topics(self._group, ())

    def run_once(self, spark: Any) -> None:
        """Run the query until it ends or is to stop. Raises what ended it."""
        start = fence(self.checkpoint, self._stopping.is_set)
        if start is None:
            return
        self._start = start
        self._ownership.begin_run(self._slots)
        self._connectors.note_written_topics(self._group, ())
        self._await_tasks()
        self._begin_journal()
        begin = partial(self._begin_batch, spark)
        batches = DriverBatches(
            self.refresh,
            begin,
            self._held_positions,
            self._unconfirmed,
            self._waiting,
            self._report_loss,
            self._note_journal if self._journals is None else lambda _: None,
            self._spans,
            None if self._journals is None else self._commit_outcomes,
            self._run_small,
        )
        try:
            query = self.begin_in_turn(partial(self._begin, spark, batches))
            if query is not None:
                _log.info("query.started", group=self._group)
                self.watch(query)
        finally:
            if self._planning is not None:
                self._planning.close()
                self._planning = None

    def _run_small(self, parts: Sequence[TaskRanges], function: Function[TopicResult], waits: int) -> Any:
        if self._small_batches is None:
            return None
        return self._small_batches.run(parts, function, waits, self.is_wanted)

    def _await_tasks(self) -> None:
        """Wait, for some seconds, until it is known which topics can be read: one that is published exactly once and
        joins later starts the run anew.
        """
        deadline = time.monotonic() + _UNDECIDED_S
        while time.monotonic() < deadline and not self._stopping.is_set():
            connectors = [c for c in self._connectors.all().values() if c.settings.query_group == self._group]
            has_journal = any(self._has_journal(connector.settings) for connector in connectors)
            if not has_journal or not any(connector.is_undecided for connector in connectors):
                return
            self._stopping.wait(_POLL_S)

    def _begin_journal(self) -> None:
        """Have the topics that are published exactly once begin where the broker's positions are."""
        with self._lock:
            self._journal, self._repeating, self._joined_at = None, set(), {}
        with self._connectors.lock:
            tasks = {
                topic: task
                for topic, task in self._connectors.running_tasks(self._group, time.monotonic()).items()
                if self._has_journal(task.settings)
            }
        if self._journals is not None:
            self._restore(self._journals, tasks)
            return
        obstacles = {topic: obstacle(self._worker, task.settings) for topic, task in tasks.items()}
        self._claim({topic: task for topic, task in tasks.items() if not obstacles[topic]})
        owner = self._ownership.owner
        for topic, reason in obstacles.items():
            if reason or owner is None:
                self._note_obstacle(tasks[topic], reason or NOT_FENCED)
        once = {topic: task for topic, task in tasks.items() if not obstacles[topic] and self._ownership.owns([topic])}
        if isinstance(owner, RecordsOwner) and once:
            memory = DriverMemory(self._held_positions, self._unconfirmed, self._waiting)
            journal = JournalOfRun(self._worker, owner, memory, self._wait)
            for topic, error in journal.begin(once).items():
                if error.kind is Kind.BROKER_REFUSED:
                    self._note_obstacle(once[topic], f"{error.what} ({error.where})")
                else:
                    note_failed_attempt(once[topic], error)
            with self._lock:
                self._journal = journal

    def _restore(self, journals: PulsarJournals, tasks: Mapping[str, Task]) -> None:
        """Have these tasks' topics begin where the journals of a group are, on Pulsar."""
        self._claim(tasks)
        for task in tasks.values():
            reason = obstacle(self._worker, task.settings)
            if task.settings.exactly_once_support == "required":
                note_failed_attempt(task, not_supported(task.settings, reason))
            elif task.settings.exactly_once_support == "requested":
                self._warn_of(task, reason)
        restored = {topic: task for topic, task in tasks.items() if self._ownership.owns([topic]) and not task.error}
        if restored:
            memory = DriverMemory(self._held_positions, self._unconfirmed, self._waiting)
            journal = JournalOfRun(self._worker, None, memory, self._wait, journals)
            for topic, error in journal.begin(restored).items():
                note_failed_attempt(restored[topic], error)
            with self._lock:
                self._journal = journal

    def _commit_outcomes(self, batch: int, entries: Mapping[str, list[bytes]]) -> None:
        """Write what a batch left to the journals, which is on the disk already, once its records are there."""
        journal, journals = self._journal, self._journals
        if journal is None or journals is None:
            return
        # Before the held positions: so positions of a later epoch are not taken for ones of this.
        epochs = self._held_positions.epochs(entries)
        ends = overlaid(planned(self.checkpoint, batch), self._held_positions.offsets())
        now_ms = int(time.time() * 1000)
        topics = {topic: journal.connectors[topic] for topic in entries if topic in journal.topics}
        positions = {
            topic: {
                partition: GroupPosition(offset, epochs[topic], now_ms)
                for partition, offset in ends.get(topic, {}).items()
            }
            for topic in topics
        }
        journal.note_batch(journals.commit_records(topics, entries, positions))

    def _wait(self, seconds: float) -> None:
        """Wait, unless the query is to end. Raises HelenusError then."""
        if self._stopping.wait(seconds):
            raise HelenusError(Kind.BROKER_UNREACHABLE, "the query is stopped", f"query.group {self._group}")

    def _note_obstacle(self, task: Task, reason: str) -> None:
        """Note that a table can't be published exactly once: if that is required, its task fails."""
        if task.settings.exactly_once_support == "required":
            note_failed_attempt(task, not_supported(task.settings, reason))
            return
        self._repeating.add(task.events)
        self._warn_of(task, reason)

    def _warn_of(self, task: Task, reason: str) -> None:
        """Warn, once, that a table's records may be repeated."""
        if task.events not in self._warned_of:
            self._warned_of.add(task.events)
            does = "records of a batch that is done again are repeated"
            _log.warning(
                "exactly_once.not_supported", connector=task.connector, table=task.table, reason=reason, does=does
            )

    def _note_journal(self, journal_bytes: int) -> None:
        plan = self._plan
        if self._journal is not None and plan is not None:
            # In a group, those of others are committed while no operator can move them.
            self._journal.note_batch(journal_bytes, plan.connectors.keys() if self._connectors.term else None)

    def _begin(self, spark: Any, batches: DriverBatches) -> Any:
        plan, _ = self.refresh()
        if self._session is None:
            self._session = new_session(self._worker, spark)
        self._planning = planning = PlanningThread.for_session(spark.sparkContext, plan.file)
        frame = read_stream(self._session, plan.file, planning)
        jobs = SparkJobs(spark.sparkContext, None if planning is None else planning.take_parts)
        process = partial(self._process, batches, jobs)
        return self.start_stream(spark, f"helenus-{self._group}", frame, self._worker.batch_interval_ms, process)

    def _begin_batch(self, spark: Any) -> tuple[QueryPlan, Mapping[str, Task]]:
        """Refresh the plan for a batch, whose tasks may write from now on. The next batch has as many tasks as Spark
        runs at once now, which changes on a cluster alone.
        """
        if not self._worker.is_local:
            self._slots = task_slots(spark)
        while True:
            _, tasks = self.refresh()
            self._claim(tasks)
            if self._journal is not None and self._ownership.owner is None:
                raise HelenusError(Kind.BROKER_REFUSED, NOT_FENCED, f"query.group {self._group}")
            with self._lock, self._connectors.lock:
                plan, tasks = self.refresh()
                if self._ownership.owns(tasks):  # a task may have joined meanwhile
                    self._connectors.note_written_topics(self._group, [task.data for task in tasks.values()])
                    return plan, tasks

    def _claim(self, tasks: Mapping[str, Task]) -> None:
        """Own the records of these tasks, by events topic; note the error of those whose records it can't own."""
        for topic, error in self._ownership.claim(tasks.values(), self._slots, self._stopping.is_set).items():
            if error.kind is Kind.NOT_OWNER:
                self._forget(topic)
            note_failed_attempt(tasks[topic], error)

    def _forget(self, topic: str) -> None:
        """Forget a topic whose records another worker has: if its task runs again, it begins anew."""
        self._ownership.forget(topic)
        with self._lock:
            if self._journal is not None:
                self._journal.leave(topic)

    def _process(self, batches: DriverBatches, jobs: SparkJobs, batch: MicroBatch) -> None:
        for topic, error in batches.process(jobs, batch.number).items():
            if error.kind is Kind.NOT_OWNER:
                self._forget(topic)
            else:
                self._ownership.claim_again(topic)
        # Tasks of a failed batch may still run: the fence before the next start waits for them.
        self._connectors.note_written_topics(self._group, ())

"""The streaming query of a connector with `state=rows`: one table's events, merged into its rows, become its records.

    events → by partition → `RowsOperator`, with its state on Spark → `publish`

A batch of few events is done without a job (`_small_batch`). A failure fails the query: the batch is repeated as a
whole, from the state before it. So no event is retried while the state moves on, and no offset can be moved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from helenus_connector import metrics
from helenus_connector.config.run_directory import replace
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.checkpoint import committed, sync_planned
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.fences import fence
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.status import Task
from helenus_connector.control.topic_ownership import TopicOwnership
from helenus_connector.group.state_directories import StateDirectories, StateHome, StateName
from helenus_connector.journal.batch_marks import BatchMarks, read_marks
from helenus_connector.journal.pulsar_journals import PulsarJournals
from helenus_connector.journal.support import NOT_FENCED, not_supported, obstacle
from helenus_connector.log.choice import planner
from helenus_connector.log.events import behind, ends
from helenus_connector.query.batch_metrics import GapLog, count_outcome, note_failed_attempt
from helenus_connector.query.handover import MicroBatch
from helenus_connector.query.query_runner import QueryRunner
from helenus_connector.query.small_batches import SmallBatches
from helenus_connector.query.source import PLACE, EventsSource
from helenus_connector.query.spark_session import settled_task_slots, task_slots
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_connector.state.rows import _identity
from helenus_connector.state.rows._identity import StateIdentity
from helenus_connector.state.rows._operator import OUTPUT, MergeRules, PlaceResult, RowsOperator
from helenus_connector.state.rows._publish_task import DONE, CurrentTable, PublishResult, publish
from helenus_connector.state.rows._small_batch import SmallRowsBatches
from helenus_connector.state.store.rocksdb import measure_state, new_session
from helenus_schemas.errors import HelenusError, Kind, error_in
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
_POLL_S = 0.1
_QUIET_S = 5.0
"""Time without a disturbance before the table is snapshot: nodes report one TRUNCATE within seconds of each other."""
_LATE_S = 120.0
"""A file system that workers share may show a file of another host as late as that: NFS does after a minute at most."""


class RowsQuery(QueryRunner):
    """The query of one `query.group`, which runs from `start` until `stop`. `directory` is the run's own; `snapshots`
    give a state the rows that were there before, and are told when changes were lost. Its table's task is told of what
    fails, and says when to try again. In a group `states` says where the state is, and on Pulsar its leader has
    `journals`. `small_batches` has the worker's process for those.
    """

    keeps_rows = True

    def __init__(
        self,
        worker: WorkerSettings,
        connectors: Connectors,
        group: str,
        directory: Path,
        snapshots: Snapshots,
        states: StateDirectories | None = None,
        journals: PulsarJournals | None = None,
        small_batches: SmallBatches | None = None,
    ) -> None:
        super().__init__(f"query.group {group}", f"merge-{group}", group, worker.checkpoint_dir.absolute() / group)
        self._worker = worker
        self._connectors = connectors
        self._group = group
        self._directory = directory
        self._snapshots = snapshots
        self._task: Task | None = None
        self._states = states
        self._local = self.checkpoint
        self._copied_at: float | None = None
        self._ownership = TopicOwnership(worker, group, connectors.term, None if journals is None else journals.epochs)
        self._plan: QueryPlan | None = None
        self._identity: StateIdentity | None = None
        self._due_times: dict[int, float] = {}
        self._place_counts: dict[int, tuple[int, int]] = {}
        self._home = StateHome(self._local)
        self._query: Any = None
        self._small_batches = small_batches
        self._small: SmallRowsBatches | None = None
        self._state_bytes = 0
        self._gaps = GapLog()
        self._nodes_without_cells: set[str] = set()
        self._snapshot_ends: dict[str, int] | None = None
        self._disturbances: dict[int, int] = {}
        self._disturbed_at = 0.0
        self._disturbances_at_snapshot: dict[int, int] = {}
        self._has_warned = False
        self._state_begun_at_last = ""

    @property
    def is_running(self) -> bool:
        """Return whether the query has done a batch since its last start, or has no table."""
        return self.has_done_batches or self._plan is None

    def refresh(self) -> None:
        """Do nothing: a change of its table restarts the query."""

    def away_file(self) -> Path | None:
        """Return the file where the planner writes why it can plan no batch, or None while nothing runs."""
        return None if self._plan is None else self._plan.away_file

    def note_failure(self, error: HelenusError) -> float:
        """Note with the table's task that a run failed: the task has pauses of its own, and says when it runs again."""
        if self._task is None:
            raise error
        note_failed_attempt(self._task, error)
        if error.kind is Kind.NOT_OWNER:
            self._ownership.forget(self._task.events)
        return 0.0

    def run_once(self, spark: Any) -> None:
        """Run the query until its table is to end, or all its rows are proven. Raises what ended it."""
        self._task = None
        if self._stopping.wait(_POLL_S) or (task := self._find_task()) is None:
            return
        self._task = task
        try:
            self._run_query(spark, task)
        finally:
            self._plan = self._identity = self._query = self._small = None
            self._connectors.note_written_topics(self._group, ())

    def _find_task(self) -> Task | None:
        """Return the table to run now, if there is one. Others of the group fail: a partition's state is of
        one table.
        """
        tasks = sorted(
            self._connectors.running_tasks(self._group, time.monotonic()).values(), key=lambda t: (t.connector, t.id)
        )
        for extra_task in tasks[1:]:
            reason = f"with state=rows a query.group has one table, and {self._group} has {tasks[0].table} already"
            advice = "make a connector for each table, with a query.group of its own"
            note_failed_attempt(extra_task, HelenusError(Kind.CONFIG, reason, extra_task.table, advice))
        return tasks[0] if tasks else None

    def is_wanted(self) -> bool:
        """Advance the proof of the table's rows, as this is called ten times a second while a run goes on. Return
        whether it is to go on: its table runs, and the rows were not proven just now. If they were, the next run has an
        operator that knows.
        """
        task, identity = self._task, self._identity
        if self.is_stopped or task is None or self._find_task() is not task:
            return False
        self._home.save_if_quiet()
        return identity is None or not self._advance_proof(task, identity)

    def _run_query(self, spark: Any, task: Task) -> None:
        start = fence(self._local, self._stopping.is_set)
        if start is None:
            return
        state, home = StateName(("rows", task.connector, self._group), "", _identity.NAME), StateHome(self._local)
        if self._states is not None:  # once the leader before is fenced, so that its state has all that is published
            slots = task_slots(spark)
            self._ownership.begin_run(slots)
            self._claim(task, slots)
            self._home = home = self._states.take(state, self._local, spark)
            self._connectors.held_positions(self._group).spark_checkpoint = self.checkpoint = home.directory
        identity, self._snapshot_ends = self._check_identity(spark, task, home.loss), None
        if self._states is None:
            self._ownership.begin_run(identity.slots)
        self._claim(task, identity.slots)
        marks = self._read_marks(task, identity, home.is_copy)
        if marks is not None:
            identity = _identity.note_former(self.checkpoint, identity, marks.other_states)
        if self._states is not None:
            self._states.keep(state)
        self._disturbances_at_snapshot = dict(identity.proven)
        settings = task.settings
        rules = MergeRules(
            patience_s=-(-settings.settle_min_age_ms // 1000),
            markers=settings.markers,
            trusts_absence=identity.is_whole,
            has_snapshots=settings.snapshot_mode != "never",
            proven_up_to=identity.proven,
        )
        self._plan = plan = QueryPlan(
            self._worker,
            {settings.events: settings},
            str(self._directory),
            self._group,
            slots=identity.slots,
            start=start,
            tables={settings.events: 0},
            places=identity.places,
            owner=self._ownership.owner,
            exactly_once={} if marks is None else {settings.events: {}},
            rules=rules.to_json(),
        )
        plan.save()
        replace(plan.due_file, repr(time.time()).encode())  # what expired meanwhile
        query = self.begin_in_turn(partial(self._start_stream, spark, plan, task, marks))
        if query is None:
            return
        _log.info("query.started", group=self._group, state="rows")
        if self._small_batches is not None:
            self._small = SmallRowsBatches.of_run(self._small_batches, spark.sparkContext, query, self.checkpoint)
        self._query, self._identity = query, identity
        self.watch(query)
        self._home.save_at_end()

    def _claim(self, task: Task, slots: int) -> None:
        """Own the table's records; again, once in a while. Raises HelenusError."""
        for error in self._ownership.claim([task], slots, self._stopping.is_set).values():
            raise error

    def _read_marks(self, task: Task, identity: StateIdentity, is_copy: bool) -> BatchMarks | None:
        """Return which parts of the batch that is repeated are published, None if the table is not published exactly
        once. Raises HelenusError CONFIG if that is required, and can't be; STATE if the state is older than what was
        published, BATCH_FAILED if it may be so as a copy; and as `read_marks`.
        """
        settings = task.settings
        if settings.exactly_once_support == "disabled":
            return None
        reason = obstacle(self._worker, settings) or (NOT_FENCED if self._ownership.owner is None else "")
        labels = {"connector": task.connector, "table": task.table}
        if reason:
            if settings.exactly_once_support == "required":
                raise not_supported(settings, reason)
            if not self._has_warned:
                self._has_warned = True
                does = "records of a batch that is done again are repeated"
                _log.warning("exactly_once.not_supported", **labels, reason=reason, does=does)
            return None
        partitions = {task.events: len(identity.places)}
        marks = read_marks(self._worker, task.connector, partitions, identity.name, self.checkpoint)
        if marks.newest is not None or _identity.is_overtaken(self.checkpoint, identity, marks):
            problem = "its state is an older one: what was published since is not in it"
            if is_copy and self._is_late():
                reason = "the file system may show the former leader's files late: they are copied once more"
                raise HelenusError(Kind.BATCH_FAILED, f"{problem}: {reason}", str(self.checkpoint))
            advice = f"restore the checkpoint of then, or {_identity.advice(self.checkpoint)}, and published"
            raise HelenusError(Kind.STATE, problem, str(self.checkpoint), advice)
        if marks.former_state is not None and self._state_begun_at_last != identity.name:
            self._warn_of_loss(task, "the state that was published last is gone")
        self._state_begun_at_last = identity.name
        return marks

    def _is_late(self) -> bool:
        """Return whether a copied state may still lack what was there when it was copied."""
        self._copied_at = self._copied_at or time.monotonic()
        return time.monotonic() - self._copied_at < _LATE_S

    def _advance_proof(self, task: Task, identity: StateIdentity) -> bool:
        """Take the next step to proven rows, where they are not. Return whether all are proven from now on.

        1. After a disturbance, begin a snapshot, once it is quiet and no other one runs.
        2. When that is complete, note the ends of the events topic: what it read lies there, and is merged later.
        3. When the query has committed offsets up to these ends, save the identity.
        """
        disturbances = {partition: count for partition, count in self._disturbances.items() if count}
        is_disturbed = any(count > identity.proven.get(partition, 0) for partition, count in disturbances.items())
        if (identity.is_whole and not is_disturbed) or not self._snapshots.has_all(task):
            return False
        if disturbances != self._disturbances_at_snapshot:
            # What an earlier snapshot shows may have been truncated since, or lacks what was lost.
            if (
                time.monotonic() - self._disturbed_at > _QUIET_S
                and not self._snapshots.store.for_table(task.connector, task.settings.table).is_under_way
            ):
                self._disturbances_at_snapshot, self._snapshot_ends = disturbances, None
                self._snapshots.renew(task)
                labels = {"connector": task.connector, "table": task.table}
                _log.info("state.rows_unproven", **labels, reason="a truncation, a gap or lost events: snapshot begins")
            return False
        if self._snapshot_ends is None:
            with (
                contextlib.suppress(HelenusError),
                closing(planner(self._worker)) as broker,
            ):  # retried at the next turn
                self._snapshot_ends = ends(broker, identity.topic)
        if self._snapshot_ends is None or behind(
            identity.topic, committed(self.checkpoint).get(identity.topic, {}), self._snapshot_ends
        ):
            return False
        _identity.save_identity(self.checkpoint, dataclasses.replace(identity, is_whole=True, proven=disturbances))
        return True

    def _check_identity(self, spark: Any, task: Task, loss: str = "") -> StateIdentity:
        """Return the identity of the state, checked, or saved now at the first start, or after a `loss`. Raises
        HelenusError.
        """
        checkpoint = self.checkpoint
        topic = task.events
        with closing(planner(self._worker)) as broker:
            partitions = broker.partitions([topic])[topic]
        if not partitions:
            raise HelenusError(Kind.TOPIC_MISSING, "there is no events topic", topic)
        identity = _identity.load_identity(checkpoint)
        if identity is None:
            # As many stores as tasks run at once, at the first start: Spark keeps the number with the checkpoint.
            slots = max(2, settled_task_slots(spark, self._stopping.is_set))
            identity = StateIdentity(
                task.table,
                topic,
                _identity.places(spark, partitions, slots),
                slots,
                # Then a row of before counts as one that was not there: nothing is read to learn more of it.
                is_whole=task.settings.snapshot_mode == "never",
                name=secrets.token_hex(8),
            )
            self._snapshots.renew(task)
            _identity.save_identity(checkpoint, identity)
            self._announce(task, identity, loss)
            if task.settings.snapshot_mode == "never":
                labels = {"connector": task.connector, "table": task.table}
                reason = "snapshot.mode=never: a record of a row of before has only what was written since"
                _log.warning("state.rows_unknown", **labels, reason=reason, advice="helenus-connector snapshot")
        _identity.check_identity(identity, task.table, topic, partitions, checkpoint)
        if not identity.name:
            identity = dataclasses.replace(identity, name=secrets.token_hex(8))
            _identity.save_identity(checkpoint, identity)
        if identity.is_whole and not self._snapshots.has_all(task):
            identity = dataclasses.replace(identity, is_whole=False)
            _identity.save_identity(checkpoint, identity)
        return identity

    def _announce(self, task: Task, identity: StateIdentity, loss: str) -> None:
        """Say that a state begins anew, and that the next leader of the group will have none."""
        if loss:
            self._warn_of_loss(task, loss)
            self._state_begun_at_last = identity.name
        if self._states is not None and not self._states.is_shared:
            does = "the next leader of the group begins the state anew, and publishes rows once more"
            advice = "set state.checkpoint.dir on all workers of the group"
            _log.warning("state.not_shared", connector=task.connector, table=task.table, does=does, advice=advice)

    def _warn_of_loss(self, task: Task, loss: str) -> None:
        reason = f"{loss}: rows are learned from events and a snapshot"
        does = "records that were published come again"
        _log.warning("state.begun_anew", connector=task.connector, table=task.table, reason=reason, does=does)

    def _start_stream(self, spark: Any, plan: QueryPlan, task: Task, marks: BatchMarks | None) -> Any:
        session = new_session(spark, plan.slots)
        session.dataSource.register(EventsSource)
        source = session.readStream.format("helenus-events").option("plan", str(plan.file)).option("placed", "true")
        current_table = CurrentTable(task.settings)
        operator = RowsOperator(current_table, current_table.is_cassandra_3, current_table.request)
        merged = source.load().groupBy(PLACE).transformWithStateInPandas(operator, OUTPUT, "Append", "None")
        # A part of the query's own plan: to plan it anew for each batch took a tenth of a small one's time.
        published = merged.mapInArrow(publish(plan, task.settings, marks), DONE)
        process = partial(self._process, plan, task, marks)
        return self.start_stream(spark, f"helenus-{self._group}", published, self._worker.batch_interval_ms, process)

    def _process(self, plan: QueryPlan, task: Task, marks: BatchMarks | None, batch: MicroBatch) -> None:
        reach("state.before-job")
        started_at = time.monotonic()
        self._claim(task, plan.slots)
        self._connectors.note_written_topics(self._group, [task.data])
        try:
            if marks is not None:  # before it is published, or a disk that forgets it would leave an older state
                sync_planned(self.checkpoint, batch.number)
            self._home.save()
            small = self._small
            results = (
                None if small is None else small.run(plan, task.settings, marks, batch.number, self._is_batch_wanted)
            )
            if results is None:
                results = batch.collect()
                self._state_bytes = measure_state(self._query) or self._state_bytes
            elif small is not None:
                self._state_bytes = small.state_bytes
        except (PySparkException, Py4JError) as failure:
            raise error_in(str(failure)) or failure from None
        self._apply_results(plan, task, results)
        self._connectors.note_written_topics(self._group, ())
        seconds = time.monotonic() - started_at
        metrics.BATCH_SECONDS.observe(seconds)
        metrics.STATE_BATCH_SECONDS.labels(*task.labels).set(seconds)
        reach("state.before-commit")

    def _is_batch_wanted(self) -> bool:
        query = self._query
        return not self.is_stopped and query is not None and bool(query.isActive)

    def _apply_results(self, plan: QueryPlan, task: Task, results: list[PublishResult]) -> None:
        """Report to the task what a batch did, and to the planner when the next row expires."""
        now = time.time()
        for result in results:
            count_outcome(task, result.outcome, now)
            self._gaps.note(task, result.outcome.gaps)
            for place_result in result.ended:
                self._note_place(place_result)
        self._note_missing_cells(task, [place_result for result in results for place_result in result.ended])
        task.note_success()
        metrics.ROWS_KEPT.labels(*task.labels).set(sum(rows for rows, _ in self._place_counts.values()))
        metrics.STATE_WAITING.labels(*task.labels).set(sum(entries for _, entries in self._place_counts.values()))
        metrics.STATE_BYTES.labels(*task.labels).set(self._state_bytes)
        replace(plan.due_file, repr(min(self._due_times.values())).encode() if self._due_times else b"")

    def _note_place(self, result: PlaceResult) -> None:
        self._place_counts[result.partition] = result.row_count, result.calendar_entry_count
        if result.disturbances > self._disturbances.get(result.partition, 0):
            self._disturbances[result.partition] = result.disturbances
            self._disturbed_at = time.monotonic()
        if result.next_due is None:
            self._due_times.pop(result.partition, None)
        else:
            self._due_times[result.partition] = result.next_due

    def _note_missing_cells(self, task: Task, results: Sequence[PlaceResult]) -> None:
        """Report the nodes whose changes in the last batches had no cells: each of these has its row read."""
        nodes_with_cells = {node for result in results for node in result.nodes_with_cells}
        new_nodes = (
            {node for result in results for node in result.nodes_without_cells}
            - nodes_with_cells
            - self._nodes_without_cells
        )
        self._nodes_without_cells = (self._nodes_without_cells - nodes_with_cells) | new_nodes
        error = None
        if self._nodes_without_cells:
            reason = f"changes of {task.table} come without their cells, and have their rows read; from nodes"
            advice = f"set cells.include.list={task.table} of these nodes' agents; if it is set, rows are too large"
            error = HelenusError(
                Kind.CONFIG, f"{reason} {', '.join(sorted(self._nodes_without_cells))}", task.events, advice
            )
        task.state_error = error
        if new_nodes:
            _log.warning("state.without_cells", connector=task.connector, table=task.table, reason=str(error))

"""The streaming query of a connector with `state=rows`: one table's events, merged into its rows, become its records.

    events → by place → `RowsOperator`, with its state on Spark → `publish`

A failure is the query's: the batch is done again as a whole, from the state before it. So nothing is held back while
state moves on, and no position can be moved.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from pyspark.errors import PySparkException

from helenus_connector import metrics
from helenus_connector.config.run_directory import replace
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.checkpoint import committed
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.fences import fence
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.status import Task
from helenus_connector.log.choice import planner
from helenus_connector.log.events import behind, ends
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.query.batch_metrics import ADVICE, count, failed_once
from helenus_connector.query.handover import MicroBatch, start_query
from helenus_connector.query.source import EventsSource
from helenus_connector.query.spark_session import settled_task_slots
from helenus_connector.query.start_turn import start_in_turn
from helenus_connector.snapshot.snapshots import Snapshots
from helenus_connector.state.rows import _identity
from helenus_connector.state.rows._identity import StateIdentity
from helenus_connector.state.rows._operator import OUTPUT, PlaceResult, RowsOperator
from helenus_connector.state.rows._publish_task import DONE, CurrentTable, PublishResult, publish
from helenus_connector.state.store.rocksdb import ROCKSDB_SETTINGS, measure_state
from helenus_schemas.errors import HelenusError, Kind, error_in
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
_AWAY_S = 5.0
_TURN_S = 0.1
_QUIET_S = 5.0
"""After a disturbance, before the table is snapshot: nodes report one TRUNCATE within seconds of each other."""
_GUESSES = 100
"""Numbers that are tried for each place: one in `slots` of them goes to the store that is wanted."""


class RowsQuery:
    """Runs from `start` until `stop`. `directory` is the run's own; `snapshots` give a state the rows of before, and
    are told when changes were lost.
    """

    failure: Exception | None = None

    def __init__(
        self,
        worker: WorkerSettings,
        connectors: Connectors,
        group: str,
        directory: Path,
        snapshots: Snapshots,
    ) -> None:
        self._worker = worker
        self._connectors = connectors
        self._group = group
        self._directory = directory
        self._snapshots = snapshots
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._plan: QueryPlan | None = None
        self._done = 0
        self._has_begun = False
        self._due: dict[int, float] = {}
        self._kept: dict[int, tuple[int, int]] = {}
        self._query: Any = None
        self._gaps: set[tuple[str | None, int | None]] = set()
        self._light: set[str] = set()
        self._answers: dict[str, int] | None = None
        self._disturbances: dict[int, int] = {}
        self._disturbed_at = 0.0
        self._snapshot_after: dict[int, int] = {}

    def start(self, spark: Any) -> None:
        """Begin, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(spark,), name=f"merge-{self._group}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end. A batch that is under way is done again at the next start."""
        self._stopping.set()

    @property
    def is_stopped(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping.is_set()

    @property
    def is_running(self) -> bool:
        """Whether it has done a batch since it was started last, or has nothing to do."""
        return self._done > 0 or self._plan is None

    @property
    def has_done_batches(self) -> bool:
        """Return whether it has done a batch since it was started last."""
        return self._done > 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended, after `stop`."""
        return self._thread is not None and not self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join()

    def refresh(self) -> None:
        """Nothing: what changes of its table has the query begin again."""

    def trouble(self) -> str | None:
        """Why it is not ready, or None."""
        if self._plan is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            if time.time() - self._plan.away_file.stat().st_mtime > _AWAY_S:
                return self._plan.away_file.read_text()
        return None if self._done else "starting: no batch done yet"

    def _run(self, spark: Any) -> None:
        while not self._stopping.wait(_TURN_S):
            task = self._task()
            if task is None:
                continue
            try:
                self._once(spark, task)
            except HelenusError as error:
                failed_once(task, error, time.time())
            except Exception as error:
                failed_once(task, _error(str(error)), time.time())
            finally:
                self._plan, self._done = None, 0
                self._connectors.writes(self._group, ())

    def _task(self) -> Task | None:
        """The table to run now, if there is one. Others of the group fail: a place's state is of one table."""
        tasks = sorted(self._connectors.running(self._group, time.time()).values(), key=lambda t: (t.connector, t.id))
        for other in tasks[1:]:
            what = f"with state=rows a query.group has one table, and {self._group} has {tasks[0].table} already"
            advice = "make a connector for each table, with a query.group of its own"
            failed_once(other, HelenusError(Kind.CONFIG, what, other.table, advice), time.time())
        return tasks[0] if tasks else None

    def _wants(self, task: Task) -> bool:
        return not self._stopping.is_set() and self._task() is task

    def _once(self, spark: Any, task: Task) -> None:
        """Run the query until its table is to end, or all its rows are known. Raises what ended it."""
        start = fence(self._worker.checkpoint_dir.absolute() / self._group, self._stopping.is_set)
        if start is None:
            return
        of, self._done, self._answers = self._about(spark, task), 0, None
        self._snapshot_after = dict(of.proven)
        self._has_begun = False
        settings = task.settings
        self._plan = plan = QueryPlan(
            self._worker,
            {settings.events: settings},
            str(self._directory),
            self._group,
            slots=of.slots,
            start=start,
            tables={settings.events: 0},
            places=of.places,
        )
        plan.save()
        replace(plan.due_file, repr(time.time()).encode())  # what expired meanwhile
        begin = partial(self._begin, spark, plan, task, of)
        query = start_in_turn(begin, lambda: self._has_begun, lambda: not self._wants(task))
        if query is None:
            return
        self._query = query
        _log.info("query.started", group=self._group, state="rows")
        while query.isActive and self._wants(task) and not self._has_learned(task, of):
            time.sleep(_TURN_S)
        if query.isActive:
            query.stop()
        elif self._wants(task):
            raise _error(str(query.exception() or "the query ended"))

    def _has_learned(self, task: Task, of: StateIdentity) -> bool:
        """Whether all rows are proven from now on, where they were not; then that is kept.

        A snapshot is complete when all of its keys were read. What was read lies on the events topic behind them, and
        is merged later.
        """
        disturbances = {partition: count for partition, count in self._disturbances.items() if count}
        is_disturbed = any(count > of.proven.get(partition, 0) for partition, count in disturbances.items())
        if (of.is_whole and not is_disturbed) or not self._snapshots.has_all(task):
            return False
        if disturbances != self._snapshot_after:
            # What a snapshot of before shows may have been truncated since, or lacks what was lost.
            if (
                time.monotonic() - self._disturbed_at > _QUIET_S
                and not self._snapshots.store.of(task.connector, task.settings.table).is_under_way
            ):
                self._snapshot_after, self._answers = disturbances, None
                self._snapshots.renew(task)
                where = {"connector": task.connector, "table": task.table}
                _log.info("state.rows_unproven", **where, reason="a truncation, a gap or lost events: snapshot begins")
            return False
        if self._answers is None:
            with contextlib.suppress(HelenusError), closing(planner(self._worker)) as broker:  # it is asked again
                self._answers = ends(broker, of.topic)
        checkpoint = self._worker.checkpoint_dir.absolute() / self._group
        if self._answers is None or behind(of.topic, committed(checkpoint).get(of.topic, {}), self._answers):
            return False
        _identity.save_identity(checkpoint, dataclasses.replace(of, is_whole=True, proven=disturbances))
        return True

    def _about(self, spark: Any, task: Task) -> StateIdentity:
        """What the state is of, checked, or noted now. Raises HelenusError."""
        checkpoint = self._worker.checkpoint_dir.absolute() / self._group
        topic = task.events
        with closing(planner(self._worker)) as broker:
            partitions = broker.partitions([topic])[topic]
        if not partitions:
            raise HelenusError(Kind.TOPIC_MISSING, "there is no events topic", topic)
        kept = _identity.load_identity(checkpoint)
        if kept is None:
            # As many stores as tasks run at once, at the first start: Spark keeps the number with the checkpoint.
            slots = max(2, settled_task_slots(spark, self._stopping.is_set))
            kept = StateIdentity(
                task.table, topic, places(spark, partitions, slots), slots, task.settings.snapshot_mode == "never"
            )
            self._snapshots.renew(task)
            _identity.save_identity(checkpoint, kept)
            if task.settings.snapshot_mode == "never":
                where = {"connector": task.connector, "table": task.table}
                reason = "snapshot.mode=never: a record of a row of before has only what was written since"
                _log.warning("state.rows_unknown", **where, reason=reason, advice="helenus-connector snapshot")
        _identity.check_identity(kept, task.table, topic, partitions, checkpoint)
        if kept.is_whole and not self._snapshots.has_all(task):
            kept = dataclasses.replace(kept, is_whole=False)
            _identity.save_identity(checkpoint, kept)
        return kept

    def _begin(self, spark: Any, plan: QueryPlan, task: Task, of: StateIdentity) -> Any:
        session = spark.newSession()
        for key, value in ROCKSDB_SETTINGS.items():
            session.conf.set(key, value)
        session.conf.set("spark.sql.shuffle.partitions", str(of.slots))
        session.dataSource.register(EventsSource)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._group)
        source = session.readStream.format("helenus-events").option("plan", str(plan.file)).option("placed", "true")
        patience_s = -(-task.settings.settle_min_age_ms // 1000)
        has_snapshots = task.settings.snapshot_mode != "never"
        merging = RowsOperator(
            CurrentTable(task.settings), patience_s, task.settings.markers, of.is_whole, dict(of.proven), has_snapshots
        )
        merged = source.load().groupBy("place").transformWithStateInPandas(merging, OUTPUT, "Append", "None")

        def process(batch: MicroBatch) -> None:
            self._has_begun = True
            reach("state.before-job")
            begun = time.monotonic()
            self._connectors.writes(self._group, [task.data])
            try:
                rows = batch.frame.mapInArrow(publish(plan, task.settings), DONE).collect()
            except PySparkException as failure:
                raise error_in(str(failure)) or failure from None
            self._apply(plan, task, [pickle.loads(row.done) for row in rows])
            self._connectors.writes(self._group, ())
            self._done += 1
            seconds = time.monotonic() - begun
            metrics.BATCH_SECONDS.observe(seconds)
            metrics.STATE_BATCH_SECONDS.labels(*task.labels).set(seconds)
            reach("state.before-commit")

        writer = (
            merged.writeStream.queryName(f"helenus-{self._group}")
            .option("checkpointLocation", str(plan.checkpoint))
            .outputMode("append")
            .trigger(processingTime=f"{self._worker.batch_interval_ms} milliseconds")
        )
        return start_query(spark.sparkContext, writer, process)

    def _apply(self, plan: QueryPlan, task: Task, all_done: list[PublishResult]) -> None:
        """Note with the task what a batch did, and with the planner when the next row expires."""
        now = time.time()
        for done in all_done:
            count(task, done.outcome, now)
            self._note_gaps(task, done.outcome)
            for ended in done.ended:
                self._note(ended)
        self._note_light(task, [ended for done in all_done for ended in done.ended])
        task.succeeded()
        metrics.ROWS_KEPT.labels(*task.labels).set(sum(kept for kept, _ in self._kept.values()))
        metrics.STATE_WAITING.labels(*task.labels).set(sum(waiting for _, waiting in self._kept.values()))
        metrics.STATE_BYTES.labels(*task.labels).set(measure_state(self._query))
        replace(plan.due_file, repr(min(self._due.values())).encode() if self._due else b"")

    def _note(self, ended: PlaceResult) -> None:
        self._kept[ended.partition] = ended.row_count, ended.waiting_count
        if ended.disturbances > self._disturbances.get(ended.partition, 0):
            self._disturbances[ended.partition] = ended.disturbances
            self._disturbed_at = time.monotonic()
        if ended.next_due is None:
            self._due.pop(ended.partition, None)
        else:
            self._due[ended.partition] = ended.next_due

    def _note_light(self, task: Task, all_ended: Sequence[PlaceResult]) -> None:
        """Say of which nodes no change of the last batches had its cells, as each of these has its row read."""
        celled = {node for ended in all_ended for node in ended.nodes_with_cells}
        new = {node for ended in all_ended for node in ended.nodes_without_cells} - celled - self._light
        self._light = (self._light - celled) | new
        error = None
        if self._light:
            what = f"changes of {task.table} come without their cells, and have their rows read; from nodes"
            advice = f"set cells.include.list={task.table} of these nodes' agents; if it is set, rows are too large"
            error = HelenusError(Kind.CONFIG, f"{what} {', '.join(sorted(self._light))}", task.events, advice)
        task.of_state = error
        if new:
            _log.warning("state.without_cells", connector=task.connector, table=task.table, reason=str(error))

    def _note_gaps(self, task: Task, outcome: BatchOutcome) -> None:
        """Each gap once: it is in every partition."""
        for gap in outcome.gaps:
            if gap.partition or (gap.node, gap.until) in self._gaps:
                continue
            self._gaps.add((gap.node, gap.until))
            metrics.GAPS.labels(*task.labels).inc()
            where = {"connector": task.connector, "topic": task.events, "node": gap.node}
            _log.warning("events.gap", **where, until_us=gap.until, advice=ADVICE)


def places(spark: Any, partitions: int, slots: int) -> tuple[int, ...]:
    """A number for each partition, by which Spark gives them to the stores in turns: n goes to the store n % slots."""
    hashed = f"pmod(hash(cast(id AS int)), {slots}) AS slot"
    numbers: Mapping[int, list[int]] = {slot: [] for slot in range(slots)}
    for row in spark.range(partitions * _GUESSES).selectExpr("cast(id AS int) AS id", hashed).collect():
        numbers[row.slot].append(row.id)
    return tuple(numbers[n % slots][n // slots] for n in range(partitions))


def _error(said: str) -> HelenusError:
    """What ended the query, of what Spark says."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return error_in(said) or HelenusError(Kind.BATCH_FAILED, (lines or ["the query ended"])[0][:500])

"""A streaming query of Spark for the connectors of one group, restarted after a transient failure."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from helenus_connector import metrics
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import pause
from helenus_connector.control.connectors import Connectors
from helenus_connector.control.fences import fence
from helenus_connector.control.plan import QueryPlan
from helenus_connector.control.status import Task
from helenus_connector.query._driver_batch import DriverBatches
from helenus_connector.query._spark_job import SparkJobs
from helenus_connector.query.handover import MicroBatch, start_query
from helenus_connector.query.source import EventsSource
from helenus_connector.query.spark_session import is_local, is_spark_alive, task_slots
from helenus_connector.query.start_turn import start_in_turn
from helenus_schemas.errors import HelenusError, Kind, error_in
from helenus_schemas.service import descriptors

_log = structlog.get_logger(__name__)
_BROKER_AWAY_AFTER_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TURN_S = 0.1
_CODEGEN = "sql.codegen.wholeStage"
_CHECK_STATUS_S = 0.5
_ENDING_S = 5.0
"""Spark kills a Python worker within 2 s. On other hosts there may be no fence that shows its end."""


class EventsQuery:
    """Runs from `start` until `stop`, or until `failure`, which ends the worker. `directory` is the run's own.
    `report_loss` is called with a task and the reason why changes of its table are missing.

    Raises HelenusError(STATE) if the files next to its checkpoint can't be read.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        connectors: Connectors,
        group: str,
        directory: Path,
        report_loss: Callable[[Task, str], None],
    ) -> None:
        self._worker = worker
        self._report_loss = report_loss
        self._connectors = connectors
        self._group = group
        self._directory = directory
        self._held_positions = connectors.held_positions(group)
        self._unconfirmed = connectors.unconfirmed_keys(group)
        self._waiting = connectors.waiting_changes(group)
        self._stopping = threading.Event()
        self._lock = threading.RLock()
        self._plan: QueryPlan | None = None
        self._slots = 1
        self._start = 0
        self._batches: DriverBatches | None = None
        self._session: Any = None
        self._last_error: HelenusError | None = None
        self.failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self, spark: Any) -> None:
        """Start the query in a thread of its own."""
        self._slots = task_slots(spark)
        self.refresh()
        self._thread = threading.Thread(target=self._run, args=(spark,), name=f"query-{self._group}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the query to end. A batch that is running is repeated at the next start."""
        self._stopping.set()

    @property
    def is_stopped(self) -> bool:
        """Return whether the query was asked to end."""
        return self._stopping.is_set()

    @property
    def is_running(self) -> bool:
        """Return whether the query has done a batch since its last start."""
        return self.has_done_batches

    @property
    def has_done_batches(self) -> bool:
        """Return whether the query has done a batch since its last start."""
        return self._batches is not None and self._batches.batches_done > 0

    @property
    def is_over(self) -> bool:
        """Return whether the query has ended after `stop`."""
        return self._thread is not None and not self._thread.is_alive()

    def join(self) -> None:
        """Wait until the query has ended."""
        if self._thread is not None:
            self._thread.join()

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
            tasks = self._connectors.running_tasks(self._group, time.time())
            group_connectors = (c for c in self._connectors.all().values() if c.settings.query_group == self._group)
            # Before the held positions: so positions of a later epoch are not taken for ones of this.
            tables = self._held_positions.epochs(
                task.events for connector in group_connectors for task in connector.tasks.values()
            )
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
            )
            return plan, tasks

    def trouble(self) -> HelenusError | str | None:
        """Return why the query is not ready, or None."""
        if away := self._broker_error():
            return away
        if self._batches is None or not self._batches.batches_done:
            return self._last_error or "starting: no batch done yet"
        return self._last_error

    def _broker_error(self) -> str | None:
        """Return why no batch has been planned for some seconds, or None."""
        if self._plan is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            if time.time() - self._plan.away_file.stat().st_mtime > _BROKER_AWAY_AFTER_S:
                return self._plan.away_file.read_text()
        return None

    def _run(self, spark: Any) -> None:
        try:
            self._supervise(spark)
            self._release_topics()
        except Exception as error:
            self.failure = error

    def _supervise(self, spark: Any) -> None:
        failures = 0
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._group)
        while not self._stopping.is_set():
            self._batches = None
            try:
                error = self._run_once(spark)
            except HelenusError as failure:  # as of a full disk
                error = failure
            except Exception as failure:
                if not descriptors.are_exhausted(failure) and not is_spark_alive(spark):
                    problem = "Spark's Java process has ended: killed, as for want of memory, or crashed"
                    raise HelenusError(Kind.BATCH_FAILED, problem, f"query.group {self._group}") from None
                error = _spark_error(str(failure))
            if error is None:
                return
            metrics.ERRORS.labels(error.kind.value).inc()
            failures = 1 if self._batches is not None and self._batches.batches_done else failures + 1
            wait = pause(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            if not self._is_local:
                wait = max(wait, _ENDING_S)
            self._last_error, self._batches = error, None
            _log.warning("query.failed", group=self._group, error=str(error), restart_in_s=wait)
            self._stopping.wait(wait)

    def _release_topics(self) -> None:
        """Let other groups write this group's data topics, once none of its tasks runs any more. The end of the worker
        does not wait for that.
        """
        until = time.monotonic() + (0.0 if self._is_local else _ENDING_S)
        while time.monotonic() < until and not self._connectors.ending:
            time.sleep(_TURN_S)
        if fence(self._worker.checkpoint_dir.absolute() / self._group, lambda: self._connectors.ending) is not None:
            self._connectors.note_written_topics(self._group, ())

    @property
    def _is_local(self) -> bool:
        return is_local(self._worker.spark.get("master", "local"))

    def _run_once(self, spark: Any) -> HelenusError | None:
        """Run the query until it ends, and return why it did; None if it was to stop."""
        start = fence(self._worker.checkpoint_dir.absolute() / self._group, self._stopping.is_set)
        if start is None:
            return None
        self._start = start
        self._connectors.note_written_topics(self._group, ())
        begin = partial(self._begin_batch, spark)
        batches = DriverBatches(
            self.refresh, begin, self._held_positions, self._unconfirmed, self._waiting, self._report_loss
        )
        self._batches = batches
        query = start_in_turn(partial(self._begin, spark, batches), lambda: batches.has_begun, self._stopping.is_set)
        if query is None:
            return None
        _log.info("query.started", group=self._group)
        while query.isActive and not self._stopping.wait(_CHECK_STATUS_S):
            if batches.batches_done:
                self._last_error = None
        if self._stopping.is_set():
            query.stop()
            return None
        return _failure_cause(query, batches, self._worker.checkpoint_dir.absolute() / self._group)

    def _begin(self, spark: Any, batches: DriverBatches) -> Any:
        plan, _ = self.refresh()
        _remove_torn_files(plan.checkpoint)
        if self._session is None:
            self._session = spark.newSession()
            self._session.dataSource.register(EventsSource)
            if _CODEGEN not in self._worker.spark:
                self._session.conf.set(
                    f"spark.{_CODEGEN}", "false"
                )  # or code is written for batches, which have no rows
        frame = self._session.readStream.format("helenus-events").option("plan", str(plan.file)).load()
        writer = (
            frame.writeStream.queryName(f"helenus-{self._group}")
            .option("checkpointLocation", str(plan.checkpoint))
            .trigger(processingTime=f"{self._worker.batch_interval_ms} milliseconds")
        )
        jobs = SparkJobs(spark.sparkContext)
        return start_query(spark.sparkContext, writer, partial(self._process, batches, jobs))

    def _begin_batch(self, spark: Any) -> tuple[QueryPlan, Mapping[str, Task]]:
        """Refresh the plan for a batch, whose tasks may write from now on. The next batch has as many tasks as Spark
        runs at once now, which changes on a cluster alone.
        """
        if not self._is_local:
            self._slots = task_slots(spark)
        with self._lock, self._connectors.lock:
            plan, tasks = self.refresh()
            self._connectors.note_written_topics(self._group, [task.data for task in tasks.values()])
            return plan, tasks

    def _process(self, batches: DriverBatches, jobs: SparkJobs, batch: MicroBatch) -> None:
        batches.process(jobs, batch.number)
        # Tasks of a failed batch may still run: the fence before the next start waits for them.
        self._connectors.note_written_topics(self._group, ())


def _remove_torn_files(checkpoint: Path) -> None:
    """Remove half-written files of a killed run: Spark refuses to start where it finds one."""
    for name in ("offsets", "commits"):
        for torn in checkpoint.glob(f"{name}/.*.tmp"):
            torn.unlink(missing_ok=True)
            _log.info("checkpoint.torn", file=str(torn))


def _failure_cause(query: Any, batches: DriverBatches, checkpoint: Path) -> HelenusError:
    """Return why a query ended: our own error from a batch, or Spark's error, after which it is restarted."""
    if isinstance(batches.failure, HelenusError):
        return batches.failure
    message = str(query.exception() or batches.failure or "the query ended")
    if "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY" in message:
        problem = (
            "no batch was begun yet, and Spark finds files in offsets or commits that are not its own: move them away"
        )
        return HelenusError(Kind.STATE, problem, str(checkpoint))
    return _spark_error(message)


def _spark_error(message: str) -> HelenusError:
    """Return an error of Spark's, given its message as Py4J shows it."""
    lines = [
        line.strip().removeprefix(": ") for line in message.splitlines() if line.strip()
    ]  # as Py4J shows Java's own
    exception_lines = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return error_in(message) or HelenusError(Kind.BATCH_FAILED, (exception_lines or lines[:1])[-1][:500])

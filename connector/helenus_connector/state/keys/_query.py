"""The streaming query that follows a connector's data topics and maintains the index of their keys: `state=keys`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from helenus_connector import metrics
from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import replace
from helenus_connector.config.state import marker_topic
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.backoff import pause
from helenus_connector.query.handover import MicroBatch, start_query
from helenus_connector.query.spark_session import settled_task_slots, task_slots
from helenus_connector.query.start_turn import start_in_turn
from helenus_connector.state.keys._operator import OUTPUT, KeysOperator, unpack_counts
from helenus_connector.state.keys._plan import FollowedTopic, KeysPlan
from helenus_connector.state.keys._read_request import DONE, request_reads
from helenus_connector.state.keys._source import RecordsSource
from helenus_connector.state.store.rocksdb import ROCKSDB_SETTINGS, measure_state
from helenus_schemas.errors import Action, HelenusError, Kind, error_in
from helenus_schemas.service import durable
from helenus_schemas.service.cassandra import connect
from helenus_schemas.service.failpoints import reach

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
_IDENTITY_FILE = "about"
_INTERVAL_MS = 500
_VERSION = 2
"""Version 1 was of states whose keys did not lie on `pages`."""


class KeysQuery:
    """Follows the data topics of one connector from `start` until `stop`. It retries after transient failures; another
    one ends it, and is `failure`. `tables` are the settings of each table.
    """

    def __init__(self, worker: WorkerSettings, name: str, tables: Mapping[str, ConnectorSettings], directory: Path):
        self._worker = worker
        self.name = name
        self.tables = dict(tables)
        self._directory = directory
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_begun = False
        self._query: Any = None
        self._due_times: dict[str, float] = {}
        self._key_counts: dict[metrics.Labels, dict[str, tuple[int, int]]] = {}
        self.trouble: HelenusError | None = None
        self.failure: HelenusError | None = None

    def start(self, spark: Any) -> None:
        """Start the query, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(spark,), name=f"state-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have the query stop."""
        self._stopping.set()

    @property
    def is_over(self) -> bool:
        """Return whether the query has ended."""
        return self._thread is not None and not self._thread.is_alive()

    def join(self) -> None:
        """Wait until the query has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, spark: Any) -> None:
        failures = 0
        while not self._stopping.is_set():
            started_at = time.monotonic()
            try:
                self._run_query(spark)
                continue
            except HelenusError as error:
                failure = error
            except Exception as error:
                failure = _error(str(error))
            if self._stopping.is_set():
                return
            metrics.ERRORS.labels(failure.kind.value).inc()
            if failure.action is not Action.RETRY:
                self.failure = failure
                _log.error("state.failed", connector=self.name, error=str(failure))
                return
            failures = 1 if time.monotonic() - started_at > _MAX_PAUSE_S else failures + 1
            self.trouble = failure
            pause_s = pause(failures, _FIRST_PAUSE_S, _MAX_PAUSE_S)
            _log.warning("state.retry", connector=self.name, error=str(failure), restart_in_s=pause_s)
            self._stopping.wait(pause_s)

    def _run_query(self, spark: Any) -> None:
        """Run the query until it ends. Raises what ended it, unless it was to stop."""
        plan = self._make_plan()
        _check_identity(plan)
        # As many stores as tasks run at once, at the first start: Spark keeps the number with the checkpoint.
        is_first = not (plan.checkpoint / "query" / "offsets").exists()
        stores = max(2, settled_task_slots(spark, self._stopping.is_set) if is_first else task_slots(spark))
        self._has_begun = False
        begin = partial(self._start_stream, spark, plan, stores)
        query = start_in_turn(begin, lambda: self._has_begun, self._stopping.is_set)
        if query is None:
            return
        self._query = query
        _log.info("state.started", connector=self.name, topics=len(plan.tables))
        while query.isActive and not self._stopping.wait(0.1):
            pass
        if self._stopping.is_set():
            query.stop()
            return
        raise _error(str(query.exception() or "the query ended"))

    def _start_stream(self, spark: Any, plan: KeysPlan, stores: int) -> Any:
        plan.save()
        replace(plan.due_file, b"")
        session = spark.newSession()
        for key, value in ROCKSDB_SETTINGS.items():
            session.conf.set(key, value)
        session.conf.set("spark.sql.shuffle.partitions", str(stores))
        session.dataSource.register(RecordsSource)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "helenus-state")
        records = session.readStream.format("helenus-records").option("plan", str(plan.file)).load()
        index = records.groupBy("place").transformWithStateInPandas(KeysOperator(plan), OUTPUT, "Append", "None")

        def process(batch: MicroBatch) -> None:
            self._has_begun = True
            reach("state.before-job")
            started_at = time.monotonic()
            rows = batch.frame.mapInArrow(request_reads(plan), DONE).collect()
            self._apply_results(plan, rows)
            size, seconds = measure_state(self._query), time.monotonic() - started_at
            for labels in self._key_counts:
                metrics.STATE_BYTES.labels(*labels).set(size / len(self._key_counts))
                metrics.STATE_BATCH_SECONDS.labels(*labels).set(seconds)
            reach("state.before-commit")

        writer = (
            index.writeStream.queryName(f"helenus-state-{self.name}")
            .option("checkpointLocation", str(plan.checkpoint / "query"))
            .outputMode("append")
            .trigger(processingTime=f"{_INTERVAL_MS} milliseconds")
        )
        return start_query(spark.sparkContext, writer, process)

    def _make_plan(self) -> KeysPlan:
        """Return a plan of the current definitions of the tables. Raises HelenusError."""
        data_topics: dict[str, FollowedTopic] = {}
        marker_topics: dict[str, FollowedTopic] = {}
        sessions: dict[tuple[object, ...], Any] = {}
        try:
            for settings in self.tables.values():
                if settings.server not in sessions:
                    sessions[settings.server] = connect(settings, metadata=True)
                definition = read_definition(sessions[settings.server], settings)
                assert definition is not None, "no version is known"
                data_topics[settings.data] = FollowedTopic(settings, definition[1])
                if not settings.markers:
                    marker_topics[marker_topic(settings.data)] = FollowedTopic(settings, definition[1], markers=True)
        finally:
            for session in sessions.values():
                session.cluster.shutdown()
        return KeysPlan(self._worker, self.name, str(self._directory), {**marker_topics, **data_topics})

    def _apply_results(self, plan: KeysPlan, rows: list[Any]) -> None:
        """Report to the planner when topic partitions are due, and set the metrics."""
        for row in rows:
            next_due = row["due"]
            if next_due is None or next_due != next_due:
                self._due_times.pop(row["place"], None)
            else:
                self._due_times[row["place"]] = next_due
            settings = plan.tables[row["place"].rpartition("/")[0]].settings
            labels = settings.name, settings.keyspace, settings.table
            counts = unpack_counts(bytes(row["counts"]))
            table_counts = self._key_counts.setdefault(labels, {})
            table_counts[row["place"]] = counts["live"], counts["waiting"]
            metrics.LIVE_KEYS.labels(*labels).set(sum(live for live, _ in table_counts.values()))
            metrics.STATE_WAITING.labels(*labels).set(sum(waiting for _, waiting in table_counts.values()))
            for reason in ("expired", "deleted", "repeated"):
                metrics.LIVE_KEYS_ASKED.labels(*labels, reason).inc(counts[reason])
        self.trouble = None
        replace(plan.due_file, repr(min(self._due_times.values())).encode() if self._due_times else b"")


def _check_identity(plan: KeysPlan) -> None:
    """Save what the checkpoint's state is of; raise HelenusError(STATE) if it is of another table, or a part of it is
    gone.
    """
    file = plan.checkpoint / _IDENTITY_FILE
    advice = f"delete {plan.checkpoint}: the state is then learned from the data topics again"
    followed_tables = {
        topic: followed.table.full_name for topic, followed in plan.tables.items() if not followed.markers
    }
    query = plan.checkpoint / "query"
    durable.make_directory(plan.checkpoint)
    tables: dict[str, str] = {}
    try:
        tables = durable.load(file, _VERSION)
    except FileNotFoundError:
        if query.exists():
            raise HelenusError(
                Kind.STATE, "the file that says what the state is of is gone", str(file), advice
            ) from None
    except durable.Damaged as error:
        raise HelenusError(Kind.STATE, f"this file is damaged: {error}", str(file), advice) from None
    for topic in followed_tables.keys() & tables.keys():
        if tables[topic] != followed_tables[topic]:
            reason = f"the state is of {tables[topic]}, and {topic} is of {followed_tables[topic]} now"
            raise HelenusError(Kind.STATE, reason, str(plan.checkpoint), advice)
    if tables and any((query / "commits").glob("[0-9]*")) and not (query / "state").exists():
        raise HelenusError(Kind.STATE, "the state is gone, and its offsets are not", str(query / "state"), advice)
    if tables != {**tables, **followed_tables}:
        durable.save(file, {**tables, **followed_tables}, _VERSION, "what the state is of", "state.about-saved")


def _error(message: str) -> HelenusError:
    """Return the error that ended the query, from Spark's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return error_in(message) or HelenusError(Kind.BATCH_FAILED, (lines or ["the query ended"])[0][:500])

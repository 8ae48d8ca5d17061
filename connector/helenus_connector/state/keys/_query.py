"""The streaming query that follows a connector's data topics and keeps the index of their keys: `state=keys`."""

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
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_ABOUT = "about"
_INTERVAL_MS = 500
_VERSION = 2
"""1 was of states whose keys did not lie on `pages`."""


class KeysQuery:
    """Follows the data topics of one connector from `start` until `stop`. What goes wrong is retried; what can't pass
    ends it, and is `failure`. `tables` are the settings of each table.
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
        self._due: dict[str, float] = {}
        self._keys: dict[metrics.Labels, dict[str, tuple[int, int]]] = {}
        self.trouble: HelenusError | None = None
        self.failure: HelenusError | None = None

    def start(self, spark: Any) -> None:
        """Begin, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(spark,), name=f"state-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping.set()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._thread is not None and not self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, spark: Any) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._once(spark)
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
            failures = 1 if time.monotonic() - began > _LONGEST_PAUSE_S else failures + 1
            self.trouble = failure
            wait = pause(failures, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            _log.warning("state.retry", connector=self.name, error=str(failure), restart_in_s=wait)
            self._stopping.wait(wait)

    def _once(self, spark: Any) -> None:
        """Run the query until it ends. Raises what ended it, unless it was to stop."""
        plan = self._plan()
        _check(plan)
        # As many stores as tasks run at once, at the first start: Spark keeps the number with the checkpoint.
        is_first = not (plan.checkpoint / "query" / "offsets").exists()
        stores = max(2, settled_task_slots(spark, self._stopping.is_set) if is_first else task_slots(spark))
        self._has_begun = False
        begin = partial(self._begin, spark, plan, stores)
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

    def _begin(self, spark: Any, plan: KeysPlan, stores: int) -> Any:
        plan.save()
        replace(plan.due_file, b"")
        session = spark.newSession()
        for key, value in ROCKSDB_SETTINGS.items():
            session.conf.set(key, value)
        session.conf.set("spark.sql.shuffle.partitions", str(stores))
        session.dataSource.register(RecordsSource)
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "helenus-state")
        frame = session.readStream.format("helenus-records").option("plan", str(plan.file)).load()
        index = frame.groupBy("place").transformWithStateInPandas(KeysOperator(plan), OUTPUT, "Append", "None")

        def process(batch: MicroBatch) -> None:
            self._has_begun = True
            reach("state.before-job")
            begun = time.monotonic()
            rows = batch.frame.mapInArrow(request_reads(plan), DONE).collect()
            self._note(plan, rows)
            size, seconds = measure_state(self._query), time.monotonic() - begun
            for labels in self._keys:
                metrics.STATE_BYTES.labels(*labels).set(size / len(self._keys))
                metrics.STATE_BATCH_SECONDS.labels(*labels).set(seconds)
            reach("state.before-commit")

        writer = (
            index.writeStream.queryName(f"helenus-state-{self.name}")
            .option("checkpointLocation", str(plan.checkpoint / "query"))
            .outputMode("append")
            .trigger(processingTime=f"{_INTERVAL_MS} milliseconds")
        )
        return start_query(spark.sparkContext, writer, process)

    def _plan(self) -> KeysPlan:
        """What is followed, by the tables as they are now. Raises HelenusError."""
        found: dict[str, FollowedTopic] = {}
        markers: dict[str, FollowedTopic] = {}
        sessions: dict[tuple[object, ...], Any] = {}
        try:
            for settings in self.tables.values():
                if settings.server not in sessions:
                    sessions[settings.server] = connect(settings, metadata=True)
                version = read_definition(sessions[settings.server], settings)
                assert version is not None, "no version is known"
                found[settings.data] = FollowedTopic(settings, version[1])
                if not settings.markers:
                    markers[marker_topic(settings.data)] = FollowedTopic(settings, version[1], markers=True)
        finally:
            for session in sessions.values():
                session.cluster.shutdown()
        return KeysPlan(self._worker, self.name, str(self._directory), {**markers, **found})

    def _note(self, plan: KeysPlan, rows: list[Any]) -> None:
        """Keep when places are due, for the planner, and count."""
        for row in rows:
            due = row["due"]
            if due is None or due != due:
                self._due.pop(row["place"], None)
            else:
                self._due[row["place"]] = due
            settings = plan.tables[row["place"].rpartition("/")[0]].settings
            labels = settings.name, settings.keyspace, settings.table
            counts = unpack_counts(bytes(row["counts"]))
            of_table = self._keys.setdefault(labels, {})
            of_table[row["place"]] = counts["known"], counts["waiting"]
            metrics.LIVE_KEYS.labels(*labels).set(sum(known for known, _ in of_table.values()))
            metrics.STATE_WAITING.labels(*labels).set(sum(waiting for _, waiting in of_table.values()))
            for why in ("expired", "deleted", "repeated"):
                metrics.LIVE_KEYS_ASKED.labels(*labels, why).inc(counts[why])
        self.trouble = None
        replace(plan.due_file, repr(min(self._due.values())).encode() if self._due else b"")


def _check(plan: KeysPlan) -> None:
    """Note what the checkpoint is of; raise HelenusError(STATE) if it is of something else, or a part of it is gone."""
    file = plan.checkpoint / _ABOUT
    advice = f"delete {plan.checkpoint}: the state is then learned from the data topics again"
    wanted = {topic: followed.table.full_name for topic, followed in plan.tables.items() if not followed.markers}
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
    for topic in wanted.keys() & tables.keys():
        if tables[topic] != wanted[topic]:
            what = f"the state is of {tables[topic]}, and {topic} is of {wanted[topic]} now"
            raise HelenusError(Kind.STATE, what, str(plan.checkpoint), advice)
    if tables and any((query / "commits").glob("[0-9]*")) and not (query / "state").exists():
        raise HelenusError(Kind.STATE, "the state is gone, and its offsets are not", str(query / "state"), advice)
    if tables != {**tables, **wanted}:
        durable.save(file, {**tables, **wanted}, _VERSION, "what the state is of", "state.about-saved")


def _error(said: str) -> HelenusError:
    """What ended the query, of what Spark says."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return error_in(said) or HelenusError(Kind.BATCH_FAILED, (lines or ["the query ended"])[0][:500])

"""Run a verification, in the driver: jobs of Spark, one after the other. Nothing here grows with the table.

first   every record of the topic, up to its ends at the start, and every row of the table, meet by their keys
again   what differs may have changed meanwhile: its rows are read again, and the records that came since; until
        nothing differs, or the patience has run out
repair  an event for each key that differs still
"""

from __future__ import annotations

import math
import pickle
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog

from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import data_log, data_planner
from helenus_connector.log.events import OffsetRange, ends
from helenus_connector.query.spark_session import task_slots
from helenus_connector.shape.row.row import shown_table
from helenus_connector.verify._entry import ORDER, SCHEMA
from helenus_connector.verify._job import Task, VerifyJob, cut, sampled, shared_out
from helenus_connector.verify._names import KeyNames
from helenus_connector.verify._reduce import compare
from helenus_connector.verify._repair import repair
from helenus_connector.verify._rows import look_again, scan
from helenus_connector.verify._topic import OF_SCHEMA, read_topic
from helenus_connector.verify.options import VerifyOptions, verify_obstacle
from helenus_connector.verify.report import (
    CHANGING,
    DOUBTFUL,
    EXPIRED,
    GHOST,
    MISSING,
    STALE,
    UNPUBLISHABLE,
    Progress,
    VerifyReport,
)
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.errors import HelenusError, Kind, error_in
from helenus_schemas.names import counted
from helenus_schemas.service.cassandra import connect
from helenus_schemas.service.logs import setup

Behind = Callable[[], "str | None"]
"""Returns why the connector has not published all events that were in its topic at the first call; None if it has."""
_log = structlog.get_logger(__name__)
_DIFFERING_SCHEMA = f"kind string, moved boolean, {SCHEMA}"
_MAY_PASS = (MISSING, STALE, GHOST, DOUBTFUL)
"""Kinds of keys that are compared again. EXPIRED is not one: in a table whose rows all expire, there are many."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 15.0
_BEHIND_S = 60.0
_POLL_S = 0.5
# About a second of work: streaming waits for no longer until it gets a slot.
_BYTES_A_TASK = 8 << 20
_RECORDS_A_TASK = 100_000
_ENTRIES_A_PART = 200_000
_BYTES_A_ROW = 100


def verify(
    spark: Any,
    worker: WorkerSettings,
    settings: ConnectorSettings,
    options: VerifyOptions | None = None,
    progress: Progress | None = None,
    behind: Callable[[], Behind] | None = None,
    directory: Path | None = None,
) -> VerifyReport:
    """Compare the data topic of a connector's table, of which alone `settings` are, with the table.

    `behind` is asked each time when keys are to be looked at again; what it returns says when the connector has
    published what was there. `directory` is the run's on each host: rows are taken from the connector's budget there.
    Without it `query.max.rate` is no limit. Raises HelenusError, and Stopped if `progress` says so.
    """
    run = _Run(spark, worker, settings, options or VerifyOptions(), progress or Progress(), behind, directory)
    try:
        with _spark_errors(), run.grouped():
            return run.verify()
    finally:
        run.close()


class _Run:
    """One verification."""

    def __init__(
        self,
        spark: Any,
        worker: WorkerSettings,
        settings: ConnectorSettings,
        options: VerifyOptions,
        progress: Progress,
        behind: Callable[[], Behind] | None,
        directory: Path | None,
    ) -> None:
        self._spark = spark
        self._options = options
        self._progress = progress
        self._behind = behind
        self._job, self._bytes = _plan(worker, settings, options, spark, directory)
        self._planner = data_planner(worker)
        self._ends: dict[int, int] = {}
        self._waited = 0.0
        self._persisted: list[Any] = []
        self._group = f"helenus-verify-{uuid.uuid4()}"
        self.report = VerifyReport(
            settings.name, settings.keyspace, settings.table, self._job.topic, time.time(), sample=options.sample
        )

    def verify(self) -> VerifyReport:
        start = time.monotonic()
        report = self.report
        differing = self._compare_all()
        differing = self._compare_again(differing)
        self._report(differing)
        if self._options.repair:
            self._begin_step("repairing")
            report.repaired = self._repaired(differing)
        report.seconds = time.monotonic() - start
        return report

    def close(self) -> None:
        """Release the frames that Spark keeps, and close the connections to brokers."""
        for frame in self._persisted:
            frame.unpersist()
        self._planner.close()

    @contextmanager
    def grouped(self) -> Iterator[None]:
        """Spark's jobs of this thread as one group, which `progress` follows, in a pool of its own."""
        context = self._spark.sparkContext
        context.setJobGroup(self._group, f"verify {self._job.table.full_name}", interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", "helenus-verify")
        self._progress.follow(context, self._group)
        try:
            yield
        finally:
            self._progress.follow(None, "")
            context.setLocalProperty("spark.scheduler.pool", None)
            context.setLocalProperty("spark.jobGroup.id", None)

    def _compare_all(self) -> Any:
        """Compare all records and rows."""
        self._begin_step("reading topic and table")
        job, report = self._job, self.report
        ranges = self._ranges()
        # Slices of a sample are small: a task scans many.
        tasks = _tasks(self._bytes, task_slots(self._spark))
        shares = shared_out(cut(self._options.tokens, tasks) if self._options.sample == 1 else job.tokens or (), tasks)
        table = self._tasks(scan(job, shares), len(shares))
        entries = table.unionByName(self._tasks(read_topic(job, ranges), len(ranges))) if ranges else table
        differing, counted = self._compare(entries, compare(job))
        report.rows, report.records = counted["rows"], counted["records"]
        report.found[UNPUBLISHABLE].count = counted["keyless"]
        if report.records and not counted["known"]:
            raise self._of_another_table(differing)
        self._check_schemas(counted)
        return differing

    def _check_schemas(self, counted: Counter[str]) -> None:
        """Raise HelenusError CONFIG if the records say that they are of another table: JSON keys may be alike."""
        settings = self._job.settings
        if not any(name.startswith(OF_SCHEMA) for name in counted) or counted[OF_SCHEMA + self._job.table.schema_id]:
            return
        with _connected(settings) as session:
            other = _table_of(counted, read_tables(session).values(), settings)
        if other is not None:
            problem = f"its records are of {other}, and none is of {self._job.table.full_name}"
            raise HelenusError(Kind.CONFIG, problem, f"topic {self._job.topic}", "correct data.topic")

    def _compare_again(self, differing: Any) -> Any:
        """Compare what differs again, until nothing does or the patience has run out."""
        progress, since, pause = self._progress, time.monotonic(), _FIRST_PAUSE_S
        kinds = list(_MAY_PASS)
        count = differing.filter(differing.kind.isin(kinds)).count()
        final = differing.filter(~differing.kind.isin([*kinds, ""]))
        is_last = False
        while count and not is_last:
            progress.differ = count
            self._begin_step(f"waiting to look at {counted(count, 'key')} again")
            remaining = self._options.patience - (time.monotonic() - since)
            progress.wait(max(0.0, min(pause, remaining)))
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            is_last = time.monotonic() - since >= self._options.patience
            self._begin_step(f"looking at {counted(count, 'key')} again")
            requested = self._persist(self._mapped(_select_entries(differing, kinds), look_again(self._job), SCHEMA))
            requested.count()  # their rows are read now
            self._wait_for(self._behind() if self._behind else None)
            ranges = self._ranges(since=True)
            entries = requested
            if ranges:
                entries = requested.unionByName(self._tasks(read_topic(self._job, ranges, versions=True), len(ranges)))
            differing, _ = self._compare(entries, compare(self._job, is_again=True))
            count = differing.filter(differing.kind.isin(kinds)).count()
            final = final.unionByName(differing.filter(~differing.kind.isin([*kinds, ""])))
            self.report.rounds += 1
        progress.differ = count
        return differing.filter(differing.kind.isin(kinds)).unionByName(final)

    def _report(self, differing: Any) -> None:
        """Count what differs, and name the first keys."""
        from pyspark.sql import functions as f

        kind = f.when(differing.moved & (differing.kind != EXPIRED), CHANGING).otherwise(differing.kind)
        named = self._persist(differing.filter(differing.kind != "").withColumn("kind", kind))
        names = KeyNames(self._job)
        for row in named.groupBy("kind").count().collect():
            kind_report = self.report.found[row["kind"]]
            kind_report.count += row["count"]
            first = named.filter(named.kind == row["kind"]).orderBy("token", "name").limit(self._options.limit)
            kind_report.keys += [names.spell_key(r["name"], r["static"]) for r in first.collect()]

    def _repaired(self, differing: Any) -> int:
        wanted = differing.filter(differing.kind.isin([*_MAY_PASS, EXPIRED])).select(*SCHEMA_COLUMNS)
        rows = self._mapped(wanted, repair(self._job), SCHEMA).select("note").collect()
        return sum(pickle.loads(bytes(row["note"]))["repaired"] for row in rows)

    def _tasks(self, task: Task, count: int) -> Any:
        """Return the entries of `count` tasks, each called with its number."""
        return self._spark.range(0, count, 1, count).mapInArrow(task, SCHEMA)

    @staticmethod
    def _mapped(frame: Any, task: Task, schema: str) -> Any:
        return frame.mapInArrow(task, schema)

    def _compare(self, entries: Any, task: Task) -> tuple[Any, Counter[str]]:
        """Return what differs, and what was counted."""
        from pyspark.sql import functions as f

        sorted_entries = entries.repartitionById(self._job.parts, f.col("part"))
        sorted_entries = sorted_entries.sortWithinPartitions(*ORDER, f.col("at").desc())
        differing = self._persist(sorted_entries.mapInArrow(task, _DIFFERING_SCHEMA))
        counted = Counter[str]()
        for row in differing.filter(differing.kind == "").select("note").collect():
            counted.update(pickle.loads(bytes(row["note"])))
        self._progress.check()
        return differing, counted

    def _persist(self, frame: Any) -> Any:
        """Persist a frame, so that Spark computes it once."""
        from pyspark import StorageLevel

        self._persisted.append(frame.persist(StorageLevel.DISK_ONLY))
        return self._persisted[-1]

    def _ranges(self, since: bool = False) -> list[list[OffsetRange]]:
        """Return the ranges of the topic from its start, or `since` the last read, up to its ends now, for each
        task.
        """
        topic = self._job.topic
        until = ends(self._planner, topic, wait=self._progress.wait)
        starts = {} if since else self._planner.earliest({topic: len(until)}).get(topic, {})
        ranges = []
        for p, end in until.items():
            start = self._ends.get(int(p), 0) if since else starts.get(p, 0)
            if start < end:
                ranges.append(OffsetRange(topic, int(p), start, end))
                self._ends[int(p)] = end
        return [[part] for range_ in ranges for part in self._parts(range_)]

    def _parts(self, range_: OffsetRange) -> Iterator[OffsetRange]:
        """Divide a range for several tasks, if its offsets say how many records it has."""
        step = range_.end - range_.start if self._job.worker.log_of_data == "pulsar" else _RECORDS_A_TASK
        for start in range(range_.start, range_.end, step):
            yield OffsetRange(range_.topic, range_.partition, start, min(start + step, range_.end))

    def _wait_for(self, caught_up: Behind | None) -> None:
        """Wait, for a minute in all, until the connector has published what was there."""
        self.report.behind = caught_up() if caught_up else None
        while caught_up and self.report.behind and self._waited < _BEHIND_S:
            self._progress.wait(_POLL_S)
            self._waited += _POLL_S
            self.report.behind = caught_up()

    def _begin_step(self, action: str) -> None:
        self._progress.check()
        self._progress.begin(action)
        _log.debug("verify.progress", table=self._job.table.full_name, does=action)

    def _of_another_table(self, differing: Any) -> HelenusError:
        first = differing.filter(differing.kind == "foreign").limit(1).collect()
        key = f", such as {KeyNames(self._job).spell_key(first[0]['name'], False)}" if first else ""
        problem = f"none of its keys is one of {self._job.table.full_name}{key}: it is the topic of another table"
        advice = "correct data.topic, or the format and key.compat that it was written with"
        return HelenusError(Kind.CONFIG, problem, f"topic {self._job.topic}", advice)


SCHEMA_COLUMNS = [part.split()[0] for part in SCHEMA.split(", ")]


def _select_entries(differing: Any, kinds: list[str]) -> Any:
    """Return the entries of the keys to compare again."""
    return differing.filter(differing.kind.isin(kinds)).select(*SCHEMA_COLUMNS)


def _plan(
    worker: WorkerSettings, settings: ConnectorSettings, options: VerifyOptions, spark: Any, directory: Path | None
) -> tuple[VerifyJob, int]:
    """Return the job, and about how many bytes the table has. Raises HelenusError."""
    if (obstacle := verify_obstacle(settings)) is not None:
        raise obstacle
    with closing(data_log(worker)) as log, _connected(settings) as session:
        definition = read_definition(session, settings)
        assert definition is not None, "no version is known"
        table = shown_table(definition[1], settings)
        topics = log.topics()
        topic, other = settings.data, f"{settings.data}-{str(table.id)[:8]}"
        if settings.schema_on_incompatible == "new-topic" and other in topics:
            topic = other
        if topic not in topics:
            advice = "the worker makes it when the events topic is there; or correct data.topic"
            raise HelenusError(Kind.TOPIC_MISSING, "there is no data topic", topic, advice)
        size = _size(session, table)
        tokens = None
        if not options.is_whole:
            tokens = tuple(sampled(options.tokens, options.sample)) if options.sample < 1 else options.tokens
        parts = max(task_slots(spark), min(4096, math.ceil(size / _BYTES_A_ROW / _ENTRIES_A_PART)))
        return VerifyJob(
            worker, settings, table, topic, topics[topic], parts, tokens, log.keeps_schemas, setup(), directory
        ), size


def _table_of(counted: Counter[str], tables: Iterable[Table], settings: ConnectorSettings) -> str | None:
    """Return the other table whose current definition records name; None if there is none, or some name ours."""
    other = None
    for table in tables:
        if any(counted[OF_SCHEMA + definition.schema_id] for definition in (table, shown_table(table, settings))):
            if (table.keyspace, table.name) == (settings.keyspace, settings.table):
                return None
            other = table.full_name
    return other


@contextmanager
def _connected(settings: ConnectorSettings) -> Iterator[Any]:
    session = connect(settings)
    try:
        yield session
    finally:
        session.cluster.shutdown()


def _size(session: Any, table: Table) -> int:
    """Return about how many bytes the table has, by what one node estimates."""
    query = "SELECT partitions_count, mean_partition_size FROM system.size_estimates WHERE keyspace_name = %s"
    rows = session.execute(f"{query} AND table_name = %s", (table.keyspace, table.name))
    nodes = len(session.cluster.metadata.all_hosts()) or 1
    return nodes * sum(max(0, int(r.partitions_count)) * max(0, int(r.mean_partition_size)) for r in rows)


def _tasks(size: int, at_once: int) -> int:
    return max(at_once * 2, min(8192, math.ceil(size / _BYTES_A_TASK)))


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Convert Spark's errors to HelenusError: a task's own error is in their text."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        problem = (named or lines or ["Spark failed"])[-1][:500]
        raise error_in(text) or HelenusError(Kind.BATCH_FAILED, problem) from None

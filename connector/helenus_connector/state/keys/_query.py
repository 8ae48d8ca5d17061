"""The streaming query that follows a connector's data topics and maintains the index of their keys: `state=keys`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from helenus_connector import metrics
from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import replace
from helenus_connector.config.state import marker_topic
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.topic_ownership import TopicOwnership
from helenus_connector.group.state_directories import StateDirectories, StateHome, StateName
from helenus_connector.journal.batch_marks import BatchMarks, read_marks
from helenus_connector.journal.support import obstacle
from helenus_connector.log.choice import data_planner
from helenus_connector.query.handover import MicroBatch
from helenus_connector.query.query_runner import QueryRunner
from helenus_connector.query.spark_session import settled_task_slots, task_slots
from helenus_connector.state.keys._operator import OUTPUT, KeysOperator, unpack_counts
from helenus_connector.state.keys._plan import FollowedTopic, KeysPlan, query_group, state_directory
from helenus_connector.state.keys._read_request import DONE, PlaceCounts, request_reads
from helenus_connector.state.keys._source import RecordsSource
from helenus_connector.state.store.rocksdb import measure_state, new_session
from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.service import durable
from helenus_schemas.service.cassandra import connect
from helenus_schemas.service.failpoints import reach
from helenus_sinks.kafka.owners import RecordsOwner

_log = structlog.get_logger(__name__)
_IDENTITY_FILE, _NAME_FILE = "about", "name"
_INTERVAL_MS = 500
_VERSION = 2
"""Version 1 was of states whose keys did not lie on `pages`."""


class KeysQuery(QueryRunner):
    """Follows the data topics of one connector from `start` until `stop`. It is restarted after transient failures;
    another one ends it. `tables` are the settings of each table, `term` is that of a worker that leads its group, and
    `states` says where the state is then.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        name: str,
        tables: Mapping[str, ConnectorSettings],
        directory: Path,
        term: str = "",
        states: StateDirectories | None = None,
    ) -> None:
        checkpoint = state_directory(worker, name) / "query"
        super().__init__(f"connector {name}", f"state-{name}", "helenus-state", checkpoint)
        self._worker = worker
        self.name = name
        self._states = states
        self.tables = dict(tables)
        self._directory = directory
        self._home = StateHome(checkpoint.parent)
        self._query: Any = None
        # The requests are in transactions where the connector's records are; or else some may come twice.
        self._is_once = any(s.exactly_once_support != "disabled" for s in tables.values())
        self._is_once &= not any(obstacle(worker, settings) for settings in tables.values())
        self._ownership = TopicOwnership(worker, query_group(name), term)
        self._due_times: dict[str, float] = {}
        self._key_counts: dict[metrics.Labels, dict[str, tuple[int, int]]] = {}

    def note_failure(self, error: HelenusError) -> float:
        """Report why a run failed. Raises an error that is not transient."""
        metrics.ERRORS.labels(error.kind.value).inc()
        if error.action is not Action.RETRY:
            _log.error("state.failed", connector=self.name, error=str(error))
            raise error
        self.last_error = error
        _log.warning("state.retry", connector=self.name, error=str(error), restart_in_s=self.backoff_s)
        return self.backoff_s

    def run_once(self, spark: Any) -> None:
        """Run the query until it ends or is to stop. Raises what ended it."""
        plan = self._make_plan()
        if self._is_once:
            plan = self._own_requests(plan, spark)
        if self._states is not None:  # once the leader before is fenced
            plan = self._take_state(plan, self._states, spark)
        _check_identity(plan)
        marks = self._read_marks(plan) if plan.owner is not None else None
        if self._states is not None:
            self._states.keep(_state(self.name))
        # As many stores as tasks run at once, at the first start: Spark keeps the number with the checkpoint.
        is_first = not (self.checkpoint / "offsets").exists()
        stores = max(2, settled_task_slots(spark, self._stopping.is_set) if is_first else task_slots(spark))
        self._query = self.begin_in_turn(partial(self._start_stream, spark, plan, marks, stores))
        if self._query is not None:
            _log.info("state.started", connector=self.name, topics=len(plan.tables))
            self.watch(self._query)
            self._home.save_at_end()

    def is_wanted(self) -> bool:
        """Return whether the current run is to go on."""
        self._home.save_if_quiet()
        return super().is_wanted()

    def _own_requests(self, plan: KeysPlan, spark: Any) -> KeysPlan:
        """Own the requests of a run, and fence the former one. Return its plan, without an owner where Kafka fences
        nobody.
        """
        slots = task_slots(spark)
        self._ownership.begin_run(slots)
        self._claim([topic for topic, followed in plan.tables.items() if not followed.markers], slots)
        owner = self._ownership.owner
        return dataclasses.replace(plan, owner=owner) if isinstance(owner, RecordsOwner) else plan

    def _take_state(self, plan: KeysPlan, states: StateDirectories, spark: Any) -> KeysPlan:
        """Take the state over from the leader before. Return the plan, with where it is now."""
        self._home = home = states.take(_state(self.name), state_directory(self._worker, self.name), spark)
        if home.loss:
            reason = f"{home.loss}: keys are learned from the data topics"
            _log.warning("state.begun_anew", connector=self.name, reason=reason, does="nulls of before may come again")
        self.checkpoint = home.directory / "query"
        return dataclasses.replace(plan, home=home.directory)

    def _read_marks(self, plan: KeysPlan) -> BatchMarks:
        """Return which parts of the batch that is repeated are done."""
        topics = [topic for topic, followed in plan.tables.items() if not followed.markers]
        with closing(data_planner(self._worker)) as broker:
            partitions = broker.partitions(topics)
        if missing := [topic for topic in topics if not partitions.get(topic)]:
            problem = "one of its partitions has no leader, or the topic is gone"
            raise HelenusError(Kind.BROKER_UNREACHABLE, problem, missing[0])
        marks = read_marks(self._worker, self.name, partitions, _state_name(plan), plan.checkpoint / "query")
        # Another state has requested what the repeated batch does, or will: this one is behind, and learns it from the
        # data topic. What nobody has requested is once more due after a while.
        marks = dataclasses.replace(marks, published=marks.published | marks.overtaken)
        if marks.newest is not None:
            marks = dataclasses.replace(marks, state=_name_state(plan))
        return marks

    def _claim(self, topics: Iterable[str], slots: int) -> None:
        written = [_Requests(self.name, topic) for topic in topics]
        for error in self._ownership.claim(written, slots, self._stopping.is_set).values():
            raise error

    def _start_stream(self, spark: Any, plan: KeysPlan, marks: BatchMarks | None, stores: int) -> Any:
        plan.save()
        replace(plan.due_file, b"")
        session = new_session(spark, stores)
        session.dataSource.register(RecordsSource)
        records = session.readStream.format("helenus-records").option("plan", str(plan.file)).load()
        index = records.groupBy("place").transformWithStateInPandas(KeysOperator(plan), OUTPUT, "Append", "None")
        # A part of the query's own plan: it would be planned anew for each batch.
        requested = index.mapInArrow(request_reads(plan, marks), DONE)
        process = partial(self._process, plan)
        return self.start_stream(spark, f"helenus-state-{self.name}", requested, _INTERVAL_MS, process)

    def _process(self, plan: KeysPlan, batch: MicroBatch) -> None:
        reach("state.before-job")
        started_at = time.monotonic()
        if plan.owner is not None:
            topics = [topic for topic, followed in plan.tables.items() if not followed.markers]
            self._claim(topics, plan.owner.producers // 2)  # again, once in a while
        self._home.save()
        self._apply_results(plan, batch.collect())
        size, seconds = measure_state(self._query), time.monotonic() - started_at
        for labels in self._key_counts:
            metrics.STATE_BYTES.labels(*labels).set(size / len(self._key_counts))
            metrics.STATE_BATCH_SECONDS.labels(*labels).set(seconds)
        reach("state.before-commit")

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

    def _apply_results(self, plan: KeysPlan, results: list[PlaceCounts]) -> None:
        """Report to the planner when topic partitions are due, and set the metrics."""
        for topic_partition, next_due, count_bytes in results:
            if next_due is None or math.isnan(next_due):
                self._due_times.pop(topic_partition, None)
            else:
                self._due_times[topic_partition] = next_due
            settings = plan.tables[topic_partition.rpartition("/")[0]].settings
            labels = settings.name, settings.keyspace, settings.table
            counts = unpack_counts(count_bytes)
            table_counts = self._key_counts.setdefault(labels, {})
            table_counts[topic_partition] = counts["live"], counts["waiting"]
            metrics.LIVE_KEYS.labels(*labels).set(sum(live for live, _ in table_counts.values()))
            metrics.STATE_WAITING.labels(*labels).set(sum(waiting for _, waiting in table_counts.values()))
            for reason in ("expired", "deleted", "repeated"):
                metrics.LIVE_KEYS_ASKED.labels(*labels, reason).inc(counts[reason])
        replace(plan.due_file, repr(min(self._due_times.values())).encode() if self._due_times else b"")


class _Requests(NamedTuple):
    """The requests of reads for a data topic's keys, as of `topic_ownership.Written`: their owner is noted with it."""

    connector: str
    events: str

    @property
    def data(self) -> str:
        return self.events

    @property
    def data_topics(self) -> list[str]:
        return [self.events]


def _state(connector: str) -> StateName:
    """Return the name of a connector's state among those of a group."""
    return StateName(("keys", connector), "query", _IDENTITY_FILE)


def _state_name(plan: KeysPlan) -> str:
    """Return what tells a checkpoint's state from one that begins anew, with a name for one that has none."""
    file = plan.checkpoint / _NAME_FILE
    with contextlib.suppress(FileNotFoundError, durable.Damaged):
        return str(durable.load(file, _VERSION))
    return _name_state(plan)


def _name_state(plan: KeysPlan) -> str:
    """Give a checkpoint's state another name, and return it."""
    name = secrets.token_hex(8)
    durable.save(plan.checkpoint / _NAME_FILE, name, _VERSION, "the name of the state", "state.name-saved")
    return name


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

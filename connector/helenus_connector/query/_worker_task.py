"""A task of a batch: it reads its events, hands them to each table's `Stage` and yields the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark import TaskContext

from helenus_connector.cassandra_rows.table_definition import request_version
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import use
from helenus_connector.control.fences import enter
from helenus_connector.control.plan import QueryPlan
from helenus_connector.gate.cache import prune
from helenus_connector.gate.event_content import is_repeated
from helenus_connector.interfaces.event import Event
from helenus_connector.interfaces.gate import NOTHING_WAITS, GateWaits
from helenus_connector.journal.transaction import BatchTransaction
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.batch_trace import UNTRACED, TableTrace, TracedBatch
from helenus_connector.pipeline.stage import Stage
from helenus_connector.query import worker_process
from helenus_connector.query._new_tables import Preparation, prepare_ahead
from helenus_connector.query._task_reader import read_parts
from helenus_connector.query.batch_parts import TaskRanges
from helenus_connector.query.garbage import freeze
from helenus_connector.query.worker_process import StageParts
from helenus_connector.unconfirmed.unconfirmed_key import MOST_WAITING, UnconfirmedKey
from helenus_schemas.errors import HelenusError, Kind, reason
from helenus_schemas.service import logs
from helenus_schemas.service.spans import FinishedSpan
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.log import Log


@dataclass(slots=True)
class TopicResult:
    """The result for some partitions of one topic: either its `outcome` or the `error` that stopped it.

    `starts` is where they were read from, by partition as text, as planned in `epoch`. `ends` are the last positions of
    those that were not read to the end of the batch. Without outcome and error the topic had left the plan, and nothing
    was done. Up to the offsets in `read` an earlier run has read them. `planned_ends` is where the batch ends.
    `journal_bytes` were written to the query's journal. With `is_uncertain` nobody knows whether the transaction was
    committed. `spans` are those of the batch's trace, if there is one.
    """

    topic: str
    epoch: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    outcome: BatchOutcome | None = None
    error: HelenusError | None = None
    read: dict[int, int] = field(default_factory=dict)
    planned_ends: dict[str, int] = field(default_factory=dict)
    journal_bytes: int = 0
    is_uncertain: bool = False
    spans: tuple[FinishedSpan, ...] = ()

    @property
    def ends_to_commit(self) -> dict[int, int]:
        """Return where its partitions go on that it moves on: by partition, beyond what an earlier run has read."""
        ends = {int(partition): end for partition, end in {**self.planned_ends, **self.ends}.items()}
        return {
            partition: end
            for partition, end in ends.items()
            if end > max(self.starts[str(partition)], self.read.get(partition, 0))
        }


@dataclass(frozen=True, slots=True)
class WaitingOfTopic:
    """What waits of a topic that is published exactly once: `changes` that were published, and wait for a read with
    their keys, and those `at_gate`. Keys alone may wait, too: then it `has_keys`.
    """

    changes: frozenset[bytes] = frozenset()
    at_gate: frozenset[bytes] = frozenset()
    has_keys: bool = False


NOTHING_OF_TOPIC = WaitingOfTopic()


def topic_task(
    plan: QueryPlan,
    due_keys: dict[str, list[UnconfirmedKey]],
    may_wait: int = MOST_WAITING,
    gate_waits: Mapping[str, GateWaits] | None = None,
    waiting: Mapping[str, WaitingOfTopic] = MappingProxyType({}),
    traced_batch: TracedBatch | None = None,
) -> Callable[[Iterator[TaskRanges]], Iterator[TopicResult]]:
    """Return the function for `_spark_job.run`: it yields one `TopicResult` a topic. `due_keys` are unconfirmed keys by
    events topic. `may_wait` is how many more may wait. `gate_waits` is what waits at the gates, by events topic too,
    and `waiting` what waits of those that are published exactly once. With a `traced_batch` the results have spans.

    As all functions for Spark, it is one of a module: of a nested one, Spark makes a copy in each task, which has
    copies of the module's variables.
    """
    return partial(_run_parts, plan, due_keys, may_wait, gate_waits, dict(waiting), traced_batch)


def _run_parts(
    plan: QueryPlan,
    due_keys: Mapping[str, list[UnconfirmedKey]],
    may_wait: int,
    gate_waits: Mapping[str, GateWaits] | None,
    waiting: Mapping[str, WaitingOfTopic],
    traced_batch: TracedBatch | None,
    tasks: Iterator[TaskRanges],
) -> Iterator[TopicResult]:
    worker_process.end_with_parent()
    logs.follow(plan.logging)
    context = TaskContext.get()
    # What an earlier attempt published, the driver does not know: then the images that it handed out with the due keys
    # may be outdated, and the stage does not trust them.
    trust_images = context is None or context.attemptNumber() == 0
    results: dict[str, TopicResult] = {}
    lost: dict[str, int] = {}
    events: dict[str, list[Event]] = {}
    version_requests: dict[int, Any] = {}
    for task in tasks:
        _request_versions(plan, task, version_requests)
        notes, task_events = read_parts(plan.worker, task, _has_transactions(plan, task))
        for topic, topic_events in task_events.items():  # partitions of one may be divided among tasks
            events.setdefault(topic, []).extend(topic_events)
        for note in notes:
            result = results.setdefault(note.topic, TopicResult(note.topic))
            result.starts[str(note.partition)] = note.start
            result.planned_ends[str(note.partition)] = note.planned_end
            result.epoch = note.epoch
            result.error = result.error or note.error
            if note.read:
                result.read[note.partition] = note.read
            if note.end is not None:
                result.ends[str(note.partition)] = note.end
            lost[note.topic] = lost.get(note.topic, 0) + note.lost
    worker_process.refuse_repetition(plan)
    with enter(plan.checkpoint, plan.start):
        _prune(plan)  # not before: a task of an earlier start would remove the caches of tables that joined since
        with_events = [topic for topic, topic_events in events.items() if topic_events]
        worker_process.check_owners(plan, [plan.connectors[t] for t in with_events if t in plan.connectors])
        # Tables that this process knows go first: they do not wait for the others.
        known_first = sorted(results, key=lambda topic: _is_new(plan, topic))
        for topic in prepare_ahead(known_first, partial(_preparation, plan, results, events, version_requests)):
            result, settings = results[topic], plan.connectors.get(topic)
            if settings is not None and result.error is None:
                keys = [
                    unconfirmed
                    for unconfirmed in due_keys.get(topic, ())
                    if str(unconfirmed.partition) in result.starts
                ]
                topic_waits = (
                    _waits_of_partitions(gate_waits.get(topic), result.starts) if gate_waits else NOTHING_WAITS
                )
                trace = None if traced_batch is None else _begin_trace(plan, settings, traced_batch, events[topic])
                with nullcontext() if trace is None else trace.logged():
                    _run(
                        plan,
                        settings,
                        events[topic],
                        keys,
                        trust_images,
                        result,
                        may_wait,
                        topic_waits,
                        version_requests,
                        waiting.get(topic, NOTHING_OF_TOPIC),
                        trace,
                    )
                if trace is not None:
                    result.spans = trace.finish(result.outcome, result.error)
                if result.outcome is not None:
                    result.outcome.lost = lost[topic]
    yield from results.values()
    freeze(("stages", worker_process.count("stage")))


def _begin_trace(
    plan: QueryPlan, settings: ConnectorSettings, traced_batch: TracedBatch, events: list[Event]
) -> TableTrace:
    return TableTrace(traced_batch, settings, events, (plan.worker.log, plan.worker.data_log or plan.worker.log))


def _is_new(plan: QueryPlan, topic: str) -> bool:
    return worker_process.find(worker_process.stage_name(plan, topic)) is None


def _preparation(
    plan: QueryPlan,
    results: Mapping[str, TopicResult],
    events: Mapping[str, list[Event]],
    version_requests: Mapping[int, Any],
    topic: str,
) -> Preparation | None:
    """Return what prepares a table that is new to this process, for another thread; None where nothing is to be done.
    What goes wrong here goes wrong again in `_run`, which tells the driver.
    """
    settings, result = plan.connectors.get(topic), results[topic]
    if settings is None or result.error is not None or not events.get(topic) or not _is_new(plan, topic):
        return None
    with suppress(Exception):  # a bug of ours that one table meets must not stop the others
        stage = _stage_for(plan, settings, result.epoch, worker_process.data_log_for(plan, settings))
        return stage.versions.preparation(stage.log, version_requests.get(id(stage.session)))
    return None


def _has_transactions(plan: QueryPlan, task: TaskRanges) -> bool:
    """Return whether events that a task reads were appended in transactions, as by a query of `state=keys`."""
    topics = {offset_range.topic for part in task.parts for offset_range in part.ranges} & plan.exactly_once.keys()
    return any(plan.connectors[topic].state == "keys" for topic in topics & plan.connectors.keys())


def _run(
    plan: QueryPlan,
    settings: ConnectorSettings,
    events: list[Event],
    due_keys: list[UnconfirmedKey],
    trust_images: bool,
    result: TopicResult,
    may_wait: int = MOST_WAITING,
    gate_waits: GateWaits = NOTHING_WAITS,
    version_requests: Mapping[int, Any] = MappingProxyType({}),
    waiting: WaitingOfTopic = NOTHING_OF_TOPIC,
    trace: TableTrace | None = None,
) -> None:
    """Run a table's stage. Its errors go to the driver, which handles each kind."""
    is_once = settings.events in plan.exactly_once
    past_events, events = _split_past(events, result.read, is_once)
    skipped = len(past_events)
    if not (events or due_keys or gate_waits.overdue or (is_once and (past_events or result.ends_to_commit))):
        result.outcome = BatchOutcome(read=skipped, confirmed=skipped)
        return
    try:
        log = worker_process.data_log_for(plan, settings)
    except HelenusError as error:  # of the client, on this host; or another worker has the records
        result.error = error
        return
    largest_record = log.largest
    transaction = _transaction(plan, settings, log, result, events, waiting) if is_once else None
    try:
        with worker_process.noted_read(settings):
            stage = _stage_for(plan, settings, result.epoch, log)
            request = version_requests.get(id(stage.session))
            if is_once and past_events:
                stage.note_past(past_events, waiting.changes, waiting.at_gate, request)
            result.outcome = stage.run(
                events, due_keys, trust_images, may_wait, gate_waits, request, transaction, trace or UNTRACED
            )
        result.outcome.read += skipped
        result.outcome.confirmed += skipped
        if settings.gate != "one" and events:
            _note_times(result.outcome, events)
            result.ends.update({str(partition): offset for partition, offset in result.outcome.at_gate.stopped.items()})
    except HelenusError as error:
        result.error = error
    except Exception as error:
        # A bug of ours that one table meets must not stop the others.
        result.error = HelenusError(Kind.BATCH_FAILED, reason(error), f"{settings.keyspace}.{settings.table}")
    finally:
        if transaction is not None:
            result.journal_bytes, result.is_uncertain = transaction.journal_bytes, transaction.is_uncertain
        if result.outcome is None:
            # All of it is done again: nothing of this attempt may still be in the producer's queue.
            log.close()
        if log.largest < largest_record:
            worker_process.separate_data_log(plan, settings.events)


def _split_past(events: list[Event], read: Mapping[int, int], is_once: bool) -> tuple[list[Event], list[Event]]:
    """Return the events that an earlier run has done, and those to be done: where a topic is not published exactly
    once, also earlier ones whose change may be unconfirmed.
    """
    if not read:
        return [], events
    past_events: list[Event] = []
    others: list[Event] = []
    for event in events:
        is_past = event.offset < read.get(event.partition, 0) and (is_once or not is_repeated(event))
        (past_events if is_past else others).append(event)
    return past_events, others


def _transaction(
    plan: QueryPlan,
    settings: ConnectorSettings,
    log: Log,
    result: TopicResult,
    events: Sequence[Event],
    waiting: WaitingOfTopic,
) -> BatchTransaction:
    assert isinstance(log, OwnedKafkaLog), "without fenced writers nothing is published exactly once"
    journal, times = plan.worker.journal_topic(settings.name), {event.partition: event.timestamp for event in events}
    ends = result.ends_to_commit
    return BatchTransaction(log, journal, settings, result.epoch, ends, times, waiting.has_keys)


def _request_versions(plan: QueryPlan, task: TaskRanges, version_requests: dict[int, Any]) -> None:
    """Request the schema's version while events are read, once for all tables of a session: by its `id`. That is late
    enough: which events are to be read is decided, so all of them were written.
    """
    for topic in {offset_range.topic for topic_ranges in task.parts for offset_range in topic_ranges.ranges}:
        stage = worker_process.find(worker_process.stage_name(plan, topic))
        if stage is not None and id(stage.session) not in version_requests:
            version_requests[id(stage.session)] = request_version(stage.session)


def _waits_of_partitions(gate_waits: GateWaits | None, partitions: Mapping[str, int]) -> GateWaits:
    """Return what waits at the gate of these partitions."""
    if gate_waits is None:
        return NOTHING_WAITS
    return gate_waits._replace(
        overdue=[change for change in gate_waits.overdue if str(change.event.partition) in partitions]
    )


def _note_times(outcome: BatchOutcome, events: list[Event]) -> None:
    """Note the time of the oldest event, and of the oldest among the partitions' last events."""
    first = {event.partition: event.timestamp for event in reversed(events)}
    last = {event.partition: event.timestamp for event in events}
    outcome.read_from, outcome.read_until = min(first.values()) / 1000, min(last.values()) / 1000


def _stage_for(plan: QueryPlan, settings: ConnectorSettings, epoch: int, log: Log) -> Stage:
    """Return this process's stage for a table. Its caches are of an epoch, since the events of a connector that was
    moved back must be published again.
    """

    def make(parts: StageParts) -> Stage:
        directory = parts.directory / str(epoch)
        directory.mkdir(mode=0o700, exist_ok=True)
        schemas = parts.schemas(log, directory / "schemas")
        return Stage(settings, parts.session, log, directory, parts.directory, schemas)

    stage = worker_process.stage_for(plan, settings, epoch, make)
    stage.log = log
    return stage


def _prune(plan: QueryPlan) -> None:
    """Close the stages and Logs of tables that left the group, and remove their caches from this host. Does nothing
    while the group's tables stay the same.
    """
    # Nothing is kept but the version: `reuse` calls the function once, and again when the tables have changed.
    worker_process.reuse(("pruned", plan.directory, plan.group), plan.tables, partial(_prune_tables, plan))


def _prune_tables(plan: QueryPlan) -> None:
    of_group = [
        name_of_topic(plan, "")[:-1] for name_of_topic in (worker_process.stage_name, worker_process.separate_log_name)
    ]
    worker_process.drop(lambda name: name[:-1] in of_group and name[-1] not in plan.tables)
    prune(use(Path(plan.directory)) / plan.group, plan.tables)

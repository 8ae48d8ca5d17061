"""A task that publishes the merged changes of a batch: from rows of `_operator.OUTPUT` to one row of `DONE` each."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from helenus_connector.cassandra_rows.table_definition import read_definition, request_version
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control.fences import enter
from helenus_connector.control.plan import QueryPlan
from helenus_connector.interfaces.merged_change import GapEvent, MergedChange, PoisonEvent
from helenus_connector.journal.batch_marks import BatchMarks, MarkedBatch, PartTransaction, Place
from helenus_connector.log.choice import event_schemas
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.merged_stage import FLUSH_TIMEOUT_S, MergedStage
from helenus_connector.query import worker_process
from helenus_connector.query.event_packs import PartitionNote
from helenus_connector.query.garbage import freeze
from helenus_connector.query.handover import batch_number
from helenus_connector.query.worker_process import StageParts
from helenus_connector.state.rows._change_pack import unpack_changes
from helenus_connector.state.rows._operator import MergedRow, PlaceResult
from helenus_schemas.cql.table import Table
from helenus_schemas.service import logs
from helenus_schemas.service.cassandra import is_cassandra_3
from helenus_schemas.service.failpoints import reach
from helenus_sinks.kafka.owned_log import OwnedKafkaLog

if TYPE_CHECKING:
    import pyarrow as pa

DONE = "done binary"


@dataclass(slots=True)
class PublishResult:
    """The result of a task: the outcome of all its partitions, and the batch's result for each."""

    outcome: BatchOutcome
    ended: list[PlaceResult] = field(default_factory=list)


class CurrentTable:
    """The current definition of the table, in one of Spark's processes; with `of_all` the one of the node that was
    altered last. Raises as `read_definition` does.
    """

    def __init__(self, settings: ConnectorSettings) -> None:
        self._settings = settings
        self._request: Any = None

    def request(self) -> None:
        """Ask ahead for what the next call is to return, and do not wait, where this process has read it before."""
        if worker_process.find(self._name) is not None:
            self._request = request_version(worker_process.session_for(self._settings))

    @property
    def _name(self) -> worker_process.Name:
        return "definition", self._settings.events

    def __call__(self, of_all: bool = False) -> Table:
        settings = self._settings
        request, self._request = self._request, None
        last = worker_process.reuse(self._name, settings, _LastDefinition, settings)
        session = worker_process.session_for(settings)
        with worker_process.noted_read(settings):
            definition = read_definition(session, settings, None if of_all else last.schema_version, request)
        if definition is not None:
            last.schema_version, last.table = definition
        assert last.table is not None
        return last.table

    def is_cassandra_3(self) -> bool:
        """Return whether the table's nodes are of Cassandra 3.x, as far as the driver knows."""
        return is_cassandra_3(worker_process.session_for(self._settings))


@dataclass(slots=True)
class _LastDefinition:
    """The definition of a table that was read last, and the version of the cluster's schema that it is of."""

    schema_version: object = None
    table: Table | None = None


def publish(
    plan: QueryPlan, settings: ConnectorSettings, marks: BatchMarks | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`, for all batches of a plan of this one table. With `marks` they are
    published once.
    """
    return partial(_publish, plan, settings, marks)


def _publish(
    plan: QueryPlan, settings: ConnectorSettings, marks: BatchMarks | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    worker_process.end_with_parent()
    marked = None if marks is None else marks.batch(batch_number())
    current_table = CurrentTable(settings)
    current_table.request()
    worker_process.refuse_repetition(plan)
    rows = (MergedRow(**row) for batch in batches for row in batch.to_pylist())
    result = publish_rows(plan, settings, marked, rows, current_table)
    if result is not None:
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["done"])
    freeze(("state", worker_process.count("stage")))


def publish_rows(
    plan: QueryPlan,
    settings: ConnectorSettings,
    marked: MarkedBatch | None,
    rows: Iterator[MergedRow],
    current_table: Callable[[], Table],
) -> PublishResult | None:
    """Publish rows of `_operator.OUTPUT` for a plan of this one table, as the part of a batch, and return the result,
    or None where there are none. A `marked` batch is published once. Raises HelenusError, also what `rows` raises.
    """
    logs.follow(plan.logging)
    result: PublishResult | None = None
    with enter(plan.checkpoint, plan.start):
        stage: MergedStage | None = None
        place_results: list[PlaceResult] = []
        ends: dict[Place, int] = {}
        lost = 0
        try:
            for row in rows:
                if stage is None:
                    stage = stage_of(plan, settings, marked is not None)
                    stage.begin(current_table())
                notes: list[PartitionNote] = pickle.loads(row.notes) if row.notes is not None else []
                lost += sum(note.lost for note in notes)
                ends |= {(note.topic, note.partition): note.planned_end for note in notes}
                if row.merged is not None:
                    changes = unpack_changes(row.merged)
                    stage.take_all(c for c in changes if not _is_published(c, settings, marked))
                if row.ended is not None:
                    place_results.append(pickle.loads(row.ended))
            if stage is not None:
                stage.check({column for place_result in place_results for column in place_result.columns})
                reach("state.before-flush")
                if marked is not None:
                    ends = {name: end for name, end in ends.items() if name not in marked.published}
                outcome = _end(stage, marked, ends, plan)
                reach("state.after-flush")
                result = PublishResult(outcome, place_results)
        finally:
            if stage is not None and result is None:
                # The whole task is repeated: nothing of this attempt may still be in the producer's queue.
                stage.log.close()
                if (events_log := worker_process.used_events_log(plan.worker)) is not None:
                    events_log.close()
    if result is not None:
        result.outcome.lost = lost
        _count(result.outcome, place_results)
    return result


def _is_published(merged: MergedChange, settings: ConnectorSettings, marked: MarkedBatch | None) -> bool:
    """Return whether a former attempt has published what is merged. Of a gap the driver does not know then."""
    if marked is None or isinstance(merged, GapEvent):
        return False
    partition = merged.event.partition if isinstance(merged, PoisonEvent) else merged.partition
    return (settings.events, partition) in marked.published


def _end(stage: MergedStage, marked: MarkedBatch | None, ends: Mapping[Place, int], plan: QueryPlan) -> BatchOutcome:
    """End a task's part of a batch, of places that end at `ends`. Return its outcome once the broker has all of it:
    of a `marked` batch in one transaction.
    """
    if marked is None:
        outcome = stage.end()
        if (events_log := worker_process.used_events_log(plan.worker)) is not None:
            events_log.flush(FLUSH_TIMEOUT_S)
        stage.confirm()
        return outcome
    log, settings = stage.log, stage.settings
    assert isinstance(log, OwnedKafkaLog), "without fenced writers nothing is published exactly once"
    outcome = stage.end(log.deliver)
    if ends:
        log.deliver(FLUSH_TIMEOUT_S)  # the events
        PartTransaction(log, settings.name, marked, ends).commit(FLUSH_TIMEOUT_S)
    stage.confirm()
    return outcome


def _count(outcome: BatchOutcome, place_results: list[PlaceResult]) -> None:
    """Count what became of the events, each in one way: the stage counts records, of which an event may have many or
    none.
    """
    outcome.read = sum(result.read for result in place_results)
    outcome.confirmed = sum(result.copies for result in place_results)
    outcome.outdated = sum(result.outdated for result in place_results)
    outcome.unchanged = sum(result.unchanged for result in place_results)
    unpublished = outcome.confirmed + outcome.outdated + outcome.unchanged + outcome.dead_lettered
    outcome.published = outcome.read - unpublished


def stage_of(plan: QueryPlan, settings: ConnectorSettings, is_once: bool = False) -> MergedStage:
    """Return this process's stage for the table. With `is_once` its events are in the transaction of its records."""
    log = worker_process.data_log_for(plan, settings)
    append = partial(log.append, settings.events) if is_once else partial(_append, plan, settings)

    def make(parts: StageParts) -> MergedStage:
        schemas = parts.schemas(log, parts.directory / "schemas")
        return MergedStage(settings, parts.session, log, append, parts.directory, schemas)

    stage = worker_process.stage_for(plan, settings, 0, make)
    stage.log, stage.append = log, append
    return stage


def _append(plan: QueryPlan, settings: ConnectorSettings, partition: int, key: bytes, value: bytes) -> None:
    log = worker_process.events_log_for(plan.worker)
    if log.keeps_schemas:
        log.declare(settings.events, event_schemas(CurrentTable(settings)()))
    log.append(settings.events, partition, key, value)

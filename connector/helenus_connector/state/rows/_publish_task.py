"""A task that publishes the merged changes of a batch: from rows of `_operator.OUTPUT` to one row of `DONE` each."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from helenus_connector.cassandra_rows.table_definition import read_definition
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import use
from helenus_connector.control.fences import enter
from helenus_connector.control.plan import QueryPlan
from helenus_connector.log.choice import data_log, event_schemas, events_log
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_connector.pipeline.merged_stage import FLUSH_TIMEOUT_S, MergedStage
from helenus_connector.query import cassandra_sessions
from helenus_connector.query.cassandra_sessions import end_with_parent
from helenus_connector.query.event_packs import PartitionNote
from helenus_connector.query.garbage import freeze
from helenus_connector.shape.encoding.registry import registry_memory
from helenus_connector.state.rows._change_pack import unpack_changes
from helenus_connector.state.rows._operator import PlaceResult
from helenus_schemas.cql.table import Table
from helenus_schemas.service import logs
from helenus_schemas.service.failpoints import reach
from helenus_sinks.log import Log

DONE = "done binary"
_stages: dict[tuple[str, str], MergedStage] = {}
_logs: dict[str, Log] = {}
_events_logs: dict[str, Log] = {}
_tables: dict[str, tuple[object, Table]] = {}


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

    def __call__(self, of_all: bool = False) -> Table:
        cached = _tables.get(self._settings.events)
        definition = read_definition(
            cassandra_sessions.session_for(self._settings), self._settings, None if of_all else cached and cached[0]
        )
        if definition is not None:
            _tables[self._settings.events] = cached = definition
        assert cached is not None
        return cached[1]


def publish(
    plan: QueryPlan, settings: ConnectorSettings
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`, for a plan of this one table."""
    return partial(_publish, plan, settings)


def _publish(
    plan: QueryPlan, settings: ConnectorSettings, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    end_with_parent()
    logs.follow(plan.logging)
    result: PublishResult | None = None
    with enter(plan.checkpoint, plan.start):
        stage: MergedStage | None = None
        place_results: list[PlaceResult] = []
        lost = 0
        try:
            for batch in batches:
                for row in batch.to_pylist():
                    if stage is None:
                        stage = stage_of(plan, settings)
                        stage.begin(CurrentTable(settings)())
                    notes: list[PartitionNote] = pickle.loads(row["notes"]) if row["notes"] is not None else []
                    lost += sum(note.lost for note in notes)
                    for merged in unpack_changes(row["merged"]) if row["merged"] is not None else ():
                        stage.take(merged)
                    if row["ended"] is not None:
                        place_results.append(pickle.loads(row["ended"]))
            if stage is not None:
                stage.check({column for place_result in place_results for column in place_result.columns})
                reach("state.before-flush")
                outcome = stage.end()
                if plan.directory in _events_logs:
                    _events_logs[plan.directory].flush(FLUSH_TIMEOUT_S)
                reach("state.after-flush")
                result = PublishResult(outcome, place_results)
        finally:
            if stage is not None and result is None:
                # The whole task is repeated: nothing of this attempt may still be in the producer's queue.
                stage.log.close()
                if plan.directory in _events_logs:
                    _events_logs[plan.directory].close()
    if result is not None:
        result.outcome.lost = lost
        _count(result.outcome, place_results)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], names=["done"])
    freeze(("state", len(_stages)))


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


def stage_of(plan: QueryPlan, settings: ConnectorSettings) -> MergedStage:
    """Return this process's stage for the table, recreated when its settings changed."""
    stage_key = plan.directory, settings.events
    if plan.directory not in _logs:
        _logs[plan.directory] = data_log(plan.worker)
    stage = _stages.get(stage_key)
    if stage is None or stage.settings != settings:
        directory = use(Path(plan.directory)) / plan.group
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        session = cassandra_sessions.session_for(settings)
        if stage is not None:
            del _stages[stage_key]
            stage.close()
        registry_file = registry_memory(plan.worker.checkpoint_dir)
        append = partial(_append, plan, settings)
        stage = _stages[stage_key] = MergedStage(
            settings, session, _logs[plan.directory], append, directory, registry_file
        )
    stage.log = _logs[plan.directory]
    return stage


def _events_log(plan: QueryPlan) -> Log:
    """Return this process's Log of events, to which the results of reads are appended."""
    if plan.directory not in _events_logs:
        _events_logs[plan.directory] = events_log(plan.worker)
    return _events_logs[plan.directory]


def _append(plan: QueryPlan, settings: ConnectorSettings, partition: int, key: bytes, value: bytes) -> None:
    log = _events_log(plan)
    if log.keeps_schemas:
        log.declare(settings.events, event_schemas(CurrentTable(settings)()))
    log.append(settings.events, partition, key, value)

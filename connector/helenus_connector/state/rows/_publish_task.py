"""A task that publishes what was merged of a batch: from rows of `merging.OUTPUT` to one row of `DONE` each."""

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
from helenus_connector.state.rows._operator import PlaceResult, unpacked_merged
from helenus_schemas.cql.table import Table
from helenus_schemas.service import logs
from helenus_schemas.service.failpoints import reach
from helenus_sinks.log import Log

DONE = "done binary"
_stages: dict[tuple[str, str], MergedStage] = {}
_logs: dict[str, Log] = {}
_events: dict[str, Log] = {}
_tables: dict[str, tuple[object, Table]] = {}


@dataclass(slots=True)
class PublishResult:
    """What a task did: the outcome of all its places, and what the batch left of each."""

    outcome: BatchOutcome
    ended: list[PlaceResult] = field(default_factory=list)


class CurrentTable:
    """The table as it is now, in one of Spark's processes; if asked of all nodes, as the one has it that was altered
    last. Raises as `read_definition` does.
    """

    def __init__(self, settings: ConnectorSettings) -> None:
        self._settings = settings

    def __call__(self, of_all: bool = False) -> Table:
        known = _tables.get(self._settings.events)
        found = read_definition(
            cassandra_sessions.session_for(self._settings), self._settings, None if of_all else known and known[0]
        )
        if found is not None:
            _tables[self._settings.events] = known = found
        assert known is not None
        return known[1]


def publish(
    plan: QueryPlan, settings: ConnectorSettings
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`, for a plan of this one table."""
    return partial(_publish, plan, settings)


def _publish(
    plan: QueryPlan, settings: ConnectorSettings, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    end_with_parent()
    logs.follow(plan.logging)
    done: PublishResult | None = None
    with enter(plan.checkpoint, plan.start):
        stage: MergedStage | None = None
        ended: list[PlaceResult] = []
        lost = 0
        try:
            for batch in batches:
                for row in batch.to_pylist():
                    if stage is None:
                        stage = stage_of(plan, settings)
                        stage.begin(CurrentTable(settings)())
                    about: list[PartitionNote] = pickle.loads(row["notes"]) if row["notes"] is not None else []
                    lost += sum(note.lost for note in about)
                    for merged in unpacked_merged(row["merged"]) if row["merged"] is not None else ():
                        stage.take(merged)
                    if row["ended"] is not None:
                        ended.append(pickle.loads(row["ended"]))
            if stage is not None:
                stage.check({column for one in ended for column in one.columns})
                reach("state.before-flush")
                outcome = stage.end()
                if plan.directory in _events:
                    _events[plan.directory].flush(FLUSH_TIMEOUT_S)
                reach("state.after-flush")
                done = PublishResult(outcome, ended)
        finally:
            if stage is not None and done is None:
                # All of it is done again: nothing of this attempt may still be in the producer's queue.
                stage.log.close()
                if plan.directory in _events:
                    _events[plan.directory].close()
    if done is not None:
        done.outcome.lost = lost
        _count(done.outcome, ended)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(done)], pa.binary())], names=["done"])
    freeze(("state", len(_stages)))


def _count(outcome: BatchOutcome, ended: list[PlaceResult]) -> None:
    """What became of the events, each in one way: the stage counts records, of which an event may have many or none."""
    outcome.read = sum(one.read for one in ended)
    outcome.confirmed = sum(one.copies for one in ended)
    outcome.outdated = sum(one.outdated for one in ended)
    outcome.unchanged = sum(one.unchanged for one in ended)
    others = outcome.confirmed + outcome.outdated + outcome.unchanged + outcome.dead_lettered
    outcome.published = outcome.read - others


def stage_of(plan: QueryPlan, settings: ConnectorSettings) -> MergedStage:
    """This process's stage for the table, recreated when its settings changed."""
    name = plan.directory, settings.events
    if plan.directory not in _logs:
        _logs[plan.directory] = data_log(plan.worker)
    stage = _stages.get(name)
    if stage is None or stage.settings != settings:
        directory = use(Path(plan.directory)) / plan.group
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        session = cassandra_sessions.session_for(settings)
        if stage is not None:
            del _stages[name]
            stage.close()
        kept = registry_memory(plan.worker.checkpoint_dir)
        append = partial(_append, plan, settings)
        stage = _stages[name] = MergedStage(settings, session, _logs[plan.directory], append, directory, kept)
    stage.log = _logs[plan.directory]
    return stage


def _events_of(plan: QueryPlan) -> Log:
    """The Log of events, for rows that were asked for."""
    if plan.directory not in _events:
        _events[plan.directory] = events_log(plan.worker)
    return _events[plan.directory]


def _append(plan: QueryPlan, settings: ConnectorSettings, partition: int, key: bytes, value: bytes) -> None:
    log = _events_of(plan)
    if log.keeps_schemas:
        log.declare(settings.events, event_schemas(CurrentTable(settings)()))
    log.append(settings.events, partition, key, value)

"""Rebuilds a whole data topic from the rows that a connector with `state=rows` stores: `helenus-connector rebuild`.

Spark reads the state as a table, some stores at a time, and each task makes and appends the records of its rows. From
Cassandra the table's definition is read, and no row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.run_directory import make, remove
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.fences import owned
from helenus_connector.control.plan import QueryPlan
from helenus_connector.gate.event_content import decode_key
from helenus_connector.group.state_directories import StateName, find_latest
from helenus_connector.interfaces.merged_change import RowChange
from helenus_connector.log.choice import data_log
from helenus_connector.query import worker_process
from helenus_connector.query.spark_session import start_session
from helenus_connector.state.rows import _identity
from helenus_connector.state.rows._identity import StateIdentity
from helenus_connector.state.rows._publish_task import CurrentTable, stage_of
from helenus_connector.state.rows._row_bytes import load_row
from helenus_connector.state.rows._row_store import ROW_PREFIX, STATIC_PREFIX
from helenus_connector.state.rows._row_values import RowValues
from helenus_connector.state.store.pages import entries, is_page
from helenus_connector.state.store.rocksdb import new_session
from helenus_connector.state.store.spark_store import STATE
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Scope
from helenus_schemas.service import logs

_RECORDS = "records bigint"


def rebuild(worker: WorkerSettings, settings: ConnectorSettings, to: str | None) -> int:
    """Append a record of each live row to the data topic, or to the topic `to`, which is created if it does not exist.
    Return how many records.

    The worker must not run: two would write the topic. Raises HelenusError CONFIG for a connector without stored rows,
    STATE, and as a worker's start.
    """
    if settings.state != "rows":
        raise HelenusError(Kind.CONFIG, f"it keeps no rows: state={settings.state}", settings.name)
    if to is not None:
        settings = settings.model_copy(update={"data_topic": to})
    with owned(worker.checkpoint_dir.absolute(), lambda: False):
        directory = make()
        try:
            return _rebuild(worker, settings, directory)
        finally:
            remove(directory)


def _rebuild(worker: WorkerSettings, settings: ConnectorSettings, directory: Path) -> int:
    name = StateName(("rows", settings.name, settings.query_group), "", _identity.NAME)
    with ExitStack() as cleanup:
        # Elsewhere than on a disk, the state comes by Spark's client; or Spark starts once there is something to do.
        spark = None if worker.state_url is None else _start_spark(worker, directory, cleanup)
        checkpoint = find_latest(worker, name, spark) or worker.checkpoint_dir.absolute() / settings.query_group
        identity = _identity.load_identity(checkpoint)
        if identity is None or not any((checkpoint / "commits").glob("[0-9]*")):
            raise HelenusError(Kind.STATE, "there is no state yet", str(checkpoint), "run the connector first")
        _identity.check_identity(
            identity, f"{settings.keyspace}.{settings.table}", settings.events, len(identity.places), checkpoint
        )
        with closing(data_log(worker)) as log:
            if settings.data not in log.topics():
                log.create(settings.data, len(identity.places), *settings.data_creation)
        places = identity.places
        plan = QueryPlan(worker, {settings.events: settings}, str(directory), settings.query_group, places=places)
        session = new_session(spark or _start_spark(worker, directory, cleanup), identity.slots)
        state = session.read.format("statestore").option("stateVarName", STATE).load(str(checkpoint))
        pages = state.selectExpr("key.place AS place", "user_map_key.key AS name", "user_map_value.value AS value")
        rows = pages.mapInArrow(_rows, pages.schema)
        # A partition's static columns before its rows, which have them too: "s" comes after "r".
        sorted_rows = rows.repartition(identity.slots, "place").sortWithinPartitions("name", ascending=False)
        counts = sorted_rows.mapInArrow(_publish(plan, settings, identity, time.time()), _RECORDS)
        return sum(row.records for row in counts.collect())


def _start_spark(worker: WorkerSettings, directory: Path, cleanup: ExitStack) -> Any:
    spark = start_session(worker, directory, has_state=True)
    cleanup.callback(spark.stop)
    return spark


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows and static columns on pages, each with its name in the store."""
    for batch in batches:
        places, names, values = [], [], []
        for row in batch.to_pylist():
            for name, value in entries(row["value"]).items() if is_page(row["name"]) else ():
                if name[:1] in (ROW_PREFIX, STATIC_PREFIX):
                    places.append(row["place"])
                    names.append(name)
                    values.append(value)
        arrays = [pa.array(places, pa.int32()), pa.array(names, pa.binary()), pa.array(values, pa.binary())]
        yield pa.RecordBatch.from_arrays(arrays, names=["place", "name", "value"])


def _publish(
    plan: QueryPlan, settings: ConnectorSettings, identity: StateIdentity, now: float
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`. All rows of a partition come to one task: so each of the topic's has one
    writer.
    """
    return partial(_run, plan, settings, identity, now)


def _run(
    plan: QueryPlan, settings: ConnectorSettings, identity: StateIdentity, now: float, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    worker_process.end_with_parent()
    logs.follow(plan.logging)
    table = CurrentTable(settings)()
    stage = stage_of(plan, settings)
    stage.begin(table)
    state_rows = _StateRows(table, identity, int(now))
    for batch in batches:
        for row in batch.to_pylist():
            merged = state_rows.show(row["place"], row["name"], row["value"])
            if merged is not None:
                stage.take(merged)
    records = stage.end().records
    yield pa.RecordBatch.from_arrays([pa.array([records], pa.int64())], names=["records"])


class _StateRows:
    """The rows of the state as they are at a time, s since the epoch."""

    def __init__(self, table: Table, identity: StateIdentity, now: int) -> None:
        self._table, self._now = table, now
        self._codec = KeyCodec(table)
        self._no_clustering = (None,) * len(table.clustering)
        self._partitions = {place_number: partition for partition, place_number in enumerate(identity.places)}
        self._row_values = RowValues(table.regulars, table.dropped_at)
        self._static_values = RowValues(table.statics, table.dropped_at)
        self._statics: dict[bytes, Mapping[str, bytes | None]] = {}

    def show(self, place_number: int, name: bytes, value: bytes) -> RowChange | None:
        """Return a row, or a partition's static columns, by its name in the store; None if it does not live."""
        row, key, is_static = load_row(value), name[1:], name[:1] == STATIC_PREFIX
        shown_row = (self._static_values if is_static else self._row_values).show(row, self._now)
        if shown_row is None:
            return None
        values = shown_row.values
        if is_static:
            self._statics[key] = values
        elif self._table.statics:
            values = {**values, **self._statics.get(self._partition_key(key), self._static_values.nulls)}
        scope = Scope.STATIC if is_static else Scope.ROW
        partition = self._partitions[place_number]
        return RowChange(partition, key, scope, "r", None, values, shown_row.write_time, shown_row.expires)

    def _partition_key(self, key: bytes) -> bytes:
        values = decode_key(self._codec, key)[: self._codec.partition_columns]
        return self._codec.encode((*values, *self._no_clustering))

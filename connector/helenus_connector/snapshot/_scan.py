"""Run the Spark task of a snapshot: scan some keys of a stretch, and append an event for each to the events topic.

The events are flushed before the task ends. So what the driver notes as scanned is in the topic; a task that dies is
repeated, and its keys are read once more.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from cassandra import ConsistencyLevel

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_connector.log.choice import event_schemas
from helenus_connector.query import worker_process
from helenus_connector.query.garbage import freeze
from helenus_connector.snapshot._keys import KeyReader
from helenus_connector.snapshot._ring import TokenStretch
from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.placement import partition
from helenus_schemas.event.wire import request
from helenus_schemas.service.failpoints import reach
from helenus_schemas.service.logs import Setup, follow
from helenus_sinks.log import Log

_FLUSH_TIMEOUT_S = 60.0
_READER = "key reader"
_GRANT_ADVICE = (
    "a snapshot appends events: let the worker's user write to the events topics too, and start the worker again; "
    "or set snapshot.mode=never"
)


@dataclass(frozen=True)
class ScanSlice:
    """The part of a table that one task scans: of a stretch, or of what `where` names, at most about `most` keys, for
    about `seconds`.

    `partitions` is how many the events topic has; `is_first` says that nothing of the snapshot was scanned before.
    """

    worker: WorkerSettings
    settings: ConnectorSettings
    table: Table
    stretch: TokenStretch
    where: str
    partitions: int
    most: int
    seconds: float
    is_first: bool
    logging: Setup


@dataclass(frozen=True)
class ScanResult:
    """The result of a task. `left` is None if the stretch is scanned to its end; else it goes on there. `last` is the
    topic partition and the key of the last row. `read` counts what Cassandra gave, with what has no event: partitions
    without static columns, say. `is_refused`: the server does not take the statement, or its paging state. `seconds`
    are the task's own.
    """

    rows: int = 0
    skipped: int = 0
    read: int = 0
    left: TokenStretch | None = None
    last: tuple[int, str] | None = None
    error: HelenusError | None = None
    is_refused: bool = False
    seconds: float = 0.0


def task(slice_: ScanSlice) -> Callable[[Iterable[object]], Iterator[ScanResult]]:
    """Return the function for a Spark job of one task."""
    return partial(_run, slice_)


def _run(slice_: ScanSlice, input_rows: Iterable[object]) -> Iterator[ScanResult]:
    for _ in input_rows:  # Spark ends a Python worker whose input is not read to its end
        pass
    worker_process.end_with_parent()
    follow(slice_.logging)
    begun = time.monotonic()
    yield replace(scan(slice_), seconds=round(time.monotonic() - begun, 3))
    freeze(("slices", worker_process.count(_READER)))


def scan(slice_: ScanSlice) -> ScanResult:
    """Scan a slice. Its errors are in the result; then none of it counts."""
    log = None
    try:
        log = _log(slice_)
        with worker_process.noted_read(slice_.settings):
            result = _scan(slice_, log)
        log.flush(_FLUSH_TIMEOUT_S)
        reach("snapshot.after-flush")
        return result
    except SchemaChanged as error:
        problem = f"Cassandra refuses to read keys: {error}"
        advice = "ask for other partitions" if slice_.where else "see the table's schema and Cassandra's guardrails"
        refused = HelenusError(Kind.CASSANDRA_READ, problem, slice_.table.full_name, advice)
        return ScanResult(error=refused, is_refused=True)
    except HelenusError as error:
        if log is not None:
            log.close()
        if error.kind is Kind.CASSANDRA_READ:
            worker_process.drop(lambda name: name[0] == _READER)
        if error.kind is Kind.BROKER_REFUSED:
            error = HelenusError(error.kind, error.what, error.where, _GRANT_ADVICE)
        return ScanResult(error=error)


def _scan(slice_: ScanSlice, log: Log) -> ScanResult:
    table, stretch, topic = slice_.table, slice_.stretch, slice_.settings.events
    codec, partitions = KeyCodec(table), slice_.partitions
    scope = Scope.STATIC if stretch.statics else Scope.ROW
    value = request(scope, Origin.SNAPSHOT)
    width = len(table.partition_key) if stretch.statics else len(table.primary_key)
    no_row: tuple[None, ...] = (None,) * (len(table.primary_key) - width)
    deadline = time.monotonic() + slice_.seconds
    rows = skipped = read = 0
    last_token, last = stretch.at, None
    first = request(scope, Origin.SNAPSHOT_FIRST) if slice_.is_first else None
    for page in _reader(slice_).pages(stretch, slice_.where, slice_.most):
        events_by_partition: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
        read += len(page.rows)
        for row in page.rows:
            key = row[:width]
            if stretch.statics:
                if row.count(None) == len(row) - width - 1:
                    continue  # a partition without static columns
                key += no_row
            elif None in key:
                continue  # a partition with static columns alone
            token = int.from_bytes(row[width] or b"", "big", signed=True)
            try:
                encoded = codec.encode(key)
            except Malformed:
                skipped += 1  # the agent skips its events too
                continue
            topic_partition = partition(token, partitions)
            events_by_partition[topic_partition].append((encoded, first or value))
            first = None
            last = topic_partition, encoded
            rows += 1
        if page.rows:
            last_token = int.from_bytes(page.rows[-1][width] or b"", "big", signed=True)
        for topic_partition, events in events_by_partition.items():
            log.extend(topic, topic_partition, events)
        if page.paging is None:
            return ScanResult(rows, skipped, read, None, last and (last[0], last[1].hex()))
        if read >= slice_.most or time.monotonic() > deadline:
            remaining = replace(stretch, at=min(last_token, stretch.until), paging=page.paging.hex())
            return ScanResult(rows, skipped, read, remaining, last and (last[0], last[1].hex()))
    raise AssertionError("pages end with one that has no paging state")


def _log(slice_: ScanSlice) -> Log:
    """Return this process's producer for events topics."""
    log = worker_process.events_log_for(slice_.worker)
    if log.keeps_schemas:
        log.declare(slice_.settings.events, event_schemas(slice_.table))
    return log


def _reader(slice_: ScanSlice) -> KeyReader:
    """Return this process's reader of a table."""
    settings, table = slice_.settings, slice_.table
    session = worker_process.session_for(settings)
    level: int = getattr(ConsistencyLevel, settings.snapshot_consistency)
    name = _READER, str(table.id), settings.snapshot_consistency
    version = session, table.primary_key, table.statics
    return worker_process.reuse(name, version, lambda: KeyReader(session, table, level), settings)

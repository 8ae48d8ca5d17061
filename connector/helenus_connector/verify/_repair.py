"""Append events for the keys that differ: the connector reads each row again, and publishes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from helenus_connector.log.choice import event_schemas, events_log
from helenus_connector.verify._entry import batches, counts, entries
from helenus_connector.verify._job import Task, VerifyJob, begin
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event import placement
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import request

_FLUSH_TIMEOUT_S = 60.0
_AT_ONCE = 10_000


def repair(job: VerifyJob) -> Task:
    """Return the task that appends an event for each key that it gets, and counts them. It may append some twice."""
    return partial(_repair, job)


def _repair(job: VerifyJob, record_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    begin(job)
    yield from batches([counts(repaired=_append(job, record_batches))])


def _append(job: VerifyJob, record_batches: Iterator[pa.RecordBatch]) -> int:
    events, appended = job.settings.events, 0
    values = {scope is Scope.STATIC: request(scope, Origin.REPAIR) for scope in (Scope.ROW, Scope.STATIC)}
    log = events_log(job.worker)
    try:
        partitions = log.topics().get(events)
        if partitions is None:
            raise HelenusError(Kind.TOPIC_MISSING, "there is no events topic to repair by", events)
        if log.keeps_schemas:
            log.declare(events, event_schemas(job.table))
        for entry in entries(record_batches):
            assert entry.token is not None
            assert entry.name is not None
            log.append(events, placement.partition(entry.token, partitions), entry.name, values[entry.static])
            appended += 1
            if appended % _AT_ONCE == 0:
                log.flush(_FLUSH_TIMEOUT_S)
        log.flush(_FLUSH_TIMEOUT_S)
    finally:
        log.close()
    return appended

"""A task that appends an event for each key whose read is requested: the connector reads its row, and publishes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyarrow as pa

from helenus_connector.log.choice import event_schemas
from helenus_connector.query import worker_process
from helenus_connector.query.garbage import freeze
from helenus_connector.state.keys._operator import requested_keys
from helenus_connector.state.keys._plan import KeysPlan
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import request
from helenus_schemas.service.failpoints import reach
from helenus_sinks.log import Log

DONE = "place string, due double, counts binary"
_FLUSH_TIMEOUT_S = 60.0


def request_reads(plan: KeysPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`: from rows of `_operator.OUTPUT` to those of `DONE`. Some events may be
    appended twice.
    """
    values = {
        is_static: request(scope, Origin.STATE) for is_static, scope in ((False, Scope.ROW), (True, Scope.STATIC))
    }

    return partial(_request_reads, plan, values)


def _request_reads(
    plan: KeysPlan, values: Mapping[bool, bytes], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    worker_process.end_with_parent()
    log: Log | None = None
    results = []
    try:
        for batch in batches:
            for row in batch.to_pylist():
                keys = requested_keys(row["asked"])
                if keys:
                    log = worker_process.events_log_for(plan.worker)
                    topic, _, partition = row["place"].rpartition("/")
                    events = _events_topic(plan, log, topic)
                    for name, is_static in keys:
                        log.append(events, int(partition), name, values[is_static])
                results.append(row)
        if log is not None:
            reach("state.before-flush")
            log.flush(_FLUSH_TIMEOUT_S)
            reach("state.after-asked")
    except BaseException:
        if log is not None:
            log.close()
        raise
    columns = [("place", pa.string()), ("due", pa.float64()), ("counts", pa.binary())]
    arrays = [pa.array([row[name] for row in results], t) for name, t in columns]
    yield pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])
    freeze("state")


def _events_topic(plan: KeysPlan, log: Log, topic: str) -> str:
    """Return the events topic of a data topic. Raises HelenusError if it does not exist."""
    followed = plan.tables[topic]
    events = followed.settings.events
    if not log.topics().get(events):
        raise HelenusError(Kind.TOPIC_MISSING, "there is no events topic", events)
    if log.keeps_schemas:
        log.declare(events, event_schemas(followed.table))
    return events

"""A task that appends an event for each key whose read is requested: the connector reads its row, and publishes it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from helenus_connector.journal.batch_marks import BatchMarks, MarkedBatch, PartTransaction, Place
from helenus_connector.log.choice import event_schemas
from helenus_connector.query import worker_process
from helenus_connector.query.garbage import freeze
from helenus_connector.query.handover import batch_number
from helenus_connector.query.worker_process import OwnedProducers
from helenus_connector.state.keys._operator import requested_keys
from helenus_connector.state.keys._plan import KeysPlan
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.change import Origin, Scope
from helenus_schemas.event.wire import request
from helenus_schemas.service.failpoints import reach
from helenus_sinks.kafka.owned_log import OwnedKafkaLog
from helenus_sinks.kafka.owners import Made
from helenus_sinks.log import Log

DONE = "done binary"
_FLUSH_TIMEOUT_S = 60.0


class PlaceCounts(NamedTuple):
    """What a batch leaves of a place, which its `topic_partition` names: when something is due next, s since the epoch,
    and the packed `IndexCounts`.
    """

    topic_partition: str
    next_due: float | None
    counts: bytes


def request_reads(
    plan: KeysPlan, marks: BatchMarks | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`, for all batches of a plan: from rows of `_operator.OUTPUT` to those of
    `DONE`, each a pickled `PlaceCounts`. Some events may be appended twice; with `marks` none is.
    """
    values = {
        is_static: request(scope, Origin.STATE) for is_static, scope in ((False, Scope.ROW), (True, Scope.STATIC))
    }

    return partial(_request_reads, plan, values, marks)


def _request_reads(
    plan: KeysPlan, values: Mapping[bool, bytes], marks: BatchMarks | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    worker_process.end_with_parent()
    marked = None if marks is None else marks.batch(batch_number())
    if marked is not None:
        worker_process.refuse_second_attempt(plan.group)
    log: Log | None = None
    results: list[PlaceCounts] = []
    ends: dict[Place, int] = {}
    try:
        for batch in batches:
            for row in batch.to_pylist():
                topic, _, partition = row["place"].rpartition("/")
                topic_partition = topic, int(partition)
                keys = requested_keys(row["asked"])
                is_requested = marked is not None and topic_partition in marked.published
                if marked is not None and not is_requested and row["ends"] >= 0:
                    ends[topic_partition] = row["ends"]
                if keys and not is_requested:
                    log = _log(plan, topic)
                    events = _events_topic(plan, log, topic)
                    for name, is_static in keys:
                        log.append(events, int(partition), name, values[is_static])
                results.append(PlaceCounts(row["place"], row["due"], row["counts"]))
        if log is None and ends:
            log = _log(plan, next(iter(ends))[0])  # for the marks alone
        if log is not None:
            _deliver(log, plan, marked, ends)
    except BaseException:
        if log is not None:
            log.close()
        raise
    yield pa.RecordBatch.from_arrays([pa.array(map(pickle.dumps, results), pa.binary())], names=["done"])
    freeze("state")


def _deliver(log: Log, plan: KeysPlan, marked: MarkedBatch | None, ends: Mapping[Place, int]) -> None:
    """Wait until the broker has all requests: those of a `marked` batch in one transaction, with the marks of places
    that end at `ends`.
    """
    reach("state.before-flush")
    if marked is not None and ends:
        assert isinstance(log, OwnedKafkaLog), "without fenced writers nothing is requested exactly once"
        log.deliver(_FLUSH_TIMEOUT_S)
        PartTransaction(log, plan.name, marked, ends).commit(_FLUSH_TIMEOUT_S)
    else:
        log.flush(_FLUSH_TIMEOUT_S)
    reach("state.after-asked")


def _log(plan: KeysPlan, topic: str) -> Log:
    """Return the Log for the requests of a data topic's keys."""
    if plan.owner is None:
        return worker_process.events_log_for(plan.worker)
    producers = OwnedProducers(plan.worker, plan.directory, plan.group, plan.owner, whole_batches=False)
    return worker_process.owned_log_for(producers, Made(plan.name, topic))


def _events_topic(plan: KeysPlan, log: Log, topic: str) -> str:
    """Return the events topic of a data topic. Raises HelenusError if it does not exist."""
    followed = plan.tables[topic]
    events = followed.settings.events
    if not log.topics().get(events):
        raise HelenusError(Kind.TOPIC_MISSING, "there is no events topic", events)
    if log.keeps_schemas:
        log.declare(events, event_schemas(followed.table))
    return events

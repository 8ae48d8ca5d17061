"""The metrics and log events of each table's batch, in the driver."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import structlog

from helenus_connector import metrics
from helenus_connector.control.status import Task
from helenus_connector.interfaces.event import Gap
from helenus_connector.pipeline.batch_outcome import BatchOutcome
from helenus_schemas.errors import HelenusError

_log = structlog.get_logger(__name__)
_ADVICE = (
    "snapshot the table: helenus-connector snapshot; snapshot.mode=when_needed does so by itself. "
    "Rows that were deleted meanwhile have no key to scan: helenus-connector verify --repair publishes their deletes"
)
"""After a loss."""
_REPEATS = (
    "if no client writes the same bytes again, each read has this replica repaired, and a tombstone past its grace "
    "hides that: run `nodetool repair` on the table, then `nodetool compact` (or `garbagecollect`) on this node; "
    "`nodetool status` has it by its host id"
)
_WARN_AGAIN_S = 600.0
_warned_at: dict[tuple[str, ...], float] = {}


def note_failed_attempt(task: Task, error: HelenusError) -> None:
    """Note with a table's task that an attempt at its batch failed, count it and log it."""
    metrics.ERRORS.labels(error.kind.value).inc()
    metrics.TABLE_ERRORS.labels(*task.labels, error.kind.value).inc()
    now = time.monotonic()
    task.note_failure(error, now)
    fields = {"connector": task.connector, "table": task.table, "kind": error.kind.value, "error": str(error)}
    if task.error is not None:
        _log.error("task.failed", **fields)
    else:
        _log.warning("task.retry", **fields, retry_in_s=round(task.retry_at - now, 1))


def _warn_of_repeats(labels: Sequence[str], table: str, node: str) -> None:
    """Warn that a node logs the same changes again and again: at intervals, as that goes on until someone acts."""
    name, now = (*labels, node), time.monotonic()
    if now - _warned_at.get(name, -math.inf) < _WARN_AGAIN_S:
        return
    _warned_at[name] = now
    does = "their keys are read more and more rarely, every five minutes in the end"
    _log.warning("changes.repeated", connector=labels[0], table=table, node=node, does=does, advice=_REPEATS)


def count_outcome(task: Task, outcome: BatchOutcome, now: float) -> None:
    """Count the outcome of a table's batch, and log what is lost or doubtful."""
    labels = task.labels
    metrics.EVENTS_READ.labels(*labels).inc(outcome.read)
    for result in metrics.OUTCOMES:
        metrics.EVENTS.labels(*labels, result).inc(getattr(outcome, result))
    for result in metrics.AT_GATE:
        metrics.GATE_CHANGES.labels(*labels, result).inc(getattr(outcome.at_gate, result))
    if outcome.at_gate.dropped:
        advice = "too few replicas reported them, and no read at the gate's level shows them, if gate.expired=verify"
        _log.warning("gate.dropped", connector=labels[0], changes=outcome.at_gate.dropped, advice=advice)
    metrics.RECORDS.labels(*labels).inc(outcome.records)
    metrics.RECORDS_TOO_LARGE.labels(*labels).inc(outcome.too_large)
    metrics.ROWS_UNPUBLISHED.labels(*labels).inc(outcome.unpublished)
    metrics.CONTRADICTED.labels(*labels).inc(outcome.contradicted)
    if outcome.contradicted:
        advice = "a memtable is later than ten times settle.min.age.ms, or a tombstone was purged: compare the table"
        _log.warning("changes.contradicted", connector=labels[0], changes=outcome.contradicted, advice=advice)
    for node, events in outcome.paused.items():
        metrics.EVENTS_REPEATED.labels(*labels).inc(events)
        _warn_of_repeats(labels, task.table, node)
    metrics.EVENTS_LOST.labels(*labels).inc(outcome.lost)
    if outcome.lost:
        _log.warning("events.lost", connector=labels[0], events=outcome.lost, advice=_ADVICE)
    metrics.KEYS_READ.labels(*labels).inc(outcome.keys_read)
    metrics.STATEMENTS.labels(*labels).inc(outcome.statements)
    metrics.QUERY_SECONDS.labels(*labels).inc(outcome.query_seconds)
    if outcome.newest_write_time is not None:
        task.changed_at = time.monotonic()
        metrics.REPLICATION_SECONDS.labels(*labels).set(max(0.0, now - outcome.newest_write_time / 1e6))


class GapLog:
    """Counts and logs each gap once: it is in every partition, and read again where a run steps back."""

    def __init__(self) -> None:
        self._gaps: set[tuple[str, str | None, int | None]] = set()

    def note(self, task: Task, gaps: Sequence[Gap], first_offset: int = 0) -> list[str | None]:
        """Count and log the gaps of a table's batch, and return the nodes of those that are new. An earlier run has
        counted those before `first_offset`. What one node's gap has several events for is one gap.
        """
        nodes = []
        for gap in gaps:
            gap_id = task.events, gap.node, gap.until
            if gap.partition or gap.offset < first_offset or gap_id in self._gaps:
                continue
            self._gaps.add(gap_id)
            nodes.append(gap.node)
            metrics.GAPS.labels(*task.labels).inc()
            where = {"connector": task.connector, "topic": task.events, "node": gap.node, "until_us": gap.until}
            ranges = sorted({other.token_range for other in gaps if _is_same(gap, other) and other.token_range})
            more = {"token_ranges": [f"{after}:{until}" for after, until in ranges]} if ranges else {}
            _log.warning("events.gap", **where, **more, advice=_ADVICE)
        return nodes


def _is_same(gap: Gap, other: Gap) -> bool:
    return (gap.node, gap.until) == (other.node, other.until)

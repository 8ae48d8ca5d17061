"""Losses, found or possible: the one place where they are counted, logged, and noted as gaps.

A gap is a stretch of the log that may be missing changes of one table, or of all. It is published as a change event of
scope GAP, and stays in the positions until that is acknowledged.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from pathlib import Path

import structlog

from helenus_agent import metrics
from helenus_agent.commitlog.segment import Segment
from helenus_agent.delivery.notices import Notice
from helenus_agent.positions import LogGap, LogPosition, Positions
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Scope

_ADVICE = "re-snapshot the table, or repair what reads its events: they receive an event of scope GAP"
_log = structlog.get_logger(__name__)


def report_corrupt(segment: Segment, position: int, problem: str, unread_bytes: int = 0) -> None:
    """Report that something in a segment can't be read. `unread_bytes`: those after it that are not read either."""
    segment.bad = True
    metrics.PROBLEMS.inc()
    _log.error(
        "segment.corrupt", path=str(segment.path), position=position, error=problem, left_unread_bytes=unread_bytes
    )


def report_lost(positions: Positions, segment: int, position: int, directory: str) -> None:
    """Report that a segment that is known to hold changes of CDC tables is gone; it was read up to `position`."""
    metrics.LOST.inc()
    _log.error("segment.lost", directory=directory, segment=segment, position=position, advice=_ADVICE)
    _note_gap(positions, "", "lost")


def report_taken_back(positions: Positions, segment: int, resent_bytes: int, lost_bytes: int) -> None:
    """Report that a node does not have what it had logged at a segment's end: it, or its machine, crashed before the
    next sync. `resent_bytes` are appended again, for connectors to read their rows again. Of `lost_bytes`, which are
    not in the file any more, nobody knows the keys: that is a gap.
    """
    metrics.TAKEN_BACK.inc(resent_bytes + lost_bytes)
    advice = _ADVICE if lost_bytes else "none: their rows are read again, and records show what Cassandra has"
    _log.warning("segment.taken_back", segment=segment, resent_bytes=resent_bytes, lost_bytes=lost_bytes, advice=advice)
    if lost_bytes:
        _note_gap(positions, "", "taken_back")


def report_malformed(positions: Positions, table: Table, changes: int, segment: int) -> None:
    """Report that changes are skipped because their key can't be encoded: consumers miss them."""
    _log.error("key.malformed", table=table.full_name, changes=changes, segment=segment, advice=_ADVICE)
    _note_gap(positions, str(table.id), "malformed_key")


def report_too_large(positions: Positions, table: Table, error: HelenusError) -> None:
    """Report that an event is larger than its topic accepts. It is skipped: consumers miss it."""
    metrics.SKIPPED.labels("record_too_large").inc()
    advice = "raise max.message.bytes of the topic and producer.message.max.bytes, on Pulsar maxMessageSize, and "
    _log.error("event.too_large", table=table.full_name, why=error.what, where=error.where, advice=advice + _ADVICE)
    _note_gap(positions, str(table.id), "record_too_large")


def report_quarantined(positions: Positions, path: Path) -> None:
    """Report that a segment is in quarantine. What could not be read in it is missing until it is reprocessed."""
    _log.error("segment.quarantined", path=str(path))
    _note_gap(positions, "", "quarantined")


def report_unlinked(segment: int, path: Path) -> None:
    """Report that another program deleted a segment with changes from cdc_raw; it is read from the commit log's own
    directory.
    """
    advice = "another program deletes segments in cdc_raw, or the node does (cdc_block_writes: false)"
    _log.error("segment.unlinked", segment=segment, read_from=str(path), advice=advice)


def report_unseen(positions: Positions, count: int) -> None:
    """Report that so many segments came and went unread, and some of them may have held changes of CDC tables."""
    metrics.POSSIBLE_LOSS.inc()
    _log.error("log.possible_loss", unseen_segments=count, advice=_ADVICE)
    _note_gap(positions, "", "possible_loss")


def report_lost_disk(positions: Positions, saved_at: str) -> None:
    """Report that the node has another disk than when its state was saved: what was not sent by then is gone."""
    segments = [number for number, mark in positions.segments.items() if mark.indexed]
    advice = f"helenus-connector lost-node NAME {positions.host_id} --since {saved_at} names the tokens; " + _ADVICE
    _log.error("node.disk_lost", since=saved_at, unread_segments=segments, advice=advice)
    _note_gap(positions, "", "disk_lost")


def note_cdc_state(positions: Positions, is_on: bool | None) -> None:
    """Note cdc_enabled as the node reports it, None if it does not. A gap is reported once it is on again."""
    if is_on is None or is_on is not positions.cdc_off:
        return
    positions.cdc_off = not is_on
    if is_on:
        _log.warning("node.cdc_on", advice="what was written with cdc_enabled: false is missing; " + _ADVICE)
        _note_gap(positions, "", "cdc_was_off")
    else:
        _log.error("node.cdc_off", advice="the node runs with cdc_enabled: false: nothing it writes is published")


def check_deleted(positions: Positions, first: int, present: Collection[int]) -> None:
    """Check at the start, for a node that deletes unread segments when cdc_raw is full, whether it may have done so.

    It deletes the oldest. If the `first` segment that was not fully processed when the agent stopped is gone, and none
    that old is `present`, that one and later ones may have held changes.
    """
    oldest = min(present, default=first)
    if oldest <= first:
        return
    metrics.POSSIBLE_LOSS.inc()
    _log.error("log.possible_loss", first_missing=first, first_present=oldest, advice=_ADVICE)
    _note_gap(positions, "", "possible_loss")


def report_resumed(positions: Positions, table: uuid.UUID, name: str) -> None:
    """Report that a table is followed again: it has CDC, is included, or its writes are no transactions any more."""
    missing = "what was written with cdc = false or a transactional_mode, or while it was excluded, is missing; "
    _log.warning("table.resumed", table=name, advice=missing + _ADVICE)
    _note_gap(positions, str(table), "cdc_was_off")


def report_transactional(positions: Positions, table: uuid.UUID) -> None:
    """Note that from now on a table's writes are in no commit log."""
    _note_gap(positions, str(table), "transactional")


def report_readded_column(positions: Positions, table: uuid.UUID, name: str, column: str) -> None:
    """Report that a column was dropped and added again: rows lost their values of it, and no write shows that."""
    advice = "values from before the DROP stay on the topic until their rows are written again; " + _ADVICE
    _log.warning("column.added_again", table=name, column=column, advice=advice)
    _note_gap(positions, str(table), "column_added_again")


def refused_topic_notice(table: uuid.UUID, reached: LogPosition) -> Notice:
    """Return the first event when the topic of a refused table accepts records again: up to here, changes may be
    missing.
    """
    now = time.time_ns() // 1000
    return Notice(Scope.GAP, table, now, now, *reached)


def report_topic_accepted(name: str) -> None:
    """Report that a refused table's topic accepts records again, and has acknowledged its gap event."""
    metrics.GAPS.labels("refused_topic").inc()
    _log.warning("table.resumed", table=name, advice="what was written while it was left out is missing; " + _ADVICE)


def take_due(positions: Positions, followed: Collection[uuid.UUID], reached: LogPosition) -> list[Notice]:
    """Return events for the gaps not appended yet, each for its table or for all that are followed. Each is returned
    once.
    """
    notices: list[Notice] = []
    for gap in positions.gaps:
        if gap.appended:
            continue
        gap.appended = True
        metrics.GAPS.labels(gap.reason).inc()
        tables = [table for table in followed if gap.table in ("", str(table))]
        notices.extend(Notice(Scope.GAP, table, gap.time, gap.time, *reached) for table in tables)
    return notices


def forget_acknowledged(positions: Positions) -> None:
    """Forget the gaps that `take_due` returned: they are acknowledged."""
    positions.gaps = [gap for gap in positions.gaps if not gap.appended]


def rewind(positions: Positions) -> None:
    """Return those that are not acknowledged once more."""
    for gap in positions.gaps:
        gap.appended = False


def _note_gap(positions: Positions, table: str, reason: str) -> None:
    now = time.time_ns() // 1000
    for gap in positions.gaps:
        if not gap.appended and gap.table == table:
            gap.time, gap.reason = now, reason
            return
    positions.gaps.append(LogGap(table, now, reason))

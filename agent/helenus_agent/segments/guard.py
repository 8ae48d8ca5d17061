"""What threatens the log, and what of it is lost: the one place where it is counted, logged, and noted as a gap.

Cassandra gives cdc_raw a limit, cdc_total_space. Where that is reached it refuses writes to CDC tables, or, with
cdc_block_writes: false, deletes the oldest segments, read or not. And it may be restarted with cdc_enabled: false.

A gap is a fact to be told as a Change of scope GAP. It stays in the positions until it is acknowledged.
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
from helenus_agent.node.truncations import Place
from helenus_agent.positions import Gap, Positions
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Scope

_EARLY = (metrics.LOW, metrics.CRITICAL)
_log = structlog.get_logger(__name__)


class Headroom:
    """Watches the size of cdc_raw against its `limit` in bytes (None: not known). `blocks`: as cdc_block_writes."""

    def __init__(self, limit: int | None = None, blocks: bool = True) -> None:
        self.set(limit, blocks)
        self._crossed = 0

    def set(self, limit: int | None, blocks: bool) -> None:
        """Watch against these from now on."""
        self._limit = limit
        self._blocks = blocks

    def watch(self, used: int) -> None:
        """Warn when so many bytes are more than 80 or 95 % of the limit; once, until they are less again."""
        if not self._limit:
            return
        crossed = sum(used >= part * self._limit for part in _EARLY)
        if crossed > self._crossed:
            then = "refuses writes to CDC tables" if self._blocks else "deletes the oldest segments, read or not"
            _log.warning(
                "cdc_raw.fills",
                used=used,
                limit=self._limit,
                percent=round(100 * used / self._limit),
                advice=f"when it is full Cassandra {then}: see that the broker keeps up, or raise cdc_total_space",
            )
        self._crossed = crossed


def corrupt(segment: Segment, position: int, what: str, left: int = 0) -> None:
    """Something in a segment can't be read; `left` bytes from there on are not, if it is not known where to go on."""
    segment.bad = True
    metrics.PROBLEMS.inc()
    _log.error("segment.corrupt", path=str(segment.path), position=position, error=what, left_unread_bytes=left)


def lost(positions: Positions, segment: int, position: int, directory: str) -> None:
    """A segment that is known to hold changes of CDC tables is gone; it was read up to `position`."""
    metrics.LOST.inc()
    _log.error("segment.lost", directory=directory, segment=segment, position=position, advice=_ADVICE)
    _note(positions, "", "lost")


def malformed(positions: Positions, table: Table, changes: int, segment: int) -> None:
    """Changes of rows whose key no event can have are skipped: their readers miss something."""
    _log.error("key.malformed", table=table.full_name, changes=changes, segment=segment, advice=_ADVICE)
    _note(positions, str(table.id), "malformed_key")


def too_large(positions: Positions, table: Table, error: HelenusError) -> None:
    """An event is larger than its topic takes: it is skipped, and its readers miss something."""
    metrics.SKIPPED.labels("record_too_large").inc()
    more = "raise max.message.bytes of the topic and kafka.producer.message.max.bytes, on Pulsar maxMessageSize, and "
    _log.error("event.too_large", table=table.full_name, why=error.what, where=error.where, advice=more + _ADVICE)
    _note(positions, str(table.id), "record_too_large")


def quarantined(positions: Positions, path: Path) -> None:
    """A segment is in quarantine: what could not be read in it is missing until it is reprocessed."""
    _log.error("segment.quarantined", path=str(path))
    _note(positions, "", "quarantined")


def unlinked(segment: int, path: Path) -> None:
    """A segment with changes was deleted in cdc_raw by somebody else, and is read where the node still has it."""
    advice = "another program deletes segments in cdc_raw, or the node does (cdc_block_writes: false)"
    _log.error("segment.unlinked", segment=segment, read_from=str(path), advice=advice)


def unseen(positions: Positions, count: int) -> None:
    """So many segments came and went unread, and not all that did so were without changes of CDC tables."""
    metrics.POSSIBLE_LOSS.inc()
    _log.error("log.possible_loss", unseen_segments=count, advice=_ADVICE)
    _note(positions, "", "possible_loss")


def cdc_is_on(positions: Positions, is_on: bool | None) -> None:
    """What the node says of cdc_enabled now, None if nothing: that it was off is told when it is on again."""
    if is_on is None or is_on is not positions.cdc_off:
        return
    positions.cdc_off = not is_on
    if is_on:
        _log.warning("node.cdc_on", advice="what was written with cdc_enabled: false is missing; " + _ADVICE)
        _note(positions, "", "cdc_was_off")
    else:
        _log.error("node.cdc_off", advice="the node runs with cdc_enabled: false: nothing it writes gets out")


def look_back(positions: Positions, first: int, present: Collection[int]) -> None:
    """At the start, on a node that deletes unread segments when cdc_raw is full: may it have done so?

    It deletes the oldest. So if the `first` segment that was not done with when the agent stopped is gone, and none
    that old is among those `present`, it and those after it may have been full of changes.
    """
    oldest = min(present, default=first)
    if oldest <= first:
        return
    metrics.POSSIBLE_LOSS.inc()
    _log.error("log.possible_loss", first_missing=first, first_present=oldest, advice=_ADVICE)
    _note(positions, "", "possible_loss")


def resumed(positions: Positions, table: uuid.UUID, name: str) -> None:
    """A table has CDC again."""
    _log.warning("table.resumed", table=name, advice="what was written with cdc = false is missing; " + _ADVICE)
    _note(positions, str(table), "cdc_was_off")


def added_again(positions: Positions, table: uuid.UUID, name: str, column: str) -> None:
    """A column was dropped and added: rows lost their values of it, and no write tells that."""
    advice = "values of before the DROP stay on the topic until their rows are written again; " + _ADVICE
    _log.warning("column.added_again", table=name, column=column, advice=advice)
    _note(positions, str(table), "column_added_again")


def passed_over(table: uuid.UUID, reached: Place) -> Notice:
    """What a table is told first when its topic takes something again: that it was left out up to here."""
    now = time.time_ns() // 1000
    return Notice(Scope.GAP, table, now, now, *reached)


def admitted(name: str) -> None:
    """A table's topic has taken that."""
    metrics.GAPS.labels("refused_topic").inc()
    _log.warning("table.resumed", table=name, advice="what was written while it was left out is missing; " + _ADVICE)


def due(positions: Positions, followed: Collection[uuid.UUID], reached: Place) -> list[Notice]:
    """The gaps to be told now, each for its table or for all that are followed; each is given once."""
    notices: list[Notice] = []
    for gap in positions.gaps:
        if gap.told:
            continue
        gap.told = True
        metrics.GAPS.labels(gap.reason).inc()
        tables = [table for table in followed if gap.table in ("", str(table))]
        notices.extend(Notice(Scope.GAP, table, gap.time, gap.time, *reached) for table in tables)
    return notices


def acknowledged(positions: Positions) -> None:
    """All that were given are with the broker: forget them."""
    positions.gaps = [gap for gap in positions.gaps if not gap.told]


def rewind(positions: Positions) -> None:
    """What is not acknowledged is to be told again."""
    for gap in positions.gaps:
        gap.told = False


_ADVICE = "copy the table anew, or repair what reads its events: they are told of it by a Change of scope GAP"


def _note(positions: Positions, table: str, reason: str) -> None:
    now = time.time_ns() // 1000
    for gap in positions.gaps:
        if not gap.told and gap.table == table:
            gap.time, gap.reason = now, reason
            return
    positions.gaps.append(Gap(table, now, reason))

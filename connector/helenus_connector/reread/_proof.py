"""When a read proves the image of a key for a change.

The commit log is written before the memtable, by as long as a memtable has no room, and a read may miss the one replica
that has the write. So two things are asked of a read. It must meet a replica that reported the change: of RF 3, two
reported and LOCAL_QUORUM reads two. And the row must bear witness: it shows a cell of the change, or why it can't show
any. Only where a row can't bear witness it is believed after a time, which is far longer than any write takes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from cassandra import ConsistencyLevel

from helenus_connector.interfaces.image import TimedColumns
from helenus_connector.unconfirmed.unproven_changes import UnprovenChange
from helenus_schemas.event.change import COLUMN_BITS, FIRST_COLUMN, Effect

_LIVE, _DELETES, _ROW, _GONE, _COUNTER = map(
    int, (Effect.LIVE, Effect.DELETES, Effect.ROW, Effect.GONE, Effect.COUNTER)
)
ALL_COLUMNS = (1 << COLUMN_BITS) - 1 << FIRST_COLUMN
AGAINST = 10
"""How many times longer a change waits that the row speaks against: that lacks what was written, or shows what was
deleted. That may be so for good, after a tombstone was purged, say."""


def required_replicas(consistency: int, rf: int) -> int:
    """Return how many replicas a read of this level waits for, of the `rf` in its data centre."""
    if consistency in (ConsistencyLevel.QUORUM, ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.EACH_QUORUM):
        return rf // 2 + 1
    return rf if consistency == ConsistencyLevel.ALL else 1


def lowest_level(consistency: int, nodes: int, rf: int) -> int:
    """Return the lowest level, not below `consistency`, at which a read is proven once `nodes` replicas reported."""
    return consistency if meets_reporter(consistency, nodes, rf) else ConsistencyLevel.ALL


def meets_reporter(consistency: int, nodes: int, rf: int) -> bool:
    """Return whether each read of this level meets one of so many `nodes` of the `rf` replicas."""
    return consistency == ConsistencyLevel.ALL or nodes + required_replicas(consistency, rf) > rf


class Witness(enum.Enum):
    """What a row says of a change.

    SHOWN: the change is in it, or newer cells are in all its columns: it can't be undone. ABSENT: it shows nothing of
    what the change, or a deletion after it, deletes. SILENT: it can't say. AGAINST: it lacks what the change wrote, or
    shows what it deleted.
    """

    SHOWN = 0
    ABSENT = 1
    SILENT = 2
    AGAINST = 3


class RowEvidence(NamedTuple):
    """What a read found: whether the row `exists`, and the write times of its cells, µs, in the order of `timed`.

    A time is None where the column is null.
    """

    exists: bool
    times: Sequence[int | None] = ()
    timed: TimedColumns = TimedColumns()

    def shows(self, write_time: int, effect: int) -> bool:
        """Return whether a cell was written at that very time, by a change of this effect."""
        if not effect:
            return write_time in self.times
        cells = zip(self.times, self.timed.bits, strict=True)
        return bool(effect & _LIVE) and any(time == write_time and bit & effect for time, bit in cells)


class ReportedDeletion(NamedTuple):
    """The newest deletion that was reported of a row, or its partition: its time in µs, and the bits of the columns it
    deletes. Reported is not yet visible: a row that shows older cells of them is not what it will be.
    """

    time: int
    columns: int

    def undone_by(self, row: RowEvidence) -> bool:
        """Return whether a row shows what it deletes."""
        columns = self.certain(row.timed)
        return any(
            time is not None and time <= self.time and bit & columns
            for time, bit in zip(row.times, row.timed.bits, strict=True)
        )

    def certain(self, timed: TimedColumns) -> int:
        """Return the columns that it deletes for sure: of one with many cells, it may be of one cell alone."""
        return self.columns if self.columns == ALL_COLUMNS else self.columns & ~timed.shared & ~timed.many


def judge_row(
    change: UnprovenChange, row: RowEvidence, deletions: Sequence[ReportedDeletion], now: float, unsure: bool = False
) -> Witness:
    """Return what a row says of a change, where these `deletions` are known of it; `now` in s since the epoch.
    `unsure` says that something written since may have taken away what is missing.

    A node shows all of a mutation's part in a row at once: who shows one cell of it shows it.
    """
    time, effect = change.write_time, change.effect
    if time is None:
        return Witness.SILENT
    if row.shows(time, effect):
        return Witness.SHOWN
    if not effect or effect & _COUNTER:
        return Witness.SILENT
    if effect & _LIVE:
        return _judge_write(time, change, row, deletions, unsure or change.is_expired(now))
    return _judge_deletion(time, effect, row)


class _ShownColumns(NamedTuple):
    """Columns that a change writes, as bits, by what a row shows in them: nothing, an older cell, or a newer one. Those
    of which it shows neither clearly are in none of these.
    """

    null: int
    older: int
    newer: int


def _shown_columns(time: int, columns: int, row: RowEvidence) -> _ShownColumns:
    if not row.exists:
        return _ShownColumns(columns, 0, 0)
    timed = row.timed
    null = older = newer = 0
    unclear = timed.untimed
    for cell_time, bit, single in zip(row.times, timed.bits, timed.single, strict=True):
        if cell_time is None:
            null |= bit
        elif not single:
            unclear |= bit
        elif cell_time > time:
            newer |= bit
        else:
            older |= bit
    # Of columns that share a bit, all have to be newer, and clearly: of many cells some may be older than the newest.
    newer &= ~(null | older | unclear)
    unclear |= (null | older) & timed.shared  # which of the columns it is about, is not known
    return _ShownColumns(null & ~unclear & columns, older & ~unclear & columns, newer & columns)


def _judge_write(
    time: int, change: UnprovenChange, row: RowEvidence, deletions: Sequence[ReportedDeletion], unsure: bool
) -> Witness:
    """Judge a row that shows no cell of a write. docs/decisions/0014-evidence-not-age.md explains the answers."""
    effect = change.effect
    columns = effect & ALL_COLUMNS
    shown = _shown_columns(time, columns, row)
    later = [deletion for deletion in deletions if deletion.time >= time]
    # 1. AGAINST: an older cell is where this change, or a newer one, must be.
    if shown.older:
        return Witness.AGAINST
    # 2. SHOWN: newer cells are in all columns that were written.
    if columns and shown.newer == columns:
        return Witness.SHOWN
    # 3. ABSENT: deletions that are known explain all that is missing.
    if _are_deleted(effect, shown, row, later):
        return Witness.ABSENT
    # 4. The row itself was written, and is there: by this change, if no cell holds it and no later deletion is known.
    if not columns and row.exists:
        has_cells = any(cell_time is not None for cell_time in row.times) or row.timed.untimed
        return Witness.SILENT if has_cells or later else Witness.SHOWN
    # 5. SILENT: something that was written since may have taken away what is missing.
    if unsure:
        return Witness.SILENT
    # 6. SILENT: so may a deletion of the change itself; of all that is missing, if it wrote the row itself.
    if effect & (_DELETES | _GONE) and (shown.newer or (row.exists and effect & _ROW)):
        return Witness.SILENT
    # 7. AGAINST: what was written is missing, if the row shows clearly that it is.
    return Witness.AGAINST if (shown.newer | shown.null) == columns else Witness.SILENT


def _are_deleted(effect: int, shown: _ShownColumns, row: RowEvidence, later: Sequence[ReportedDeletion]) -> bool:
    """Return whether `later` deletions explain that a row shows nothing of a write: of all of it, or of each column
    that has no newer cell.
    """
    if not row.exists and any(deletion.columns == ALL_COLUMNS for deletion in later):
        return True
    columns, deleted = effect & ALL_COLUMNS, 0
    for deletion in later:
        deleted |= deletion.certain(row.timed)
    # A row that was written itself, and is not there, is more than its columns.
    explains_row = row.exists or not effect & _ROW
    return bool(deleted and columns) and explains_row and (shown.newer | shown.null & deleted) == columns


def _judge_deletion(time: int, effect: int, row: RowEvidence) -> Witness:
    if not row.exists:
        return Witness.ABSENT
    timed = row.timed
    columns = ALL_COLUMNS if effect & _GONE else effect & ALL_COLUMNS
    shown, unclear, lives = 0, columns & timed.untimed, False
    for cell_time, bit, single in zip(row.times, timed.bits, timed.single, strict=True):
        if not bit & columns:
            continue
        shown |= bit
        if cell_time is None:
            continue
        lives = True
        if not single:
            unclear |= bit  # of many cells some may be older
        elif cell_time <= time:
            if effect & _GONE or not bit & timed.shared:
                return Witness.AGAINST
            unclear |= bit
    if effect & _GONE:
        # That it lives again is seen by a newer cell.
        return Witness.ABSENT if lives and not unclear else Witness.SILENT
    return Witness.SILENT if unclear or columns & ~shown else Witness.ABSENT


def is_proven(verdict: Witness, waited: float, min_age_s: float) -> bool:
    """Return whether a read is a proof that met a replica which reported, `waited` seconds after the last report."""
    if verdict is Witness.SILENT:
        return waited >= min_age_s
    if verdict is Witness.AGAINST:
        return waited >= AGAINST * min_age_s
    return True

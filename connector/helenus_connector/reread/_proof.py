"""When a read proves a change: that the row which was read includes it.

A node writes its commit log before its memtable, long before while the memtable is full, and a read may miss the only
replica that has the write. So a read has to fulfil two conditions. It must meet a replica that reported the change: at
RF 3, if two have reported and LOCAL_QUORUM reads two. And the row must confirm it, as a `Verdict` says: it shows a cell
of the change, or a reason why it shows none. If a row can say neither, the change is believed after some time, which is
far longer than any write takes. docs/decisions/0014-evidence-not-age.md has the reasons.
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
CONTRADICTED_FACTOR = 10
"""How many times longer a change waits that its row contradicts. That may be so for good, as after a tombstone was
purged, so it can't wait for ever; a write that is only late has long been applied by then."""
ANY_REPORTER = 0
"""As the number of replicas that have to report a change: any report will do, and none need be counted."""
NEVER_ENOUGH = 1 << 31
"""As such a number: more than any cluster has nodes, so that no reports suffice."""


def required_replicas(consistency: int, rf: int) -> int:
    """Return how many replicas a read of this level waits for, of the `rf` in its data centre."""
    if consistency in (ConsistencyLevel.QUORUM, ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.EACH_QUORUM):
        return rf // 2 + 1
    return rf if consistency == ConsistencyLevel.ALL else 1


def lowest_level(consistency: int, reporters: int, rf: int) -> int:
    """Return the lowest level, not below `consistency`, at which a read meets one of the `reporters` replicas that
    reported a change.
    """
    return consistency if meets_reporter(consistency, reporters, rf) else ConsistencyLevel.ALL


def meets_reporter(consistency: int, reporters: int, rf: int) -> bool:
    """Return whether each read at this level meets one of the `reporters` that reported a change, of `rf` replicas."""
    return consistency == ConsistencyLevel.ALL or reporters + required_replicas(consistency, rf) > rf


class Verdict(enum.Enum):
    """What a row that was read says of a change.

    SHOWN: it has a cell of the change, or newer cells in all columns that the change wrote. ABSENT: it has no cell of
    what the change, or a later deletion, deletes. SILENT: it can't say, as of a counter. AGAINST: it contradicts the
    change, as it lacks what that wrote, or has a cell that it deleted.
    """

    SHOWN = 0
    ABSENT = 1
    SILENT = 2
    AGAINST = 3


class RowEvidence(NamedTuple):
    """What a read shows of a row: whether it `exists`, and the write times of its cells, µs, in the order of `timed`.

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
    """The newest deletion that was reported of a row, or of its partition: its `time` in µs, and the `columns` that it
    deletes, as bits. A replica may have reported it before reads show it: then the row still has cells that it shadows.
    """

    time: int
    columns: int

    def shadows_cells_of(self, row: RowEvidence) -> bool:
        """Return whether a row still has cells that it shadows: of its columns, and not written after it."""
        columns = self.certain(row.timed)
        return any(
            time is not None and time <= self.time and bit & columns
            for time, bit in zip(row.times, row.timed.bits, strict=True)
        )

    def certain(self, timed: TimedColumns) -> int:
        """Return the columns that it deletes for sure: of a column with many cells it may delete one cell alone."""
        return self.columns if self.columns == ALL_COLUMNS else self.columns & ~timed.shared & ~timed.many


def judge_row(
    change: UnprovenChange, row: RowEvidence, deletions: Sequence[ReportedDeletion], now: float, unsure: bool = False
) -> Verdict:
    """Return what a row says of a change, given the `deletions` that were reported of it; `now` in s since the epoch.
    `unsure` says that something written later may have deleted what is missing.

    A node applies a mutation to a row atomically: if the row has one cell of it, the mutation was applied.
    """
    time, effect = change.write_time, change.effect
    if time is None:
        return Verdict.SILENT
    if row.shows(time, effect):
        return Verdict.SHOWN
    if not effect or effect & _COUNTER:
        return Verdict.SILENT
    if effect & _LIVE:
        return _judge_write(time, change, row, deletions, unsure or change.is_expired(now))
    return _judge_deletion(time, effect, row)


class _ShownColumns(NamedTuple):
    """Columns that a change writes, as bits, by what a row has in them: null, an older cell, or a newer one. Columns in
    which that is unclear are in none of the three.
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
    unclear |= (null | older) & timed.shared  # it is not known which of these columns the change wrote
    return _ShownColumns(null & ~unclear & columns, older & ~unclear & columns, newer & columns)


def _judge_write(
    time: int, change: UnprovenChange, row: RowEvidence, deletions: Sequence[ReportedDeletion], unsure: bool
) -> Verdict:
    """Judge a row that shows no cell of a write. docs/decisions/0014-evidence-not-age.md explains the answers."""
    effect = change.effect
    columns = effect & ALL_COLUMNS
    shown = _shown_columns(time, columns, row)
    later = [deletion for deletion in deletions if deletion.time >= time]
    # 1. AGAINST: an older cell is where this change, or a newer one, must be.
    if shown.older:
        return Verdict.AGAINST
    # 2. SHOWN: newer cells are in all columns that were written.
    if columns and shown.newer == columns:
        return Verdict.SHOWN
    # 3. ABSENT: deletions that are known explain all that is missing.
    if _are_deleted(effect, shown, row, later):
        return Verdict.ABSENT
    # 4. The row itself was written, and is there: by this change, if no cell holds it and no later deletion is known.
    if not columns and row.exists:
        has_cells = any(cell_time is not None for cell_time in row.times) or row.timed.untimed
        return Verdict.SILENT if has_cells or later else Verdict.SHOWN
    # 5. SILENT: something that was written since may have taken away what is missing.
    if unsure:
        return Verdict.SILENT
    # 6. SILENT: so may a deletion of the change itself; of all that is missing, if it wrote the row itself.
    if effect & (_DELETES | _GONE) and (shown.newer or (row.exists and effect & _ROW)):
        return Verdict.SILENT
    # 7. AGAINST: what was written is missing, if the row shows clearly that it is.
    return Verdict.AGAINST if (shown.newer | shown.null) == columns else Verdict.SILENT


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


def _judge_deletion(time: int, effect: int, row: RowEvidence) -> Verdict:
    if not row.exists:
        return Verdict.ABSENT
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
                return Verdict.AGAINST
            unclear |= bit
    if effect & _GONE:
        # Only a newer cell shows that the row was deleted, and written again.
        return Verdict.ABSENT if lives and not unclear else Verdict.SILENT
    return Verdict.SILENT if unclear or columns & ~shown else Verdict.ABSENT


def is_proven(verdict: Verdict, waited: float, min_age_s: float) -> bool:
    """Return whether a change is proven by a read that met a replica which reported it, `waited` seconds after the last
    report.
    """
    if verdict is Verdict.SILENT:
        return waited >= min_age_s
    if verdict is Verdict.AGAINST:
        return waited >= CONTRADICTED_FACTOR * min_age_s
    return True

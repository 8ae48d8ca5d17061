"""Cassandra's rules for which of two cells wins, and for how long it keeps tombstones.

Of two cells the one with the higher write time stays; at equal times a tombstone before one with a TTL, that before one
without, of two of a kind the one that ends later, then the one of the lower TTL, then the larger value
(Cells.resolveRegular, LivenessInfo.supersedes of Cassandra 5.0). Nodes of Cassandra 3.x look at the value before the
TTL, and take its bytes for signed ones: there 'a' stays before 'é' (Conflicts.resolveRegular of 3.11). A tombstone is
kept for gc_grace_seconds, and purged by a compaction of some time after that.
"""

from __future__ import annotations

from typing import NamedTuple

from helenus_connector.state.store.packing import LAST_SECOND
from helenus_schemas.event.cells import Cell, Deletion, Liveness

NEVER = -(1 << 63)
"""A write time before all others."""
MAX_TIME = (1 << 63) - 1
"""The last write time, in µs, that 8 bytes hold."""
_RECHECK_S = 3600
"""In a backlog a tombstone is checked again after an hour at the latest, as the backlog may end sooner."""

_TO_SIGNED_ORDER = bytes(byte ^ 0x80 for byte in range(256))
"""Maps bytes so that the order of unsigned bytes is that of signed ones, as ByteBuffer.compareTo has it."""
_ENDLESS = 1 << 62
"""A time after that of any cell's end."""

ListElement = tuple[int, bytes | None, bool]


def clamp_time(time: int) -> int:
    """Return the write time, µs, that is closest to a number of any size."""
    return max(NEVER, min(time, MAX_TIME))


def list_element(cell: Cell) -> ListElement:
    """Return what identifies an element of a list where a read left out its path: write time, value, whether it
    expires.
    """
    return cell.write_time, cell.value, cell.expires is not None


def next_purge_check(purge_at: int, now: int, purge_clock: int) -> int:
    """Return when to check again whether what may be purged at a time can be removed. Purging goes by `purge_clock`,
    which is before `now` in a backlog (`RowStore`); then it is checked again once that may have caught up, or in an
    hour.
    """
    return purge_at if purge_at > now else now + min(max(1, purge_at - purge_clock), _RECHECK_S)


class Doubts(NamedTuple):
    """The limits beyond which write times do not decide. Deletions up to the write time `horizon` may be in Cassandra,
    and are not known here.

    Tombstones of before `soft_before`, s since the epoch, may have been purged: they may hide nothing any more.
    `firm_floor` is the newest write time of the other deletions of the partition and of ranges that delete a row.
    `logged_at` is when the mutation was appended to the events topic, s since the epoch: not before it was logged.
    `is_cassandra_3` as of `wins`: how the nodes decide where write times are equal.
    """

    horizon: int = NEVER
    soft_before: int = -1
    firm_floor: int | None = None
    logged_at: int = 0
    is_cassandra_3: bool = False

    def is_soft(self, cell: Cell) -> bool:
        """Return whether a tombstone, or what is left of a cell that expired, may have been purged."""
        if cell.value is None:
            return (cell.deleted_at or 0) <= self.soft_before
        is_expired = cell.expires is not None and cell.expires <= self.logged_at
        return is_expired and (cell.expires or 0) - (cell.ttl or 0) <= self.soft_before

    def is_tie_undecided(self, a: Cell, b: Cell) -> bool:
        """Return whether nodes of Cassandra 3.x may have merged two cells of one write time when one had expired: it
        was a tombstone by then, and hid the other, which has not expired.
        """
        if a.write_time != b.write_time or a.value is None or b.value is None:
            return False
        return min(_end(a), _end(b)) <= self.logged_at < max(_end(a), _end(b))


NO_DOUBTS = Doubts()


def estimate_deletion(write_time: int, known_at: int) -> Deletion:
    """Make the deletion of an event without cells, which does not say when it deleted: not after `known_at`, s since
    the epoch. It is taken to be as old as its write time: a late copy must not make a tombstone look new that may have
    been purged.
    """
    return Deletion(write_time, min(max(0, min(known_at, write_time // 1_000_000)), LAST_SECOND))


def purge_time(deletion: Deletion, gc_grace: int) -> int:
    """Return when a deletion can be purged, s since the epoch. Not before its write time, which may be in the future:
    it hides what is written until then.
    """
    return max(deletion.deleted_at + gc_grace, deletion.write_time // 1_000_000)


def is_purgeable(deletion: Deletion, now: int, gc_grace: int) -> bool:
    """Return whether a deletion can be purged."""
    return purge_time(deletion, gc_grace) <= now


def expired_purge_time(expires: int, ttl: int | None, gc_grace: int) -> int:
    """Return when an expired cell can be purged: it becomes a tombstone of the time when it was written."""
    return max(expires, expires - (ttl or 0) + gc_grace)


def cell_purge_time(cell: Cell, gc_grace: int) -> int | None:
    """Return when a cell can be purged, s since the epoch; None for one that never expires."""
    if cell.value is None:
        return max((cell.deleted_at or 0) + gc_grace, cell.write_time // 1_000_000)
    return None if cell.expires is None else expired_purge_time(cell.expires, cell.ttl, gc_grace)


def supersedes(a: Liveness, b: Liveness) -> bool:
    """Return whether a row's liveness replaces another: LivenessInfo.supersedes."""
    if a.write_time != b.write_time:
        return a.write_time > b.write_time
    if a.expires is not None and b.expires is not None:
        return a.expires > b.expires
    return a.expires is not None and b.expires is None


def _end(cell: Cell) -> int:
    """Return when a cell ends, s since the epoch: one of no TTL after all others, a tombstone when it was written."""
    ends = cell.deleted_at if cell.value is None else cell.expires
    return _ENDLESS if ends is None else ends


def wins(a: Cell, b: Cell, is_cassandra_3: bool = False) -> bool:
    """Return whether a cell replaces another: Cells.resolveRegular; on nodes of Cassandra 3.x
    Conflicts.resolveRegular.
    """
    if a.write_time != b.write_time:
        return a.write_time > b.write_time
    if is_cassandra_3:
        return _wins_tie_on_cassandra_3(a, b)
    a_ends = a.deleted_at if a.value is None else a.expires
    b_ends = b.deleted_at if b.value is None else b.expires
    if (a_ends is None) != (b_ends is None):
        return a_ends is not None
    if (a.value is None) != (b.value is None):
        return a.value is None
    if a_ends is not None and b_ends is not None and a_ends != b_ends:
        return a_ends > b_ends
    if a.ttl is not None and b.ttl is not None and a.ttl != b.ttl:
        return a.ttl < b.ttl  # it was written later
    return (a.value or b"") > (b.value or b"")


def _wins_tie_on_cassandra_3(a: Cell, b: Cell) -> bool:
    """Return whether a cell replaces another of the same write time on nodes of Cassandra 3.x.

    Cells that have expired count as live ones here: of those see `Doubts.is_tie_undecided`.
    """
    if (a.value is None) != (b.value is None):
        return a.value is None
    a_value, b_value = a.value or b"", b.value or b""
    if a_value != b_value:
        return a_value.translate(_TO_SIGNED_ORDER) > b_value.translate(_TO_SIGNED_ORDER)
    return _end(a) > _end(b)

"""A Change: one decoded effect of one mutation, from one node's commit log."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32


class Scope(enum.IntEnum):
    """What a Change concerns. A GAP says that Changes of its table may be missing before it."""

    ROW = 0
    STATIC = 1
    PARTITION = 2
    RANGE = 3
    TABLE = 4
    GAP = 5


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: a prefix of the clustering key as CQL bytes, compared as a tuple in the table's order."""

    inclusive: bool
    values: tuple[bytes, ...]


class Effect(enum.IntFlag):
    """What a Change does to its row, so that a later read can be compared with it. 0: the agent does not say, for
    example because the cells of the row have several write times.

    The other bits, from `FIRST_COLUMN` on, say which columns it writes or deletes: `column_bit`. Several columns may
    share a bit.
    """

    LIVE = 1
    """It writes a live cell, or the row itself, with the Change's write time."""
    DELETES = 2
    """It deletes cells, or a whole collection; a RANGE deletes its rows."""
    ROW = 4
    """It writes the row itself, as INSERT does."""
    GONE = 8
    """It deletes the row, or the partition."""
    COUNTER = 16
    """It adds to counters, whose write times CQL does not show."""


class Origin(enum.IntEnum):
    """Where a Change comes from: a node's commit log; a snapshot, which reads rows that were there before; a repair of
    the data topic; or the state, which knows what a delete or a TTL took away. A snapshot's first and last Change are
    marked, as Debezium marks them.
    """

    LOG = 0
    SNAPSHOT = 1
    SNAPSHOT_FIRST = 2
    SNAPSHOT_LAST = 3
    REPAIR = 4
    STATE = 5


FIRST_COLUMN = 5
COLUMN_BITS = 26


def column_bit(name: str) -> int:
    """Return the bit of a column in an effect: one of 26, so that an effect takes five bytes at most."""
    return 1 << FIRST_COLUMN + crc32(name.encode()) % COLUMN_BITS


class Change(NamedTuple):
    """One decoded effect. `digest` is the MD5 of the mutation's raw bytes in the log, 32 hexadecimal characters.

    `part` of `parts`: its number among the Changes of one mutation. `segment` and `position`: the commit log segment's
    id and the mutation's logical end in it. `write_time`: µs since the epoch, the newest in the Change, None if it has
    none. `expires_at`: s since the epoch, when its first cell expires. `start` and `end` are a RANGE's, None where it's
    open. `effect`: see `Effect`. `all_expired_at`: s since the epoch, when its last cell expires; None if one never
    does. A `foreign` one comes from another agent and may have no more than `node`: its key is in DataStax's form.

    `cells`: what the mutation says, for `cells.decode_cells`; None where an agent was not asked for it.

    A TABLE Change (a truncation) and a GAP have no key, and one part for each partition of the topic. One whose
    `origin` is not a commit log has neither digest nor node: it can't be a copy, so its key is always read.
    """

    digest: str | None
    node: str | None
    scope: Scope = Scope.ROW
    part: int = 0
    parts: int = 1
    segment: int = -1
    position: int = -1
    write_time: int | None = None
    expires_at: int | None = None
    start: Bound | None = None
    end: Bound | None = None
    foreign: bool = False
    effect: int = 0
    all_expired_at: int | None = None
    origin: Origin = Origin.LOG
    cells: bytes | None = None

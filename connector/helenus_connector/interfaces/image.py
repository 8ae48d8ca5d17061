"""A row as a read returned it, and the write times of its cells as far as CQL shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column
from helenus_schemas.event.change import Bound, column_bit

Bounds = tuple["Bound | None", "Bound | None"]
"""Start and end of a range; None where it is open."""


class TimedColumns(NamedTuple):
    """The columns whose write times a read shows, and the bits that stand for columns in a change's effect.

    For each column, `bits` has its bit and `single` says whether it has one cell only (it is no unfrozen collection or
    UDT). `untimed` are the bits of columns whose write times CQL does not show, `shared` the bits that several columns
    share, and `many` the bits of columns with many cells.
    """

    bits: tuple[int, ...] = ()
    single: tuple[bool, ...] = ()
    untimed: int = 0
    shared: int = 0
    many: int = 0

    @classmethod
    def from_columns(cls, timed: Sequence[Column], others: Sequence[Column]) -> TimedColumns:
        """Build it from the columns whose write times are read, in this order, and the other columns of the row."""
        bits = [column_bit(column.name) for column in (*timed, *others)]
        shared = sum({bit for bit in bits if bits.count(bit) > 1})
        untimed = sum(set(bits[len(timed) :]))
        many = sum({column_bit(column.name) for column in (*timed, *others) if column.type.multicell})
        return cls(tuple(bits[: len(timed)]), tuple(not c.type.multicell for c in timed), untimed, shared, many)


class Image(NamedTuple):
    """A row as a read returned it. `values` are CQL bytes in the order of the data record's fields.

    `write_time` is the newest write time of its own cells in µs, as far as CQL shows it; None if CQL shows none.
    `times` are all write times as CQL bytes, if there are several, and `timed` describes their columns. `expires` is
    the time at which the first of its cells expires, s since the epoch, if the read requested TTLs.
    """

    values: tuple[bytes | None, ...]
    write_time: int | None
    times: Sequence[bytes | None] = ()
    timed: TimedColumns = TimedColumns()
    expires: int | None = None

    def oldest_write_time(self) -> int | None:
        """Return the oldest write time of its cells, µs."""
        return min((int.from_bytes(time, "big", signed=True) for time in self.times if time), default=self.write_time)

    def shows_write(self, write_time: int | None, effect: int = 0) -> bool:
        """Return whether one of its own cells has exactly this write time; with an `effect`, a cell of its columns."""
        if write_time is None:
            return False
        wanted = write_time.to_bytes(8, "big", signed=True)
        if wanted not in self.times:
            return not self.times and write_time == self.write_time
        if not effect or self.timed.bits[self.times.index(wanted)] & effect:
            return True
        return any(time == wanted and bit & effect for time, bit in zip(self.times, self.timed.bits, strict=True))


class LiveRow(NamedTuple):
    """A live row in the scope of a delete marker. `key` is None if it can't be encoded: such a row is not published."""

    key: bytes | None
    values: Key
    image: Image

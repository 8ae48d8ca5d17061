"""A row as it was read, and what is known of its cells' write times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column
from helenus_schemas.event.change import Bound, column_bit

Bounds = tuple["Bound | None", "Bound | None"]
"""Start and end of a range; None where it is open."""


class TimedColumns(NamedTuple):
    """The columns whose write times a read shows: of each the `bits` in an effect, and whether it is `single`, of one
    cell. `untimed` are the bits of columns whose times CQL does not show, `shared` those of several columns, and `many`
    those of columns of many cells.
    """

    bits: tuple[int, ...] = ()
    single: tuple[bool, ...] = ()
    untimed: int = 0
    shared: int = 0
    many: int = 0

    @classmethod
    def from_columns(cls, timed: Sequence[Column], others: Sequence[Column]) -> TimedColumns:
        """Of the columns whose times are read, in this order, and the others of the row."""
        bits = [column_bit(column.name) for column in (*timed, *others)]
        shared = sum({bit for bit in bits if bits.count(bit) > 1})
        untimed = sum(set(bits[len(timed) :]))
        many = sum({column_bit(column.name) for column in (*timed, *others) if column.type.multicell})
        return cls(tuple(bits[: len(timed)]), tuple(not c.type.multicell for c in timed), untimed, shared, many)


class Image(NamedTuple):
    """A row as a read found it. `values`: CQL bytes in the order of the data record's value.

    `write_time`: µs, the newest of its own cells as far as CQL shows it, None if it shows none. `times`: all of them as
    CQL bytes, if there are several; `timed` are their columns. `expires`: when the first of its cells does, s since the
    epoch, if that was asked for.
    """

    values: tuple[bytes | None, ...]
    write_time: int | None
    times: Sequence[bytes | None] = ()
    timed: TimedColumns = TimedColumns()
    expires: int | None = None

    def oldest(self) -> int | None:
        """The oldest of its cells' write times."""
        return min((int.from_bytes(time, "big", signed=True) for time in self.times if time), default=self.write_time)

    def shows(self, write_time: int | None, effect: int = 0) -> bool:
        """Whether one of its own cells was written at that very time; with an `effect`, one in its columns."""
        if write_time is None:
            return False
        wanted = write_time.to_bytes(8, "big", signed=True)
        if wanted not in self.times:
            return not self.times and write_time == self.write_time
        if not effect or self.timed.bits[self.times.index(wanted)] & effect:
            return True
        return any(time == wanted and bit & effect for time, bit in zip(self.times, self.timed.bits, strict=True))


class LiveRow(NamedTuple):
    """A row that lives in the scope of a delete marker. `key` is None if it has no form: then it can't be published."""

    key: bytes | None
    values: Key
    image: Image

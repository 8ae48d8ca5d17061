"""Merges an ordinary mutation into a row, from bytes to bytes: no row is decoded for it.

    event UPDATE … SET v = 2 · stored v = 1, n = 5 → stored v = 2, n = 5, and the row before and after

Ordinary is a mutation of a row's plain columns, with or without TTL, that is newer than what is stored of them, in a
row of which nothing is in doubt. `merge` returns None for any other, and `_merge` and `_cell_merge` merge it by all of
Cassandra's rules. The result is the same, byte for byte.

It runs as it is, and compiled by Cython with the types of `_row_update.pxd`: the results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from helenus_connector.state.rows import _row_bytes
from helenus_connector.state.rows._cell_rules import cell_purge_time, expired_purge_time, next_purge_check
from helenus_connector.state.rows._row import MUTATION_BYTES
from helenus_connector.state.rows._row_bytes import name_field, read_size
from helenus_schemas.codec.avro_long import SHORT, long_bytes
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.cells import Cell
from helenus_schemas.event.row_cursor import RowCursor

COMPILED = not __file__.endswith(".py")
_TIME = Struct(">q")
_pack_time, _unpack_time = _TIME.pack, _TIME.unpack_from
_VERSION = _row_bytes.VERSION
_NO_TIME = -(1 << 63)
_NEVER_EXPIRES = (1 << 63) - 1
_DOUBTFUL = 2 | 8 | 16
"""Flags of a stored row that is not ordinary: a deletion, what reads imply, and a planned read."""
_MUTATION_BYTES = MUTATION_BYTES
_OTHER_MUTATIONS_BYTES = MUTATION_BYTES * 3
"""Of those that are stored before a mutation comes: four with it (`CellRow.remember_mutation`)."""
_SHORT = SHORT
_SHORT_NUMBERS = len(SHORT) // 2
_new = tuple.__new__


UpdateColumns = tuple[tuple[int, ...], tuple[int, ...]]
"""The columns that an update names, in its order: the index of each in the table, and the width of its values."""


class UpdatedRow(NamedTuple):
    """A row after a mutation: its bytes; its values before, by column, None if it did not live, and after it; the
    newest write time of its live cells, in µs; when the first of them expires, s since the epoch. `due_at` is when it
    is to be put into the calendar, s since the epoch, 0: it is not. `is_changed`: there is a record of it.
    """

    data: bytes
    before: dict[str, bytes | None] | None
    after: dict[str, bytes | None]
    write_time: int
    expires: int | None
    due_at: int
    is_changed: bool


class RowUpdater:
    """Updates rows of one version of a table, in one batch. `names` are the table's regular columns, `plain_names`
    those of one cell that were never dropped. The other arguments are as of `RowStore` and `TopicPartitionHistory`.
    """

    _page: int
    _scheduled_at: int
    _proven_up_to: int
    _values: dict[str, bytes | None]

    def __init__(self, names: Sequence[str], plain_names: Sequence[str], gc_grace_s: int) -> None:
        self._names = list(names)
        self._nulls: dict[str, bytes | None] = dict.fromkeys(names)
        self._fields = [name_field(name) for name in names]
        plain = set(plain_names)
        self._indexes = {name_field(name): index for index, name in enumerate(names) if name in plain}
        self._gc_grace_s = gc_grace_s
        self._cursor = RowCursor()
        self._count = len(self._names)
        self.begin(0, 0, 0, 0, False)

    def begin(self, now: int, purge_clock: int, horizon: int, disturbances: int, trusts_absence: bool) -> None:
        """Set what the next rows are merged by."""
        self._now, self._purge_clock, self._horizon = now, purge_clock, horizon
        self._disturbances, self._trusts_absence = disturbances, trusts_absence

    def plan_columns(self, columns: Sequence[tuple[str, int]]) -> UpdateColumns | None:
        """Return the columns of an update, given by name and width; None if one of them is not plain."""
        indexes = [self._indexes.get(name_field(name)) for name, _ in columns]
        if None in indexes:
            return None
        return tuple(i for i in indexes if i is not None), tuple(width for _, width in columns)

    def merge(
        self, columns: UpdateColumns, data: bytes, offset: int, mutation: bytes, stored: bytes | None, page: int
    ) -> UpdatedRow | None:
        """Merge the field `cells` of an event, `data`, of which the times begin at `offset`, into a row that is stored,
        or that a page of its partition lists from now on, -1: none does. Return None for what is not ordinary.
        """
        try:
            return self._merge(columns[0], columns[1], data, offset, mutation, stored, page)
        except (Malformed, IndexError):
            return None

    def _merge(
        self,
        indexes: tuple[int, ...],
        widths: tuple[int, ...],
        data: bytes,
        offset: int,
        mutation: bytes,
        stored: bytes | None,
        page: int,
    ) -> UpdatedRow | None:
        if not self._load(stored, page):
            return None
        was_live, time_before, expires_before = self._show()
        before = self._values if was_live else None
        if before is None and not self._trusts_absence:
            return None
        if not self._update(indexes, widths, data, offset):
            return None
        is_live, write_time, expires = self._show()
        if not is_live or (self._has_bound and not self._has_live_cell):
            return None  # it expired before it came, or lives by a guess alone
        after = self._values
        is_changed = not was_live or write_time != time_before or expires != expires_before or before != after
        due_at = self._next_due()
        if not due_at or (self._scheduled_at and self._scheduled_at <= due_at):
            due_at = 0
        else:
            self._scheduled_at = due_at
        row = self._dump(mutation)
        expires_at = None if expires == _NEVER_EXPIRES else expires
        return _new(UpdatedRow, (row, before, after, write_time, expires_at, due_at, is_changed))

    def _load(self, stored: bytes | None, page: int) -> bool:
        """Load a stored row. Return whether it is ordinary."""
        count = self._count
        self._cell_names: list[int] = []
        self._times: list[int] = []
        self._deleted: list[int | None] = []
        self._ttls: list[int] = []
        self._expiries: list[int] = []
        self._contents: list[bytes | None] = []
        self._positions = [-1] * count
        self._has_liveness = self._has_bound = False
        self._bound = 0
        self._liveness_time = self._liveness_ttl = self._liveness_expires = 0
        self._page, self._scheduled_at, self._proven_up_to = page, 0, 0
        self._recent = b""
        if stored is None:
            self._proven_up_to = self._disturbances
            return True
        if stored[0] != _VERSION:
            return False
        offset = 2 + stored[1] * _MUTATION_BYTES
        self._recent = stored[2:offset]
        flags = stored[offset]
        offset += 1
        if flags & _DOUBTFUL:
            return False
        if flags & 64:
            self._page, offset = read_long(stored, offset)
        if flags & 128:
            self._scheduled_at, offset = read_long(stored, offset)
        time = 0
        if flags & 1:
            self._has_liveness = True
            (time,) = _unpack_time(stored, offset)
            self._liveness_time = time
            self._liveness_expires, offset = read_long(stored, offset + 8)
            if self._liveness_expires:
                self._liveness_ttl, offset = read_long(stored, offset)
        if flags & 4:
            (bound,) = _unpack_time(stored, offset)
            self._has_bound, self._bound = True, bound
            offset += 8
        if flags & 32:
            self._proven_up_to, offset = read_long(stored, offset)
        cell_count, offset = read_long(stored, offset)
        if cell_count:
            return False  # deletions of whole columns
        cell_count, offset = read_size(stored, offset)
        return self._load_cells(stored, offset, cell_count, time)

    def _load_cells(self, stored: bytes, offset: int, cell_count: int, previous_time: int) -> bool:
        indexes, time = self._indexes, previous_time
        for number in range(cell_count):
            flags = stored[offset]
            offset += 1
            if not flags & 8:
                (time,) = _unpack_time(stored, offset)
                offset += 8
            start = offset
            size, offset = read_size(stored, offset)
            offset += size
            index = indexes.get(stored[start:offset])
            if index is None or flags & 1:
                return False
            self._positions[index] = number
            deleted_at: int | None = None
            ttl = expires = 0
            content: bytes | None = None
            if flags & 2:
                deleted_at, offset = read_long(stored, offset)
            else:
                if flags & 4:
                    ttl, offset = read_long(stored, offset)
                    expires, offset = read_long(stored, offset)
                size, offset = read_size(stored, offset)
                content = stored[offset : offset + size]
                offset += size
            self._put(-1, index, time, content, ttl, expires, deleted_at, flags & 4)
        return offset == len(stored)

    def _put(
        self,
        number: int,
        index: int,
        time: int,
        content: bytes | None,
        ttl: int,
        expires: int,
        deleted_at: int | None,
        has_expiry: int,
    ) -> None:
        """Put a cell in the place of the one of this number, or behind the others."""
        if not has_expiry:
            expires = _NEVER_EXPIRES
        if number < 0:
            self._cell_names.append(index)
            self._times.append(time)
            self._contents.append(content)
            self._ttls.append(ttl)
            self._expiries.append(expires)
            self._deleted.append(deleted_at)
        else:
            self._times[number] = time
            self._contents[number] = content
            self._ttls[number] = ttl
            self._expiries[number] = expires
            self._deleted[number] = deleted_at

    def _update(self, indexes: tuple[int, ...], widths: tuple[int, ...], data: bytes, offset: int) -> bool:
        """Merge an update into the loaded row. Return False if it is not ordinary, or changes nothing."""
        cursor = self._cursor
        low, offset = read_long(data, offset)
        low_deletion, offset = read_long(data, offset)
        low_ttl, offset = read_long(data, offset)
        size, offset = read_long(data, offset)
        if size < 0 or offset + size != len(data):
            return False
        cursor.begin_row(data, offset, low, low_deletion, low_ttl)
        column_count = len(indexes)
        cursor.read_head(column_count)
        if cursor.is_deleted or cursor.has_column_deletions:
            return False
        is_changed = cursor.has_write_time
        if is_changed and not self._update_liveness():
            return False
        for column in range(column_count):
            if cursor.is_missing(column):
                continue
            cursor.read_cell(widths[column], False)
            if not self._update_cell(indexes[column]):
                return False
            is_changed = True
        return is_changed and cursor.offset == len(data)

    def _update_liveness(self) -> bool:
        """Merge the liveness that was read. Return False if it is not ordinary."""
        cursor = self._cursor
        time = cursor.write_time
        if cursor.expires == 0:
            return False  # in the bytes of a row it would be one without TTL
        if time <= self._horizon or (self._has_liveness and time <= self._liveness_time):
            return False
        if self._has_bound and not self._replaces_guess(time):
            return False
        self._has_bound, self._has_liveness = False, True
        self._liveness_time, self._liveness_ttl, self._liveness_expires = time, 0, 0
        if cursor.expires is not None:
            self._liveness_expires = cursor.expires
            self._liveness_ttl = cursor.ttl or 0
        return True

    def _update_cell(self, index: int) -> bool:
        """Merge the cell that was read, of the column of this index. Return False if it is not ordinary."""
        cursor = self._cursor
        time, number = cursor.cell_time, self._positions[index]
        if time <= self._horizon or (number >= 0 and time <= self._times[number]):
            return False
        content, expires = cursor.value, cursor.cell_expires
        if content is None:
            if expires is not None:
                return False
            if number >= 0 and self._contents[number] is not None:
                self._recent = b""  # as `CellRow.forget_mutations`
            self._put(number, index, time, None, 0, 0, cursor.cell_deleted_at or 0, 0)
        elif expires is None:
            self._put(number, index, time, content, 0, 0, None, 0)
        else:
            self._put(number, index, time, content, cursor.cell_ttl or 0, expires, None, 1)
        if number < 0:
            self._positions[index] = len(self._times) - 1
        return True

    def _replaces_guess(self, time: int) -> bool:
        """Return whether a liveness of this write time replaces the guessed one, as `_cell_merge` has it."""
        bound_s = self._bound // 1_000_000
        for number in range(len(self._times)):
            cell_time = self._times[number]
            is_older = cell_time <= self._liveness_time and self._contents[number] is not None
            if is_older and cell_time > time and self._expiries[number] > bound_s:
                return False
        return self._has_liveness

    def _show(self) -> tuple[bool, int, int]:
        """Set the values of the row as `RowValues.show` has them. Return whether it lives, the newest write time of its
        live cells, and when the first of these expires.
        """
        now, newest, first_expiry = self._now, _NO_TIME, _NEVER_EXPIRES
        is_live = self._has_live_cell = False
        if self._has_liveness:
            expires = self._liveness_expires or _NEVER_EXPIRES
            if expires > now:
                is_live, newest, first_expiry = True, self._liveness_time, expires
        values = self._nulls.copy()
        contents, names, indexes = self._contents, self._names, self._cell_names
        for number in range(len(contents)):
            content = contents[number]
            expires = self._expiries[number]
            if content is None or expires <= now:
                continue
            values[names[indexes[number]]] = content
            is_live = self._has_live_cell = True
            time = self._times[number]
            if time > newest:
                newest = time
            if expires < first_expiry:
                first_expiry = expires
        self._values = values
        return is_live, newest, first_expiry

    def _next_due(self) -> int:
        """Return when the row is to be looked at again, as `CellRow.next_due` does."""
        now, next_due = self._now, _NEVER_EXPIRES
        expires = self._liveness_expires
        if self._has_liveness and expires:
            if expires <= now:
                purge_at = expired_purge_time(expires, self._liveness_ttl, self._gc_grace_s)
                expires = next_purge_check(purge_at, now, self._purge_clock)
            next_due = min(next_due, expires)
        for number in range(len(self._times)):
            expires = self._expiries[number]
            content = self._contents[number]
            if expires == _NEVER_EXPIRES and content is not None:
                continue
            if expires <= now or content is None:
                cell = self._cell(number)
                expires = next_purge_check(cell_purge_time(cell, self._gc_grace_s) or 0, now, self._purge_clock)
            next_due = min(next_due, expires)
        return 0 if next_due == _NEVER_EXPIRES else max(1, next_due)

    def _cell(self, number: int) -> Cell:
        """Return a loaded cell that expires, or is a tombstone."""
        content = self._contents[number]
        name, time = self._names[self._cell_names[number]], self._times[number]
        if content is None:
            return Cell(name, time, None, deleted_at=self._deleted[number])
        return Cell(name, time, content, None, self._ttls[number], self._expiries[number])

    def _dump(self, mutation: bytes) -> bytes:
        """Return the bytes of the loaded row, as `dump_row` does, with a mutation that was merged."""
        recent = mutation + self._recent[:_OTHER_MUTATIONS_BYTES]
        flags = (1 if self._has_liveness else 0) | (4 if self._has_bound else 0) | (32 if self._proven_up_to > 0 else 0)
        flags |= (64 if self._page >= 0 else 0) | (128 if self._scheduled_at > 0 else 0)
        parts = [bytes((_VERSION, len(recent) // _MUTATION_BYTES)), recent, _BYTES[flags]]
        if flags & 64:
            parts.append(_number_bytes(self._page))
        if flags & 128:
            parts.append(_number_bytes(self._scheduled_at))
        previous_time = 0
        if flags & 1:
            previous_time = self._liveness_time
            parts.append(_pack_time(previous_time))
            parts.append(_number_bytes(self._liveness_expires))
            if self._liveness_expires:
                parts.append(_number_bytes(self._liveness_ttl))
        if flags & 4:
            parts.append(_pack_time(self._bound))
        if flags & 32:
            parts.append(_number_bytes(self._proven_up_to))
        parts.append(b"\0")  # deletions of whole columns
        cell_count = len(self._times)
        parts.append(_number_bytes(cell_count))
        for number in range(cell_count):
            time, expires = self._times[number], self._expiries[number]
            content = self._contents[number]
            flags = (content is None) << 1 | (expires != _NEVER_EXPIRES) << 2 | (time == previous_time) << 3
            parts.append(_BYTES[flags])
            if time != previous_time:
                parts.append(_pack_time(time))
                previous_time = time
            parts.append(self._fields[self._cell_names[number]])
            if content is None:
                parts.append(_number_bytes(self._deleted[number] or 0))
                continue
            if flags & 4:
                parts.append(_number_bytes(self._ttls[number]))
                parts.append(_number_bytes(expires))
            parts.append(_number_bytes(len(content)))
            parts.append(content)
        return b"".join(parts)


def _number_bytes(number: int) -> bytes:
    """Return a number as an Avro long: nearly all are short."""
    return _SHORT[number * 2] if 0 <= number < _SHORT_NUMBERS else long_bytes(number)


_BYTES = [bytes((number,)) for number in range(256)]

"""The bytes of a row in a store.

Bytes of a row, version 4; numbers are Avro longs but where it says otherwise, i64 is big-endian:

    row    = u8 version; u8 n, n × 12 bytes of mutations merged last; u8 flags
             [64] page; [128] scheduled at
             [1] liveness: i64 write time, expires, [not 0] ttl
             [2] deletion: i64 write time, deleted at
             [4] i64 bound of a guessed liveness; [8] deletion that reads imply; [16] to be read again at
             [32] disturbances of the partition when it was proven last
             n, n × (size, name, deletion) of whole columns; n, n × cell
    cell   = u8 flags: 1 path, 2 tombstone, 4 expires, 8 has the write time of the cell before, the first that of the
             liveness; [not 8] i64 write time; size, name; [1] size, path; [2] deleted at; [4] ttl, expires;
             [not 2] size, value

A small row takes half of the bytes of version 3. Rows of versions 1 to 3 are read by `_former_row_bytes`, and written
in this one once they change. `_row_update` reads and writes rows of this version too.

It runs as it is, and compiled by Cython with the types of `_row_bytes.pxd`: the results are the same.
"""

from __future__ import annotations

from struct import Struct

from helenus_connector.state.rows._former_row_bytes import LAST_VERSION, load_former_row
from helenus_connector.state.rows._row import MUTATION_BYTES, NO_PAGE, CellRow
from helenus_connector.state.store.versions import UnknownVersion
from helenus_schemas.codec.avro_long import long_bytes
from helenus_schemas.codec.wire_bytes import read_long
from helenus_schemas.event.cells import Cell, Deletion, Liveness

COMPILED = not __file__.endswith(".py")
VERSION = 4
_MUTATION_BYTES, _NO_PAGE, _VERSION = MUTATION_BYTES, NO_PAGE, VERSION
_new_tuple = tuple.__new__
_TIME = Struct(">q")
_pack_time, _unpack_time = _TIME.pack, _TIME.unpack_from
_NO_TIME = -(1 << 63)


def dump_row(row: CellRow) -> bytes:
    """Return the bytes of a row."""
    liveness, deletion = row.liveness, row.deletion
    flags = (1 if liveness else 0) | (2 if deletion else 0)
    flags |= (row.liveness_bound is not None) << 2 | (row.implied_deletion is not None) << 3 | (row.reread_at > 0) << 4
    flags |= (row.proven_up_to > 0) << 5 | (row.page != _NO_PAGE) << 6 | (row.scheduled_at > 0) << 7
    parts = [bytes((_VERSION, len(row.recent_mutations) // _MUTATION_BYTES)), row.recent_mutations, bytes((flags,))]
    add = parts.append
    if flags & 64:
        add(long_bytes(row.page))
    if flags & 128:
        add(long_bytes(row.scheduled_at))
    previous_time = 0
    if liveness:
        previous_time = liveness.write_time
        add(_pack_time(previous_time))
        # 0 stands for no TTL. Of what ended in the first second of all, no event comes but a damaged one.
        expires_at = 0 if liveness.expires is None else max(1, liveness.expires)
        add(long_bytes(expires_at))
        if expires_at:
            add(long_bytes(liveness.ttl or 0))
    if deletion:
        add(_pack_deletion(deletion))
    if row.liveness_bound is not None:
        add(_pack_time(row.liveness_bound))
    if row.implied_deletion is not None:
        add(_pack_deletion(row.implied_deletion))
    if row.reread_at:
        add(long_bytes(row.reread_at))
    if row.proven_up_to:
        add(long_bytes(row.proven_up_to))
    add(long_bytes(len(row.deletions)))
    for name, column_deletion in row.deletions.items():
        add(name_field(name))
        add(_pack_deletion(column_deletion))
    _dump_cells(row, parts, previous_time)
    return b"".join(parts)


def _dump_cells(row: CellRow, parts: list[bytes], previous_time: int) -> None:
    """Append the bytes of a row's cells to its parts. `previous_time` is the liveness's."""
    add = parts.append
    add(long_bytes(len(row.cells)))
    for name, time, value, path, ttl, expires, deleted_at in row.cells.values():
        flags = (path is not None) | (value is None) << 1 | (value is not None and expires is not None) << 2
        if time == previous_time:
            add(bytes((flags | 8,)))
        else:
            add(bytes((flags,)))
            add(_pack_time(time))
            previous_time = time
        add(name_field(name))
        if path is not None:
            add(long_bytes(len(path)))
            add(path)
        if value is None:
            add(long_bytes(deleted_at or 0))
            continue
        if expires is not None:
            add(long_bytes(ttl or 0))
            add(long_bytes(expires))
        add(long_bytes(len(value)))
        add(value)


def load_row(data: bytes) -> CellRow:
    """Parse a row's bytes. Raises ValueError for those of a version that is not known here, and for damaged ones."""
    version = data[0]
    if 0 < version <= LAST_VERSION:
        return load_former_row(data)
    if version != _VERSION:
        raise UnknownVersion("a row", version, VERSION)
    offset = 2 + data[1] * _MUTATION_BYTES
    row = CellRow(recent_mutations=data[2:offset])
    flags = data[offset]
    offset += 1
    if flags & 64:
        row.page, offset = read_long(data, offset)
    if flags & 128:
        row.scheduled_at, offset = read_long(data, offset)
    time = 0
    if flags & 1:
        (time,) = _unpack_time(data, offset)
        expires_at, offset = read_long(data, offset + 8)
        if expires_at:
            size, offset = read_long(data, offset)
            row.liveness = Liveness(time, size, expires_at)
        else:
            row.liveness = Liveness(time)
    if flags & 2:
        row.deletion, offset = _read_deletion(data, offset)
    if flags & 4:
        (row.liveness_bound,) = _unpack_time(data, offset)
        offset += 8
    if flags & 8:
        row.implied_deletion, offset = _read_deletion(data, offset)
    if flags & 16:
        row.reread_at, offset = read_long(data, offset)
    if flags & 32:
        row.proven_up_to, offset = read_long(data, offset)
    count, offset = read_size(data, offset)
    for _ in range(count):
        size, offset = read_size(data, offset)
        end = offset + size
        row.deletions[data[offset:end].decode()], offset = _read_deletion(data, end)
    count, offset = read_size(data, offset)
    _load_cells(row, data, offset, count, time)
    return row


def _load_cells(row: CellRow, data: bytes, offset: int, count: int, previous_time: int) -> None:
    cells = row.cells
    time = previous_time
    for _ in range(count):
        flags = data[offset]
        offset += 1
        if not flags & 8:
            (time,) = _unpack_time(data, offset)
            offset += 8
        size, offset = read_size(data, offset)
        name = data[offset : offset + size].decode()
        offset += size
        path = value = ttl = expires = deleted_at = None
        if flags & 1:
            size, offset = read_size(data, offset)
            path = data[offset : offset + size]
            offset += size
        if flags & 2:
            deleted_at, offset = read_long(data, offset)
        else:
            if flags & 4:
                ttl, offset = read_long(data, offset)
                expires, offset = read_long(data, offset)
            size, offset = read_size(data, offset)
            value = data[offset : offset + size]
            offset += size
        cells[name, path] = _new_tuple(Cell, (name, time, value, path, ttl, expires, deleted_at))
    if offset != len(data):
        raise ValueError(f"a row in the state has {len(data) - offset} bytes too many: its checkpoint is damaged")


def read_size(data: bytes, offset: int) -> tuple[int, int]:
    """Read a number of things that take a byte or more each; return it and the offset after it. Raises ValueError if
    the data ends before them.
    """
    size, offset = read_long(data, offset)
    if size < 0 or size > len(data) - offset:
        raise ValueError("a row in the state ends early: its checkpoint is damaged")
    return size, offset


def name_field(name: str) -> bytes:
    """Return a column's name after its size."""
    field = _name_fields.get(name)
    if field is None:
        name_bytes = name.encode()
        field = long_bytes(len(name_bytes)) + name_bytes
        if len(_name_fields) < _MAX_NAMES:
            _name_fields[name] = field
    return field


_MAX_NAMES = 10_000  # as many as a cluster's tables have at most; names of before may come from a hostile topic
_name_fields: dict[str, bytes] = {}


def _pack_deletion(deletion: Deletion) -> bytes:
    return _pack_time(deletion[0]) + long_bytes(deletion[1])


def _read_deletion(data: bytes, offset: int) -> tuple[Deletion, int]:
    (time,) = _unpack_time(data, offset)
    deleted_at, offset = read_long(data, offset + 8)
    return Deletion(time, deleted_at), offset


def has_seen(data: bytes, mutation: bytes) -> bool:
    """Return whether a mutation is among those that a row of these bytes merged last."""
    return data.find(mutation, 2, 2 + data[1] * MUTATION_BYTES) >= 0

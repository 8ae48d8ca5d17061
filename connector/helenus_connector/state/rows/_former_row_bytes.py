"""The bytes of a row in a store, in the versions 1 to 3 that were written before: a state keeps them until the row
changes.

Bytes of a row, version 3, big-endian; lengths and counts are u32 but where it says u16:

    row    = u8 version; u8 n, n × 12 bytes of mutations merged last; u32 page; u64 scheduled at; u8 flags
             [1] liveness: i64 write time, u32 ttl, u64 expires (0, 0: none)
             [2] deletion: i64 write time, u64 deleted at
             [4] i64 bound of a guessed liveness; [8] deletion that reads imply; [16] u64 to be read again at;
             [32] u32 disturbances of the partition when it was proven last
             n, n × (u16 name, deletion) of whole columns; n, n × cell
    cell   = u8 flags: 1 path, 2 tombstone, 4 expires; i64 write time; u16 name; [1] path; [2] u64 deleted at;
             [4] u32 ttl, u64 expires; [not 2] value

Version 2 is the same without what the flag 32 stands for, version 1 also without that of 4, 8 and 16.
"""

from __future__ import annotations

from struct import Struct

from helenus_connector.state.rows._row import MUTATION_BYTES, CellRow
from helenus_schemas.event.cells import Cell, Deletion, Liveness

LAST_VERSION = 3
"""The newest of these versions."""
_new_tuple = tuple.__new__
_HEAD = Struct(">IQB")
_LIVENESS = Struct(">qIQ")
_DELETION = Struct(">qQ")
_COUNT = Struct(">I")
_CELL = Struct(">BqH")
_EXPIRY = Struct(">IQ")
_SECONDS = Struct(">Q")
_PROVEN = Struct(">I")
_TIME = Struct(">q")
_NAME = Struct(">H")


def load_former_row(data: bytes) -> CellRow:
    """Parse a row's bytes of these versions."""
    offset = 2 + data[1] * MUTATION_BYTES
    row = CellRow(recent_mutations=data[2:offset])
    row.page, row.scheduled_at, flags = _HEAD.unpack_from(data, offset)
    offset += _HEAD.size
    if flags & 1:
        time, ttl, expires = _LIVENESS.unpack_from(data, offset)
        offset += _LIVENESS.size
        row.liveness = Liveness(time, ttl, expires) if expires else Liveness(time)
    if flags & 2:
        row.deletion = Deletion(*_DELETION.unpack_from(data, offset))
        offset += _DELETION.size
    if flags & 4:
        (row.liveness_bound,) = _TIME.unpack_from(data, offset)
        offset += _TIME.size
    if flags & 8:
        row.implied_deletion = Deletion(*_DELETION.unpack_from(data, offset))
        offset += _DELETION.size
    if flags & 16:
        (row.reread_at,) = _SECONDS.unpack_from(data, offset)
        offset += _SECONDS.size
    if flags & 32:
        (row.proven_up_to,) = _PROVEN.unpack_from(data, offset)
        offset += _PROVEN.size
    (count,) = _COUNT.unpack_from(data, offset)
    offset += 4
    for _ in range(count):
        end = offset + 2 + _NAME.unpack_from(data, offset)[0]
        row.deletions[data[offset + 2 : end].decode()] = Deletion(*_DELETION.unpack_from(data, end))
        offset = end + _DELETION.size
    (count,) = _COUNT.unpack_from(data, offset)
    offset += 4
    cells, unpack, length = row.cells, _CELL.unpack_from, _COUNT.unpack_from
    for _ in range(count):
        flags, time, size = unpack(data, offset)
        offset += 11
        name = data[offset : offset + size].decode()
        offset += size
        path = value = ttl = expires = deleted_at = None
        if flags & 1:
            end = offset + 4 + length(data, offset)[0]
            path = data[offset + 4 : end]
            offset = end
        if flags & 2:
            (deleted_at,) = _SECONDS.unpack_from(data, offset)
            offset += 8
        else:
            if flags & 4:
                ttl, expires = _EXPIRY.unpack_from(data, offset)
                offset += 12
            end = offset + 4 + length(data, offset)[0]
            value = data[offset + 4 : end]
            offset = end
        cells[name, path] = _new_tuple(Cell, (name, time, value, path, ttl, expires, deleted_at))
    if offset != len(data):
        raise ValueError(f"a row in the state has {len(data) - offset} bytes too many: its checkpoint is damaged")
    return row

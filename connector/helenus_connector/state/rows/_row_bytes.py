"""The bytes of a row in a store.

Bytes of a row, version 3, big-endian; lengths and counts are u32 but where it says u16:

    row    = u8 version; u8 n, n × 12 bytes of mutations merged last; u32 page; u64 armed; u8 flags
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

from helenus_connector.state.rows._row import SEEN, CellRow
from helenus_schemas.event.cells import Cell, Deletion, Liveness

VERSION = 3
_new = tuple.__new__
_HEAD = Struct(">IQB")
_LIVENESS = Struct(">qIQ")
_DELETION = Struct(">qQ")
_COUNT = Struct(">I")
_CELL = Struct(">BqH")
_ENDS = Struct(">IQ")
_SECONDS = Struct(">Q")
_PROVEN = Struct(">I")
_TIME = Struct(">q")
_NAME = Struct(">H")


def dump_row(row: CellRow) -> bytes:
    """The bytes of a row."""
    flags = (1 if row.liveness else 0) | (2 if row.deletion else 0)
    flags |= (row.bound is not None) << 2 | (row.unseen is not None) << 3 | (row.read_at > 0) << 4
    flags |= (row.proven > 0) << 5
    parts = [bytes((VERSION, len(row.seen) // SEEN)), row.seen, _HEAD.pack(row.page, row.armed, flags)]
    if row.liveness:
        parts.append(_LIVENESS.pack(row.liveness.write_time, row.liveness.ttl or 0, row.liveness.expires or 0))
    if row.deletion:
        parts.append(_DELETION.pack(*row.deletion))
    if row.bound is not None:
        parts.append(_TIME.pack(row.bound))
    if row.unseen is not None:
        parts.append(_DELETION.pack(*row.unseen))
    if row.read_at:
        parts.append(_SECONDS.pack(row.read_at))
    if row.proven:
        parts.append(_PROVEN.pack(row.proven))
    parts.append(_COUNT.pack(len(row.deletions)))
    for name, whole in row.deletions.items():
        text = name.encode()
        parts += (_NAME.pack(len(text)), text, _DELETION.pack(*whole))
    parts.append(_COUNT.pack(len(row.cells)))
    add, count, pack = parts.append, _COUNT.pack, _CELL.pack
    for name, time, value, path, ttl, expires, deleted_at in row.cells.values():
        text = name.encode()
        add(pack((path is not None) | (value is None) << 1 | (expires is not None) << 2, time, len(text)))
        add(text)
        if path is not None:
            add(count(len(path)))
            add(path)
        if value is None:
            add(_SECONDS.pack(deleted_at or 0))
            continue
        if expires is not None:
            add(_ENDS.pack(ttl or 0, expires))
        add(count(len(value)))
        add(value)
    return b"".join(parts)


def load_row(data: bytes) -> CellRow:
    """A row of its bytes. Raises ValueError for those of a version that is not known here."""
    if data[0] not in range(1, VERSION + 1):
        raise ValueError(f"a row of version {data[0]} in the state, where {VERSION} is known: go back to what wrote it")
    at = 2 + data[1] * SEEN
    row = CellRow(seen=data[2:at])
    row.page, row.armed, flags = _HEAD.unpack_from(data, at)
    at += _HEAD.size
    if flags & 1:
        time, ttl, expires = _LIVENESS.unpack_from(data, at)
        at += _LIVENESS.size
        row.liveness = Liveness(time, ttl, expires) if expires else Liveness(time)
    if flags & 2:
        row.deletion = Deletion(*_DELETION.unpack_from(data, at))
        at += _DELETION.size
    if flags & 4:
        (row.bound,) = _TIME.unpack_from(data, at)
        at += _TIME.size
    if flags & 8:
        row.unseen = Deletion(*_DELETION.unpack_from(data, at))
        at += _DELETION.size
    if flags & 16:
        (row.read_at,) = _SECONDS.unpack_from(data, at)
        at += _SECONDS.size
    if flags & 32:
        (row.proven,) = _PROVEN.unpack_from(data, at)
        at += _PROVEN.size
    (count,) = _COUNT.unpack_from(data, at)
    at += 4
    for _ in range(count):
        end = at + 2 + _NAME.unpack_from(data, at)[0]
        row.deletions[data[at + 2 : end].decode()] = Deletion(*_DELETION.unpack_from(data, end))
        at = end + _DELETION.size
    (count,) = _COUNT.unpack_from(data, at)
    at += 4
    cells, unpack, length = row.cells, _CELL.unpack_from, _COUNT.unpack_from
    for _ in range(count):
        flags, time, size = unpack(data, at)
        at += 11
        name = data[at : at + size].decode()
        at += size
        path = value = ttl = expires = deleted_at = None
        if flags & 1:
            end = at + 4 + length(data, at)[0]
            path = data[at + 4 : end]
            at = end
        if flags & 2:
            (deleted_at,) = _SECONDS.unpack_from(data, at)
            at += 8
        else:
            if flags & 4:
                ttl, expires = _ENDS.unpack_from(data, at)
                at += 12
            end = at + 4 + length(data, at)[0]
            value = data[at + 4 : end]
            at = end
        cells[name, path] = _new(Cell, (name, time, value, path, ttl, expires, deleted_at))
    if at != len(data):
        raise ValueError(f"a row in the state has {len(data) - at} bytes too many: its checkpoint is damaged")
    return row


def has_seen(data: bytes, mutation: bytes) -> bool:
    """Whether a row of these bytes has merged a mutation, as far as it remembers."""
    return data.find(mutation, 2, 2 + data[1] * SEEN) >= 0

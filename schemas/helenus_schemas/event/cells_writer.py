"""Writes the field `cells` of an event that no commit log has: of a row as a read found it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from helenus_schemas.codec.avro_long import long_bytes, sized_bytes
from helenus_schemas.cql.types import CqlType
from helenus_schemas.cql.values import vint_bytes
from helenus_schemas.event.cells import VERSION, Cell, Cells, Deletion, columns_text, described, width_of

_LIVENESS, _EXPIRES, _DELETION, _ALL_COLUMNS = 4, 8, 16, 32
_COLUMN_DELETIONS = 64
_TOMBSTONE, _CELL_EXPIRES, _NO_BYTES = 1, 2, 4
_NO_DELETION = Deletion(-(1 << 63), 0)
_LONG_MASK = (1 << 64) - 1


def encode_cells(cells: Cells) -> bytes:
    """Encode the field `cells`, as `decode_cells` reads it, for the scopes ROW and STATIC."""
    cells_by_column: dict[str, list[Cell]] = {}
    for cell in cells.cells:
        cells_by_column.setdefault(cell.column, []).append(cell)
    names = _in_order(cells_by_column.keys() | cells.deletions.keys(), cells.columns)
    low = min(_times(cells), default=0)
    flags, out = _ALL_COLUMNS, [b""]
    if cells.liveness is not None:
        flags |= _LIVENESS
        out.append(vint_bytes(cells.liveness.write_time - low))
        if cells.liveness.expires is not None:
            flags |= _EXPIRES
            out += [vint_bytes(cells.liveness.ttl or 0), vint_bytes(cells.liveness.expires)]
    if cells.deletion is not None:
        flags |= _DELETION
        out += [vint_bytes(cells.deletion.write_time - low), vint_bytes(cells.deletion.deleted_at)]
    out[0] = bytes([flags | (_COLUMN_DELETIONS if cells.deletions else 0)])
    for name in names:
        column_cells, t = cells_by_column.get(name, []), cells.columns[name]
        if t.multicell:
            if cells.deletions:
                deletion = cells.deletions.get(name, _NO_DELETION)
                out += [vint_bytes(deletion.write_time - low & _LONG_MASK), vint_bytes(deletion.deleted_at)]
            out.append(vint_bytes(len(column_cells)))
        out += [_cell(cell, width_of(t), low) for cell in column_cells]
    data = b"".join(out)
    text = columns_text(described(name, cells.columns[name]) for name in names).encode()
    head = long_bytes(VERSION) + cells.table + cells.schema + sized_bytes(text)
    return b"".join([head, long_bytes(low), long_bytes(0), long_bytes(0), sized_bytes(data)])


def _in_order(names: Iterable[str], columns: Mapping[str, CqlType]) -> list[str]:
    """Sort names as the commit log does: columns of one cell first."""
    return sorted(names, key=lambda name: (columns[name].multicell, name))


def _times(cells: Cells) -> Iterable[int]:
    if cells.liveness is not None:
        yield cells.liveness.write_time
    if cells.deletion is not None:
        yield cells.deletion.write_time
    yield from (deletion.write_time for deletion in cells.deletions.values())
    yield from (cell.write_time for cell in cells.cells)


def _cell(cell: Cell, width: int, low: int) -> bytes:
    value = cell.value or b""
    is_missing = cell.value is None or (width >= 0 and len(value) != width)  # CQL's empty int, for one
    flags = (_CELL_EXPIRES if cell.expires is not None else 0) | (_NO_BYTES if is_missing else 0)
    out = [bytes([flags | (_TOMBSTONE if cell.value is None else 0)]), vint_bytes(cell.write_time - low)]
    if cell.value is None:
        out.append(vint_bytes(cell.deleted_at or 0))
    elif cell.expires is not None:
        out += [vint_bytes(cell.expires), vint_bytes(cell.ttl or 0)]
    if cell.path is not None:
        out += [vint_bytes(len(cell.path)), cell.path]
    if not is_missing:
        out += [value] if width >= 0 else [vint_bytes(len(value)), value]
    return b"".join(out)

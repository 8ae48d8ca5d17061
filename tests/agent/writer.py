"""Writes commit-log segments from a description, by the format and not by what the decoder does."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import cramjam

from helenus_schemas.cql.table import Table

FIXED = {"boolean": 1, "int": 4, "float": 4, "bigint": 8, "timestamp": 8, "double": 8, "uuid": 16, "timeuuid": 16}
LIVE = (-(1 << 63), 0x7FFFFFFF)
TIMESTAMP_EPOCH = 1442880000000000
DELETION_EPOCH = 1442880000


@dataclass
class Cell:
    """A cell: `time` None takes the row's timestamp, `row_ttl` the row's expiry; a tombstone has no value."""

    value: bytes | None = b""
    time: int | None = None
    expires: tuple[int, int] | None = None  # ttl, local deletion time
    row_ttl: bool = False
    deleted_at: int | None = None  # a tombstone's local deletion time
    path: bytes | None = None


@dataclass
class Complex:
    """An unfrozen collection's or UDT's cells, each with a path."""

    cells: list[Cell]
    deletion: tuple[int, int] | None = None


@dataclass
class Row:
    """A row: its clustering as CQL bytes (b"" is empty, None null) and the columns it has."""

    clustering: tuple[bytes | None, ...] = ()
    columns: dict[str, Cell | Complex] = field(default_factory=dict)
    time: int | None = None
    expires: tuple[int, int] | None = None
    deletion: tuple[int, int] | None = None
    shadowable: bool = False


@dataclass
class Marker:
    """A bound of a range deletion."""

    kind: int
    clustering: tuple[bytes | None, ...]
    deletions: tuple[tuple[int, int], ...]


@dataclass
class Update:
    """All of one partition's changes in one mutation."""

    table: Table
    key: bytes
    rows: Sequence[Row | Marker] = ()
    static: Row | None = None
    deletion: tuple[int, int] | None = None
    estimate: int | None = None
    lowest: tuple[int, int, int] = (0, DELETION_EPOCH, 0)


def vint(value: int) -> bytes:
    size = 0
    while size < 8 and value >> (7 * (size + 1) if size < 8 else 64):
        size += 1
    if size == 8:
        return b"\xff" + value.to_bytes(8, "big")
    prefix = (0xFF << (8 - size)) & 0xFF
    raw = bytearray(value.to_bytes(size + 1, "big"))
    raw[0] |= prefix
    return bytes(raw)


def vbytes(data: bytes) -> bytes:
    return vint(len(data)) + data


def fixed_width(t: object) -> int:
    name = t.name  # type: ignore[attr-defined]
    if name == "vector":
        return int(t.dimension * fixed_width(t.args[0]))  # type: ignore[attr-defined]
    return FIXED.get(name, 0)


class _Body:
    def __init__(self, update: Update) -> None:
        self.update = update
        self.low, self.low_deletion, self.low_ttl = update.lowest
        self.columns = {c.name: c for c in (*update.table.values, *update.table.dropped.values())}

    def time(self, value: int) -> bytes:
        return vint((value - self.low) % (1 << 64))

    def ldt(self, value: int) -> bytes:
        return vint((value - self.low_deletion) % (1 << 32))

    def ttl(self, value: int) -> bytes:
        return vint((value - self.low_ttl) % (1 << 32))

    def deletion(self, value: tuple[int, int]) -> bytes:
        return self.time(value[0]) + self.ldt(value[1])

    def names(self, rows: Sequence[Row]) -> list[str]:
        named = {name for row in rows for name in row.columns}
        return sorted(named, key=lambda name: (self.columns[name].type.multicell, name.encode()))

    def clustering(self, values: Sequence[bytes | None]) -> bytes:
        out = b""
        for i, value in enumerate(values):
            if i % 32 == 0:
                block = values[i : i + 32]
                out += vint(sum((2 if v is None else 1 if v == b"" else 0) << 2 * j for j, v in enumerate(block)))
            if value:
                t = self.update.table.clustering[i].type
                out += value if fixed_width(t) else vbytes(value)
        return out

    def cell(self, cell: Cell, width: int) -> bytes:
        flags = (
            (1 if cell.deleted_at is not None else 0)
            | (2 if cell.expires is not None or cell.row_ttl else 0)
            | (4 if not cell.value else 0)
            | (8 if cell.time is None else 0)
            | (16 if cell.row_ttl else 0)
        )
        out = bytes((flags,))
        if cell.time is not None:
            out += self.time(cell.time)
        if cell.deleted_at is not None:
            out += self.ldt(cell.deleted_at)
        elif cell.expires is not None and not cell.row_ttl:
            out += self.ldt(cell.expires[1]) + self.ttl(cell.expires[0])
        if cell.path is not None:
            out += vbytes(cell.path)
        if cell.value:
            out += cell.value if width else vbytes(cell.value)
        return out

    def subset(self, names: list[str], row: Row) -> bytes:
        present = [i for i, name in enumerate(names) if name in row.columns]
        missing = [i for i, name in enumerate(names) if name not in row.columns]
        if len(names) < 64:
            return vint(sum(1 << i for i in missing))
        listed = present if len(present) < len(names) // 2 else missing
        return vint(len(missing)) + b"".join(vint(i) for i in listed)

    def row(self, row: Row, names: list[str], static: bool = False) -> bytes:
        complexes = [c for c in row.columns.values() if isinstance(c, Complex)]
        some_deletion = any(c.deletion for c in complexes)
        extended = (1 if static else 0) | (2 if row.shadowable else 0)
        all_there = len(row.columns) == len(names)
        flags = (
            (4 if row.time is not None else 0)
            | (8 if row.expires is not None else 0)
            | (16 if row.deletion is not None else 0)
            | (32 if all_there else 0)
            | (64 if some_deletion else 0)
            | (128 if extended else 0)
        )
        out = bytes((flags, extended)) if extended else bytes((flags,))
        if not static:
            out += self.clustering(row.clustering)
        if row.time is not None:
            out += self.time(row.time)
        if row.expires is not None:
            out += self.ttl(row.expires[0]) + self.ldt(row.expires[1])
        if row.deletion is not None:
            out += self.deletion(row.deletion)
        if not all_there:
            out += self.subset(names, row)
        for name in names:
            if name not in row.columns:
                continue
            column = row.columns[name]
            if isinstance(column, Complex):
                if some_deletion:
                    out += self.deletion(column.deletion or LIVE)
                out += vint(len(column.cells)) + b"".join(self.cell(c, 0) for c in column.cells)
            else:
                out += self.cell(column, fixed_width(self.columns[name].type))
        return out

    def marker(self, marker: Marker) -> bytes:
        out = bytes((2, marker.kind)) + struct.pack(">H", len(marker.clustering)) + self.clustering(marker.clustering)
        return out + b"".join(self.deletion(d) for d in marker.deletions)

    def bytes(self) -> bytes:
        u = self.update
        empty = not u.rows and u.static is None and u.deletion is None
        flags = (
            (1 if empty else 0)
            | (4 if u.deletion is not None else 0)
            | (8 if u.static is not None else 0)
            | (16 if u.estimate is not None else 0)
        )
        out = u.table.id.bytes + vbytes(u.key) + bytes((flags,))
        if empty:
            return out
        out += vint((self.low - TIMESTAMP_EPOCH) % (1 << 64))
        out += vint((self.low_deletion - DELETION_EPOCH) % (1 << 32)) + vint(self.low_ttl)
        static_names = self.names([u.static]) if u.static is not None else []
        names = self.names([r for r in u.rows if isinstance(r, Row)])
        for listed in ([static_names] if u.static is not None else []) + [names]:
            out += vint(len(listed)) + b"".join(vbytes(n.encode()) for n in listed)
        if u.deletion is not None:
            out += self.deletion(u.deletion)
        if u.static is not None:
            out += self.row(u.static, static_names, static=True)
        if u.estimate is not None:
            out += vint(u.estimate)
        for item in u.rows:
            out += self.row(item, names) if isinstance(item, Row) else self.marker(item)
        return out + b"\1"


def mutation(*updates: Update) -> bytes:
    """A mutation's bytes, as versions 6 to 8 have them."""
    return vint(len(updates)) + b"".join(_Body(u).bytes() for u in updates)


def with_row_counts(updates: Sequence[Update]) -> list[Update]:
    """The updates as a replica serialises them anew: a row estimate is the number of the rows that are there."""
    return [
        u if u.estimate is None else replace(u, estimate=sum(isinstance(row, Row) for row in u.rows)) for u in updates
    ]


def flagged_mutation(flags: int, epochs: Sequence[int], *updates: Update) -> bytes:
    """A mutation's bytes as version 9 has them, with the epoch of each update's table."""
    bodies = [_Body(update).bytes() for update in updates]
    with_epochs = [body[:16] + vint(epoch) + body[16:] for body, epoch in zip(bodies, epochs, strict=True)]
    return bytes((flags,)) + vint(len(updates)) + b"".join(with_epochs)


def entry(payload: bytes) -> bytes:
    """An entry around a mutation."""
    size = struct.pack(">i", len(payload))
    crc = crc32(size)
    return size + struct.pack(">I", crc) + payload + struct.pack(">I", crc32(payload, crc))


def header(segment: int, version: int = 7, options: bytes = b"{}") -> bytes:
    """A segment's header."""
    out = struct.pack(">iqH", version, segment, len(options)) + options
    crc = crc32(struct.pack(">iiii", version, _int(segment), _int(segment >> 32), len(options)))
    return out + struct.pack(">I", crc32(options, crc))


def sync_marker(segment: int, start: int, end: int) -> bytes:
    """The marker at the offset `start` of a section that ends at `end`."""
    return struct.pack(">iI", end, crc32(struct.pack(">iii", _int(segment), _int(segment >> 32), start)))


def _int(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "LZ4Compressor": lambda data: (
        struct.pack("<i", len(data)) + bytes(cramjam.lz4.compress_block(data, store_size=False))
    ),
    "SnappyCompressor": lambda data: bytes(cramjam.snappy.compress_raw(data)),
    "DeflateCompressor": zlib.compress,
    "ZstdCompressor": lambda data: bytes(cramjam.zstd.compress(data)),
}
"""A section's content as each of Cassandra's compressors writes it."""


def options(compressor: str) -> bytes:
    """What a header says of a segment that is compressed so; "" is not at all."""
    if not compressor:
        return b"{}"
    return json.dumps({"compressionParameters": {}, "compressionClass": compressor}, separators=(",", ":")).encode()


def segment_bytes(
    segment: int, sections: Sequence[bytes], size: int = 0, version: int = 7, compressor: str = ""
) -> bytes:
    """A whole segment: each section the entries of one sync; zeros up to `size` if it is not compressed."""
    out = header(segment, version, options(compressor))
    for content in sections:
        if compressor:
            content = struct.pack(">i", len(content)) + COMPRESS[compressor](content)
        out += sync_marker(segment, len(out), len(out) + 8 + len(content)) + content
    return out if compressor else out + bytes(max(size - len(out), 8))


def file_name(segment: int, version: int = 7) -> str:
    return f"CommitLog-{version}-{segment}.log"


def table_of(name: str, columns: str, cdc: bool = True, keyspace: str = "ks", id: int | None = None) -> Table:
    """A table from a short text: `pk int pk, ck text ck desc, s int static, v list<int>`."""
    from helenus_schemas.cql.table import Column
    from helenus_schemas.cql.types import parse

    kinds = {"pk": "partition_key", "ck": "clustering"}
    table_columns: list[Column] = []
    depth = 0
    pieces = [""]
    for char in columns:
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += char
    for piece in pieces:
        column, words_of_type = piece.strip().split(" ", 1)
        words = words_of_type.rsplit(" ")
        reverse = words[-1] == "desc"
        if reverse:
            words.pop()
        kind = words.pop() if words[-1] in ("pk", "ck", "static") else "regular"
        kind = kinds.get(kind, kind)
        position = sum(c.kind == kind for c in table_columns) if kind in kinds.values() else -1
        table_columns.append(Column(column, parse(" ".join(words)), kind, position, reverse))
    unique = uuid.uuid5(uuid.NAMESPACE_DNS, f"{keyspace}.{name}") if id is None else uuid.UUID(int=id)
    return Table(keyspace, name, unique, tuple(table_columns), cdc)

"""What the decoder must make of a description: built by the contract's own encoders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from agent.writer import LIVE, Complex, Row, Update, mutation

from helenus_schemas.change import Change, Scope, encode
from helenus_schemas.key import KeyCodec

Event = tuple[str, bytes, bytes, bytes]


def row_times(row: Row) -> tuple[int | None, int | None]:
    times: list[int] = []
    expiries: list[int] = []
    if row.time is not None:
        times.append(row.time)
    if row.expires is not None:
        expiries.append(row.expires[1])
    if row.deletion is not None:
        times.append(row.deletion[0])
    for column in row.columns.values():
        if isinstance(column, Complex):
            if column.deletion is not None:
                times.append(column.deletion[0])
            cells = column.cells
        else:
            cells = [column]
        for cell in cells:
            if cell.time is not None:
                times.append(cell.time)
            if cell.expires is not None and not cell.row_ttl and cell.deleted_at is None:
                expiries.append(cell.expires[1])
    times = [t for t in times if t != LIVE[0]]
    return max(times, default=None), min(expiries, default=None)


def split_key(codec: KeyCodec, key: bytes) -> list[bytes]:
    if codec.partition_columns == 1:
        return [key]
    parts = []
    while key:
        size = int.from_bytes(key[:2], "big")
        parts.append(key[2 : 2 + size])
        key = key[3 + size :]
    return parts


def events(updates: Sequence[Update], node: str, segment: int, position: int) -> list[Event]:
    """(table, partition key, event key, event value) of the changes of one mutation that ends at `position`."""
    digest = hashlib.md5(mutation(*updates)).hexdigest()
    found: list[tuple[str, bytes, bytes, Scope, int | None, int | None]] = []
    for update in updates:
        table = update.table
        if not table.cdc:
            continue
        codec = KeyCodec(table)
        partition = split_key(codec, update.key)
        nothing = [None] * len(table.clustering)
        if update.deletion is not None:
            time = update.deletion[0]
            key = codec.encode([*partition, *nothing])
            found.append((table.full_name, update.key, key, Scope.PARTITION, None if time == LIVE[0] else time, None))
        if update.static is not None:
            key = codec.encode([*partition, *nothing])
            found.append((table.full_name, update.key, key, Scope.STATIC, *row_times(update.static)))
        for row in update.rows:
            if isinstance(row, Row):
                key = codec.encode([*partition, *row.clustering])
                found.append((table.full_name, update.key, key, Scope.ROW, *row_times(row)))
    return [
        (
            name,
            partition_key,
            key,
            encode(Change(digest, node, scope, i, len(found), segment, position, time, expires)),
        )
        for i, (name, partition_key, key, scope, time, expires) in enumerate(found)
    ]

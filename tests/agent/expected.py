"""What the decoder must make of a description: built by the contract's own encoders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from agent.writer import LIVE, Complex, Marker, Row, Update, mutation, with_row_counts

from helenus_schemas.codec.key import KeyCodec
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Bound, Change, Effect, Scope, column_bit
from helenus_schemas.event.wire import encode

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


def effect(table: Table, row: Row) -> tuple[int, int | None]:
    """What a row does, and when the last of its cells expires."""
    types = {c.name: c.type.name for c in (*table.values, *table.dropped.values())}
    effects = 0
    times: set[int | None] = set()
    live: list[int | None] = []  # expiries
    if row.time is not None:
        effects |= Effect.ROW | Effect.LIVE
        times.add(row.time)
        live.append(row.expires and row.expires[1])
    if row.deletion is not None:
        effects |= Effect.GONE
        times.add(row.deletion[0])
    for name, column in row.columns.items():
        effects |= column_bit(name) | (Effect.COUNTER if types[name] == "counter" else 0)
        if isinstance(column, Complex) and column.deletion is not None and column.deletion[0] != LIVE[0]:
            effects |= Effect.DELETES
        for cell in column.cells if isinstance(column, Complex) else [column]:
            times |= {row.time if cell.time is None else cell.time} - {None}
            if cell.deleted_at is not None:
                effects |= Effect.DELETES
                continue
            effects |= Effect.LIVE
            expires = row.expires if cell.row_ttl else cell.expires
            live.append(expires and expires[1])
    newest, _ = row_times(row)
    if len(times) > 1 or (times and newest not in times):
        effects = 0
    # A cell that expired in 1970, at second 0, counts as one that never does: the decoder has no other zero.
    return int(effects), None if None in live else max((e or 0 for e in live), default=None) or None


def time_unless_live(time: int) -> int | None:
    return None if time == LIVE[0] else time


def split_key(codec: KeyCodec, key: bytes) -> list[bytes]:
    if codec.partition_columns == 1:
        return [key]
    parts = []
    while key:
        size = int.from_bytes(key[:2], "big")
        parts.append(key[2 : 2 + size])
        key = key[3 + size :]
    return parts


def bound(marker: Marker, inclusive: tuple[int, int]) -> Bound | None:
    values = tuple(value or b"" for value in marker.clustering)
    return Bound(marker.kind in inclusive, values) if values else None


def events(updates: Sequence[Update], node: str, segment: int, position: int) -> list[Event]:
    """(table, partition key, event key, event value) of the changes of one mutation that ends at `position`."""
    digest = hashlib.md5(mutation(*with_row_counts(updates))).hexdigest()
    changes: list[
        tuple[str, bytes, bytes, Scope, int | None, int | None, Bound | None, Bound | None, int, int | None]
    ] = []
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
            gone = int(Effect.GONE)
            changes.append(
                (
                    table.full_name,
                    update.key,
                    key,
                    Scope.PARTITION,
                    time_unless_live(time),
                    None,
                    None,
                    None,
                    gone,
                    None,
                )
            )
        if update.static is not None:
            key = codec.encode([*partition, *nothing])
            changes.append(
                (
                    table.full_name,
                    update.key,
                    key,
                    Scope.STATIC,
                    *row_times(update.static),
                    None,
                    None,
                    *effect(table, update.static),
                )
            )
        opened: tuple[Bound | None, int] | None = None
        for item in update.rows:
            if isinstance(item, Row):
                key = codec.encode([*partition, *item.clustering])
                changes.append(
                    (table.full_name, update.key, key, Scope.ROW, *row_times(item), None, None, *effect(table, item))
                )
                continue
            if item.kind not in (1, 7):
                assert opened is not None
                key = codec.encode([*partition, *nothing])
                start, time = opened
                end = bound(item, (5, 6))
                gone = int(Effect.DELETES)
                changes.append(
                    (
                        table.full_name,
                        update.key,
                        key,
                        Scope.RANGE,
                        time_unless_live(time),
                        None,
                        start,
                        end,
                        gone,
                        None,
                    )
                )
            opened = None if item.kind in (0, 6) else (bound(item, (1, 2)), item.deletions[-1][0])
    return [
        (
            name,
            partition_key,
            key,
            encode(
                Change(
                    digest, node, scope, i, len(changes), segment, position, *times, start, end, False, does, expired
                )
            ),
        )
        for i, (name, partition_key, key, scope, *times, start, end, does, expired) in enumerate(changes)
    ]

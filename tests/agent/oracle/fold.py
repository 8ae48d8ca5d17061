"""All cells of a table folded by Cassandra's rules, to the rows that SELECT gives with WRITETIME and TTL."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent.oracle.reader import Record
from agent.oracle.values import sort_key
from cassandra.query import tuple_factory

from helenus_connector.cassandra_rows.raw_rows import RawProtocolHandler
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import quote
from helenus_schemas.event.cells import Cell, Deletion, Liveness
from helenus_schemas.event.change import Bound, Scope

_NEVER = -(1 << 63)
Key = tuple[bytes | None, ...]
Seen = Mapping[str, Sequence[tuple[bytes, int, int | None]]]
"""A row's columns that are not null: of each cell the value, a map's with its key before it; the write time; when it
expires, or in how many s."""


class Selected(NamedTuple):
    """The rows of a table by key, and when they were read, s since the epoch."""

    rows: Mapping[Key, Seen]
    first: float
    last: float
    of_elements: bool = True
    """Whether elements of collections have their times: before 5.0 nodes don't say them."""


def may_be_folded(table: Table) -> bool:
    """False of counters, and where columns came and went, or the order of clustering values is not known here."""
    is_plain = table.cdc and not table.dropped and not any(c.type.name == "counter" for c in table.values)
    return is_plain and table.name != "marks" and all(sort_key(c.type, b"\1") is not None for c in table.clustering)


def select(session: Any, table: Table, of_elements: bool = True) -> Selected:
    """All rows as the node has them, with the times of elements of collections if it says them."""
    columns = [quote(c.name) for c in table.primary_key]
    for column in table.values:
        name = quote(column.name)
        columns += [name] * 3 if not _has_times(column, of_elements) else [name, f"WRITETIME({name})", f"TTL({name})"]
    handler, factory = session.client_protocol_handler, session.row_factory
    session.client_protocol_handler, session.row_factory = RawProtocolHandler, tuple_factory
    first = time.time()
    try:
        selected_rows = list(session.execute(f"SELECT {', '.join(columns)} FROM {table.keyspace}.{quote(table.name)}"))
    finally:
        session.client_protocol_handler, session.row_factory = handler, factory
    keys = len(table.primary_key)
    rows = {}
    for row in selected_rows:
        cells = zip(table.values, row[keys::3], row[keys + 1 :: 3], row[keys + 2 :: 3], strict=True)
        rows[row[:keys]] = {c.name: _selected(c, of_elements, *read) for c, *read in cells if read[0] is not None}
    return Selected(rows, first, time.time(), of_elements)


def _selected(column: Column, of_elements: bool, value: bytes, times: bytes, ttls: bytes | None) -> list[Any]:
    if not column.type.multicell:
        return [(value, _integer(times), _integer(ttls))]
    values = [v for v in _sized(value if column.type.name == "udt" else value[4:]) if v is not None]
    if column.type.name == "map":
        values = [key + element for key, element in zip(values[::2], values[1::2], strict=True)]
    if not _has_times(column, of_elements):
        return sorted(((v, None, None) for v in values), key=_by_value)
    written = [v for v in _sized(times[4:]) if v is not None]
    ttls_left = _sized((ttls or b"")[4:]) or [None] * len(values)
    ttls_left = [ttls_left[index] for index, v in enumerate(_sized(times[4:])) if v is not None]
    return sorted(zip(values, map(_integer, written), map(_integer, ttls_left), strict=True), key=_by_value)


def _has_times(column: Column, of_elements: bool) -> bool:
    """The times of an unfrozen UDT's fields are not compared: a SELECT of them failed on 5.0.9."""
    return not column.type.multicell or (of_elements and column.type.name != "udt")


def _by_value(cell: tuple[bytes, int | None, int | None]) -> tuple[bytes, int]:
    return cell[0], cell[1] or 0


def _sized(data: bytes) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = 0
    while offset < len(data):
        (size,) = struct.unpack_from(">i", data, offset)
        values.append(data[offset + 4 : offset + 4 + size] if size >= 0 else None)
        offset += 4 + max(size, 0)
    return values


def _integer(data: bytes | None) -> int | None:
    return None if data is None else int.from_bytes(data, "big", signed=True)


@dataclass
class _Row:
    liveness: Liveness | None = None
    deleted: int = _NEVER
    columns: dict[str, int] = field(default_factory=dict)
    cells: dict[tuple[str, bytes | None], Cell] = field(default_factory=dict)
    expiries_of_ties: set[int] = field(default_factory=set)
    """When cells expire that have the write time of another."""

    def add(self, record: Record, is_cassandra_3: bool) -> None:
        content = record.content
        if content.liveness is not None and (self.liveness is None or _wins(content.liveness, self.liveness)):
            self.liveness = content.liveness
        if content.deletion is not None:
            self.deleted = max(self.deleted, content.deletion.write_time)
        for column, deletion in content.deletions:
            self.columns[column] = max(self.columns.get(column, _NEVER), deletion.write_time)
        for cell in content.cells:
            known_cell = self.cells.get((cell.column, cell.path))
            if known_cell is not None and known_cell.write_time == cell.write_time:
                self.expiries_of_ties |= {c.expires for c in (known_cell, cell) if c.expires is not None}
            winner = cell if known_cell is None else _reconciled(known_cell, cell, is_cassandra_3)
            self.cells[cell.column, cell.path] = winner

    def live(self, deleted: int, now: float) -> list[Cell]:
        return [
            cell
            for cell in self.cells.values()
            if cell.value is not None
            and cell.write_time > max(deleted, self.deleted, self.columns.get(cell.column, _NEVER))
            and (cell.expires is None or cell.expires > now)
        ]

    def is_live(self, deleted: int, now: float) -> bool:
        row = self.liveness
        is_there = row is not None and row.write_time > max(deleted, self.deleted)
        return is_there and row is not None and (row.expires is None or row.expires > now)

    def expiries(self) -> set[int]:
        times = {cell.expires for cell in self.cells.values()} | {self.liveness.expires if self.liveness else None}
        return {expiry for expiry in times if expiry is not None}


def _wins(a: Liveness, b: Liveness) -> bool:
    """LivenessInfo.supersedes."""
    if a.write_time != b.write_time:
        return a.write_time > b.write_time
    if a.expires is not None and b.expires is not None:
        return a.expires > b.expires
    return a.expires is not None


def _reconciled(a: Cell, b: Cell, is_cassandra_3: bool) -> Cell:
    """Cells.reconcile."""
    if a.write_time != b.write_time:
        return a if a.write_time > b.write_time else b
    if is_cassandra_3:
        return max(a, b, key=_order_on_cassandra_3)
    ends = [
        (cell.deleted_at is not None, cell.expires if cell.value is not None else cell.deleted_at) for cell in (a, b)
    ]
    (a_is_gone, a_ends), (b_is_gone, b_ends) = ends
    if (a_ends is None) != (b_ends is None):
        return b if a_ends is None else a
    if a_is_gone != b_is_gone:
        return a if a_is_gone else b
    if a_ends is not None and b_ends is not None and a_ends != b_ends:
        return a if a_ends > b_ends else b
    if a.ttl is not None and b.ttl is not None and a.ttl != b.ttl:
        return a if a.ttl < b.ttl else b
    return a if (a.value or b"") >= (b.value or b"") else b


def _order_on_cassandra_3(cell: Cell) -> tuple[bool, list[int], float]:
    """Conflicts.resolveRegular of 3.11, of cells that have not expired: the value comes before the TTL, and its bytes
    are signed.
    """
    ends = cell.expires if cell.value is not None else cell.deleted_at
    signed = [byte - 256 if byte > 127 else byte for byte in cell.value or b""]
    return cell.value is None, signed, math.inf if ends is None else ends


class Folded:
    """A table's records, which may come in any order, of nodes of Cassandra 3.x or of later ones."""

    def __init__(self, table: Table, records: Iterable[Record], is_cassandra_3: bool = False) -> None:
        self._table, self._is_cassandra_3 = table, is_cassandra_3
        self._partitions: dict[bytes, int] = {}
        self._ranges: dict[bytes, list[Record]] = {}
        self._statics: dict[bytes, _Row] = {}
        self._rows: dict[bytes, dict[Key, _Row]] = {}
        for record in records:
            self._rows.setdefault(record.partition, {})
            if record.scope == Scope.PARTITION:
                deletion = record.content.deletion or Deletion(_NEVER, 0)
                known_time = self._partitions.get(record.partition, _NEVER)
                self._partitions[record.partition] = max(known_time, deletion.write_time)
            elif record.scope == Scope.RANGE:
                self._ranges.setdefault(record.partition, []).append(record)
            elif record.scope == Scope.STATIC:
                self._statics.setdefault(record.partition, _Row()).add(record, is_cassandra_3)
            else:
                assert record.clustering is not None
                self._rows[record.partition].setdefault(record.clustering, _Row()).add(record, is_cassandra_3)

    def compare(self, selected: Selected) -> int:
        """Assert that these rows were selected, and no others. Returns how many were compared: where something expired
        about then, either may be right.
        """
        compared = 0
        rows = dict(selected.rows)
        now = selected.first
        for partition, rows_of_partition in self._rows.items():
            deleted = self._partitions.get(partition, _NEVER)
            static = self._statics.get(partition, _Row())
            of_statics = self._seen(static.live(deleted, now), selected.of_elements)
            expected: dict[Key, Seen] = {}
            unsure: set[Key] = set()
            key = self._split(partition)
            for clustering, row in rows_of_partition.items():
                gone = max(
                    [deleted, *(self._deleted(record, clustering) for record in self._ranges.get(partition, []))]
                )
                cells = row.live(gone, now)
                if cells or row.is_live(gone, now):
                    expected[(*key, *clustering)] = {**self._seen(cells, selected.of_elements), **of_statics}
                if self._is_unsure(row, selected) or self._is_unsure(static, selected):
                    unsure.add((*key, *clustering))
            if of_statics and not expected:
                expected[key + (None,) * len(self._table.clustering)] = of_statics
            selected_rows = {k: rows.pop(k) for k in list(rows) if k[: len(key)] == key}
            if unsure or self._is_unsure(static, selected):
                continue
            compared += len(selected_rows)
            assert selected_rows.keys() == expected.keys(), f"{self._table.full_name} {key}"
            for row_key, seen in selected_rows.items():
                where = f"{self._table.full_name} {row_key}"
                assert seen.keys() == expected[row_key].keys(), where
                for name, cells in seen.items():
                    others = expected[row_key][name]
                    assert [cell[:2] for cell in cells] == [cell[:2] for cell in others], f"{where} {name}"
                    for (*_, ttl_left), (*_, expires) in zip(cells, others, strict=True):
                        assert (ttl_left is None) == (expires is None), f"{where} {name}"
                        if ttl_left is not None:
                            assert selected.first - 1 <= expires - ttl_left <= selected.last + 1, f"{where} {name}"
        assert not rows, self._table.full_name
        return compared

    def _is_unsure(self, row: _Row, selected: Selected) -> bool:
        """Whether something of a row expired when it was read, or on Cassandra 3.x when it was merged."""
        may_have_expired = any(expiry < selected.last + 2 for expiry in row.expiries_of_ties)
        return _is_near(row.expiries(), selected) or (self._is_cassandra_3 and may_have_expired)

    def _seen(self, cells: Sequence[Cell], of_elements: bool) -> dict[str, Any]:
        values_by_column: dict[str, list[Any]] = {}
        for cell in cells:
            column = self._table.column(cell.column)
            assert column is not None
            assert cell.value is not None
            value = cell.value
            if column.type.multicell and cell.path is not None and column.type.name in ("map", "set"):
                value = cell.path + cell.value
            times = (cell.write_time, cell.expires) if _has_times(column, of_elements) else (None, None)
            values_by_column.setdefault(cell.column, []).append((value, *times))
        return {name: sorted(values_of_column, key=_by_value) for name, values_of_column in values_by_column.items()}

    def _split(self, partition: bytes) -> Key:
        if len(self._table.partition_key) == 1:
            return (partition,)
        components = []
        while partition:
            size = int.from_bytes(partition[:2], "big")
            components.append(partition[2 : 2 + size])
            partition = partition[3 + size :]
        return tuple(components)

    def _deleted(self, record: Record, clustering: Key) -> int:
        deletion = record.content.deletion
        assert deletion is not None
        is_in = self._is_past(clustering, record.start, 1) and self._is_past(clustering, record.end, -1)
        return deletion.write_time if is_in else _NEVER

    def _is_past(self, clustering: Key, bound: Bound | None, direction: int) -> bool:
        if bound is None:
            return True
        for column, value, end in zip(self._table.clustering, clustering, bound.values, strict=False):
            value_of_key, other = sort_key(column.type, value or b""), sort_key(column.type, end)
            if value_of_key != other:
                return bool(value_of_key > other) == ((direction > 0) != column.reversed)
        return bound.inclusive


def _is_near(expiries: set[int], selected: Selected) -> bool:
    return any(selected.first - 2 < expiry < selected.last + 2 for expiry in expiries)

"""Makes the statements that write the cells of a Change into another cluster, each with its own write time and TTL.

    Change of a row: liveness at 5, v = 'x' at 5 with TTL, m['k'] deleted at 4
    → one BATCH: INSERT (key) USING TIMESTAMP 5 …; UPDATE USING TIMESTAMP 5 AND TTL … SET v = 'x';
                 DELETE m['k'] USING TIMESTAMP 4

Values stay the bytes that the commit log has. Cassandra decides between two writes of a cell by their write times, so
the statements have the same result in any order, and however often they come. Elements of unfrozen lists are not
written here: CQL can't name their cells.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement

from helenus_connector.gate.replicas import routing_key
from helenus_connector.shape.cep44.predicates import ranges
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import quote
from helenus_schemas.event.cells import Cell, Cells, Deletion
from helenus_schemas.event.change import Bound, Scope

MAX_TTL_S = 630_720_000
"""Cassandra's own limit, 20 years."""
_SIGNS = {"LT": "<", "LTE": "<=", "EQ": "=", "GTE": ">=", "GT": ">"}
_Group = dict[tuple[str, int], Any]  # by column, and field of a UDT or -1: the value to set, or elements to add
_WHOLE = -1


def is_list(column: Column) -> bool:
    """Return whether a column is an unfrozen list."""
    return column.type.multicell and column.type.name == "list"


class TargetStatements:
    """The statements of one version of the target's table, which have a consistency `level`."""

    def __init__(self, session: Any, table: Table, level: int) -> None:
        self.table = table
        self._session = session
        self._level = level
        self._prepared: dict[str, Any] = {}
        self._name = f"{quote(table.keyspace)}.{quote(table.name)}"
        self._partition = " AND ".join(f"{quote(c.name)} = ?" for c in table.partition_key)
        self._row = " AND ".join(f"{quote(c.name)} = ?" for c in table.primary_key)
        self._columns = {column.name: column for column in table.values}
        self._slots = {scope: _slots(columns) for scope, columns in _columns_by_scope(table).items()}

    def for_row(self, key: Key, scope: Scope, cells: Cells, now_s: int) -> list[BoundStatement]:
        """Return the statements of the cells of a ROW or STATIC, whose columns the table has, without those of unfrozen
        lists. What has expired at `now_s`, s since the epoch, is written as deleted.
        """
        statements = []
        if cells.deletion is not None:
            statements.append(self._delete(key, scope, cells.deletion))
        for name, deletion in cells.deletions.items():
            if not is_list(self._columns[name]):
                cql = f"DELETE {quote(name)} FROM {self._name} USING TIMESTAMP ? WHERE {self._where(scope)}"
                statements.append(self._bind(cql, [_long(deletion.write_time)], key, scope))
        if cells.liveness is not None:
            ttl = _ttl(cells.liveness.ttl, cells.liveness.expires, now_s)
            # What has expired shadows older writes of the row: here it expires anew, a second later.
            statements.append(self._insert(key, cells.liveness.write_time, 1 if ttl is None else ttl))
        groups: dict[tuple[int, int], _Group] = defaultdict(dict)
        for cell in cells.cells:
            if not is_list(self._columns[cell.column]):
                statements += self._sort_cell(cell, key, scope, groups, now_s)
        statements += [self._update(key, scope, *times, group) for times, group in groups.items()]
        return statements

    def for_range(self, key: Key, deletion: Deletion, start: Bound | None, end: Bound | None) -> list[BoundStatement]:
        """Return the statements that delete a range of a partition."""
        statements = []
        for predicates in ranges(self.table.clustering, start, end):
            names = [quote(self.table.clustering[p.column].name) for p in predicates]
            conditions = [f"{name} {_SIGNS[p.symbol]} ?" for name, p in zip(names, predicates, strict=True)]
            where = " AND ".join([self._partition, *conditions])
            bound = self._bind(
                f"DELETE FROM {self._name} USING TIMESTAMP ? WHERE {where}",
                [_long(deletion.write_time)],
                key,
                Scope.PARTITION,
            )
            bound.values += [p.value for p in predicates]
            statements.append(bound)
        return statements

    def for_partition(self, key: Key, deletion: Deletion) -> list[BoundStatement]:
        """Return the statement that deletes a partition."""
        return [self._delete(key, Scope.PARTITION, deletion)]

    def for_list(
        self, key: Key, scope: Scope, name: str, runs: Iterable[tuple[int, list[bytes]]], write_time: int
    ) -> list[BoundStatement]:
        """Return the statements that replace a list, by one for each of its `runs`, elements with the same TTL; none of
        a list that is empty.
        """
        statements: list[BoundStatement] = []
        column = quote(name)
        for ttl, elements in runs:
            value = f"{column} + ?" if statements else "?"
            cql = f"UPDATE {self._name} USING TIMESTAMP ? AND TTL ? SET {column} = {value} WHERE {self._where(scope)}"
            statements.append(self._bind(cql, [_long(write_time), _int(ttl), _collection(elements)], key, scope))
        if not statements:
            cql = f"DELETE {column} FROM {self._name} USING TIMESTAMP ? WHERE {self._where(scope)}"
            statements.append(self._bind(cql, [_long(write_time)], key, scope))
        return statements

    def together(self, statements: Sequence[BoundStatement], is_idempotent: bool = True) -> Any:
        """Return the statements of one partition as one, which becomes one mutation."""
        if len(statements) == 1:
            statements[0].is_idempotent = is_idempotent
            return statements[0]
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=self._level)
        for statement in statements:
            batch.add(statement)
        batch.is_idempotent = is_idempotent
        return batch

    def _sort_cell(
        self, cell: Cell, key: Key, scope: Scope, groups: dict[tuple[int, int], _Group], now_s: int
    ) -> list[BoundStatement]:
        """Put a cell into the group of its write time and TTL, or return the statement that deletes an element."""
        column = self._columns[cell.column]
        ttl = None if cell.value is None else _ttl(cell.ttl, cell.expires, now_s)
        value = cell.value if ttl is not None else None
        kind = column.type.name if column.type.multicell else ""
        if value is None and kind in ("map", "set"):
            cql = f"DELETE {quote(column.name)}[?] FROM {self._name} USING TIMESTAMP ? WHERE {self._where(scope)}"
            return [self._bind(cql, [cell.path or b"", _long(cell.write_time)], key, scope)]
        group = groups[cell.write_time, ttl or 0]
        if kind in ("map", "set"):
            elements = group.setdefault((column.name, _WHOLE), [])
            elements.append((cell.path or b"", value) if kind == "map" else (cell.path or b"",))
        else:
            field = int.from_bytes(cell.path or b"", "big") if kind == "udt" else _WHOLE
            group[column.name, field] = value
        return []

    def _update(self, key: Key, scope: Scope, write_time: int, ttl: int, group: _Group) -> BoundStatement:
        slots = self._slots[scope]
        assignments = ", ".join(text for text in slots.values())
        values = [self._slot_value(group.get(slot, UNSET_VALUE)) for slot in slots]
        cql = f"UPDATE {self._name} USING TIMESTAMP ? AND TTL ? SET {assignments} WHERE {self._where(scope)}"
        return self._bind(cql, [_long(write_time), _int(ttl), *values], key, scope)

    @staticmethod
    def _slot_value(value: Any) -> Any:
        if isinstance(value, list):
            return struct.pack(">i", len(value)) + b"".join(_sized(part) for element in value for part in element)
        return value

    def _insert(self, key: Key, write_time: int, ttl: int) -> BoundStatement:
        names = ", ".join(quote(c.name) for c in self.table.primary_key)
        marks = ", ".join("?" * len(self.table.primary_key))
        prepared = self._prepare(f"INSERT INTO {self._name} ({names}) VALUES ({marks}) USING TIMESTAMP ? AND TTL ?")
        return self._bound(prepared, [*self._key_values(key, Scope.ROW), _long(write_time), _int(ttl)], key)

    def _delete(self, key: Key, scope: Scope, deletion: Deletion) -> BoundStatement:
        cql = f"DELETE FROM {self._name} USING TIMESTAMP ? WHERE {self._where(scope)}"
        return self._bind(cql, [_long(deletion.write_time)], key, scope)

    def _where(self, scope: Scope) -> str:
        return self._row if scope is Scope.ROW else self._partition

    def _key_values(self, key: Key, scope: Scope) -> list[bytes]:
        """Return the values of a key: a clustering value of no bytes is null in the key of an event."""
        width = len(self.table.primary_key if scope is Scope.ROW else self.table.partition_key)
        return [value or b"" for value in key[:width]]

    def _bind(self, cql: str, values: list[Any], key: Key, scope: Scope) -> BoundStatement:
        return self._bound(self._prepare(cql), [*values, *self._key_values(key, scope)], key)

    def _bound(self, prepared: Any, values: list[Any], key: Key) -> BoundStatement:
        partition_key = routing_key(key[: len(self.table.partition_key)])
        bound = BoundStatement(prepared, consistency_level=self._level, routing_key=partition_key)
        bound.values = values
        bound.is_idempotent = True
        return bound

    def _prepare(self, cql: str) -> Any:
        if cql not in self._prepared:
            self._prepared[cql] = self._session.prepare(cql)
        return self._prepared[cql]


def _columns_by_scope(table: Table) -> Mapping[Scope, Sequence[Column]]:
    return {Scope.ROW: table.regulars, Scope.STATIC: table.statics}


def _slots(columns: Sequence[Column]) -> dict[tuple[str, int], str]:
    """Return the assignments of an UPDATE of all columns but lists; what is unset there stays as it is."""
    slots: dict[tuple[str, int], str] = {}
    for column in columns:
        name = quote(column.name)
        if not column.type.multicell:
            slots[column.name, _WHOLE] = f"{name} = ?"
        elif column.type.name in ("map", "set"):
            slots[column.name, _WHOLE] = f"{name} = {name} + ?"
        elif column.type.name == "udt":
            slots |= {(column.name, n): f"{name}.{quote(field)} = ?" for n, field in enumerate(column.type.fields)}
    return slots


def _ttl(ttl: int | None, expires: int | None, now_s: int) -> int | None:
    """Return the TTL to write so that a cell expires when it does in the source, 0 for never; None if it has."""
    if ttl is None or expires is None:
        return 0
    return min(expires - now_s, MAX_TTL_S) if expires > now_s else None


def _collection(elements: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(elements)) + b"".join(map(_sized, elements))


def _sized(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _long(value: int) -> bytes:
    return struct.pack(">q", value)


def _int(value: int) -> bytes:
    return struct.pack(">i", value)

"""Does a data topic agree with its table? The last record of every key against a SELECT, by codecs not ours.

A marker (header `scope`) wipes the rows of its partition, of a range of it, or of the table; a null value wipes its
key. Row records show the static columns as they were when the row was read, so those are compared in the partition's
own record alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from helenus_schemas.avro.build import value_columns
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, quote
from helenus_schemas.names import avro_name
from helenus_stack.records import Record
from helenus_stack.values import as_clustering, from_avro, from_driver, from_json

Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """A key whose last record is not its row; None where one is missing."""

    key: Key
    topic: Row | None
    table: Row | None

    def __str__(self) -> str:
        return f"{self.key}: the topic says {self.topic}, the table {self.table}"


def differences(session: Any, table: Table, records: Iterable[Record]) -> list[Difference]:
    """The keys on which topic and table disagree, none when they have converged. Reads the whole table."""
    ours, theirs = last_records(table, records), rows(session, table)
    keys = sorted(ours.keys() | theirs.keys(), key=repr)
    return [Difference(k, ours.get(k), theirs.get(k)) for k in keys if ours.get(k) != theirs.get(k)]


def last_records(table: Table, records: Iterable[Record]) -> dict[Key, Row]:
    """The rows that a topic's records leave: by key, a None in it for the partition's static columns."""
    width = len(table.partition_key)
    last_by_key: dict[Key, Row] = {}
    places: dict[Key, int] = {}
    for record in records:
        scope = record.headers.get("scope")
        if scope == b"table":
            # One in every topic partition, for the rows of that one.
            for gone in [k for k in last_by_key if places[k] == record.partition]:
                del last_by_key[gone]
            continue
        name = record_key(table, record)
        if scope in (b"partition", b"range"):
            start, end = (json.loads(record.headers.get(limit, b"null")) for limit in ("start", "end"))
            rows_deleted = [
                k for k in last_by_key if k[:width] == name[:width] and is_within(table, k[width:], start, end)
            ]
            for gone in rows_deleted:
                del last_by_key[gone]
        places[name] = record.partition
        if record.value is None:
            last_by_key.pop(name, None)
        else:
            row = compared_columns(table, name, _columns(value_columns(table), record.value, record.is_json))
            if row is not None:
                last_by_key[name] = row
            else:
                last_by_key.pop(name, None)
    return last_by_key


def rows(session: Any, table: Table) -> dict[Key, Row]:
    """The rows of a table, in the form of `last_records`. `session` answers with plain tuples."""
    table_rows: dict[Key, Row] = {}
    columns = table.primary_key + table.values
    names = ", ".join(quote(c.name) for c in columns)
    for values in session.execute(f"SELECT {names} FROM {quote(table.keyspace)}.{quote(table.name)}"):
        row = {c.name: from_driver(c.type, v) for c, v in zip(columns, values, strict=True)}
        name = _name(table, row)
        partition = name[: len(table.partition_key)]
        shown = {c.name: row[c.name] for c in value_columns(table)}
        if table.statics:
            own = (*partition, *[None] * len(table.clustering))
            statics = compared_columns(table, own, shown)
            if statics is not None:
                table_rows[own] = statics
        if None not in name:
            table_rows[name] = compared_columns(table, name, shown) or {}
    return table_rows


def record_key(table: Table, record: Record) -> Key:
    """The key of a record's row, with None for clustering columns that it does not have."""
    return _name(table, _key(table, record))


def is_within(table: Table, key: Key, start: Any, end: Any) -> bool:
    """Whether a row's clustering key lies within a range: a bound is a prefix, compared in the table's order."""
    if None in key:
        return start is None and end is None  # the static columns go with their whole partition alone
    for bound, is_start in ((start, True), (end, False)):
        if bound is None:
            continue
        for column, value, limit in zip(table.clustering, key, bound["values"].values(), strict=False):
            there = as_clustering(column.type, from_json(column.type, limit))
            ours, theirs = order(column.type, value), order(column.type, there)
            if ours != theirs:
                if ((ours < theirs) != column.reversed) == is_start:
                    return False
                break
        else:
            if not bound["inclusive"]:
                return False
    return True


def order(t: CqlType, value: Any) -> Any:
    """What Cassandra sorts a value of `as_clustering` by; but maps by the texts of their keys."""
    if value is None:  # within a tuple: before all else
        return ()
    match t.name:
        case "float" | "double":
            number = float(value)
            sort_key: Any = number != number, number if number == number else 0, math.copysign(1, number)
        case "decimal":
            sign, digits, _ = Decimal(value[0]).as_tuple()
            sort_key = Decimal((sign, digits, -value[1]))
        case "inet":
            sort_key = value.packed  # byte for byte, whichever version
        case "uuid" | "timeuuid":
            # By version; those of version 1 by time, then byte for byte as signed ones.
            timed = value.version == 1
            sort_key = value.version or 0, value.time if timed else 0, [b ^ 0x80 if timed else b for b in value.bytes]
        case "tuple" | "udt":
            sort_key = [order(a, v) for a, v in zip(t.args, value, strict=True)]
        case "list" | "vector":
            sort_key = [order(t.args[0], v) for v in value]
        case "set":
            sort_key = sorted(order(t.args[0], v) for v in value)
        case "map":
            sort_key = [(k, order(t.args[1], v)) for k, v in sorted(value)]
        case _:
            sort_key = value
    return (sort_key,)


def compared_columns(table: Table, key: Key, row: Row) -> Row | None:
    """What is compared of a record: a row without its static columns, or a partition's own, if it has any."""
    if None not in key:
        return {name: value for name, value in row.items() if name not in {c.name for c in table.statics}}
    statics = {c.name: row.get(c.name) for c in table.statics}
    return statics if any(value is not None for value in statics.values()) else None


def _name(table: Table, row: Row) -> Key:
    """The key of a row: what Cassandra holds for one row is one key."""
    partition = (row[c.name] for c in table.partition_key)
    return (*partition, *(as_clustering(c.type, row[c.name]) for c in table.clustering))


def _key(table: Table, record: Record) -> Row:
    if record.is_json:
        return _columns(table.primary_key, record.key, True)
    # By their places: a column keeps its first name in the key's schema.
    return {c.name: from_avro(c.type, v) for c, v in zip(table.primary_key, record.key.values(), strict=True)}


def _columns(columns: tuple[Column, ...], record: dict[str, Any], is_json: bool) -> Row:
    # A record of an older schema lacks the columns that came later: they were null.
    if is_json:
        return {c.name: from_json(c.type, record.get(c.name)) for c in columns}
    return {c.name: from_avro(c.type, record.get(avro_name(c.name))) for c in columns}

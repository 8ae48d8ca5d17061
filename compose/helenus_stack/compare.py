"""Does a data topic agree with its table? The last record of every key against a SELECT, by codecs not ours.

A marker (header `scope`) wipes the rows of its partition; a null value wipes its key. Row records show the static
columns as they were when the row was read, so those are compared in the partition's own record alone.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from helenus_schemas.avro import value_columns
from helenus_schemas.cql import CqlType, quote
from helenus_schemas.names import avro_names
from helenus_schemas.table import Column, Table
from helenus_stack.records import Record

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
    found: dict[Key, Row] = {}
    for record in records:
        key = _from_avro_columns(table.primary_key, record.key)
        name = tuple(key.values())
        if record.headers.get("scope") == b"partition":
            for gone in [k for k in found if k[:width] == name[:width]]:
                del found[gone]
        if record.value is None:
            found.pop(name, None)
        else:
            row = _kept(table, name, _from_avro_columns(value_columns(table), record.value))
            if row is not None:
                found[name] = row
            else:
                found.pop(name, None)
    return found


def rows(session: Any, table: Table) -> dict[Key, Row]:
    """The rows of a table, in the form of `last_records`. `session` answers with plain tuples."""
    found: dict[Key, Row] = {}
    columns = table.primary_key + table.values
    names = ", ".join(quote(c.name) for c in columns)
    for values in session.execute(f"SELECT {names} FROM {quote(table.keyspace)}.{quote(table.name)}"):
        row = {c.name: _from_driver(c.type, v) for c, v in zip(columns, values, strict=True)}
        name = tuple(row[c.name] for c in table.primary_key)
        partition = name[: len(table.partition_key)]
        shown = {c.name: row[c.name] for c in value_columns(table)}
        if table.statics:
            own = (*partition, *[None] * len(table.clustering))
            statics = _kept(table, own, shown)
            if statics is not None:
                found[own] = statics
        if None not in name:
            found[name] = _kept(table, name, shown) or {}
    return found


def _kept(table: Table, key: Key, row: Row) -> Row | None:
    """What is compared of a record: a row without its static columns, or a partition's own, if it has any."""
    if None not in key:
        return {name: value for name, value in row.items() if name not in {c.name for c in table.statics}}
    statics = {c.name: row.get(c.name) for c in table.statics}
    return statics if any(value is not None for value in statics.values()) else None


def _from_avro_columns(columns: tuple[Column, ...], record: dict[str, Any]) -> Row:
    legal = avro_names(c.name for c in columns)
    # A record of an older schema lacks the columns that came later: they were null.
    return {c.name: _from_avro(c.type, record.get(legal[c.name])) for c in columns}


_AVRO: dict[str, Callable[[Any], Any]] = {
    "varint": lambda v: int.from_bytes(v, "big", signed=True),
    "decimal": lambda v: (int.from_bytes(v["bigint"], "big", signed=True), v["scale"]),
    "duration": lambda v: (v["months"], v["days"], v["nanoseconds"]),
    "timestamp": lambda v: v.replace(tzinfo=None),
    "inet": ipaddress.ip_address,
}
_DRIVER: dict[str, Callable[[Any], Any]] = {
    "decimal": lambda v: _unscaled(v),
    "duration": lambda v: (v.months, v.days, v.nanoseconds),
    "date": lambda v: v.date(),
    "time": lambda v: v.nanosecond_time,
    "inet": ipaddress.ip_address,
    "timestamp": lambda v: _millis(v),
}


_TEXT: dict[str, Callable[[Any], str]] = {
    "boolean": lambda k: str(k).lower(),
    "blob": lambda k: f"0x{k.hex()}",
    "timestamp": lambda k: f"{_millis(k).isoformat(timespec='milliseconds')}Z",
    "time": lambda k: f"{k.hour:02}:{k.minute:02}:{k.second:02}.{k.nanosecond:09}",
}


def _from_avro(t: CqlType, value: Any) -> Any:
    if value is None:
        return None
    if t.name == "tuple":
        return tuple(_from_avro(a, value[f"index_{i}"]) for i, a in enumerate(t.args))
    if t.name == "udt":
        legal = avro_names(t.fields)
        return tuple(_from_avro(a, value.get(legal[f])) for f, a in zip(t.fields, t.args, strict=True))
    return _same(t, value, _from_avro, _AVRO)


def _from_driver(t: CqlType, value: Any) -> Any:
    if value is None:
        return None
    if t.name in ("udt", "tuple"):
        return tuple(_from_driver(a, v) for a, v in zip(t.args, value, strict=True))
    return _same(t, value, _from_driver, _DRIVER)


def _same(
    t: CqlType, value: Any, nested: Callable[[CqlType, Any], Any], scalars: dict[str, Callable[[Any], Any]]
) -> Any:
    if t.name in ("list", "vector"):
        return [nested(t.args[0], v) for v in value]
    if t.name == "set":
        return sorted((nested(t.args[0], v) for v in value), key=repr)
    if t.name == "map":
        # Avro's map has text for keys.
        return {
            k if isinstance(k, str) else _TEXT.get(t.args[0].name, str)(k): nested(t.args[1], v)
            for k, v in value.items()
        }
    return scalars[t.name](value) if t.name in scalars else value


def _unscaled(value: Decimal) -> tuple[int, int]:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    return (-unscaled if sign else unscaled, -exponent)


def _millis(value: datetime.datetime) -> datetime.datetime:
    # The driver goes through a float and may be off by a microsecond.
    near = value + datetime.timedelta(microseconds=500)
    return near.replace(microsecond=near.microsecond // 1000 * 1000)

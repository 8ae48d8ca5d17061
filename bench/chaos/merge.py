"""Rows from records of changes, as a sink of `resolver=none` makes them: by write time, whatever order they come in."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from helenus_schemas.cql.table import Column, Table
from helenus_stack.compare import Key, Row, compared_columns, is_within, record_key
from helenus_stack.records import Record
from helenus_stack.values import from_json

_NEVER = -(2**63)


@dataclass
class Values:
    """A column of a row: its value, or its elements, each with its write time; None is a deleted one."""

    replaced_at: int = _NEVER
    """When all that it had was deleted."""
    elements: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """By the element's name; a column of one cell has the element ``."""

    def write(self, name: str, time: int, value: Any) -> None:
        if time >= self.elements.get(name, (_NEVER, None))[0]:
            self.elements[name] = time, value

    def live(self, deleted_at: int) -> dict[str, Any]:
        """Return the elements that nothing deleted, not the row's deletion either."""
        deleted_at = max(deleted_at, self.replaced_at)
        return {n: value for n, (time, value) in self.elements.items() if time > deleted_at and value is not None}


@dataclass
class RowChanges:
    """What changes say of a row."""

    deleted_at: int = _NEVER
    written_at: int = _NEVER
    is_expired: bool = False
    """The newest write of the row itself had a TTL, which is over."""
    columns: dict[str, Values] = field(default_factory=dict)


@dataclass
class MergedRows:
    """The rows that changes of a table leave once every TTL is over. A change of a digest in `mixed` has cells of
    several write times, of which its record has one: its rows are `unsure`.
    """

    table: Table
    mixed: Collection[str] = ()
    rows: dict[Key, RowChanges] = field(default_factory=dict)
    deletions: list[tuple[Key, Any, Any, int]] = field(default_factory=list)
    """Of partitions and ranges: the partition, the bounds, and the write time."""
    unsure: set[Key] = field(default_factory=set)

    def take(self, records: Iterable[Record]) -> None:
        """Merge these records, in any order."""
        for record in records:
            if record.value is not None:  # a tombstone says what the record before it said
                self._take(record, record.value)

    def _take(self, record: Record, value: Mapping[str, Any]) -> None:
        key, scope = record_key(self.table, record), record.headers.get("scope")
        time, op = int(value["source"]["ts_us"]), value["op"]
        if scope in (b"partition", b"range"):
            start, end = (json.loads(record.headers.get(limit, b"null")) for limit in ("start", "end"))
            self.deletions.append((key[: len(self.table.partition_key)], start, end, time))
            return
        row = self.rows.setdefault(key, RowChanges())
        if (digest := record.headers.get("digest")) is not None and digest.decode() in self.mixed:
            self.unsure.add(key)
        written = value.get("written")
        if op == "d":
            row.deleted_at = max(row.deleted_at, time)
            return
        names = {c.name for c in self.table.values}
        if written is None:  # it was read: all columns
            written = {"columns": sorted(names), "replaced": sorted(names), "removed": {}}
        if op in "cr" and None not in key and time >= row.written_at:
            row.written_at, row.is_expired = time, "expires" in record.headers
        for name in written["columns"]:
            column = next((c for c in self.table.values if c.name == name), None)
            if column is not None:  # else it was dropped since
                self._write(row, column, time, value["after"].get(name), written, "expires" in record.headers)

    def _write(
        self, row: RowChanges, column: Column, time: int, value: Any, written: Mapping[str, Any], is_expired: bool
    ) -> None:
        values = row.columns.setdefault(column.name, Values())
        if not column.type.multicell:
            values.write("", time, None if is_expired else value)
            return
        if column.name in written["replaced"]:
            values.replaced_at = max(values.replaced_at, time - 1)  # as Cassandra dates what an assignment deletes
        for name in written["removed"].get(column.name, ()):
            values.write(name, time, None)
        for name, element in _elements(column, value).items():
            values.write(name, time, None if is_expired else element)

    def shown(self) -> dict[Key, Row]:
        """Return the rows as `helenus_stack.compare.rows` gives those of a table."""
        shown = {}
        for key, row in self.rows.items():
            deleted_at = max([row.deleted_at, *(time for time in self._deletions_of(key))])
            columns = {c.name: self._value(row, c, deleted_at) for c in self.table.values}
            is_row = row.written_at > deleted_at and not row.is_expired
            if None in key or is_row or any(value is not None for value in columns.values()):
                compared = compared_columns(self.table, key, columns)
                if compared is not None:
                    shown[key] = compared
        return shown

    def _deletions_of(self, key: Key) -> Iterable[int]:
        width = len(self.table.partition_key)
        for partition, start, end, time in self.deletions:
            if key[:width] == partition and is_within(self.table, key[width:], start, end):
                yield time

    def _value(self, row: RowChanges, column: Column, deleted_at: int) -> Any:
        live = row.columns[column.name].live(deleted_at) if column.name in row.columns else {}
        if not column.type.multicell:
            return from_json(column.type, live.get(""))
        if not live:
            return None
        return from_json(column.type, list(live.values()) if column.type.name == "set" else live)


def _elements(column: Column, value: Any) -> dict[str, Any]:
    """Return the elements that a record has of a column of many cells, by the names that `removed` has for them."""
    if value is None:
        return {}
    if column.type.name == "set":
        return {_name(element): element for element in value}
    return {name: element for name, element in value.items() if element is not None}


def _name(element: Any) -> str:
    return element if isinstance(element, str) else json.dumps(element)

"""A table's definition, read from `system_schema`."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from helenus_schemas.cql.types import CqlType, parse, quote, walk

# How table ids of Cassandra 6.0 begin.
_NUMBERED_TABLE = bytes.fromhex("1b255f4def2540a6")


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `kind` is `partition_key`, `clustering`, `static` or `regular`, `position` its index in the key."""

    name: str
    type: CqlType
    kind: str = "regular"
    position: int = -1
    reversed: bool = False


@dataclass(frozen=True)
class Table:
    """A table. `dropped` holds columns that old commit log segments may still name. `hides_columns`: it has COMPACT
    STORAGE of a kind whose rows have columns that CQL does not show; those are among `columns`. `dropped_at` is when
    columns of these names were dropped last, µs since the epoch: what was written until then is not of today's column.
    `added_at` is when each column got its name and type, µs since the epoch, by the clock of the node that altered it.
    `gc_grace_s` is for how long nodes keep its tombstones.
    """

    keyspace: str
    name: str
    id: uuid.UUID
    columns: tuple[Column, ...]
    cdc: bool = False
    dropped: Mapping[str, Column] = field(default_factory=dict)
    hides_columns: bool = False
    dropped_at: Mapping[str, int] = field(default_factory=dict, compare=False)
    gc_grace_s: int = field(default=864_000, compare=False)
    added_at: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def unsupported(self) -> str | None:
        """Return why changes of this table can't be captured, None if they can."""
        if not self.hides_columns:
            return None
        return (
            "a table with COMPACT STORAGE whose rows have columns that CQL hides: "
            "ALTER TABLE ... DROP COMPACT STORAGE, or leave it out"
        )

    @property
    def full_name(self) -> str:
        """Return `keyspace.table`, unquoted, as topics and records are named."""
        return f"{self.keyspace}.{self.name}"

    @cached_property
    def partition_key(self) -> tuple[Column, ...]:
        return self._keys("partition_key")

    @cached_property
    def clustering(self) -> tuple[Column, ...]:
        return self._keys("clustering")

    @cached_property
    def primary_key(self) -> tuple[Column, ...]:
        return self.partition_key + self.clustering

    @cached_property
    def statics(self) -> tuple[Column, ...]:
        return self._named("static")

    @cached_property
    def regulars(self) -> tuple[Column, ...]:
        return self._named("regular")

    @cached_property
    def values(self) -> tuple[Column, ...]:
        """Return the columns of a data record's value, in their order there: all outside the key."""
        return self.regulars + self.statics

    def select_columns(self, pattern: str) -> Table:
        """Return this table with its key and only those other columns whose whole name matches a regular expression."""
        keys = ("partition_key", "clustering")
        columns = tuple(c for c in self.columns if c.kind in keys or re.fullmatch(pattern, c.name))
        return self if len(columns) == len(self.columns) else replace(self, columns=columns)

    def with_forms(self, forms: Mapping[str, str]) -> Table:
        """Return this table with the decimals, varints and times of its values, not of its key, as `CqlType.with_forms`
        has it.
        """
        keys = ("partition_key", "clustering")
        columns = (c if c.kind in keys else replace(c, type=c.type.with_forms(forms)) for c in self.columns)
        return replace(self, columns=tuple(columns)) if forms else self

    def column(self, name: str) -> Column | None:
        """Return the column of this name, dropped ones included."""
        return self._by_name.get(name) or self.dropped.get(name)

    @cached_property
    def cql(self) -> str:
        """Return the table's definition as text, its user-defined types first: the same on every node."""
        types = {t.label: t for t in walk(c.type for c in self.columns) if t.name == "udt"}
        lines = [
            f"CREATE TYPE {quote(self.keyspace)}.{quote(name)} "
            f"({', '.join(f'{quote(f)} {t}' for f, t in zip(udt.fields, udt.args, strict=True))});"
            for name, udt in sorted(types.items())
        ]
        columns = ", ".join(
            f"{quote(c.name)} {c.type}{' static' if c.kind == 'static' else ''}" for c in self.primary_key + self.values
        )
        key = ", ".join(quote(c.name) for c in self.partition_key)
        clustering = "".join(f", {quote(c.name)}" for c in self.clustering)
        order = ", ".join(f"{quote(c.name)} {'DESC' if c.reversed else 'ASC'}" for c in self.clustering)
        lines.append(
            f"CREATE TABLE {quote(self.keyspace)}.{quote(self.name)} ({columns}, PRIMARY KEY (({key}){clustering}))"
            + (f" WITH CLUSTERING ORDER BY ({order});" if order else ";")
        )
        return "\n".join(lines)

    @cached_property
    def schema_id(self) -> str:
        """Return the MD5 of `cql`, 32 hexadecimal characters: it names this version of the table."""
        return hashlib.md5(self.cql.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {c.name: c for c in self.columns}

    def _keys(self, kind: str) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns if c.kind == kind), key=lambda c: c.position))

    def _named(self, kind: str) -> tuple[Column, ...]:
        return tuple(sorted((c for c in self.columns if c.kind == kind), key=lambda c: c.name))


def is_newer_table(table: uuid.UUID, other: uuid.UUID) -> bool:
    """Return whether a table was created after another one, by their ids; False if these do not tell.

    Until Cassandra 5.0 a table's id is of the time when it was created, as a rule. From 6.0 on it ends in the epoch of
    the cluster's metadata (TableId.get).
    """
    is_numbered, is_other_numbered = (each.bytes.startswith(_NUMBERED_TABLE) for each in (table, other))
    if is_numbered or is_other_numbered:
        return is_numbered and (not is_other_numbered or table.int > other.int)
    return table.version == other.version == 1 and table.time > other.time


def read_tables(session: Any, keyspace: str | None = None, table: str | None = None) -> dict[uuid.UUID, Table]:
    """Return all tables by id, or one keyspace's, or one table of it, from `system_schema` through a driver session.

    One that is created meanwhile is left out, as its columns may have been asked for before they were there.
    """

    def select(name: str, columns: str) -> list[Any]:
        keys = {"keyspace_name": keyspace, "table_name": None if name == "types" else table}
        conditions = {column: value for column, value in keys.items() if value is not None}
        where = " WHERE " + " AND ".join(f"{column} = %s" for column in conditions) if conditions else ""
        args = tuple(conditions.values()) or None
        return list(session.execute(f"SELECT keyspace_name, {columns} FROM system_schema.{name}{where}", args))

    types: dict[str, list[Any]] = {}
    for r in select("types", "type_name, field_names, field_types"):
        types.setdefault(r.keyspace_name, []).append(r)
    udts = {space: _Udts(type_rows) for space, type_rows in types.items()}

    columns: dict[tuple[str, str], list[Column]] = {}
    added_at: dict[tuple[str, str], dict[str, int]] = {}
    for r in select(
        "columns", "table_name, column_name, clustering_order, kind, position, type, writetime(type) AS added"
    ):
        added_at.setdefault((r.keyspace_name, r.table_name), {})[r.column_name] = r.added or 0
        columns.setdefault((r.keyspace_name, r.table_name), []).append(
            Column(
                r.column_name,
                parse(r.type, udts.get(r.keyspace_name)),
                r.kind,
                r.position,
                r.clustering_order == "desc",
            )
        )
    dropped: dict[tuple[str, str], dict[str, Column]] = {}
    dropped_at: dict[tuple[str, str], dict[str, int]] = {}
    # As a number: the driver can't decode a time beyond Python's years, which a DROP with USING TIMESTAMP may have.
    dropped_column = "blobasbigint(timestampasblob(dropped_time)) AS at"
    for r in select("dropped_columns", f"table_name, column_name, {dropped_column}, kind, type"):
        dropped.setdefault((r.keyspace_name, r.table_name), {})[r.column_name] = Column(
            r.column_name, parse(r.type, udts.get(r.keyspace_name)), r.kind
        )
        dropped_at.setdefault((r.keyspace_name, r.table_name), {})[r.column_name] = r.at * 1000
    return {
        r.id: Table(
            r.keyspace_name,
            r.table_name,
            r.id,
            tuple(columns.get((r.keyspace_name, r.table_name), ())),
            bool(r.cdc),
            dropped.get((r.keyspace_name, r.table_name), {}),
            _hides_columns(r, columns.get((r.keyspace_name, r.table_name), ())),
            dropped_at.get((r.keyspace_name, r.table_name), {}),
            r.gc_grace_seconds,
            added_at.get((r.keyspace_name, r.table_name), {}),
        )
        for r in select("tables", "table_name, id, cdc, flags, gc_grace_seconds")
        if (r.keyspace_name, r.table_name) in columns
    }


def read_udts(session: Any, keyspace: str) -> Mapping[str, CqlType]:
    """Return a keyspace's UDTs by name, unfrozen, through a driver session."""
    query = "SELECT type_name, field_names, field_types FROM system_schema.types WHERE keyspace_name = %s"
    return _Udts(session.execute(query, (keyspace,)))


def _hides_columns(table: Any, columns: Iterable[Column]) -> bool:
    """Return whether rows have columns that CQL hides, by the flags of Cassandra 3.11 to 5.0: `compound` for tables
    that are not compact, `dense` for compact tables with clustering columns. Without either the columns are static
    ones, next to a hidden clustering column and a hidden value. A dense table of key columns only hides its value, of
    the type `empty`. Super columns hide a map.
    """
    flags = getattr(table, "flags", None)
    if flags is None or ("compound" in flags and "dense" not in flags):
        return False
    return "dense" not in flags or "super" in flags or any(c.type.label.endswith("EmptyType") for c in columns)


class _Udts(dict[str, CqlType]):
    """A keyspace's UDTs by name, each resolved when a type names it."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = {r.type_name: r for r in rows}

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __missing__(self, name: str) -> CqlType:
        row = self._rows[name]
        args = tuple(parse(text, self) for text in row.field_types)
        self[name] = CqlType("udt", args, label=name, fields=tuple(row.field_names))
        return self[name]

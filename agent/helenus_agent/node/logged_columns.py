"""The columns of tables as the commit log has them: of a change of the schema a node logs a mutation of its tables,
`system_schema`, before what is written by it. Seen of Cassandra 4.0 to 6.0.

    ALTER TABLE ks.t ADD v int → system_schema.tables: ks, t: id, …; system_schema.columns: ks, t, v: kind, type, …

Of a table that is dropped by the time the agent asks, or runs again, nothing else says which columns it had got; nor of
any that was altered since, once the node is dead.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from helenus_agent.commitlog.decoder import TablePlan, decode, plan_table
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse
from helenus_schemas.event.cells import decode_cells
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode as decode_event

SCHEMA_TABLES, SCHEMA_COLUMNS = "system_schema.tables", "system_schema.columns"
_VALUE_KINDS = ("static", "regular")
"""Kinds of columns that a table may get later."""
_ANY_NODE = str(uuid.UUID(int=0))


class LoggedColumn(NamedTuple):
    """A column of the table of an id, in a keyspace, as a row of `system_schema.columns` has it, and the write time of
    that, µs since the epoch.
    """

    table: uuid.UUID
    keyspace: str
    name: str
    kind: str
    type: str
    time: int


def read_logged_columns(
    entry: bytes, version: int, plans: Mapping[bytes, TablePlan], schema_tables: Mapping[str, Table]
) -> list[LoggedColumn]:
    """Return the columns outside the key that a mutation of the schema gives tables; none for other mutations. `entry`
    is the log's, whole, of a segment of this `version`; `plans` are the decoder's, and `schema_tables` has the two of
    `system_schema`, by name. Raises ValueError for bytes that are no such rows.
    """
    tables = schema_tables[SCHEMA_TABLES], schema_tables[SCHEMA_COLUMNS]
    own_plans = {table.id.bytes: plan_table(table, index, cells=True) for index, table in enumerate(tables)}
    batch = decode(entry, 0, True, {**plans, **own_plans}, _ANY_NODE, 0, version, len(entry))
    table_ids: dict[Key, uuid.UUID] = {}
    column_rows: list[tuple[Key, Mapping[str, bytes], int]] = []
    for table, key, values, time in _read_rows(batch.changes, tables):
        if table.full_name == SCHEMA_COLUMNS:
            column_rows.append((key, values, time))
        elif "id" in values:
            table_ids[key] = uuid.UUID(bytes=values["id"])
    return [
        LoggedColumn(
            table_ids[key[:2]], _text(key[0]), _text(key[2]), _text(values["kind"]), _text(values["type"]), time
        )
        for key, values, time in column_rows
        if key[:2] in table_ids and values.keys() >= {"kind", "type"} and _text(values["kind"]) in _VALUE_KINDS
    ]


def to_column(logged: LoggedColumn, udts: Mapping[str, CqlType]) -> Column | None:
    """Return a column, given the UDTs of its keyspace by name; None if it needs one that is not among them."""
    try:
        return Column(logged.name, parse(logged.type, udts), logged.kind)
    except ValueError:
        return None


def widen_table(table: Table, columns: Iterable[Column]) -> tuple[Table, list[str]]:
    """Return a table with the columns that it got, and the names of those that are new or have another type."""
    types = {column.name: column.type for column in (*table.dropped.values(), *table.values)}
    added = {column.name: column for column in columns if types.get(column.name) != column.type}
    others = (column for column in table.columns if column.name not in added or column in table.primary_key)
    return replace(table, columns=(*others, *added.values())), sorted(added)


def _read_rows(
    changes: Iterable[tuple[int, bytes, bytes, bytes]], tables: Iterable[Table]
) -> Iterator[tuple[Table, Key, Mapping[str, bytes], int]]:
    """Yield each row of these tables that changes write: its key, its columns' bytes by name, and its write time."""
    readers = {table.id.bytes: (table, KeyCodec(table)) for table in tables}
    for _, _, key, value in changes:
        change = decode_event(value)
        if change.cells is None or change.scope is not Scope.ROW:
            continue
        cells = decode_cells(change.cells, change.scope)
        if cells.table in readers:
            table, codec = readers[cells.table]
            values = {cell.column: cell.value for cell in cells.cells if cell.value is not None and cell.path is None}
            yield table, codec.decode(key), values, change.write_time or 0


def _text(value: bytes | None) -> str:
    return (value or b"").decode()

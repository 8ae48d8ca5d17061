"""The columns of tables as the commit log has them: of a change of the schema a node logs a mutation of its tables,
`system_schema`, before what is written by it. Seen of Cassandra 4.0 to 6.0.

    ALTER TABLE ks.t ADD v int → system_schema.tables: ks, t: id, …; system_schema.columns: ks, t, v: kind, type, …

Of a table that is dropped by the time the agent asks, or runs again, nothing else says which columns it had got.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from helenus_agent.commitlog.decoder import TablePlan, decode, plan_table
from helenus_schemas.codec.key import Key, KeyCodec
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import CqlType, parse, walk
from helenus_schemas.event.cells import decode_cells
from helenus_schemas.event.change import Scope
from helenus_schemas.event.wire import decode as decode_event

TABLES, COLUMNS = "system_schema.tables", "system_schema.columns"
_VALUES = ("static", "regular")
"""Kinds of columns that a table may get later."""


def read_logged_columns(
    entry: bytes, version: int, plans: Mapping[bytes, TablePlan], known: Iterable[Table]
) -> dict[uuid.UUID, list[Column]]:
    """Return the columns outside the key that a mutation of the schema gives tables, by the tables' ids; none for other
    mutations. `entry` is the log's, whole, of a segment of this `version`; `plans` are the decoder's, and `known` all
    known tables, `system_schema`'s among them. A column whose type is not known, as one of a new UDT, is left out.
    """
    tables = {table.full_name: table for table in known}
    if TABLES not in tables or COLUMNS not in tables:
        return {}
    schema = tables[TABLES], tables[COLUMNS]
    own_plans = {table.id.bytes: plan_table(table, index, cells=True) for index, table in enumerate(schema)}
    batch = decode(entry, 0, True, {**plans, **own_plans}, "", 0, version, len(entry))
    ids: dict[Key, uuid.UUID] = {}
    rows: list[tuple[Key, Mapping[str, bytes]]] = []
    for table, key, values in _rows(batch.changes, schema):
        if table.full_name == COLUMNS:
            rows.append((key, values))
        elif "id" in values:
            ids[key] = uuid.UUID(bytes=values["id"])
    logged: dict[uuid.UUID, list[Column]] = {}
    for (*table_name, column_name), values in rows:
        owner = ids.get(tuple(table_name))
        if owner is not None and column_name is not None:
            logged.setdefault(owner, []).extend(_columns(column_name, values, tables.values()))
    return logged


def _rows(
    changes: Iterable[tuple[int, bytes, bytes, bytes]], tables: Sequence[Table]
) -> Iterator[tuple[Table, Key, Mapping[str, bytes]]]:
    """Yield each row of these tables that changes write: with its key, and its columns' bytes by name."""
    tables_by_id = {table.id.bytes: table for table in tables}
    for _, _, key, value in changes:
        change = decode_event(value)
        if change.cells is None or change.scope is not Scope.ROW:
            continue
        cells = decode_cells(change.cells, change.scope)
        if (table := tables_by_id.get(cells.table)) is not None:
            values = {cell.column: cell.value for cell in cells.cells if cell.value is not None and cell.path is None}
            yield table, KeyCodec(table).decode(key), values


def _columns(name: bytes, values: Mapping[str, bytes], known: Iterable[Table]) -> Iterator[Column]:
    """Yield the column that a row of `system_schema.columns` describes, unless it is of a key or can't be read."""
    try:
        kind, text = values["kind"].decode(), values["type"].decode()
        if kind in _VALUES:
            yield Column(name.decode(), parse(text, _udts(known)), kind)
    except (KeyError, ValueError):
        return


def _udts(known: Iterable[Table]) -> dict[str, CqlType]:
    """Return the UDTs that columns of known tables have, by name."""
    return {t.label: t for t in walk(column.type for table in known for column in table.columns) if t.name == "udt"}

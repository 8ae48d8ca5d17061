"""Reads rows as cells with write times and TTLs, like those in an event's field `cells`.

    SELECT v, WRITETIME(v), TTL(v) … WHERE k = ? → Cells(cells=(Cell("v", written, value, ttl, expires),), …)

CQL does not show everything that a node stores. It shows no write time of the row itself: that is assumed to be the one
of the newest cell, and the row to expire with its last cell, if all of them expire. It shows no paths of list elements:
these get their index in the list as their `read_path`. Elements of unfrozen columns have write times from Cassandra 5.0
on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from helenus_connector.cassandra_rows._key_row_reader import KeyRowReader
from helenus_connector.cassandra_rows._projection import PreparedStatements
from helenus_connector.cassandra_rows._requests import KeyRefused
from helenus_connector.cassandra_rows._requests import UnreadReason as UnreadReason
from helenus_connector.cassandra_rows._statements import RowQuery
from helenus_connector.cassandra_rows.budget import ReadBudget
from helenus_connector.cassandra_rows.raw_rows import RawRow
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.codec.key import Key
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.event.cells import Cell, Cells, Liveness, read_path
from helenus_schemas.event.change import Scope

_ADVICE = "freeze these columns, choose state=keys, or upgrade all nodes to Cassandra 5.0"


class ReadRow(NamedTuple):
    """The live cells of a row, with a guess of the row's own write time. `read_at_ms` is the time of the read by
    Cassandra's clock, ms since the epoch.
    """

    cells: Cells
    read_at_ms: int


class CellReader(KeyRowReader[ReadRow]):
    """Reads rows of one table as cells, through a session that returns rows as CQL bytes, within a `budget` if there is
    one.
    """

    def __init__(
        self, session: Any, table: Table, settings: ConnectorSettings, budget: ReadBudget | None = None
    ) -> None:
        super().__init__(session, table, settings, CellProjection(session, table))
        self.budget = budget
        # What is refused is never taken for a row that is not there: a row that a proof does not find is deleted.
        self.is_current = False
        self.repeats_reads = False  # a key that can't be read is requested again later

    def read(self, keys: Sequence[tuple[Key, Scope]], consistency: int) -> Iterator[ReadRow | UnreadReason | None]:
        """Yield the row of each key, whose scope is ROW or STATIC, in order; None if there is none, and why it can't be
        read now, while others can. The key of a STATIC row has the partition key's values only.

        Raises HelenusError CASSANDRA_READ and CASSANDRA_AUTH if no key can be read, and TABLE_UNSUPPORTED if Cassandra
        does not show the write times of a column.
        """
        row_keys = [key for key, scope in keys if scope is Scope.ROW]
        static_keys = [key for key, scope in keys if scope is Scope.STATIC]
        try:
            answers = {
                Scope.ROW: dict(self.read_rows(row_keys, consistency)),
                Scope.STATIC: dict(self._static_rows(static_keys, consistency)),
            }
        except SchemaChanged as error:
            problem = f"Cassandra refuses to read rows: {error}"
            raise HelenusError(Kind.CASSANDRA_READ, problem, self.table.full_name) from None
        for key, scope in keys:
            answer = answers[scope][key]
            assert not isinstance(answer, KeyRefused)  # SchemaChanged is raised instead
            yield answer

    def _keys_at_once(self) -> int:
        """Return how many keys to read in one statement: no more than fit into one page, whatever share of them has a
        row, as a page that fails after the first one fails the batch and not its keys alone.
        """
        return self._rows_at_once(self.group_size)


class CellProjection:
    """Selects the values of a row's columns with their write times and TTLs, and the time of the read."""

    def __init__(self, session: Any, table: Table) -> None:
        self._table = table
        self._schema = bytes.fromhex(table.schema_id)
        self._prepared = PreparedStatements(session, table)
        self._statements: dict[tuple[str, bool], Any] = {}

    def statement_for(self, query: RowQuery) -> Any:
        """Return the prepared statement of a query. Raises as `Projection` says, and TABLE_UNSUPPORTED if the cause may
        be a column whose write times Cassandra does not show.
        """
        return self.select(query.where, Scope.STATIC if query.statics else Scope.ROW)

    def select(self, where: str, scope: Scope) -> Any:
        """Return the prepared statement of rows, or of the static columns of partitions, with this condition. Raises as
        `statement_for`.
        """
        shape = where, scope is Scope.STATIC
        if shape not in self._statements:
            self._statements[shape] = self._prepare(where, scope)
        return self._statements[shape]

    def leave_out_unknown(self, error: Exception, cql: str) -> bool:  # noqa: ARG002
        """Return false: without its write time a cell is of no use."""
        return False

    def restore(self) -> None:
        """Do nothing: nothing is left out."""

    def rows(self, raw_rows: Iterable[RawRow]) -> list[ReadRow]:
        return [self._decode_row(row, Scope.ROW) for row in raw_rows]

    def static_row(self, raw_row: RawRow) -> ReadRow:
        return self._decode_row(raw_row, Scope.STATIC)

    def _columns(self, scope: Scope) -> Sequence[Column]:
        return self._table.statics if scope is Scope.STATIC else self._table.regulars

    def _prepare(self, where: str, scope: Scope) -> Any:
        columns = [quote(column.name) for column in self._columns(scope)]
        cell_columns = [part for name in columns for part in (name, f"WRITETIME({name})", f"TTL({name})")]
        key_columns = self._table.partition_key if scope is Scope.STATIC else self._table.primary_key
        names = [quote(column.name) for column in key_columns]
        distinct = "DISTINCT " if scope is Scope.STATIC else ""
        # A TTL counts from the time of Cassandra's clock, so that is read with it.
        selected = ", ".join([*names, *cell_columns, "toUnixTimestamp(now())"])
        try:
            return self._prepared.prepare(f"SELECT {distinct}{selected} FROM {self._prepared.source} WHERE {where}")
        except SchemaChanged as error:
            multicell = [column.name for column in self._columns(scope) if column.type.multicell]
            if not multicell or "Undefined" in str(error):  # a column was dropped
                raise
            reason = f"Cassandra does not show the write times of {', '.join(multicell)}: {error}"
            raise HelenusError(Kind.TABLE_UNSUPPORTED, reason, self._table.full_name, _ADVICE) from None

    def _decode_row(self, row: RawRow, scope: Scope) -> ReadRow:
        width = len(self._table.partition_key if scope is Scope.STATIC else self._table.primary_key)
        cells: list[Cell] = []
        read_at_ms = int.from_bytes(row[-1] or b"", "big")
        now = read_at_ms // 1000
        for n, column in enumerate(self._columns(scope)):
            value, written, ttl = row[width + 3 * n : width + 3 * n + 3]
            if value is None or written is None:
                continue
            if column.type.multicell:
                cells += _multicell_cells(column, value, written, ttl, now)
            else:
                ttl_s = None if ttl is None else int.from_bytes(ttl, "big")
                cells.append(_cell(column.name, int.from_bytes(written, "big", signed=True), value, None, ttl_s, now))
        liveness = None
        if scope is Scope.ROW:
            liveness = _guess_liveness(cells, read_at_ms)
        columns = {column.name: column.type for column in self._columns(scope)}
        return ReadRow(Cells(self._table.id.bytes, self._schema, columns, liveness, cells=tuple(cells)), read_at_ms)


def _cell(name: str, written: int, value: bytes, path: bytes | None, ttl_s: int | None, now: int) -> Cell:
    return Cell(name, written, value, path, ttl_s, None if ttl_s is None else now + ttl_s)


def _guess_liveness(cells: Sequence[Cell], read_at_ms: int) -> Liveness:
    if not cells:
        return Liveness(read_at_ms * 1000)
    newest = max(cell.write_time for cell in cells)
    expires = [cell.expires for cell in cells if cell.expires is not None]
    if len(expires) < len(cells):
        return Liveness(newest)
    last = max(expires)
    return Liveness(newest, max(1, last - read_at_ms // 1000), last)


def _multicell_cells(column: Column, value: bytes, written: bytes, ttl: bytes | None, now: int) -> list[Cell]:
    """Return the cells of an unfrozen collection or UDT. `written` and `ttl` are lists in the order of its elements."""
    kind = column.type.name
    parts = _fields(value) if kind == "udt" else _elements(value)
    times = _elements(written)
    ttls = _elements(ttl) if ttl is not None else [None] * len(times)
    elements: list[tuple[bytes, bytes | None]] = []
    if kind == "map":
        elements = [(parts[n] or b"", parts[n + 1]) for n in range(0, len(parts), 2)]
    elif kind == "set":
        elements = [(part or b"", b"") for part in parts]
    elif kind == "list":
        elements = [(read_path(n), part) for n, part in enumerate(parts)]
    else:
        elements = [(n.to_bytes(2, "big"), part) for n, part in enumerate(parts)]
    cells = []
    for (path, element), time_bytes, ttl_bytes in zip(elements, times, ttls, strict=False):
        if element is not None and time_bytes is not None:
            seconds = None if ttl_bytes is None else int.from_bytes(ttl_bytes, "big")
            cells.append(
                _cell(column.name, int.from_bytes(time_bytes, "big", signed=True), element, path, seconds, now)
            )
    return cells


def _elements(data: bytes) -> list[bytes | None]:
    """Split a CQL list, set or map into elements; of a map, keys and values. Source: native protocol v4 section 6."""
    return _fields(data[4:])


def _fields(data: bytes) -> list[bytes | None]:
    fields: list[bytes | None] = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        position += 4
        fields.append(None if size < 0 else data[position : position + size])
        position += max(0, size)
    return fields

"""Selects rows with write times and TTLs, and makes images of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from helenus_connector.cassandra_rows._projection import PreparedStatements
from helenus_connector.cassandra_rows._statements import RowQuery
from helenus_connector.cassandra_rows.raw_rows import RawRow
from helenus_connector.cassandra_rows.row_images import make_images, newest_write_time
from helenus_connector.interfaces.image import Image, TimedColumns
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.cql.table import Column, Table
from helenus_schemas.cql.types import quote

_PROBE_AFTER_S = 600.0  # until MAXWRITETIME is tried again after a node did not know it
_MAXWRITETIME = "MAXWRITETIME"  # new in Cassandra 5.0


class ImageProjection:
    """Selects all columns of a table, and the write times of those that have some; without `times` none.

    `shows_all_times` says that the write times of all cells are read; before Cassandra 5.0 those of unfrozen
    collections and UDTs are not. With `asks_ttl` the TTLs of cells are read, as far as CQL shows them, and `saw_ttl`
    says that some cell has one.
    """

    def __init__(self, session: Any, table: Table, times: bool) -> None:
        self._table = table
        self._key_width = len(table.primary_key)
        self._pk_width = len(table.partition_key)
        self._width = self._key_width + len(table.values)
        self._prepared = PreparedStatements(session, table)
        self._statements_by_shape: dict[tuple[str, bool, bool, bool], Any] = {}
        self._probe_at = math.inf
        self.shows_all_times = True
        self.asks_ttl = self.saw_ttl = False
        self.timed = self._columns_with_write_time() if times else []
        statics = table.statics if times else ()
        self._timed_statics = _single_cells(statics)
        self._expiring = _single_cells(table.regulars)
        self._expiring_statics = _single_cells(table.statics)
        self._imaged_columns = self.timed
        self._image_columns = self._timed_columns(self.timed)
        self._statics_timed = TimedColumns.from_columns(
            self._timed_statics, _other_columns(table.statics, self._timed_statics)
        )

    def statement_for(self, query: RowQuery) -> Any:
        # With the rows of whole partitions come their static columns, with their own times.
        is_whole = query.is_paged and query.span is not None
        shape = query.where, query.statics, is_whole, self.asks_ttl
        prepared = self._statements_by_shape.get(shape)
        if prepared is None:
            prepared = self._select_statics(query.where) if query.statics else self._select(query.where, is_whole)
            self._statements_by_shape[shape] = prepared
        return prepared

    def leave_out_unknown(self, error: Exception, cql: str) -> bool:
        """Return whether the node has a Cassandra before 5.0 while others do not, so that it does not know
        MAXWRITETIME. Then read without it for a while.
        """
        if _MAXWRITETIME.lower() not in str(error).lower() or _MAXWRITETIME not in cql:
            return False
        if self.shows_all_times:
            self.timed = [(c, selected) for c, selected in self.timed if not selected.startswith(_MAXWRITETIME)]
            self.shows_all_times, self._probe_at = False, time.monotonic() + _PROBE_AFTER_S
            self._statements_by_shape.clear()
        return True

    def restore(self) -> None:
        """Use MAXWRITETIME again, once in a while, after a node did not know it: the node may be upgraded by now."""
        if time.monotonic() > self._probe_at:
            self.shows_all_times, self._probe_at = True, math.inf
            self.timed = self._columns_with_write_time()
            self._statements_by_shape.clear()

    def rows(self, raw_rows: Iterable[RawRow]) -> list[Image]:
        if self._imaged_columns is not self.timed:  # MAXWRITETIME was switched off, or on again
            self._imaged_columns, self._image_columns = self.timed, self._timed_columns(self.timed)
        expires = self._row_expiry if self.asks_ttl else None
        return make_images(raw_rows, self._key_width, self._width, len(self.timed), self._image_columns, expires)

    def static_row(self, raw_row: RawRow) -> Image:
        """Make an image of the static columns from a row that has no others."""
        end = self._pk_width + len(self._table.statics)
        values = dict(zip([c.name for c in self._table.statics], raw_row[self._pk_width : end], strict=True))
        return self._static_image(tuple(values.get(c.name) for c in self._table.values), raw_row[end:])

    def static_part(self, raw_row: RawRow) -> Image | None:
        """Make an image of the static columns that a row contains."""
        if not self._table.statics:
            return None
        start, end = self._key_width + len(self._table.regulars), self._width
        values = (*[None] * len(self._table.regulars), *raw_row[start:end])
        selected = len(self._timed_statics) + (len(self._expiring_statics + self._expiring) if self.asks_ttl else 0)
        return self._static_image(values, raw_row[len(raw_row) - selected :])

    def _static_image(self, values: RawRow, selected: RawRow) -> Image:
        """Make an image of static columns. `selected` begins with their write times, and their TTLs if these are
        requested.
        """
        timed = len(self._timed_statics)
        times, ttls = selected[:timed], selected[timed : timed + len(self._expiring_statics)]
        expires = self._first_expiry(ttls) if self.asks_ttl else None
        return Image(values, newest_write_time(times), times, self._statics_timed, expires)

    def _row_expiry(self, row: RawRow) -> int | None:
        return self._first_expiry(row[len(row) - len(self._expiring) :])

    def _first_expiry(self, ttls: RawRow) -> int | None:
        """Return when the first cell expires by the TTLs of some, s since the epoch."""
        if ttls.count(None) == len(ttls):
            return None
        self.saw_ttl = True
        return int(time.time()) + min(int.from_bytes(ttl, "big") for ttl in ttls if ttl)

    def _timed_columns(self, timed: Sequence[tuple[Column, str]]) -> TimedColumns:
        columns = [column for column, _ in timed]
        return TimedColumns.from_columns(columns, _other_columns(self._table.regulars, columns))

    def _select(self, where: str, is_whole: bool) -> Any:
        columns = [quote(c.name) for c in self._table.primary_key + self._table.values]
        condition = f" WHERE {where}" if where else ""
        extra_columns = self._static_extras() if is_whole else []
        extra_columns += [f"TTL({quote(c.name)})" for c in self._expiring if self.asks_ttl]
        while True:
            selected = [*columns, *(expression for _, expression in self.timed), *extra_columns]
            cql = f"SELECT {', '.join(selected)} FROM {self._prepared.source}{condition}"
            try:
                return self._prepared.prepare(cql)
            except SchemaChanged as error:
                if not self.leave_out_unknown(error, cql):
                    raise

    def _select_statics(self, where: str) -> Any:
        columns = [quote(c.name) for c in self._table.partition_key + self._table.statics]
        selected = ", ".join(columns + self._static_extras())
        return self._prepared.prepare(f"SELECT DISTINCT {selected} FROM {self._prepared.source} WHERE {where}")

    def _static_extras(self) -> list[str]:
        """Return what is selected of static columns beside their values: write times, and TTLs if requested."""
        ttls = [f"TTL({quote(c.name)})" for c in self._expiring_statics if self.asks_ttl]
        return [*(f"WRITETIME({quote(c.name)})" for c in self._timed_statics), *ttls]

    def _columns_with_write_time(self) -> list[tuple[Column, str]]:
        """Return the columns whose write time CQL shows. Before Cassandra 5.0 these have one cell only."""
        if any(c.type.name == "counter" for c in self._table.regulars):
            return []
        single_cell = [(c, f"WRITETIME({quote(c.name)})") for c in self._table.regulars if not c.type.multicell]
        multicell = [(c, f"{_MAXWRITETIME}({quote(c.name)})") for c in self._table.regulars if c.type.multicell]
        if not multicell:
            return single_cell
        try:
            self._prepared.prepare(f"SELECT {multicell[0][1]} FROM {self._prepared.source}")
        except SchemaChanged:
            self.shows_all_times, self._probe_at = False, time.monotonic() + _PROBE_AFTER_S
            return single_cell
        return single_cell + multicell


def _single_cells(columns: Iterable[Column]) -> list[Column]:
    """Return the columns of one cell, whose write time and TTL CQL shows in all versions."""
    return [c for c in columns if not c.type.multicell and c.type.name != "counter"]


def _other_columns(columns: Sequence[Column], excluded: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column not in excluded]

"""Check that what was written is of a table as it is known: not of another of its name, nor of a newer definition."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import CqlType, has_more_fields
from helenus_schemas.event.cells import Cells


class TableCheck:
    """Of one definition of a table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known = frozenset(column.name for column in table.columns) | table.dropped_at.keys()
        self._types = {column.name: column.type for column in table.values}
        self._alike: Mapping[str, CqlType] | None = None

    def is_of_table(self, cells: Cells) -> bool:
        """Return whether cells are of this table, not of one that had its name. Raises SchemaChanged for newer ones."""
        if cells.table != self._table.id.bytes:
            self.check_age(cells.table)
            return False
        if cells.columns is not self._alike:
            self._check_columns(cells)
            self._alike = cells.columns  # that of alike changes is one object
        return True

    def _check_columns(self, cells: Cells) -> None:
        """Raise SchemaChanged for columns or fields that this definition has not: it is older than what was written."""
        if not self._known >= cells.columns.keys():
            unknown = ", ".join(sorted(cells.columns.keys() - self._known))
            raise SchemaChanged(f"a change of {self._table.full_name} names the column {unknown}, which is not known")
        for name, of_then in cells.columns.items():
            if (now := self._types.get(name)) is not None and has_more_fields(of_then, now):
                raise SchemaChanged(f"a change has fields of the column {name} of {self._table.full_name} that are new")

    def check_age(self, table: bytes) -> None:
        """Raise SchemaChanged if the id of another table of this name is newer, by its time."""
        one, other = UUID(bytes=table), self._table.id
        if one.version == other.version == 1 and one.time > other.time:
            raise SchemaChanged(f"{self._table.full_name} was recreated, with the id {one}")

"""Check that what was written is of a table as it is known: not of another of its name, nor of a newer definition."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.cql.table import Table, is_newer_table
from helenus_schemas.cql.types import CqlType, has_more_fields
from helenus_schemas.event.cells import Cells


class TableCheck:
    """Checks against one definition of a table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._column_names = frozenset(column.name for column in table.columns) | table.dropped_at.keys()
        self._types = {column.name: column.type for column in table.values}
        self._checked_columns: Mapping[str, CqlType] | None = None

    def is_of_table(self, cells: Cells) -> bool:
        """Return whether cells are of this table, not of one that had its name. Raises SchemaChanged for newer ones."""
        if cells.table != self._table.id.bytes:
            self.check_age(cells.table)
            return False
        if cells.columns is not self._checked_columns:
            self._check_columns(cells)
            self._checked_columns = cells.columns  # changes with the same columns share one object
        return True

    def _check_columns(self, cells: Cells) -> None:
        """Raise SchemaChanged for columns or fields that this definition has not: it is older than what was written."""
        if not self._column_names >= cells.columns.keys():
            unknown = ", ".join(sorted(cells.columns.keys() - self._column_names))
            raise SchemaChanged(f"a change of {self._table.full_name} names the column {unknown}, which is not known")
        for name, written_type in cells.columns.items():
            if (current_type := self._types.get(name)) is not None and has_more_fields(written_type, current_type):
                raise SchemaChanged(f"a change has fields of the column {name} of {self._table.full_name} that are new")

    def check_age(self, table: bytes) -> None:
        """Raise SchemaChanged if the id of another table of this name is newer."""
        other_id = UUID(bytes=table)
        if is_newer_table(other_id, self._table.id):
            raise SchemaChanged(f"{self._table.full_name} was recreated, with the id {other_id}")

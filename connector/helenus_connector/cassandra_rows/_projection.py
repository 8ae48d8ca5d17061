"""What a read selects of a row, and what it makes of it: the interface between a reader and its projection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from cassandra import InvalidRequest

from helenus_connector.cassandra_rows._read_errors import READ_ERRORS, read_error
from helenus_connector.cassandra_rows._statements import RowQuery
from helenus_connector.cassandra_rows.raw_rows import RawRow
from helenus_connector.interfaces.resolver import SchemaChanged
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import quote

Row = TypeVar("Row")


class Projection(Protocol[Row]):
    """Selects columns of one version of a table, the key columns first, and makes rows of the answers."""

    def statement_for(self, query: RowQuery) -> Any:
        """Return the prepared statement of a query. Raises SchemaChanged if Cassandra refuses it, and HelenusError if
        it can't be prepared now.
        """

    def leave_out_unknown(self, error: Exception, cql: str) -> bool:
        """Return whether a node refused a statement for a function that it does not know, and that can be left out:
        from now on it is, for a while.
        """

    def restore(self) -> None:
        """Select again what was left out, if it is time: the node may be upgraded by now."""

    def rows(self, raw_rows: Iterable[RawRow]) -> list[Row]:
        """Make rows of an answer."""

    def static_row(self, raw_row: RawRow) -> Row:
        """Make a row of an answer that has static columns alone."""


class PreparedStatements:
    """Prepares the statements of a table, each once."""

    def __init__(self, session: Any, table: Table) -> None:
        self._session = session
        self._table = table
        self._prepared: dict[str, Any] = {}

    def prepare(self, cql: str) -> Any:
        """Return a prepared statement. Raises SchemaChanged if Cassandra refuses it, and HelenusError."""
        if cql not in self._prepared:
            try:
                self._prepared[cql] = self._session.prepare(cql)
            except InvalidRequest as error:
                raise SchemaChanged(str(error)) from None
            except READ_ERRORS as error:
                raise read_error(error, self._table) from None
        return self._prepared[cql]

    @property
    def source(self) -> str:
        """Return the table's name, as CQL has it."""
        return f"{quote(self._table.keyspace)}.{quote(self._table.name)}"

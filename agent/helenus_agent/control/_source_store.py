"""The tables `data_sinks` and `data_sources`, beside `configs`: what the statements about them have made.

A data source that was dropped is a row without a sink: a worker removes a connector because a row says so, and never
because a row is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cassandra import DriverException, InvalidRequest, Unauthorized
from cassandra.cluster import NoHostAvailable

from helenus_agent.control._config_store import ConfigStore
from helenus_schemas.errors import HelenusError, Kind

_SINKS = "name text PRIMARY KEY, address text"
_SOURCES = (
    "keyspace_name text, table_name text, service text, sink text, sets_cdc boolean, "
    "PRIMARY KEY ((keyspace_name, table_name), service)"
)
_ONE_SOURCE = "keyspace_name = %s AND table_name = %s AND service = %s"


@dataclass(frozen=True)
class StoredSource:
    """A row of `data_sources`. `sink` is None of a source that was dropped, or is not complete. `sets_cdc`: the table
    had `cdc = false` before.
    """

    keyspace: str
    table: str
    service: str
    sink: str | None
    sets_cdc: bool


class SourceStore(ConfigStore):
    """The keyspace with these tables too. Sinks and sources change by lightweight transactions: of two at a time one
    counts, and the other one sees it. Raises HelenusError.
    """

    tables: ClassVar[Mapping[str, str]] = {**ConfigStore.tables, "data_sinks": _SINKS, "data_sources": _SOURCES}

    def sinks(self) -> dict[str, str]:
        """Return the addresses of all data sinks by name."""
        return {row.name: row.address or "" for row in self._execute(f"SELECT * FROM {self._keyspace}.data_sinks")}

    def create_sink(self, name: str, address: str) -> bool:
        """Create a data sink. Return False if there is one of this name."""
        statement = f"INSERT INTO {self._keyspace}.data_sinks (name, address) VALUES (%s, %s) IF NOT EXISTS"
        return self._is_applied(statement, (name, address))

    def drop_sink(self, name: str) -> bool:
        """Drop a data sink. Return False if there is none of this name."""
        return self._is_applied(f"DELETE FROM {self._keyspace}.data_sinks WHERE name = %s IF EXISTS", (name,))

    def sources(self) -> list[StoredSource]:
        """Return all rows of `data_sources`, by table."""
        rows = self._execute(f"SELECT * FROM {self._keyspace}.data_sources")
        stored = [
            StoredSource(row.keyspace_name, row.table_name, row.service, row.sink, bool(row.sets_cdc)) for row in rows
        ]
        return sorted(stored, key=lambda source: (source.keyspace, source.table))

    def note_altering(self, source: StoredSource) -> bool:
        """Note that the table of a source gets `cdc = true`. Return False if the table has a source."""
        statement = f"UPDATE {self._keyspace}.data_sources SET sets_cdc = true WHERE {_ONE_SOURCE} IF sink = null"
        return self._is_applied(statement, (source.keyspace, source.table, source.service))

    def create_source(self, source: StoredSource) -> bool:
        """Create a data source. Return False if the table has one, or if a DROP took back that the table is altered."""
        statement = f"UPDATE {self._keyspace}.data_sources SET sink = %s, sets_cdc = %s WHERE {_ONE_SOURCE}"
        key = (source.keyspace, source.table, source.service)
        condition = "IF sink = null AND sets_cdc = true" if source.sets_cdc else "IF sink = null"
        return self._is_applied(f"{statement} {condition}", (source.sink, source.sets_cdc, *key))

    def drop_source(self, source: StoredSource) -> bool:
        """Drop a data source: its row stays, without a sink. Return False if it is another one by now."""
        statement = f"UPDATE {self._keyspace}.data_sources SET sink = null, sets_cdc = false WHERE {_ONE_SOURCE}"
        key = (source.keyspace, source.table, source.service)
        return self._is_applied(f"{statement} IF sink = %s", (*key, source.sink))

    def table_cdc(self, keyspace: str, table: str) -> bool | None:
        """Return whether a table has `cdc = true`, None if it is not there."""
        query = "SELECT cdc FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
        rows = self._execute(query, (keyspace, table))
        return bool(rows[0].cdc) if rows else None

    def set_cdc(self, keyspace: str, table: str, value: bool) -> None:
        """Set `cdc` of a table; with the value that it has, ask whether the role may. Raises CASSANDRA_AUTH if it may
        not, CONFIG for what Cassandra refuses otherwise.
        """
        name = f'"{keyspace}"."{table}"'
        session = self._connected()
        try:
            self._rows(session, f"ALTER TABLE {name} WITH cdc = {str(value).lower()}")
        except Unauthorized as error:
            message, advice = (
                f"Cassandra refuses ALTER TABLE: {_text(error)}",
                f"GRANT ALTER ON TABLE {name} TO the role",
            )
            raise HelenusError(Kind.CASSANDRA_AUTH, message, self._where, advice) from None
        except InvalidRequest as error:
            advice = "do what it asks for, and repeat the statement"
            message = f"Cassandra refuses ALTER TABLE: {_text(error)}"
            raise HelenusError(Kind.CONFIG, message, self._where, advice) from None
        except (DriverException, NoHostAvailable) as error:
            raise self._error(error) from None

    def _is_applied(self, statement: str, values: tuple[Any, ...]) -> bool:
        return bool(self._execute(statement, values)[0][0])


def _text(error: Exception) -> str:
    """Return Cassandra's own words."""
    text = str(error)
    return text.rpartition('message="')[2].rstrip('"') if 'message="' in text else text

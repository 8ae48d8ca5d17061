"""Reading tables: which ones a connector has, and whether changes of each can be published."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from cassandra import DriverException, Unauthorized
from cassandra.cluster import NoHostAvailable

from helenus_connector.cassandra_rows.table_definition import GRANT
from helenus_connector.config.column_names import check_connector, nearest
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate import levels
from helenus_connector.gate.replicas import Replicas
from helenus_connector.shape.encoding.registry import Registry
from helenus_connector.shape.row.row import row_schemas
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_ANSWERED_S = 1.0
_COLUMNS = "SELECT keyspace_name, table_name, column_name FROM system_schema.columns"
_WITH_CDC = "SELECT keyspace_name, table_name, cdc FROM system_schema.tables"


def read(settings: ConnectorSettings) -> dict[str, Table]:
    """The tables of a connector's keyspace by name, by a session of its own. Raises as `connect`."""
    session = connect(settings)
    try:
        return by_name(session, settings.keyspace)
    finally:
        session.cluster.shutdown()


def by_name(session: Any, keyspace: str) -> dict[str, Table]:
    """The tables of a keyspace by name."""
    return {table.name: table for table in read_tables(session, keyspace).values()}


def chosen(settings: ConnectorSettings, tables: Mapping[str, Table]) -> list[str]:
    """The names of the tables that a connector has: those it names, whether they are there or not, and those of
    `tables` with `cdc` that match its patterns.
    """
    matching = sorted(name for name, table in tables.items() if table.cdc and settings.matches(name))
    return list(dict.fromkeys([*settings.tables, *matching]))


def missing(settings: ConnectorSettings, tables: Iterable[str] = ()) -> HelenusError:
    """TABLE_MISSING, of settings of one table. `tables` are those of the keyspace: the most similar name is advised."""
    advice = (
        f"{near}create the table, or correct keyspace and table" if (near := nearest(settings.table, tables)) else ""
    )
    return HelenusError(Kind.TABLE_MISSING, "there is no such table", f"{settings.keyspace}.{settings.table}", advice)


class TableDefinitions:
    """The definitions of tables, for the driver. Keeps a session for each Cassandra that connectors name.

    `registered` is the file of the schemas that were registered. Threads may use it at once for different servers.
    """

    def __init__(self, registered: Path | None = None) -> None:
        self._registered = registered
        self._sessions: dict[tuple[object, ...], Any] = {}
        self._read: dict[tuple[object, ...], tuple[object, dict[str, Table]]] = {}
        self._hinted: set[tuple[str, str]] = set()
        self._columns: dict[tuple[object, ...], set[tuple[str, str, str]]] = {}  # also of tables that are gone
        self._answered: dict[object, float] = {}  # when each registry did, monotonic s

    def look(self, settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        """The tables that a connector names or that match it, each with the error that prevents publishing it.

        Connects once to everything it needs. Raises HelenusError if that fails; but the registry may be unavailable if
        schemas of at least one of the tables were registered before.
        """
        registry = Registry(settings, directory / "schemas.json", self._registered)
        away: HelenusError | None = None
        try:
            self._check(registry)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_UNREACHABLE:
                raise
            away = error
        finally:
            registry.close()
        tables = self._tables(settings)
        named = chosen(settings, tables)
        if away is not None and not any(registry.knows(f"{settings.of_table(name).data}-value") for name in named):
            raise away
        session = self._session(settings)
        _check_gate(settings, session)
        there = [tables[name] for name in named if name in tables]
        self._hint(settings, there)
        errors = self._wrong_columns(settings, there)
        return {name: errors.get(name) or self._obstacle(settings, name, tables, session) for name in named}

    def _wrong_columns(self, settings: ConnectorSettings, tables: Sequence[Table]) -> dict[str, HelenusError]:
        """The errors of tables whose columns are not what the connector's keys name."""
        columns = self._columns.setdefault(settings.server, set())
        if settings.column_exclude_list:  # what an entry was about once stays no typing error when it is dropped
            columns |= {(table.keyspace, table.name, column.name) for table in tables for column in table.columns}

        def other_columns() -> set[tuple[str, str, str]]:
            rows = self._ask(settings, lambda session: session.execute(_COLUMNS).all())
            columns.update((row.keyspace_name, row.table_name, row.column_name) for row in rows)
            return columns

        return check_connector(settings, tables, other_columns)

    def _obstacle(
        self, settings: ConnectorSettings, name: str, tables: Mapping[str, Table], session: Any
    ) -> HelenusError | None:
        of_table = settings.of_table(name)
        if name not in tables and not tables:
            found = {row.keyspace_name for row in self._ask(settings, lambda session: session.execute(_WITH_CDC).all())}
            near = nearest(settings.keyspace, found - {settings.keyspace})
            advice = f"the keyspace has no tables: {near}create the table, or correct keyspace and table"
            return HelenusError(Kind.TABLE_MISSING, missing(of_table).what, f"{settings.keyspace}.{name}", advice)
        if name not in tables:
            return missing(of_table, tables)
        return _obstacle(of_table, tables[name], session)

    def _check(self, registry: Registry) -> None:
        """`registry.check`, once for connectors that are looked at in a row: each time takes a connection."""
        if time.monotonic() - self._answered.get(registry.identity, -math.inf) > _ANSWERED_S:
            registry.check()
            self._answered[registry.identity] = time.monotonic()

    def keyspaces(self, settings: ConnectorSettings) -> list[str]:
        """The keyspaces that match a connector's and have tables with `cdc` for it. Raises HelenusError."""
        rows = self._ask(settings, lambda session: session.execute(_WITH_CDC).all())
        named = settings.tables
        found = {
            row.keyspace_name
            for row in rows
            if row.cdc
            and settings.matches_keyspace(row.keyspace_name)
            and (row.table_name in named or settings.matches(row.table_name))
        }
        return sorted(found)

    def close(self) -> None:
        for session in self._sessions.values():
            session.cluster.shutdown()
        self._sessions.clear()

    def _hint(self, settings: ConnectorSettings, tables: Sequence[Table]) -> None:
        """Log once of each table whose deletes may name no row, that a plain sink does not see these."""
        for table in tables:
            known = settings.name, table.full_name
            if (
                settings.state == "none"
                and settings.resolver == "reread"
                and table.clustering
                and known not in self._hinted
            ):
                self._hinted.add(known)
                advice = "for sinks that know no delete markers set state=keys: docs/state.md"
                what = "deletes of partitions and ranges, TRUNCATE and TTLs give no record for each row"
                _log.info("table.deletes", connector=settings.name, table=table.full_name, reason=what, advice=advice)

    def _session(self, settings: ConnectorSettings) -> Any:
        server = settings.server
        if server not in self._sessions:
            session = connect(settings)
            if self._sessions.setdefault(server, session) is not session:  # another thread was faster
                session.cluster.shutdown()
        return self._sessions[server]

    def _tables(self, settings: ConnectorSettings) -> dict[str, Table]:
        name = (*settings.server, settings.keyspace)

        def ask(session: Any) -> dict[str, Table]:
            version = session.execute("SELECT schema_version FROM system.local").one().schema_version
            known = self._read.get(name)
            if known is None or known[0] != version:
                known = self._read[name] = version, by_name(session, settings.keyspace)
            return known[1]

        return self._ask(settings, ask)

    def _ask(self, settings: ConnectorSettings, question: Callable[[Any], T]) -> T:
        session = self._session(settings)
        try:
            return question(session)
        except (DriverException, NoHostAvailable) as error:
            self._sessions.pop(settings.server, session).cluster.shutdown()
            what, advice = f"cannot read the schema: {error}", "check that a node of cassandra.local.dc answers"
            raise HelenusError(Kind.CASSANDRA_READ, what, settings.keyspace, advice) from None


def _check_gate(settings: ConnectorSettings, session: Any) -> None:
    """Raise HelenusError CONFIG if the keyspace can't give the gate's level."""
    if settings.gate == "one":
        return
    try:
        session.cluster.refresh_keyspace_metadata(settings.keyspace)  # this session follows no schema
    except (DriverException, NoHostAvailable):
        return  # transient; the next start looks again
    levels.check_level(settings, Replicas(session, settings))


def _obstacle(settings: ConnectorSettings, table: Table, session: Any) -> HelenusError | None:
    try:
        row_schemas(table.select_columns(settings.published), settings)
    except HelenusError as error:
        return error
    if settings.cassandra_username is not None:
        keys = ", ".join(quote(column.name) for column in table.partition_key)
        of_table = f"{quote(table.keyspace)}.{quote(table.name)}"
        try:
            # No row has this token: only the permission to read is checked.
            session.execute(f"SELECT {keys} FROM {of_table} WHERE token({keys}) = {-(2**63)}")
        except Unauthorized as error:
            return HelenusError(Kind.CASSANDRA_AUTH, f"cannot read rows: {error}", table.full_name, GRANT)
        except (DriverException, NoHostAvailable):
            pass  # transient; reading rows meets it again
    if table.cdc:
        return None
    advice = f"ALTER TABLE {quote(table.keyspace)}.{quote(table.name)} WITH cdc = true"
    return HelenusError(Kind.CDC_DISABLED, "the table has no cdc = true", table.full_name, advice)

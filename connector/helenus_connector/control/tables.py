"""Reading table definitions: which tables a connector has, and whether changes of each can be published."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from cassandra import DriverException
from cassandra.cluster import NoHostAvailable

from helenus_connector.config.column_names import check_connector, nearest
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.control._obstacles import check_gate, find_obstacle
from helenus_connector.shape.encoding.registry import Registry
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_REGISTRY_CHECK_S = 1.0
_COLUMNS = "SELECT keyspace_name, table_name, column_name FROM system_schema.columns"
_WITH_CDC = "SELECT keyspace_name, table_name, cdc FROM system_schema.tables"


def read(settings: ConnectorSettings) -> dict[str, Table]:
    """Return the tables of a connector's keyspace by name, read by a session of its own. Raises as `connect`."""
    session = connect(settings)
    try:
        return by_name(session, settings.keyspace)
    finally:
        session.cluster.shutdown()


def by_name(session: Any, keyspace: str) -> dict[str, Table]:
    """Return the tables of a keyspace by name."""
    return {table.name: table for table in read_tables(session, keyspace).values()}


def chosen(settings: ConnectorSettings, tables: Mapping[str, Table]) -> list[str]:
    """Return the names of the tables that a connector has: those it names, whether they exist or not, and those of
    `tables` with `cdc` that match its patterns.
    """
    matching = sorted(name for name, table in tables.items() if table.cdc and settings.matches(name))
    return list(dict.fromkeys([*settings.tables, *matching]))


def missing(settings: ConnectorSettings, tables: Iterable[str] = ()) -> HelenusError:
    """Return TABLE_MISSING, for settings of one table. `tables` are those of the keyspace: the most similar name is
    advised.
    """
    advice = (
        f"{hint}create the table, or correct keyspace and table" if (hint := nearest(settings.table, tables)) else ""
    )
    return HelenusError(Kind.TABLE_MISSING, "there is no such table", f"{settings.keyspace}.{settings.table}", advice)


class TableDefinitions:
    """The definitions of tables, for the driver. Keeps a session for each Cassandra that connectors name.

    `registered` is the file of the schemas that were registered. Threads may use it at once for different servers.
    """

    def __init__(self, registered: Path | None = None) -> None:
        self._registered = registered
        self._sessions: dict[tuple[object, ...], Any] = {}
        self._cached_tables: dict[tuple[object, ...], tuple[object, dict[str, Table]]] = {}
        self._warned: set[tuple[str, str]] = set()
        self._column_names: dict[tuple[object, ...], set[tuple[str, str, str]]] = {}  # also of tables that are gone
        self._registry_answered_at: dict[object, float] = {}  # when each registry did, monotonic s

    def scan(self, settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        """Return the tables that a connector names or that match it, each with the error that prevents publishing it.

        Connects once to everything it needs. Raises HelenusError if that fails; but the registry may be unavailable if
        schemas of at least one of the tables were registered before.
        """
        registry = Registry(settings, directory / "schemas", self._registered)
        registry_error: HelenusError | None = None
        try:
            self._check_registry(registry)
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_UNREACHABLE:
                raise
            # Without `registered` it is `validate` that asks: it names what is away.
            may_defer = settings.defers_keys and settings.defers_values and self._registered is not None
            registry_error = None if may_defer else error
        finally:
            registry.close()
        tables = self._read_tables(settings)
        named = chosen(settings, tables)
        tables_settings = map(settings.of_table, named)
        if registry_error is not None and not any(
            registry.knows(f"{t.subject_prefix(t.data)}-value") for t in tables_settings
        ):
            raise registry_error
        session = self._session(settings)
        check_gate(settings, session)
        tables_present = [tables[name] for name in named if name in tables]
        self._warn_of_deletes(settings, tables_present)
        errors = self._wrong_columns(settings, tables_present)
        return {name: errors.get(name) or self._obstacle(settings, name, tables, session) for name in named}

    def _wrong_columns(self, settings: ConnectorSettings, tables: Sequence[Table]) -> dict[str, HelenusError]:
        """Return the errors of tables whose columns are not what the connector's keys name."""
        columns = self._column_names.setdefault(settings.server, set())
        if (
            settings.column_exclude_list or settings.column_masks
        ):  # what an entry was about once stays no typing error when it is dropped
            columns |= {(table.keyspace, table.name, column.name) for table in tables for column in table.columns}

        def other_columns() -> set[tuple[str, str, str]]:
            rows = self._query_schema(settings, lambda session: session.execute(_COLUMNS).all())
            columns.update((row.keyspace_name, row.table_name, row.column_name) for row in rows)
            return columns

        return check_connector(settings, tables, other_columns)

    def _obstacle(
        self, settings: ConnectorSettings, name: str, tables: Mapping[str, Table], session: Any
    ) -> HelenusError | None:
        table_settings = settings.of_table(name)
        if name not in tables and not tables:
            keyspaces = {
                row.keyspace_name
                for row in self._query_schema(settings, lambda session: session.execute(_WITH_CDC).all())
            }
            hint = nearest(settings.keyspace, keyspaces - {settings.keyspace})
            advice = f"the keyspace has no tables: {hint}create the table, or correct keyspace and table"
            return HelenusError(Kind.TABLE_MISSING, missing(table_settings).what, f"{settings.keyspace}.{name}", advice)
        if name not in tables:
            return missing(table_settings, tables)
        return find_obstacle(table_settings, tables[name], session)

    def _check_registry(self, registry: Registry) -> None:
        """Check the registry, once for connectors that are scanned in a row: each check takes a connection."""
        if time.monotonic() - self._registry_answered_at.get(registry.identity, -math.inf) > _REGISTRY_CHECK_S:
            registry.check()
            self._registry_answered_at[registry.identity] = time.monotonic()

    def keyspaces(self, settings: ConnectorSettings) -> list[str]:
        """Return the keyspaces that match a connector's pattern and have tables with `cdc` for it.
        Raises HelenusError.
        """
        rows = self._query_schema(settings, lambda session: session.execute(_WITH_CDC).all())
        named = settings.tables
        matching = {
            row.keyspace_name
            for row in rows
            if row.cdc
            and settings.matches_keyspace(row.keyspace_name)
            and (row.table_name in named or settings.matches(row.table_name))
        }
        return sorted(matching)

    def close(self) -> None:
        for session in self._sessions.values():
            session.cluster.shutdown()
        self._sessions.clear()

    def _warn_of_deletes(self, settings: ConnectorSettings, tables: Sequence[Table]) -> None:
        """Log once of each table whose deletes may name no row, that a plain sink does not see these."""
        for table in tables:
            table_id = settings.name, table.full_name
            if (
                settings.state == "none"
                and settings.resolver == "reread"
                and table.clustering
                and table_id not in self._warned
            ):
                self._warned.add(table_id)
                advice = "for sinks that know no delete markers set state=keys: docs/state.md"
                problem = "deletes of partitions and ranges, TRUNCATE and TTLs give no record for each row"
                _log.info(
                    "table.deletes", connector=settings.name, table=table.full_name, reason=problem, advice=advice
                )

    def _session(self, settings: ConnectorSettings) -> Any:
        server = settings.server
        if server not in self._sessions:
            session = connect(settings)
            if self._sessions.setdefault(server, session) is not session:  # another thread was faster
                session.cluster.shutdown()
        return self._sessions[server]

    def _read_tables(self, settings: ConnectorSettings) -> dict[str, Table]:
        cache_key = (*settings.server, settings.keyspace)

        def read_if_changed(session: Any) -> dict[str, Table]:
            version = session.execute("SELECT schema_version FROM system.local").one().schema_version
            cached = self._cached_tables.get(cache_key)
            if cached is None or cached[0] != version:
                cached = self._cached_tables[cache_key] = version, by_name(session, settings.keyspace)
            return cached[1]

        return self._query_schema(settings, read_if_changed)

    def _query_schema(self, settings: ConnectorSettings, run_query: Callable[[Any], T]) -> T:
        session = self._session(settings)
        try:
            return run_query(session)
        except (DriverException, NoHostAvailable) as error:
            self._sessions.pop(settings.server, session).cluster.shutdown()
            problem, advice = f"cannot read the schema: {error}", "check that a node of cassandra.local.dc answers"
            raise HelenusError(Kind.CASSANDRA_READ, problem, settings.keyspace, advice) from None

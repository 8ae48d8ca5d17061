"""Which tables a connector has, and whether each can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cassandra import DriverException, Unauthorized
from cassandra.cluster import NoHostAvailable

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.reread.definition import GRANT
from helenus_connector.shape.registry import Registry
from helenus_connector.shape.row import schemas
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import connect


class Tables:
    """The definitions of tables, for the driver. Keeps a session for each Cassandra that connectors name.

    `registered` is where it is kept which schemas were registered. One thread uses it at a time.
    """

    def __init__(self, registered: Path | None = None) -> None:
        self._registered = registered
        self._sessions: dict[tuple[object, ...], Any] = {}
        self._read: dict[tuple[object, ...], tuple[object, dict[str, Table]]] = {}

    def look(self, settings: ConnectorSettings, directory: Path) -> dict[str, HelenusError | None]:
        """The tables that a connector names or that match it, each with what speaks against telling it.

        Reaches all that it needs once. Raises HelenusError if that fails; but a registry may be away if schemas of one
        of the tables at least were registered before.
        """
        registry = Registry(settings, directory / "schemas.json", self._registered)
        away: HelenusError | None = None
        try:
            registry.check()
        except HelenusError as error:
            if error.kind is not Kind.REGISTRY_UNREACHABLE:
                raise
            away = error
        finally:
            registry.close()
        tables = self._tables(settings)
        matching = sorted(name for name, table in tables.items() if table.cdc and settings.matches(name))
        named = dict.fromkeys([*settings.tables, *matching])
        if away is not None and not any(registry.knows(f"{settings.of_table(name).data}-value") for name in named):
            raise away
        session = self._session(settings)
        return {name: _objection(settings.of_table(name), tables.get(name), session) for name in named}

    def close(self) -> None:
        for session in self._sessions.values():
            session.cluster.shutdown()
        self._sessions.clear()

    def _session(self, settings: ConnectorSettings) -> Any:
        server = settings.server
        if server not in self._sessions:
            self._sessions[server] = connect(settings)
        return self._sessions[server]

    def _tables(self, settings: ConnectorSettings) -> dict[str, Table]:
        server = settings.server
        name = (*server, settings.keyspace)
        session = self._session(settings)
        try:
            version = session.execute("SELECT schema_version FROM system.local").one().schema_version
            known = self._read.get(name)
            if known is None or known[0] != version:
                found = {t.name: t for t in read_tables(session, settings.keyspace).values()}
                known = self._read[name] = version, found
        except (DriverException, NoHostAvailable) as error:
            self._sessions.pop(server).cluster.shutdown()
            what, advice = f"cannot read the schema: {error}", "check that a node of cassandra.local.dc answers"
            raise HelenusError(Kind.CASSANDRA_READ, what, settings.keyspace, advice) from None
        return known[1]


def _objection(settings: ConnectorSettings, table: Table | None, session: Any) -> HelenusError | None:
    if table is None:
        return HelenusError(Kind.TABLE_MISSING, "there is no such table", f"{settings.keyspace}.{settings.table}")
    try:
        schemas(table.only(settings.columns), settings)
    except HelenusError as error:
        return error
    if settings.cassandra_username is not None:
        keys = ", ".join(quote(column.name) for column in table.partition_key)
        of_table = f"{quote(table.keyspace)}.{quote(table.name)}"
        try:
            # No row has this token: it is the right to read that is asked for.
            session.execute(f"SELECT {keys} FROM {of_table} WHERE token({keys}) = {-(2**63)}")
        except Unauthorized as error:
            return HelenusError(Kind.CASSANDRA_AUTH, f"cannot read rows: {error}", table.full_name, GRANT)
        except (DriverException, NoHostAvailable):
            pass  # that may pass, and is met again when rows are read
    if table.cdc:
        return None
    advice = f"ALTER TABLE {quote(table.keyspace)}.{quote(table.name)} WITH cdc = true"
    return HelenusError(Kind.CDC_DISABLED, "the table has no cdc = true", table.full_name, advice)

"""What keeps a table's changes from being published: its columns, and what Cassandra refuses."""

from __future__ import annotations

from typing import Any

from cassandra import ConsistencyLevel, DriverException, InvalidRequest, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.query import SimpleStatement

from helenus_connector.cassandra_rows.table_definition import GRANT
from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.gate import levels
from helenus_connector.gate.replicas import Replicas
from helenus_connector.shape.row.row import row_schemas
from helenus_connector.shape.selection.row_selection import make_selection
from helenus_schemas.cql.table import Table
from helenus_schemas.cql.types import quote
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import known_releases

_WITHOUT_ELEMENT_TIMES = ("3", "4")
"""Cassandra's major versions without WRITETIME of a collection's elements: CASSANDRA-8877 is in 5.0."""
_BEFORE_ACCORD = ("3", "4", "5")
"""Major versions in which a table takes every consistency level."""
_ACCORD_REFUSES = "unsupported with Accord"


def check_gate(settings: ConnectorSettings, session: Any) -> None:
    """Raise HelenusError CONFIG if the keyspace can't give the gate's level."""
    if settings.gate == "one":
        return
    try:
        session.cluster.refresh_keyspace_metadata(settings.keyspace)  # this session follows no schema
    except (DriverException, NoHostAvailable):
        return  # transient; the next start looks again
    levels.check_level(settings, Replicas(session, settings))


def find_obstacle(settings: ConnectorSettings, table: Table, session: Any) -> HelenusError | None:
    """Return why a connector with these settings can't publish a table's changes; None if it can."""
    published = table.select_columns(settings.published)
    try:
        row_schemas(published, settings)
        make_selection(published, settings)
    except HelenusError as error:
        return error
    if settings.state == "rows" and (error_of_columns := _check_write_times(table, session)):
        return error_of_columns
    if refused := _check_reading(settings, table, session):
        return refused
    if table.cdc:
        return None
    advice = f"ALTER TABLE {quote(table.keyspace)}.{quote(table.name)} WITH cdc = true"
    return HelenusError(Kind.CDC_DISABLED, "the table has no cdc = true", table.full_name, advice)


def _check_write_times(table: Table, session: Any) -> HelenusError | None:
    """Return TABLE_UNSUPPORTED if a node does not show the write times of some columns.

    A state of rows has all columns, and reads what the log does not decide, after a TRUNCATE or a gap, for example.
    """
    unfrozen = [column.name for column in table.values if column.type.multicell]
    older = [release for release in known_releases(session) if release.partition(".")[0] in _WITHOUT_ELEMENT_TIMES]
    if not unfrozen or not older:
        return None
    problem = (
        f"state=rows reads write times, which Cassandra {older[0]} does not show of unfrozen collections and UDTs: "
        + ", ".join(unfrozen)
    )
    advice = "freeze them, choose state=keys, or upgrade all nodes to Cassandra 5.0"
    return HelenusError(Kind.TABLE_UNSUPPORTED, problem, table.full_name, advice)


def _check_reading(settings: ConnectorSettings, table: Table, session: Any) -> HelenusError | None:
    """Return CASSANDRA_AUTH if the role may not read the table, and TABLE_UNSUPPORTED if the table does not take a
    consistency level of the connector: Accord takes no local one.
    """
    levels_used = {"LOCAL_ONE"} if settings.cassandra_username is not None else set()
    if any(release.partition(".")[0] not in _BEFORE_ACCORD for release in known_releases(session)):
        levels_used = {settings.query_consistency, settings.snapshot_consistency}
    probe = _empty_read(table)
    for level in sorted(levels_used):
        try:
            session.execute(SimpleStatement(probe, consistency_level=ConsistencyLevel.name_to_value[level]))
        except Unauthorized as error:
            return HelenusError(Kind.CASSANDRA_AUTH, f"cannot read rows: {error}", table.full_name, GRANT)
        except InvalidRequest as error:
            if _ACCORD_REFUSES in str(error):
                problem = f"the table is transactional, and cannot be read at {level}: {error}"
                advice = "set query.consistency and snapshot.consistency to QUORUM"
                return HelenusError(Kind.TABLE_UNSUPPORTED, problem, table.full_name, advice)
        except (DriverException, NoHostAvailable):
            pass  # transient; reading rows meets it again
    return None


def _empty_read(table: Table) -> str:
    """Return a SELECT that replicas answer with no row, as no key has a token below the lowest.

    Cassandra takes -2^63, which no key has either, for the start of the ring: to ask for that token reads all rows.
    """
    keys = ", ".join(quote(column.name) for column in table.partition_key)
    lowest = -(2**63) + 1
    return f"SELECT {keys} FROM {quote(table.keyspace)}.{quote(table.name)} WHERE token({keys}) < {lowest}"

"""Reads the current definition of a table, from the node that has the newest one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.query import SimpleStatement

from helenus_connector.config.connector import ConnectorSettings
from helenus_schemas.cql.table import Table, read_tables
from helenus_schemas.errors import HelenusError, Kind
from helenus_schemas.service.cassandra import fit_page_size, is_page_refused

_TIMEOUT_S = 2.0
_MAX_READS = 10
GRANT = "GRANT SELECT on the table to the role of cassandra.username"
_ADVICE = "check that a node of cassandra.local.dc answers"
_VERSION = SimpleStatement("SELECT schema_version FROM system.local WHERE key = 'local'", is_idempotent=True)
_TABLE_ALTERED = "SELECT WRITETIME(id) AS at FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
_TYPES_ALTERED = "SELECT WRITETIME(field_types) AS at FROM system_schema.types WHERE keyspace_name = %s"
_UNANSWERED = (DriverException, NoHostAvailable, ConnectionException)


def request_version(session: Any) -> Any:
    """Request a node's schema version, and do not wait: `read_definition` takes the future."""
    return session.execute_async(_VERSION)


def read_definition(
    session: Any, settings: ConnectorSettings, known_version: object = None, request: Any = None
) -> tuple[object, Table] | None:
    """Return a version of the cluster's schema, and the table's definition in it; None if the node that is asked has
    `known_version`. `request` is a future of `request_version`, if there is one.

    A node that lags behind an ALTER has the previous definition, and rows read by it would be confirmed without the new
    column. So if a node has another version, all nodes that are up are asked, and the definition that was altered last
    is used. Raises HelenusError CASSANDRA_READ, TABLE_UNSUPPORTED and TABLE_MISSING.
    """
    name = f"{settings.keyspace}.{settings.table}"
    try:
        answer = (request or request_version(session)).result()
        version = answer.one().schema_version
        if version == known_version:
            return None
        nodes = _node_per_version(session, version, answer.response_future.coordinator_host)
        definitions = [
            _read_on_node(partial(session.execute, host=host), settings, alone=len(nodes) == 1)
            for host in nodes.values()
        ]
    except _UNANSWERED as error:
        if is_page_refused(error):  # the guardrail was set after this session was made
            fit_page_size(session)
        raise HelenusError(Kind.CASSANDRA_READ, f"cannot read the schema: {error}", name, _ADVICE) from None
    (_, table), version = max(zip(definitions, nodes, strict=True), key=lambda definition: definition[0][0])
    if table is None:
        raise HelenusError(Kind.TABLE_MISSING, "there is no such table", name)
    return version, table


def _node_per_version(session: Any, version: object, host: Any) -> dict[object, Any]:
    """Return one node that is up for each schema version. A node that does not answer soon is left out."""
    nodes = {version: host}
    others = [h for h in session.cluster.metadata.all_hosts() if h.is_up and h != host]
    requests = [(node, session.execute_async(_VERSION, timeout=_TIMEOUT_S, host=node)) for node in others]
    for node, answer in requests:
        with contextlib.suppress(*_UNANSWERED):
            nodes.setdefault(answer.result().one().schema_version, node)
    return nodes


def _read_on_node(
    execute: Callable[..., Any], settings: ConnectorSettings, alone: bool
) -> tuple[tuple[int, int], Table | None]:
    """Read the table on one node; and when it, and the keyspace's types, were altered last, µs, unless it is `alone`.

    Each ALTER writes the whole row of the schema table, so the write time of one column shows it.
    """
    table = _read_twice(execute, settings)
    if alone:
        return (0, 0), table
    altered = execute(_TABLE_ALTERED, (settings.keyspace, settings.table)).one()
    types = execute(_TYPES_ALTERED, (settings.keyspace,))
    return (altered.at if altered else 0, max((row.at or 0 for row in types), default=0)), table


def _read_twice(execute: Callable[..., Any], settings: ConnectorSettings) -> Table | None:
    """Read the table until two consecutive reads agree.

    A read is several queries: if a table is recreated between them, it has the new id and the old columns.
    """
    name = f"{settings.keyspace}.{settings.table}"
    reads: list[Table | str | None] = []
    while len(reads) < 2 or reads[-1] != reads[-2]:
        if len(reads) == _MAX_READS:
            raise HelenusError(Kind.CASSANDRA_READ, "the schema keeps changing", name)
        try:
            tables = read_tables(SimpleNamespace(execute=execute), settings.keyspace, settings.table).values()
            reads.append(next((t for t in tables if t.full_name == name), None))
        except ValueError as error:
            reads.append(str(error))  # a type may have been made, and a column of it
    if isinstance(reads[-1], str):
        raise HelenusError(Kind.TABLE_UNSUPPORTED, f"the schema is not understood: {reads[-1]}", name)
    return reads[-1]

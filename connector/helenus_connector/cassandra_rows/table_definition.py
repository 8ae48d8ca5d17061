"""A table's definition as it is now, from whichever node has the newest."""

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

_ANSWER_S = 2.0
_TRIES = 10
GRANT = "GRANT SELECT on the table to the role of cassandra.username"
_ANSWERS = "check that a node of cassandra.local.dc answers"
_VERSION = SimpleStatement("SELECT schema_version FROM system.local WHERE key = 'local'", is_idempotent=True)
_TABLE_ALTERED = "SELECT WRITETIME(id) AS at FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
_TYPES_ALTERED = "SELECT WRITETIME(field_types) AS at FROM system_schema.types WHERE keyspace_name = %s"
_UNANSWERED = (DriverException, NoHostAvailable, ConnectionException)


def request_version(session: Any) -> Any:
    """Ask a node for its version of the schema, and do not wait: `read_definition` takes the answer."""
    return session.execute_async(_VERSION)


def read_definition(
    session: Any, settings: ConnectorSettings, known: object = None, asked: Any = None
) -> tuple[object, Table] | None:
    """A version of the cluster's schema, and the table by it; None if a node that is asked has the `known` version. A
    node may have been `asked` before.

    A node that lags behind an ALTER has the definition before, and rows read by that would be confirmed without the new
    column. So when a node has another version, all that are up are asked, and the definition that was altered last is
    taken. Raises HelenusError CASSANDRA_READ, TABLE_UNSUPPORTED and TABLE_MISSING.
    """
    name = f"{settings.keyspace}.{settings.table}"
    try:
        answer = (asked or request_version(session)).result()
        version = answer.one().schema_version
        if version == known:
            return None
        nodes = _by_version(session, version, answer.response_future.coordinator_host)
        found = [
            _found(partial(session.execute, host=host), settings, alone=len(nodes) == 1) for host in nodes.values()
        ]
    except _UNANSWERED as error:
        if is_page_refused(error):  # the guardrail was set after this session was made
            fit_page_size(session)
        raise HelenusError(Kind.CASSANDRA_READ, f"cannot read the schema: {error}", name, _ANSWERS) from None
    (_, table), version = max(zip(found, nodes, strict=True), key=lambda of: of[0][0])
    if table is None:
        raise HelenusError(Kind.TABLE_MISSING, "there is no such table", name)
    return version, table


def _by_version(session: Any, version: object, host: Any) -> dict[object, Any]:
    """A node for each version of the schema that nodes have which are up. One that does not answer soon is left out."""
    found = {version: host}
    others = [h for h in session.cluster.metadata.all_hosts() if h.is_up and h != host]
    asked = [(other, session.execute_async(_VERSION, timeout=_ANSWER_S, host=other)) for other in others]
    for other, answer in asked:
        with contextlib.suppress(*_UNANSWERED):
            found.setdefault(answer.result().one().schema_version, other)
    return found


def _found(
    execute: Callable[..., Any], settings: ConnectorSettings, alone: bool
) -> tuple[tuple[int, int], Table | None]:
    """The table as a node has it; and when it, and the keyspace's types, were altered last, µs, if that matters.

    Each ALTER writes all of a row.
    """
    table = _whole(execute, settings)
    if alone:
        return (0, 0), table
    altered = execute(_TABLE_ALTERED, (settings.keyspace, settings.table)).one()
    types = execute(_TYPES_ALTERED, (settings.keyspace,))
    return (altered.at if altered else 0, max((row.at or 0 for row in types), default=0)), table


def _whole(execute: Callable[..., Any], settings: ConnectorSettings) -> Table | None:
    """The table as two reads in a row have it.

    A read is several queries: a table that is recreated between them has its new id and the columns of before.
    """
    name = f"{settings.keyspace}.{settings.table}"
    seen: list[Table | str | None] = []
    while len(seen) < 2 or seen[-1] != seen[-2]:
        if len(seen) == _TRIES:
            raise HelenusError(Kind.CASSANDRA_READ, "the schema keeps changing", name)
        try:
            tables = read_tables(SimpleNamespace(execute=execute), settings.keyspace, settings.table).values()
            seen.append(next((t for t in tables if t.full_name == name), None))
        except ValueError as error:
            seen.append(str(error))  # a type may have been made, and a column of it
    if isinstance(seen[-1], str):
        raise HelenusError(Kind.TABLE_UNSUPPORTED, f"the schema is not understood: {seen[-1]}", name)
    return seen[-1]

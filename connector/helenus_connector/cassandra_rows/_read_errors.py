"""Tells the errors of a read apart: signs of load, replicas that are down, and rights that the role does not have."""

from __future__ import annotations

from cassandra import OperationTimedOut, ReadFailure, ReadTimeout, RequestExecutionException, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import OverloadedErrorMessage

from helenus_connector.cassandra_rows.table_definition import GRANT
from helenus_schemas.cql.table import Table
from helenus_schemas.errors import HelenusError, Kind

READ_ERRORS = (NoHostAvailable, RequestExecutionException, ConnectionException, Unauthorized, OperationTimedOut)
"""The driver's errors of a read that the statement itself is not the cause of."""
_LOAD_ERRORS = (ReadTimeout, OperationTimedOut, ReadFailure)


def is_load(error: BaseException) -> bool:
    """Return whether a read failed for load, so that a smaller one may not. An overloaded node is skipped by the
    driver.
    """
    overloaded = isinstance(error, NoHostAvailable) and any(
        isinstance(answer, OverloadedErrorMessage) for answer in error.errors.values()
    )
    return overloaded or isinstance(error, _LOAD_ERRORS)


def read_error(error: Exception, table: Table) -> HelenusError:
    """Return a driver's error as CASSANDRA_AUTH, or CASSANDRA_READ."""
    is_refused = isinstance(error, Unauthorized)
    kind, advice = (Kind.CASSANDRA_AUTH, GRANT) if is_refused else (Kind.CASSANDRA_READ, "")
    return HelenusError(kind, f"cannot read rows: {error}", table.full_name, advice)

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
_INCOMPATIBLE_SCHEMA = 3  # RequestFailureReason of Cassandra 4.0 and later
_DISAGREEMENT = (
    "a node does not know the table's newest definition: it passes when all agree; if it does not, nodetool "
    "describecluster shows which nodes have another schema version"
)


class SchemaDisagreement(HelenusError):
    """A read that replicas refused since they know another definition of the table than the coordinator does."""


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
    problem = f"cannot read rows: {error}"
    if isinstance(error, Unauthorized):
        return HelenusError(Kind.CASSANDRA_AUTH, problem, table.full_name, GRANT)
    if isinstance(error, ReadFailure) and set((error.error_code_map or {}).values()) == {_INCOMPATIBLE_SCHEMA}:
        return SchemaDisagreement(Kind.CASSANDRA_READ, problem, table.full_name, _DISAGREEMENT)
    return HelenusError(Kind.CASSANDRA_READ, problem, table.full_name)

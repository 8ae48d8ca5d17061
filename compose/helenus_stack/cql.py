"""`helenus-stack cql`: gives one statement to the stack's Cassandra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ErrorMessage
from cassandra.query import dict_factory, named_tuple_factory

from helenus_schemas.errors import HelenusError
from helenus_schemas.service.cassandra import connect
from helenus_schemas.settings.shared import CassandraSettings
from helenus_stack.errors import StackError
from helenus_stack.show import value_text
from helenus_stack.status import Status


@contextmanager
def session(status: Status, row_factory: Any = named_tuple_factory) -> Iterator[Any]:
    """A driver session with the stack's Cassandra. What the driver raises in the body becomes a StackError."""
    where = f"{status.contact_points[0]}:{status.cql_port}"
    try:
        connected = connect(CassandraSettings.from_properties(status.cassandra(), where), row_factory=row_factory)
    except HelenusError as error:
        raise StackError(error.what, where, "start it with helenus-stack up") from error
    try:
        yield connected
    except (DriverException, ErrorMessage, NoHostAvailable) as error:
        reason = getattr(error, "message", error)
        raise StackError(f"Cassandra: {reason}", where, "correct the statement, or look at the node's log") from error
    finally:
        connected.cluster.shutdown()


def execute(status: Status, statement: str) -> Iterator[str]:
    """Executes a CQL statement; a line for every row of the answer. Raises StackError."""
    with session(status, dict_factory) as connected:
        for row in connected.execute(statement):
            yield value_text(row).plain

"""What an agent saved of its node and the tables, in the place of a Cassandra that will not start again.

With it the segments that are left in cdc_raw can be decoded as far as the tables stayed as they were: what somebody
altered, and no agent learnt of, is not known, and a segment that needs it goes to quarantine.
"""

from __future__ import annotations

import uuid

from helenus_agent.node import saved_tables
from helenus_agent.node.cassandra import Node, Schema
from helenus_agent.node.truncations import Truncation
from helenus_agent.state import State
from helenus_schemas.errors import HelenusError, Kind


class SavedNode:
    """Answers as `Cassandra` would by what lies in a state directory. Raises HelenusError(STATE) if that is nothing."""

    def __init__(self, state: State) -> None:
        positions = state.load()
        tables, stamps = saved_tables.load(state.directory)
        if not positions.host_id or not tables:
            what = "no agent has saved here what its node and its tables are: nothing can be read without Cassandra"
            raise HelenusError(Kind.STATE, what, str(state.directory))
        self._host = uuid.UUID(positions.host_id)
        # Those that were told, at no place: so none is told again.
        told = {uuid.UUID(table): time for table, time in positions.truncated.items()}
        truncations = {table: Truncation(table, (0, 0), time) for table, time in told.items()}
        others = saved_tables.load_others(state.directory)
        # A dropped table is remembered so that its changes can be decoded. It is not one that there is.
        there = {table.id: table for table in tables if str(table.id) not in positions.dropped}
        self._schema = Schema(there, others, (), truncations, stamps)

    def node(self) -> Node:
        """Who it was; not how it was set up."""
        return Node(self._host, "", {})

    def schema(self) -> Schema:
        """The schema as it was saved last."""
        return self._schema

    def changed(self) -> bool:
        """Nothing changes any more."""
        return False

    def close(self) -> None:
        """Nothing is open."""

"""Stands in for a Cassandra that will not start again, by what an agent saved of its node and the tables.

With it the segments that are left in cdc_raw can be decoded. Columns that a table got unseen are in the log itself. A
segment that needs more, as a table or a type that was created or altered unseen, goes to quarantine.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace

from helenus_agent.node import saved_tables
from helenus_agent.node.cassandra import Node, Schema
from helenus_agent.node.logged_columns import widen_table
from helenus_agent.node.truncations import Truncation
from helenus_agent.state import StateDirectory
from helenus_schemas.cql.table import Column
from helenus_schemas.cql.types import CqlType, walk
from helenus_schemas.errors import HelenusError, Kind


class SavedNode:
    """Answers as `Cassandra` does, from a state directory. Raises HelenusError(STATE) if nothing is saved there."""

    def __init__(self, state: StateDirectory) -> None:
        positions = state.load()
        tables, stamps = saved_tables.load(state.directory)
        if not positions.host_id or not tables:
            message = "no agent has saved here what its node and its tables are: nothing can be read without Cassandra"
            raise HelenusError(Kind.STATE, message, str(state.directory))
        self._host = uuid.UUID(positions.host_id)
        # Those that were published, at no place: so none is published again.
        published = {uuid.UUID(table): time for table, time in positions.truncated.items()}
        truncations = {table: Truncation(table, (0, 0), time) for table, time in published.items()}
        other_ids = saved_tables.load_others(state.directory)
        # A dropped table is remembered so that its changes can be decoded. It does not exist.
        existing = {table.id: table for table in tables if str(table.id) not in positions.dropped}
        self._schema = Schema(existing, other_ids, (), truncations, stamps)

    def node(self) -> Node:
        """Return its identity, without settings."""
        return Node(self._host, "", {})

    def schema(self) -> Schema:
        """Return the schema as it was saved last."""
        return self._schema

    def changed(self, rarely: bool = False) -> bool:  # noqa: ARG002
        """Return False: nothing changes any more."""
        return False

    def is_as_learned(self) -> bool:
        """Return True: nothing changes any more."""
        return True

    def widen(self, table_id: uuid.UUID, columns: Iterable[Column], altered_at: int) -> list[str]:
        """Give an existing table the columns that it got since, as the log says, `altered_at` that time, µs since the
        epoch. Return the names of those that are new, or have another type from here on.
        """
        tables, stamps = self._schema.tables, dict(self._schema.stamps)
        if table_id not in tables:
            return []
        wider, added = widen_table(tables[table_id], columns)
        if added:
            if table_id in stamps:  # or it would look altered by more than that once the node is back
                stamps[table_id] = stamps[table_id]._replace(time=max(stamps[table_id].time, altered_at))
            self._schema = replace(self._schema, tables={**tables, table_id: wider}, stamps=stamps)
        return added

    def udts(self, keyspace: str) -> Mapping[str, CqlType]:
        """Return the UDTs that columns of a keyspace's tables have, by name."""
        types = (
            column.type
            for table in self._schema.tables.values()
            if table.keyspace == keyspace
            for column in table.columns
        )
        return {udt.label: replace(udt, frozen=False) for udt in walk(types) if udt.name == "udt"}

    def close(self) -> None:
        """Do nothing: nothing is open."""

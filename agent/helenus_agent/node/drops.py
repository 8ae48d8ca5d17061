"""DROP TABLE and DROP KEYSPACE: the deletion of all rows of a table, published like a TRUNCATE.

Cassandra keeps no note of it. The agent sees that a table that it followed is gone, but not where in the log that was.
So the event comes after everything the table logged, and before the first change of a table that is recreated under
the same name, since both share a topic. It is kept in the positions until it is acknowledged.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Container, Iterable, Mapping

from helenus_agent.delivery.notices import Notice
from helenus_agent.node.tables import Stamp
from helenus_agent.positions import LogPosition, Positions
from helenus_schemas.cql.table import Table, is_newer_table
from helenus_schemas.event.change import Scope

_GREGORIAN = 0x01B21DD213814000  # 100 ns from the epoch of UUIDs to that of Unix


class Drops:
    """Dropped tables whose drop is to be published. Each is published once, through restarts too."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._emitted: set[str] = set()

    @property
    def pending(self) -> list[uuid.UUID]:
        """Return the dropped tables whose notices are not appended yet."""
        return [
            uuid.UUID(table)
            for table, dropped_at in self._positions.dropped.items()
            if dropped_at and table not in self._emitted
        ]

    def learn(
        self,
        dropped: Iterable[Table],
        existing: Mapping[uuid.UUID, Table],
        stamps: Mapping[uuid.UUID, Stamp],
        remembered: Container[uuid.UUID],
    ) -> None:
        """Note that these tables are gone; `existing` are those that exist, with their `stamps`. Drops of tables that
        are not `remembered` are forgotten.
        """
        successors = {table.full_name: table for table in existing.values()}
        now = time.time_ns() // 1000
        for table in dropped:
            # Its time is not known, but rows written to a table of the same name since are newer.
            successor = successors.get(table.full_name)
            created = now if successor is None else _creation_time(successor, table, stamps)
            self._positions.dropped.setdefault(str(table.id), min(now, created - 1))
        for table_id in [uuid.UUID(table) for table in self._positions.dropped]:
            # It was not dropped after all: the schema was read while it changed. Or its name is not known any more.
            if table_id in existing or table_id not in remembered:
                self.ignore(table_id)

    def ignore(self, table: uuid.UUID) -> None:
        """Do not publish this one."""
        self._positions.dropped.pop(str(table), None)

    def take_due(self, tables: Container[uuid.UUID], reached: LogPosition) -> list[Notice]:
        """Return notices for those of these tables that are pending. Each is returned once."""
        notices = []
        for table in self.pending:
            if table in tables:
                self._emitted.add(str(table))
                dropped_at = self._positions.dropped[str(table)]
                notices.append(Notice(Scope.TABLE, table, dropped_at, dropped_at, *reached))
        return notices

    def confirm_emitted(self) -> None:
        """Note that all notices that `take_due` returned are acknowledged."""
        for table in self._emitted:
            self._positions.dropped[table] = 0
        self._emitted.clear()

    def rewind(self) -> None:
        """Return those that are not acknowledged once more."""
        self._emitted.clear()


def _creation_time(table: Table, predecessor: Table, stamps: Mapping[uuid.UUID, Stamp]) -> int:
    """Return when a table was created, after a predecessor of its name, at the latest, µs since the epoch. Its id
    tells, unless it was created `WITH ID` of an older table.
    """
    if table.id.version == 1 and not is_newer_table(predecessor.id, table.id):
        return (table.id.time - _GREGORIAN) // 10
    if column_times := [time for time in table.added_at.values() if time]:
        return min(column_times)
    return stamps[table.id].time if table.id in stamps else time.time_ns() // 1000

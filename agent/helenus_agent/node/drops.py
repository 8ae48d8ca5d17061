"""DROP TABLE and DROP KEYSPACE: the deletion of all rows of a table, which is told as a TRUNCATE is.

Cassandra keeps no note of it. The agent sees that a table that it followed is gone; where in the log that was, nobody
says. So the deletion stands behind what the table logged, and before the first change of a table that is made again
under the same name, which shares its topic. It is kept in the positions until it is acknowledged.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Container, Iterable, Mapping

from helenus_agent.delivery.notices import Notice
from helenus_agent.node.tables import Stamp
from helenus_agent.positions import Place, Positions
from helenus_schemas.cql.table import Table
from helenus_schemas.event.change import Scope

_GREGORIAN = 0x01B21DD213814000  # 100 ns from the epoch of UUIDs to that of Unix


class Drops:
    """The dropped tables that are to be told. Each is told once, through restarts too."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._told: set[str] = set()

    @property
    def waiting(self) -> list[uuid.UUID]:
        """Those that are not told yet."""
        return [uuid.UUID(table) for table, at in self._positions.dropped.items() if at and table not in self._told]

    def learn(
        self,
        dropped: Iterable[Table],
        known: Mapping[uuid.UUID, Table],
        stamps: Mapping[uuid.UUID, Stamp],
        remembered: Container[uuid.UUID],
    ) -> None:
        """These tables are gone; `known` are those that there are, with their `stamps`. Of those `remembered` it may be
        said again that they are gone, of others not.
        """
        made = {table.full_name: _made(table, stamps) for table in known.values()}
        now = time.time_ns() // 1000
        for table in dropped:
            # Its time is not known; but what was written into one of the same name since is newer.
            self._positions.dropped.setdefault(str(table.id), min(now, made.get(table.full_name, now) - 1))
        for table_id in [uuid.UUID(table) for table in self._positions.dropped]:
            # It was not dropped after all: the schema was read half made. Or nobody knows its name, or asks for it.
            if table_id in known or table_id not in remembered:
                self.leave(table_id)

    def leave(self, table: uuid.UUID) -> None:
        """This one is not to be told."""
        self._positions.dropped.pop(str(table), None)

    def due(self, tables: Container[uuid.UUID], reached: Place) -> list[Notice]:
        """Those of these tables that wait; each is given once."""
        due = []
        for table in self.waiting:
            if table in tables:
                self._told.add(str(table))
                at = self._positions.dropped[str(table)]
                due.append(Notice(Scope.TABLE, table, at, at, *reached))
        return due

    def acknowledged(self) -> None:
        """All that were given are with the broker."""
        for table in self._told:
            self._positions.dropped[table] = 0
        self._told.clear()

    def rewind(self) -> None:
        """What is not acknowledged is to be told again."""
        self._told.clear()


def _made(table: Table, stamps: Mapping[uuid.UUID, Stamp]) -> int:
    """When a table was made, at the latest, µs since the epoch."""
    if table.id.version == 1:
        return (table.id.time - _GREGORIAN) // 10
    return stamps[table.id].time if table.id in stamps else time.time_ns() // 1000

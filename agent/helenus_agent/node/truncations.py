"""TRUNCATE, which is no mutation of its table: Cassandra notes it in `system.local.truncated_at`.

    truncated_at = per table id: long segment, int position, long ms since the epoch
                   (SystemKeyspace.truncationAsMapEntry)

Everything that the log holds of the table before that position is gone. The note is a mutation of `system.local`, so it
goes through the log itself, behind the position: who stops there and asks knows of it in time. Cassandra remembers a
table's last one only, and none of a table that is dropped.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from helenus_agent.delivery.notices import Notice
from helenus_agent.positions import Place, Positions
from helenus_schemas.event.change import Scope


@dataclass(frozen=True)
class Truncation:
    """All that the log holds of the table before `place` was dropped at `time`, ms since the epoch."""

    table: uuid.UUID
    place: Place
    time: int

    @property
    def notice(self) -> Notice:
        return Notice(Scope.TABLE, self.table, self.time * 1000, self.time, *self.place)


def read_truncations(column: Mapping[uuid.UUID, bytes] | None) -> dict[uuid.UUID, Truncation]:
    """The value of `truncated_at`, as the driver gives it."""
    found = {}
    for table, value in (column or {}).items():
        segment, position, time = struct.unpack(">qiq", value)
        found[table] = Truncation(table, (segment, position), time)
    return found


class Truncations:
    """Which truncations are to be told, and when reading has come to them. Each is told once, through restarts too.

    One of a table that is followed is told. Those from before it was followed are only noted, as those from before the
    oldest segment there is.
    """

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._followed = set(positions.followed_ids)
        self._told = self._acknowledged
        self._known: Mapping[uuid.UUID, Truncation] = {}
        self._waiting: list[Truncation] = []

    def learn(
        self, known: Mapping[uuid.UUID, Truncation], followed: Collection[uuid.UUID], oldest: int, reached: Place
    ) -> None:
        """Take over what Cassandra knows now. `oldest` is the id of the oldest segment, `reached` how far is read."""
        self._known = known
        for table in set(followed) - self._followed:
            self.follow(table, oldest, reached)
        self._followed = set(followed)
        self._wait()

    def follow(self, table: uuid.UUID, oldest: int, reached: Place) -> None:
        """Those of this table are to be told from here on."""
        found = self._known.get(table)
        if found is not None and (found.place[0] < oldest or found.place <= reached):
            self._told[table] = self._positions.truncated[str(table)] = found.time
        self._followed.add(table)
        self._wait()

    def leave(self, table: uuid.UUID) -> None:
        """Those of this table are not to be told any more."""
        self._followed.discard(table)
        self._wait()

    def due(self, reached: Place) -> list[Notice]:
        """Those that are to be told now, for all before `reached` is told; each is given once."""
        due = []
        while self._waiting and self._waiting[0].place <= reached:
            truncation = self._waiting.pop(0)
            self._told[truncation.table] = truncation.time
            due.append(truncation.notice)
        return due

    def cut(self, segment: int, start: int, end: int) -> int:
        """The first position between these two of a segment where one is to be told; 0 if there is none."""
        for truncation in self._waiting:
            if truncation.place[0] == segment and start < truncation.place[1] < end:
                return truncation.place[1]
        return 0

    def acknowledged(self) -> None:
        """All that were given are with the broker: to be saved."""
        self._positions.truncated = {str(table): time for table, time in self._told.items() if table in self._known}

    def rewind(self) -> None:
        """What is not acknowledged is to be told again."""
        self._told = self._acknowledged
        self._wait()

    @property
    def _acknowledged(self) -> dict[uuid.UUID, int]:
        return {uuid.UUID(table): time for table, time in self._positions.truncated.items()}

    def _wait(self) -> None:
        # A clock may be set back: what is not the one that was told is a later one.
        waiting = [t for t in self._known.values() if t.table in self._followed and t.time != self._told.get(t.table)]
        self._waiting = sorted(waiting, key=lambda t: t.place)

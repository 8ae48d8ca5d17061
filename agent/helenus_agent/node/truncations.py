"""TRUNCATE, which is no mutation of its table: Cassandra notes it in `system.local.truncated_at`.

    truncated_at = per table id: long segment, int position, long ms since the epoch
                   (SystemKeyspace.truncationAsMapEntry)

Everything that the log holds of the table before that position is gone. The note is a mutation of `system.local`, so it
goes through the log itself, after that position: reading that stops there and asks learns of it in time. Cassandra
remembers a table's last one only, and none of a table that is dropped.
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
    """Return the value of `truncated_at`, as the driver gives it."""
    found = {}
    for table, value in (column or {}).items():
        segment, position, time = struct.unpack(">qiq", value)
        found[table] = Truncation(table, (segment, position), time)
    return found


class Truncations:
    """Which truncations are to be published, and when reading reaches them: each once, through restarts too.

    Those of followed tables are published. Those from before the table was followed, or from before the oldest segment
    there is, are only noted.
    """

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._followed = set(positions.followed_ids)
        self._emitted = self._acknowledged
        self._known: Mapping[uuid.UUID, Truncation] = {}
        self._waiting: list[Truncation] = []

    def learn(
        self, known: Mapping[uuid.UUID, Truncation], followed: Collection[uuid.UUID], oldest: int, reached: Place
    ) -> None:
        """Apply what Cassandra knows now. `oldest` is the id of the oldest segment, `reached` how far is read."""
        self._known = known
        for table in set(followed) - self._followed:
            self.follow(table, oldest, reached)
        self._followed = set(followed)
        self._wait()

    def follow(self, table: uuid.UUID, oldest: int, reached: Place) -> None:
        """Publish those of this table from here on."""
        found = self._known.get(table)
        if found is not None and (found.place[0] < oldest or found.place <= reached):
            self._emitted[table] = self._positions.truncated[str(table)] = found.time
        self._followed.add(table)
        self._wait()

    def ignore(self, table: uuid.UUID) -> None:
        """Publish those of this table no more."""
        self._followed.discard(table)
        self._wait()

    def due(self, reached: Place) -> list[Notice]:
        """Notices for those that `reached` has passed. Each is returned once."""
        due = []
        while self._waiting and self._waiting[0].place <= reached:
            truncation = self._waiting.pop(0)
            self._emitted[truncation.table] = truncation.time
            due.append(truncation.notice)
        return due

    def cut(self, segment: int, start: int, end: int) -> int:
        """Return the first position of a segment, between these two, where one is to be published; 0 if there is
        none.
        """
        for truncation in self._waiting:
            if truncation.place[0] == segment and start < truncation.place[1] < end:
                return truncation.place[1]
        return 0

    def acknowledged(self) -> None:
        """All that were returned by `due` are acknowledged: note them, to be saved."""
        self._positions.truncated = {str(table): time for table, time in self._emitted.items() if table in self._known}

    def rewind(self) -> None:
        """Return those that are not acknowledged once more."""
        self._emitted = self._acknowledged
        self._wait()

    @property
    def _acknowledged(self) -> dict[uuid.UUID, int]:
        return {uuid.UUID(table): time for table, time in self._positions.truncated.items()}

    def _wait(self) -> None:
        # A clock may be set back: any other time than the published one is a later TRUNCATE.
        waiting = [
            t for t in self._known.values() if t.table in self._followed and t.time != self._emitted.get(t.table)
        ]
        self._waiting = sorted(waiting, key=lambda t: t.place)

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
from helenus_agent.positions import LogPosition, Positions
from helenus_schemas.event.change import Scope


@dataclass(frozen=True)
class Truncation:
    """All that the log holds of the table before `log_position` was dropped at `time`, ms since the epoch."""

    table: uuid.UUID
    log_position: LogPosition
    time: int

    @property
    def notice(self) -> Notice:
        return Notice(Scope.TABLE, self.table, self.time * 1000, self.time, *self.log_position)


def read_truncations(column: Mapping[uuid.UUID, bytes] | None) -> dict[uuid.UUID, Truncation]:
    """Return the value of `truncated_at`, as the driver gives it."""
    truncations = {}
    for table, value in (column or {}).items():
        segment, position, time = struct.unpack(">qiq", value)
        truncations[table] = Truncation(table, (segment, position), time)
    return truncations


class Truncations:
    """Which truncations are to be published, and when reading reaches them: each once, through restarts too.

    Those of followed tables are published. Those from before the table was followed, or from before the oldest segment
    there is, are only noted.
    """

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._followed = set(positions.followed_ids)
        self._emitted = self._acknowledged_times
        self._truncations: Mapping[uuid.UUID, Truncation] = {}
        self._pending: list[Truncation] = []

    def learn(
        self,
        truncations: Mapping[uuid.UUID, Truncation],
        followed: Collection[uuid.UUID],
        oldest: int,
        reached: LogPosition,
    ) -> None:
        """Apply what Cassandra knows now. `oldest` is the id of the oldest segment, `reached` how far is read."""
        self._truncations = truncations
        for table in set(followed) - self._followed:
            self.follow(table, oldest, reached)
        self._followed = set(followed)
        self._update_pending()

    def follow(self, table: uuid.UUID, oldest: int, reached: LogPosition) -> None:
        """Publish those of this table from here on."""
        truncation = self._truncations.get(table)
        if truncation is not None and (truncation.log_position[0] < oldest or truncation.log_position <= reached):
            self._emitted[table] = self._positions.truncated[str(table)] = truncation.time
        self._followed.add(table)
        self._update_pending()

    def ignore(self, table: uuid.UUID) -> None:
        """Publish those of this table no more."""
        self._followed.discard(table)
        self._update_pending()

    def take_due(self, reached: LogPosition) -> list[Notice]:
        """Return notices for truncations that `reached` has passed. Each is returned once."""
        notices = []
        while self._pending and self._pending[0].log_position <= reached:
            truncation = self._pending.pop(0)
            self._emitted[truncation.table] = truncation.time
            notices.append(truncation.notice)
        return notices

    def first_within(self, segment: int, start: int, end: int) -> int:
        """Return the first position in a segment, from `start` on and before `end`, of a truncation to publish; 0 if
        there is none. On an idle node it is where a section starts: behind the marker up to which was read.
        """
        for truncation in self._pending:
            if truncation.log_position[0] == segment and start <= truncation.log_position[1] < end:
                return truncation.log_position[1]
        return 0

    def note_emitted(self) -> None:
        """Note in the positions, to be saved, all that `take_due` returned: they are acknowledged."""
        self._positions.truncated = {
            str(table): time for table, time in self._emitted.items() if table in self._truncations
        }

    def rewind(self) -> None:
        """Return those that are not acknowledged once more."""
        self._emitted = self._acknowledged_times
        self._update_pending()

    @property
    def _acknowledged_times(self) -> dict[uuid.UUID, int]:
        return {uuid.UUID(table): time for table, time in self._positions.truncated.items()}

    def _update_pending(self) -> None:
        # A clock may be set back: any other time than the published one is a later TRUNCATE.
        waiting = [
            t for t in self._truncations.values() if t.table in self._followed and t.time != self._emitted.get(t.table)
        ]
        self._pending = sorted(waiting, key=lambda t: t.log_position)

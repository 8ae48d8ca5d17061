"""Events that concern a whole table: TRUNCATE, DROP, and gaps.

One goes into every partition of the table's events topic, so that it is in order with the rows of each.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

from helenus_schemas.event.change import Change, Scope
from helenus_schemas.event.wire import encode


@dataclass(frozen=True)
class Notice:
    """`scope` is TABLE or GAP, `time` µs since the epoch. It belongs at a position in a segment of the node's log.

    `stamp` and the table's id identify it: its digest is made of them.
    """

    scope: Scope
    table: uuid.UUID
    time: int
    stamp: int
    segment: int
    position: int

    def values(self, node: str, partitions: int) -> list[bytes]:
        """Return the event's value for each partition of the topic; its key is none."""
        name = self.table.bytes + self.stamp.to_bytes(8, "big", signed=True)  # a table's id may say a year before 1970
        digest = hashlib.md5(name, usedforsecurity=False).hexdigest()
        return [
            encode(Change(digest, node, self.scope, part, partitions, self.segment, self.position, self.time))
            for part in range(partitions)
        ]

"""What the order of the logs behind one topic partition says, and no write time does.

    node A, TRUNCATE at segment 7, position 900 → all that A logged up to there is gone from A, whatever its write time

A merge may use write times only where Cassandra decides by them. It does not in three cases:
- TRUNCATE drops what a node logged up to a position. The first node's report of one adds to `truncations`; a node that
  has not reported it is *behind*: what it reports may be of before, so the row is read.
- Tombstones are purged after gc_grace_seconds, by each replica at another time, and those from before the first
  event were never seen. Up to `horizon` there may be deletions of which nothing is known here.
- After a gap, lost events or a truncation some rows may be other than the log says. Each counts as a `disturbance`: the
  table is snapshot again, and rows that were not proven since are read once that is complete (`swept_up_to`).

Bytes, version 2, big-endian: u8 version; 16 bytes table id; u64 now; u64 count; i64 horizon; i64 time of the last
truncation; u32 truncations; u32 disturbances; u32 swept; u16 n, n × (u16 size, node; u32 truncations; u8 has a
position, [i64 segment, i64 position]).
Version 1 ends after the count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from struct import Struct

from helenus_connector.state.rows._cell_rules import MAX_TIME, NEVER, clamp_time
from helenus_connector.state.store.versions import UnknownVersion
from helenus_schemas.event.change import Change, Origin

_VERSION = 2
_HEAD = Struct(">B16sQQ")
_COUNTERS = Struct(">qqIIIH")
_NODE = Struct(">IB")
_LOG_POSITION = Struct(">qq")
_SIZE = Struct(">H")
_SAME_TRUNCATION_US = 5_000_000
"""Nodes note one TRUNCATE within seconds. A node whose report is older than the last one's by more than this has more
of them to report. If its clock is behind, it counts as behind: its rows are read, which costs reads and no truth.
"""

_MAX_NODES, _MAX_NODE_BYTES = 10_000, 255
"""Limits, as whoever writes to an events topic may name nodes that do not exist. Rows of those left out are read."""


LogPosition = tuple[int, int]
"""A commit log segment's id, and a position in it."""


class TruncationReport(Enum):
    """The meaning of a node's report of a TRUNCATE to the partition."""

    KNOWN = 0
    """It was reported before: an agent sends again what was not acknowledged."""
    FIRST = 1
    """No node has reported this one before."""
    FOLLOWING = 2
    """Another node has; this one catches up."""


class Standing(Enum):
    """The meaning of an event's position in the log of its node, whatever its write time."""

    CURRENT = 0
    """Its node holds what it wrote, as far as nothing newer took it away."""
    BEHIND = 1
    """A TRUNCATE that its node has not reported may have dropped it."""
    DROPPED = 2
    """A TRUNCATE of its node dropped it."""


@dataclass(slots=True)
class NodeHistory:
    """How many of the partition's truncations a node has reported, and the position of the last one in its log."""

    truncations: int
    truncated_at: LogPosition | None = None


@dataclass(slots=True)
class TopicPartitionHistory:
    """The history of a topic partition, one of the events topic's. `now` is the time of the last batch, s since the
    epoch, `row_count` the number of stored rows. `horizon`, and `truncation_time`, when the last truncation was first
    reported, are in µs since the epoch. `swept_up_to`: the disturbances after which all rows that were not proven were
    requested to be read.
    """

    table_id: bytes
    now: int = 0
    row_count: int = 0
    horizon: int = NEVER
    truncation_time: int = NEVER
    truncations: int = 0
    disturbances: int = 0
    swept_up_to: int = 0
    nodes: dict[str, NodeHistory] = field(default_factory=dict)

    def raise_horizon(self, write_time: int) -> None:
        """Note that a deletion of this write time is no longer known here, and may be in Cassandra."""
        self.horizon = max(self.horizon, min(write_time, MAX_TIME))

    def note_node(self, node: str, trusts_absence: bool) -> None:
        """Note a node. One that first reports while `trusts_absence`, so when all rows are proven, has joined since,
        and has nothing of before.
        """
        if node not in self.nodes and len(self.nodes) < _MAX_NODES and len(node) <= _MAX_NODE_BYTES:
            self.nodes[node] = NodeHistory(self.truncations if trusts_absence else max(0, self.truncations - 1))

    def is_behind(self, node: str) -> bool:
        """Return whether what a node reports may have been dropped by a TRUNCATE that it has not reported yet. It is
        noted before, unless there are too many.
        """
        return node not in self.nodes or self.nodes[node].truncations < self.truncations

    def judge_log_position(self, change: Change, trusts_absence: bool) -> Standing:
        """Note the node of an event, and return what the event's position in its log means."""
        if not self.truncations or change.origin is not Origin.LOG or change.node is None:
            return Standing.CURRENT
        if self.is_dropped(change.node, (change.segment, change.position)):
            return Standing.DROPPED
        if change.segment < 0:  # it does not say where it was logged
            return Standing.BEHIND
        self.note_node(change.node, trusts_absence)
        return Standing.BEHIND if self.is_behind(change.node) else Standing.CURRENT

    def is_dropped(self, node: str | None, position: LogPosition) -> bool:
        """Return whether a TRUNCATE of its node dropped what was logged at a position. A position is where an entry
        ends.
        """
        node_history = self.nodes.get(node or "")
        return (
            node_history is not None
            and node_history.truncated_at is not None
            and (-1, -1) < position <= node_history.truncated_at
        )

    def truncate(self, node: str | None, position: LogPosition, time: int, trusts_absence: bool) -> TruncationReport:
        """Note a node's report of a TRUNCATE: at a position of its log, (-1, -1) if the report does not say where, and
        at a time, µs since the epoch.
        """
        if self.is_dropped(node, position):
            return TruncationReport.KNOWN
        self.note_node(node or "", trusts_absence)
        node_history = self.nodes.get(node or "") or NodeHistory(self.truncations)
        is_following = node_history.truncations < self.truncations
        self.disturbances += 1
        if not is_following:
            self.truncations += 1
            self.truncation_time = clamp_time(time)
        is_last = time >= self.truncation_time - _SAME_TRUNCATION_US
        node_history.truncations = self.truncations if is_last else node_history.truncations + 1
        if position > (-1, -1):
            node_history.truncated_at = position
        return TruncationReport.FOLLOWING if is_following else TruncationReport.FIRST

    def dumps(self) -> bytes:
        """Return the history's bytes."""
        parts = [_HEAD.pack(_VERSION, self.table_id, self.now, self.row_count)]
        counters = (
            self.horizon,
            self.truncation_time,
            self.truncations,
            self.disturbances,
            self.swept_up_to,
            len(self.nodes),
        )
        parts.append(_COUNTERS.pack(*counters))
        for name, node in self.nodes.items():
            name_bytes = name.encode()
            parts += (
                _SIZE.pack(len(name_bytes)),
                name_bytes,
                _NODE.pack(node.truncations, node.truncated_at is not None),
            )
            if node.truncated_at is not None:
                parts.append(_LOG_POSITION.pack(*node.truncated_at))
        return b"".join(parts)

    @classmethod
    def loads(cls, data: bytes) -> TopicPartitionHistory:
        """Parse a history's bytes. Raises ValueError for those of a version that is not known here."""
        version, table_id, now, row_count = _HEAD.unpack_from(data)
        if version not in (1, _VERSION):
            raise UnknownVersion("the history of a partition", version, _VERSION)
        if version == 1:
            # That version forgot tombstones, and did not say up to which write time.
            return cls(table_id, now, row_count, now * 1_000_000)
        offset = _HEAD.size
        *numbers, nodes = _COUNTERS.unpack_from(data, offset)
        history = cls(table_id, now, row_count, *numbers)
        offset += _COUNTERS.size
        for _ in range(nodes):
            end = offset + 2 + _SIZE.unpack_from(data, offset)[0]
            name = data[offset + 2 : end].decode()
            truncations, has_position = _NODE.unpack_from(data, end)
            offset = end + _NODE.size
            history.nodes[name] = NodeHistory(truncations)
            if has_position:
                history.nodes[name].truncated_at = _LOG_POSITION.unpack_from(data, offset)
                offset += _LOG_POSITION.size
        return history

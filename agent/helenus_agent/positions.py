"""How far the log is read and acknowledged, as it is saved. The file: `helenus_agent.state`."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

_FORMAT = 1
# A restarted node links segments again that it has to replay. So many ids of removed ones are kept to recognise them.
_REMEMBERED = 512

# How Cassandra 6.0 names its nodes: by their number in the cluster (NodeId.toUUID). Before, host ids are random.
_NUMBERED_NODE = re.compile(r"6d194555-f6eb-41d0-c000-[0-9a-f]{12}")

LogPosition = tuple[int, int]
"""A segment's id and a position in it. Places compare in the log's order."""


def is_numbered(host_id: str) -> bool:
    """Return whether a host id is one of Cassandra 6.0's, which the nodes of each cluster have."""
    return _NUMBERED_NODE.fullmatch(host_id) is not None


def is_renamed(before: str, host_id: str) -> bool:
    """Return whether a node that had one host id may have the other since an upgrade to Cassandra 6.0.

    `nodetool cms initialize` gives each node of an upgraded cluster a new one (UpgradeMigrationListener, Register).
    """
    return is_numbered(host_id) and not is_numbered(before)


@dataclass
class SegmentMark:
    """How far a segment is acknowledged, whether it has an index, and whether something in it could not be read."""

    offset: int
    indexed: bool = False
    bad: bool = False


@dataclass
class LogGap:
    """Changes that may be missing from the log up to `time`, µs since the epoch; `table` is an id, empty: any table.

    `appended`: its events are appended and not acknowledged yet. This is never saved.
    """

    table: str
    time: int
    reason: str
    appended: bool = False


@dataclass
class Positions:
    """What is saved of one agent.

    `done`: segments all of whose changes are acknowledged; their files may still be there.
    `cluster`: the node's cluster, if it was ever seen with a host id that nodes of other clusters have as well.
    `transactional`: tables whose writes are in no commit log, as far as that was said.
    `followed`, `paused`: tables that are followed, and those that were until they lost CDC or were excluded.
    `reached`: up to where the log was read.
    `truncated`: per table the time of its last acknowledged TRUNCATE, ms since the epoch.
    `gaps`: those that are not acknowledged.
    `refused`: tables whose topics the broker refused, and that have not received their gap event yet.
    `listed`: the highest id of a segment that was seen, 0 if none was.
    `cdc_off`: the node was last seen with cdc_enabled: false.
    `deletes`: the node was last seen with cdc_block_writes: false.
    `dropped`: per dropped table that the log may still name, when it was dropped, µs since the epoch; 0 once that is
    acknowledged.
    `owner`, `epoch`, `version`: with `state.store=cassandra` which agent saved it, and the numbers of that owner and of
    the save (see `helenus_agent.state_store`).
    """

    host_id: str = ""
    segments: dict[int, SegmentMark] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    reached: LogPosition = (0, 0)
    paused: list[str] = field(default_factory=list)
    truncated: dict[str, int] = field(default_factory=dict)
    gaps: list[LogGap] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    listed: int = 0
    cdc_off: bool = False
    deletes: bool = False
    dropped: dict[str, int] = field(default_factory=dict)
    cluster: str = ""
    transactional: list[str] = field(default_factory=list)
    owner: str = ""
    epoch: int = 0
    version: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return what `json` writes."""
        # Not by `asdict`, which copies each of thousands of ids, some times a second.
        content = {"format": _FORMAT, **vars(self)}
        content["segments"] = {number: asdict(mark) for number, mark in self.segments.items()}
        content["gaps"] = [{"table": gap.table, "time": gap.time, "reason": gap.reason} for gap in self.gaps]
        return content

    @classmethod
    def from_json(cls, saved: Any) -> Positions:
        """Return the reverse of `as_json`. Raises ValueError, LookupError, TypeError or AttributeError for anything
        else.
        """
        if saved["format"] != _FORMAT:
            raise ValueError(f"format {saved['format']}, this agent knows {_FORMAT}")
        segments = {
            int(number): SegmentMark(int(mark["offset"]), bool(mark["indexed"]), bool(mark["bad"]))
            for number, mark in saved["segments"].items()
        }
        positions = cls(
            str(saved["host_id"]),
            segments,
            [int(number) for number in saved["done"]],
            list(saved["followed"]),
            (int(saved.get("reached", (0, 0))[0]), int(saved.get("reached", (0, 0))[1])),
            list(saved.get("paused", ())),
            {str(uuid.UUID(table)): int(time) for table, time in saved.get("truncated", {}).items()},
            [LogGap(gap["table"], int(gap["time"]), str(gap["reason"])) for gap in saved.get("gaps", ())],
            list(saved.get("refused", ())),
            int(saved.get("listed", 0)),
            bool(saved.get("cdc_off", False)),
            bool(saved.get("deletes", False)),
            {str(uuid.UUID(table)): int(time) for table, time in saved.get("dropped", {}).items()},
            str(saved.get("cluster", "")),
            [str(uuid.UUID(table)) for table in saved.get("transactional", ())],
            str(saved.get("owner", "")),
            int(saved.get("epoch", 0)),
            int(saved.get("version", 0)),
        )
        _ = positions.followed_ids, positions.paused_ids, positions.refused_ids
        return positions

    def knows_segment(self, segments: Iterable[int]) -> bool:
        """Return whether one of these segments was read before, so that they are of the same node."""
        return any(segment in self.segments or segment in self.done for segment in segments)

    def reopen(self, segment: int) -> None:
        """Have a segment read again, from its start."""
        self.done = [number for number in self.done if number != segment]
        self.segments[segment] = SegmentMark(0, indexed=True)

    def finish(self, segment: int) -> None:
        """Note that a segment is fully processed."""
        self.segments.pop(segment, None)
        if segment not in self.done:
            self.done.append(segment)

    def finish_all(self, segments: Collection[int]) -> None:
        """Note that these segments are fully processed, and are all such that were not removed yet: forget the oldest
        others. One that is forgotten while its file is there would be read again.
        """
        done = set(self.done)
        for segment in segments:
            self.segments.pop(segment, None)
        self.done += [segment for segment in segments if segment not in done]
        if len(self.done) > _REMEMBERED:
            present = set(segments)
            self.done[:-_REMEMBERED] = [number for number in self.done[:-_REMEMBERED] if number in present]

    @property
    def followed_ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(text) for text in self.followed]

    @property
    def paused_ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(text) for text in self.paused]

    @property
    def refused_ids(self) -> list[uuid.UUID]:
        return [uuid.UUID(text) for text in self.refused]

    @property
    def first(self) -> int:
        """Return the oldest segment that is not fully processed, or the next one; 0 if none is known."""
        return min(self.segments, default=max(self.done) + 1 if self.done else 0)

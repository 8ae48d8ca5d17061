"""Topics to read: a planner whose answers a test sets, and messages."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from helenus_connector.log.events import OffsetRange, Offsets

if TYPE_CHECKING:
    from helenus_connector.log.events import Planner

    def _is_one(planner: MemoryPlanner) -> Planner:
        return planner


class MemoryMessage:
    """A record that was read, with the methods of confluent-kafka's messages."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: tuple[int, int] = (1, 0),
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        self._topic, self._partition, self._offset, self._timestamp = topic, partition, offset, timestamp
        self._key, self._value, self._headers = key, value, headers

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Sequence[tuple[str, bytes | None]] | None:
        return self._headers

    def error(self) -> None:
        return None


class MemoryPlanner:
    """A planner that answers what its fields say. A topic has as many partitions as `ends` says, by default 4.

    - `since_offsets`: what `since` answers, by partition. `start`: where every partition starts.
    - `dropped`: partitions whose events are gone. `truncated`: partitions that lost records from an offset on, once
      their leader's epoch in `epochs` is another one.
    - `refused`: errors by topic, of `partitions` and `commit`; `unsearchable`: of `since`.
    - `committed`, `kept` and `counted`: what `commit`, `keep` and `partitions` were given.
    """

    def __init__(self, since_offsets: dict[str, int] | None = None) -> None:
        self.since_offsets = since_offsets or {}
        self.start = 40
        self.ends: Offsets = {}
        self.dropped: list[str] = []
        self.topic_ids: dict[str, str] = {}
        self.epochs: Offsets = {}
        self.truncated: dict[str, int] = {}
        self.refused: dict[str, Exception] = {}
        self.unsearchable: dict[str, Exception] = {}
        self.committed: dict[str, Offsets] = {}
        self.kept: list[Mapping[str, Collection[str]]] = []
        self.counted: list[list[str]] = []

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        self.counted.append(list(topics))
        if topics and self.refused.keys() >= set(topics):
            raise self.refused[topics[0]]
        return {topic: 0 if topic in self.refused else len(self.ends.get(topic, "four")) for topic in topics}

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:  # noqa: ARG002
        for topic in self.unsearchable.keys() & partitions.keys():
            raise self.unsearchable[topic]
        return dict.fromkeys(partitions, self.since_offsets)

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        return {topic: {str(p): self.start for p in range(n)} for topic, n in partitions.items()}

    def wait(self, pace: float, longest: float) -> None:  # noqa: ARG002
        time.sleep(pace)

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        there = {topic: n for topic, n in partitions.items() if topic in self.ends}
        return {topic: {str(p): self.ends[topic][str(p)] for p in range(n)} for topic, n in there.items()}

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        return {topic: number for topic, number in self.topic_ids.items() if topic in topics}

    def leaders(self) -> Offsets:
        return self.epochs

    def cut(self, topic: str, leaders: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, int]:
        changed = {p for p in positions if p in leaders and leaders[p] != self.epochs[topic][p]}
        return {p: offset for p, offset in self.truncated.items() if p in changed and offset < positions[p]}

    def size(self, offset_range: OffsetRange) -> int:
        return max(0, offset_range.end - offset_range.start)

    def advance(self, offset_range: OffsetRange, events: int) -> int:
        return min(offset_range.end, offset_range.start + events)

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(topic, p) for topic in starts for p in self.dropped]

    def commit(self, group: str, offsets: Offsets) -> None:
        for topic in self.refused.keys() & offsets.keys():
            raise self.refused[topic]
        self.committed[group] = offsets

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        self.kept.append(groups)

    def close(self) -> None:
        """There is nothing to close."""

"""Events topics, as planner and tasks see them: the reading side of either Log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from helenus_schemas.errors import HelenusError, Kind

_LEADER_S, _POLL_S = 30.0, 0.5
_ADVICE = "see that all brokers that have the topic are up, and try again"
Offsets = dict[str, dict[str, int]]
"""Next offset by topic and partition; partitions are text, because this is kept as JSON."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition from offset `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offsets {self.start} to {self.end}"


def pace_s(partitions: int, longest_s: float = 60.0) -> float:
    """Return how many seconds to wait between two reads of what hardly changes. To read 200 partitions takes some 15 ms
    of CPU.
    """
    return min(max(5.0, partitions / 20), longest_s)


def behind(topic: str, read_offsets: Mapping[str, int], ends: Mapping[str, int]) -> list[OffsetRange]:
    """Return what a reader at the offsets `read_offsets` has not read of a topic, up to `ends`, both by partition."""
    ranges = (
        OffsetRange(topic, int(partition), read_offsets.get(partition, 0), end) for partition, end in ends.items()
    )
    return [offset_range for offset_range in ranges if offset_range.start < offset_range.end]


def ends(
    planner: Planner, topic: str, count: int | None = None, wait: Callable[[float], None] | None = None
) -> dict[str, int]:
    """Return the end of each of a topic's partitions, whose number is `count` or read from the broker. With `wait`,
    which is called with seconds, an election of leaders is waited for, half a minute.

    Raises HelenusError BROKER_UNREACHABLE where the ends are not known now, and as the planner.
    """
    deadline = time.monotonic() + _LEADER_S
    while True:
        try:
            partitions = planner.partitions([topic])[topic] if count is None else count
            if partitions and (latest := planner.latest({topic: partitions}).get(topic)):
                return dict(latest)
            problem = "one of its partitions has no leader, or the topic is gone: its end is not known"
            raise HelenusError(Kind.BROKER_UNREACHABLE, problem, f"topic {topic}", _ADVICE)
        except HelenusError as error:
            if error.kind is not Kind.BROKER_UNREACHABLE or wait is None or time.monotonic() >= deadline:
                raise
        wait(_POLL_S)


class FencedRecord(NamedTuple):
    """A record of a topic that has one writer at a time, and its offset."""

    key: bytes
    value: bytes | None
    offset: int = -1


@dataclass(frozen=True)
class FencedContent:
    """The records of such a topic, in order, and where it ends. `error` is why they can't be trusted. With `is_expired`
    there were some, and all are gone.
    """

    records: list[FencedRecord]
    end: int
    error: HelenusError | None = None
    is_expired: bool = False


class Message(Protocol):
    """A record that was read, with the methods of confluent-kafka's messages; times in ms since the epoch."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


class Planner(Protocol):
    """The queries of a driver to the brokers. Every call takes some seconds at most, then raises HelenusError.

    Offsets of a partition are numbers that grow with its records; they need not be without gaps.
    """

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return how many partitions each topic has; 0 if it does not exist, or one of them has no leader now."""
        ...

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the end of every partition; -1 if it is empty and its former end is unknown. A topic is left out if it
        is gone, or can't be queried just now.

        Raises if none can be queried.
        """
        ...

    def wait(self, pace: float, longest: float) -> None:
        """Wait for records before `latest` is called again: `pace` s, or up to `longest` where the broker reports new
        records.
        """
        ...

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        """Return the start of every partition."""
        ...

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        """Return the first offset of every partition with at least this timestamp, or one before; -1 where there is
        none.

        Any thread may call it.
        """
        ...

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return an id of each topic, other than that of a later topic of the same name; none where the broker has no
        ids.
        """
        ...

    def leaders(self) -> dict[str, dict[str, int]]:
        """Return what identifies every partition's history, by topic, at the last `latest`: on Kafka its leader epoch.

        Returns nothing where the broker does not say. What was returned is never changed.
        """
        ...

    def cut(self, topic: str, leaders: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, int]:
        """Return the partitions that lost records since `leaders` returned this, so that other records are, or will be,
        at their offsets: each with the first such offset. A partition that is not in `leaders` is none of them.
        """
        ...

    def size(self, offset_range: OffsetRange) -> int:
        """Return how many events are in a range, as far as is known without reading it."""
        ...

    def advance(self, offset_range: OffsetRange, events: int) -> int:
        """Return the end of about the first so many events of a range: at most its own end."""
        ...

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:
        """Return topics and partitions that no longer have all events from these starts on, where reading does not show
        it.
        """
        ...

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit a connector's positions to the brokers, for dashboards; only the checkpoint counts."""
        ...

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        """Release all but these topics of these groups, so that others may use their subscriptions."""
        ...

    def close(self) -> None:
        """Close the connections to the brokers."""
        ...

"""The last event of a node in events topics, as far as samples show it.

    the time of the loss  1 minute, 2, 4, 8, … before           until one has an event of the node
    between these two     halves, until they are a second apart

Nobody keeps a list of nodes and times; the topics have it. Each sample is the first events after a time, in each
partition. One that misses the node's events there makes its last event look older than it is, and the loss larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import planner, read
from helenus_connector.log.events import OffsetRange, Planner
from helenus_schemas.cql.values import Malformed
from helenus_schemas.errors import HelenusError
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import decode, without_frames

_FIRST_MS = 60_000
_OLDEST_MS = 90 * 86_400_000
"""Three months: older than what events topics keep."""
_NEAR_MS = 1_000
_SAMPLE_EVENTS = 5_000
"""In all: some 50 ms of decoding, and there are some thirty samples."""
_MIN_EVENTS = 20
"""Of each partition, however many there are."""
_MAX_PARTITIONS = 64
"""Those in which the node was seen, that is; a node reports to all partitions of a table that is written."""

TopicPartition = tuple[str, int]


class NodeReport(NamedTuple):
    """A node's last known event: when it was appended, ms since the epoch, its segment and position, and its write
    time in µs, if it has one.
    """

    timestamp: int
    segment: int
    position: int
    write_time: int | None


class _Sample(NamedTuple):
    reports: list[NodeReport]
    partitions: set[TopicPartition]


def find_last_report(worker: WorkerSettings, topics: Mapping[str, int], node: str, until: int) -> NodeReport | None:
    """Return the last event of a node, by its host id, that was appended up to `until`, ms since the epoch, to events
    topics, of which the partitions are counted; None if the samples have none. Takes some seconds. Raises HelenusError
    as `planner` and `read`.
    """
    with closing(planner(worker)) as broker:
        samples = _Samples(worker, broker, topics, node, until)
        without, age = until, _FIRST_MS
        sample = samples.take(until - age)
        while not sample.reports and age < _OLDEST_MS:
            without, age = until - age, age * 2
            sample = samples.take(until - age)
        if not sample.reports:
            return None
        samples.restrict(sample.partitions)
        last = sample
        while without - (seen_at := _timestamp(last)) > _NEAR_MS:
            middle = (seen_at + without) // 2
            sample = samples.take(middle)
            # What is before the middle is there because offsets by time are not exact.
            if any(report.timestamp >= middle for report in sample.reports):
                last = sample
            else:
                without = middle
        return max(last.reports, key=lambda report: (report.segment, report.position))._replace(
            timestamp=_timestamp(last)
        )


def _timestamp(sample: _Sample) -> int:
    return max(report.timestamp for report in sample.reports)


class _Samples:
    """Reads samples, and keeps what a node has in them."""

    def __init__(
        self, worker: WorkerSettings, broker: Planner, topics: Mapping[str, int], node: str, until: int
    ) -> None:
        self._until = until
        self._worker = worker
        self._broker = broker
        self._topics = dict(topics)
        self._node = node
        self._partitions: set[TopicPartition] | None = None

    def restrict(self, partitions: set[TopicPartition]) -> None:
        """Read these partitions alone from now on, or some of them."""
        self._partitions = set(sorted(partitions)[:_MAX_PARTITIONS])
        self._topics = {topic: n for topic, n in self._topics.items() if any(topic == t for t, _ in self._partitions)}

    def take(self, timestamp: int) -> _Sample:
        """Return what the node reported among the first events after a time."""
        starts = self._broker.since(self._topics, timestamp)
        ends = self._broker.latest(self._topics)
        ranges = [
            OffsetRange(topic, int(partition), start, ends[topic][partition])
            for topic, partitions in starts.items()
            for partition, start in partitions.items()
            if start >= 0 and topic in ends and start < ends[topic].get(partition, -1)
            if self._partitions is None or (topic, int(partition)) in self._partitions
        ]
        events = max(_MIN_EVENTS, _SAMPLE_EVENTS // max(1, len(ranges)))
        ranges = [OffsetRange(r.topic, r.partition, r.start, self._broker.advance(r, events)) for r in ranges]
        sample = _Sample([], set())
        for chunk in read(self._worker, ranges, "continue", lambda *_: None, _raise):
            for message in chunk:
                change = _decode(message.key(), message.value())
                timestamp = message.timestamp()[1]
                if change is None or change.node != self._node or timestamp > self._until:
                    continue
                sample.reports.append(NodeReport(timestamp, change.segment, change.position, change.write_time))
                sample.partitions.add((message.topic(), message.partition()))
        return sample


def _decode(key: bytes | None, value: bytes | None) -> Change | None:
    """Return what a node's agent read in its commit log; None for all else."""
    try:
        change = decode(without_frames(key, value or b"")[1])
    except (Malformed, ValueError):
        return None
    # A gap of a lost node is not reported by itself.
    return change if change.origin is Origin.LOG and change.scope is not Scope.GAP else None


def _raise(_: OffsetRange, error: HelenusError) -> None:
    raise error

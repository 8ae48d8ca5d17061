"""The last event of a node in events topics, as far as samples show it.

    the time of the loss  1 minute, 2, 4, 8, … before           until one has an event of the node
    between these two     halves, until they are a second apart

Nobody keeps a list of nodes and times; the topics have it. Each sample is the first events after a time, in some
partitions. One that misses the node's events there makes its last event look older than it is, and the loss larger.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import NamedTuple

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.log.choice import planner, read
from helenus_connector.log.events import OffsetRange, Planner
from helenus_schemas.cql.values import Malformed
from helenus_schemas.event.change import Change, Origin, Scope
from helenus_schemas.event.wire import decode, without_frames

_FIRST_MS = 60_000
_OLDEST_MS = 90 * 86_400_000
"""Three months: older than what events topics keep."""
_NEAR_MS = 1_000
_SAMPLE_EVENTS = 5_000
"""In all: some 50 ms of decoding, and there are some thirty samples."""
_MAX_PARTITIONS = 48
"""Until the node is seen, at random: it reports to all partitions of a table that is written."""
_MAX_SEEN_PARTITIONS = 8
"""Of those that it was seen in. On Pulsar each costs some 0.1 s a sample."""
_LAST_REPORTS = 20
_SEARCH_S = 45.0
"""After that the search ends with what it has."""

TopicPartition = tuple[str, int]


class NodeReport(NamedTuple):
    """A node's last known event: when it was appended, ms since the epoch, its segment and position, and the earliest
    write time among the last few, in µs; None if they have none. The segment is -1 where another program's agent wrote
    it, which does not say where in the log it was.
    """

    timestamp: int
    segment: int
    position: int
    write_time: int | None


def find_last_report(worker: WorkerSettings, topics: Mapping[str, int], node: str, until: int) -> NodeReport | None:
    """Return the last event of a node, by its host id, that was appended up to `until`, ms since the epoch, to events
    topics, of which the partitions are counted; None if the samples have none. Takes some seconds, at most about a
    minute. Raises HelenusError as `planner` and `read`.

    Call it in a thread of its own: what reads topics is the thread's, and is closed with it.
    """
    partitions = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
    deadline = time.monotonic() + _SEARCH_S
    with closing(planner(worker)) as broker:
        samples = _Samples(worker, broker, node, until)
        samples.read_from(random.sample(partitions, min(len(partitions), _MAX_PARTITIONS)))
        without, age = until, _FIRST_MS
        sample = samples.take(until - age)
        while not sample.reports and age < _OLDEST_MS and time.monotonic() < deadline:
            without, age = until - age, age * 2
            sample = samples.take(until - age)
        if not sample.reports:
            return None
        samples.read_from(sorted(sample.partitions)[:_MAX_SEEN_PARTITIONS])
        last = sample
        while without - (seen_at := _timestamp(last)) > _NEAR_MS and time.monotonic() < deadline:
            middle = (seen_at + without) // 2
            sample = samples.take(middle)
            # What is before the middle is there because offsets by time are not exact.
            if any(report.timestamp >= middle for report in sample.reports):
                last = sample
            else:
                without = middle
        return _last_of(last)


def _timestamp(sample: _Sample) -> int:
    return max(report.timestamp for report in sample.reports)


def _last_of(sample: _Sample) -> NodeReport:
    """Return the last report in the node's log. What it had sent by then is older, by some of its last write times."""
    last = sorted(sample.reports, key=lambda report: (report.segment, report.position))[-_LAST_REPORTS:]
    write_times = [report.write_time for report in last if report.write_time is not None]
    return last[-1]._replace(timestamp=_timestamp(sample), write_time=min(write_times, default=None))


class _Sample(NamedTuple):
    reports: list[NodeReport]
    partitions: set[TopicPartition]


class _Samples:
    """Reads samples, and keeps what a node has in them."""

    def __init__(self, worker: WorkerSettings, broker: Planner, node: str, until: int) -> None:
        self._worker = worker
        self._broker = broker
        self._node = node
        self._until = until
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._topics: dict[str, int] = {}

    def read_from(self, partitions: Collection[TopicPartition]) -> None:
        """Read these partitions from now on."""
        self._partitions = frozenset(partitions)
        # The planner's calls take the first partitions of a topic, so many.
        counts: dict[str, int] = {}
        for topic, partition in partitions:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        self._topics = counts

    def take(self, timestamp: int) -> _Sample:
        """Return what the node reported among the first events after a time."""
        starts = self._broker.since(self._topics, timestamp)
        ends = self._broker.latest(self._topics)
        ranges = [
            OffsetRange(topic, int(partition), start, ends[topic][partition])
            for topic, partitions in starts.items()
            for partition, start in partitions.items()
            if (topic, int(partition)) in self._partitions and topic in ends
            if 0 <= start < ends[topic].get(partition, -1)
        ]
        events = _SAMPLE_EVENTS // max(1, len(ranges))
        ranges = [OffsetRange(r.topic, r.partition, r.start, self._broker.advance(r, events)) for r in ranges]
        sample = _Sample([], set())
        # A range that fails, as where a transaction is open for long, has no events: that makes the loss larger.
        for chunk in read(self._worker, ranges, "continue", lambda *_: None, lambda *_: None, has_transactions=True):
            for message in chunk:
                timestamp_ms = message.timestamp()[1]
                change = _decode(message.key(), message.value())
                if change is None or change.node != self._node or timestamp_ms > self._until:
                    continue
                sample.reports.append(NodeReport(timestamp_ms, change.segment, change.position, change.write_time))
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

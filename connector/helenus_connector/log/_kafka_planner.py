"""Positions in events topics on Kafka: what the planner asks of the brokers."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from helenus_connector.log._kafka_client import NO_ANSWER_ADVICE, TIMEOUT_S, TRANSIENT_CODES, kafka_errors
from helenus_connector.log._kafka_commits import GroupCommits
from helenus_connector.log._kafka_watch import LEARN_LEADERS_S, Place, TopicWatch
from helenus_connector.log.events import OffsetRange, Offsets, pace_s
from helenus_schemas.errors import HelenusError, Kind

_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of brokers before 2.8
_BUSY_S = 3.0
"""So long a partition is asked for its end each time, where much came."""
_LONGEST_PACE_S = 120.0
"""Between two reads of all ends: of what comes Kafka reports nearly all, and says if it can't."""


class KafkaPlanner:
    """The `events.Planner` of Kafka. `config` is librdkafka's. With `watches`, for a caller that reads the ends of
    partitions all the time, Kafka reports new records; without, each call reads all ends.
    """

    def __init__(self, config: Mapping[str, str], watches: bool = False) -> None:
        self._config = config
        self._watches = watches
        self._where = config["bootstrap.servers"]
        with kafka_errors(self._where):
            self._admin = AdminClient({"log_level": "0", **config})
        self._leaders: dict[str, dict[str, int]] = {}
        self._watch = TopicWatch(config)
        self._partition_counts: dict[str, int] = {}
        self._all_read_at = 0.0
        self._ends: Offsets = {}
        self._polled_until: dict[Place, float] = {}  # monotonic s; always if it is not watched
        self._busy_since: dict[Place, float] = {}  # monotonic s
        self._commits = GroupCommits(config)
        self._refused: set[str] = set()

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        with kafka_errors(self._where):
            metadata = self._admin.list_topics(timeout=TIMEOUT_S).topics
        with_leaders = {
            topic
            for topic in topics
            if topic in metadata and all(partition.leader >= 0 for partition in metadata[topic].partitions.values())
        }
        return {topic: len(metadata[topic].partitions) if topic in with_leaders else 0 for topic in topics}

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        with kafka_errors(self._where):
            return self._latest(partitions)

    def wait(self, pace: float, longest: float) -> None:
        now = time.monotonic()
        is_watched = self._watches and not any(
            until > now for topic_partition, until in self._polled_until.items() if topic_partition[0] in self._ends
        )
        self._watch.wait(longest if is_watched else pace)

    def _latest(self, partitions: Mapping[str, int]) -> Offsets:
        now, former_ends = time.monotonic(), self._ends
        woken = self._poll_woken(now)
        pace = pace_s(sum(partitions.values()), _LONGEST_PACE_S)
        reads_all = now - self._all_read_at > pace or self._watch.is_unsure
        reads_all |= not self._watches or partitions != self._partition_counts
        offsets = None if reads_all else self._read_polled()
        is_complete = offsets is None
        if offsets is None:
            leaders: dict[str, dict[str, int]] = {}
            offsets = self._list_offsets(_topic_partitions(partitions), OffsetSpec.latest(), leaders)
            self._leaders = leaders if leaders != self._leaders else self._leaders
            self._partition_counts, self._all_read_at = dict(partitions), now
            self._ends, self._watch.is_unsure = offsets, False
        else:
            polled_ends = {topic: {**former_ends.get(topic, {}), **ends} for topic, ends in offsets.items()}
            self._ends = {**former_ends, **polled_ends}
        if self._watches:
            new_ends = {
                (topic, int(partition))
                for topic, topic_ends in offsets.items()
                for partition, _ in topic_ends.items() - former_ends.get(topic, {}).items()
            }
            self._update_watch(new_ends - woken, now, is_complete)
        return dict(self._ends)

    def _poll_woken(self, now: float) -> set[Place]:
        """Return the partitions that have new records. They are polled now; and always, if they are no
        longer watched.
        """
        woken = self._watch.take_woken()
        self._polled_until = {
            topic_partition: until for topic_partition, until in self._polled_until.items() if until > now
        }
        for topic_partition in woken:
            self._polled_until.setdefault(topic_partition, now)
            if topic_partition not in self._watch.topic_partitions:
                self._polled_until[topic_partition], self._busy_since[topic_partition] = math.inf, now
        return woken

    def _read_polled(self) -> Offsets | None:
        """Return the ends of the polled partitions. None if the ends of all partitions have to be read."""
        leaders: dict[str, dict[str, int]] = {}
        try:
            offsets = self._list_offsets(self._polled_until, OffsetSpec.latest(), leaders) if self._polled_until else {}
        except HelenusError:  # others may answer
            offsets = {}
        polled_leaders = {
            topic: {**self._leaders.get(topic, {}), **topic_leaders} for topic, topic_leaders in leaders.items()
        }
        if any(topic_leaders != self._leaders.get(topic) for topic, topic_leaders in polled_leaders.items()):
            self._leaders = {**self._leaders, **polled_leaders}
        return None if any(topic in self._ends and topic not in offsets for topic, _ in self._polled_until) else offsets

    def _update_watch(self, unannounced: Collection[Place], now: float, is_complete: bool) -> None:
        """Watch the partitions that are not busy, from their ends on. For a while they are polled, too; so are those
        with new records that Kafka left `unannounced`.
        """
        if is_complete:
            existing = set(
                _topic_partitions({topic: n for topic, n in self._partition_counts.items() if topic in self._ends})
            )
            self._watch.unwatch(self._watch.topic_partitions - existing)
            unwatched = set(_topic_partitions(self._partition_counts)) - self._watch.topic_partitions
            watched = {
                topic_partition: until
                for topic_partition, until in self._polled_until.items()
                if topic_partition in self._watch.topic_partitions
            }
            self._polled_until = {**dict.fromkeys(unwatched, math.inf), **watched}
            self._busy_since = {
                topic_partition: since
                for topic_partition, since in self._busy_since.items()
                if topic_partition in unwatched
            }
        for topic_partition in self._watch.topic_partitions.intersection(unannounced):
            self._polled_until[topic_partition] = max(
                self._polled_until.get(topic_partition, 0.0), now + self._poll_watched_s
            )
        to_watch = [
            topic_partition
            for topic_partition, until in self._polled_until.items()
            if until == math.inf
            and topic_partition[0] in self._ends
            and now - self._busy_since.get(topic_partition, -math.inf) >= _BUSY_S
        ]
        self._watch.watch(
            {topic_partition: self._ends[topic_partition[0]][str(topic_partition[1])] for topic_partition in to_watch}
        )
        self._polled_until.update(dict.fromkeys(to_watch, now + self._poll_watched_s))
        if is_complete and not to_watch:
            self._watch.wait_longer(
                {(topic, int(partition)): end for topic, ends in self._ends.items() for partition, end in ends.items()}
            )

    @property
    def _poll_watched_s(self) -> float:
        """Return for how long the ends of partitions are asked for that are watched from now on."""
        return self._watch.waits_s + LEARN_LEADERS_S

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        return self._list_offsets(_topic_partitions(partitions), OffsetSpec.earliest())

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        return self._list_offsets(_topic_partitions(partitions), OffsetSpec.for_timestamp(timestamp_ms))

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        topic_ids: dict[str, str] = {}
        with kafka_errors(self._where):
            collection = TopicCollection(list(topics))
            requests = self._admin.describe_topics(collection, request_timeout=TIMEOUT_S) if topics else {}
            for topic, future in requests.items():
                try:
                    topic_ids[topic] = str(future.result().topic_id)
                except KafkaException:  # it is missing, or may not be described: the request for its end shows which
                    continue
        return {topic: topic_id for topic, topic_id in topic_ids.items() if topic_id != _NO_ID}

    def leaders(self) -> dict[str, dict[str, int]]:
        return self._leaders

    def cut(self, topic: str, leaders: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, int]:
        """Return where partitions lost records. The client detects it (KIP-320) when it begins to read with the former
        leader epoch; it then starts where the records begin to differ.
        """
        current_leaders = self._leaders.get(topic, {})
        checked = {
            int(p): offset
            for p, offset in positions.items()
            if offset and leaders.get(p, -1) >= 0 and current_leaders.get(p) != leaders[p]
        }
        if not checked:
            return {}
        consumer = Consumer(
            {
                "log_level": "0",
                **self._config,
                "group.id": "helenus-reader",
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": "true",
            }
        )
        cuts: dict[str, int] = {}
        deadline = time.monotonic() + TIMEOUT_S
        try:
            with kafka_errors(f"topic {topic}"):
                consumer.assign(
                    [TopicPartition(topic, p, offset, leader_epoch=leaders[str(p)]) for p, offset in checked.items()]
                )
                while checked:
                    for message in consumer.consume(len(checked), timeout=0.2):
                        error, offset = message.error(), message.offset()
                        if error is not None and error.code() != KafkaError._PARTITION_EOF:
                            if error.code() not in TRANSIENT_CODES:
                                raise KafkaException(error)
                        elif (partition := message.partition()) in checked and offset < checked.pop(partition):
                            cuts[str(partition)] = offset
                    if checked and time.monotonic() > deadline:
                        problem = f"Kafka does not say whether {topic} has lost records"
                        raise HelenusError(Kind.BROKER_UNREACHABLE, problem, self._where, NO_ANSWER_ADVICE)
        finally:
            consumer.close()
        return cuts

    def size(self, offset_range: OffsetRange) -> int:
        return max(0, offset_range.end - offset_range.start)

    def advance(self, offset_range: OffsetRange, events: int) -> int:
        return max(offset_range.start, min(offset_range.end, offset_range.start + events))

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return nothing: reading detects it."""
        return []

    def commit(self, group: str, offsets: Offsets) -> None:
        """Move a consumer group, which dashboards read as lag, some seconds later. A refusal is logged."""
        self._commits.put(group, offsets)

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        """Do nothing: the groups have no members."""

    def close(self) -> None:
        self._watch.close()
        self._commits.close()

    def _list_offsets(
        self, topic_partitions: Iterable[Place], spec: Any, leaders: dict[str, dict[str, int]] | None = None
    ) -> Offsets:
        """Return the offsets that `spec` asks for. With `leaders` to fill in, topics without an answer are left out, if
        others have one.
        """
        requests = {TopicPartition(*topic_partition): spec for topic_partition in topic_partitions}
        offsets: Offsets = {}
        gone: set[str] = set()
        failed: dict[str, KafkaException] = {}
        with kafka_errors(self._where):
            futures = self._admin.list_offsets(requests, request_timeout=TIMEOUT_S) if requests else {}
            for topic_partition, future in futures.items():
                try:
                    answer = future.result()
                    offsets.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = answer.offset
                    if leaders is not None and answer.leader_epoch is not None and answer.leader_epoch >= 0:
                        leaders.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = (
                            answer.leader_epoch
                        )
                except KafkaException as error:
                    if error.args[0].code() not in _UNKNOWN:
                        if leaders is None:
                            raise
                        failed[topic_partition.topic] = error
                    gone.add(topic_partition.topic)
            if failed and gone >= {topic_partition.topic for topic_partition in requests}:
                raise next(iter(failed.values()))
        refused = {topic: error for topic, error in failed.items() if error.args[0].code() not in TRANSIENT_CODES}
        for topic in refused.keys() - self._refused:
            structlog.get_logger(__name__).warning("source.refused", topic=topic, error=str(refused[topic]))
        self._refused = (self._refused | refused.keys()) - (offsets.keys() - gone)
        return {topic: topic_offsets for topic, topic_offsets in offsets.items() if topic not in gone}


def _topic_partitions(partitions: Mapping[str, int]) -> list[Place]:
    return [(topic, partition) for topic, count in partitions.items() for partition in range(count)]

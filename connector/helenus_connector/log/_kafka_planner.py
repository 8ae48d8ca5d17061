"""Positions in events topics on Kafka: what the planner asks of the brokers."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import structlog
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from helenus_connector.log._kafka_client import AWAY, SILENT, TIMEOUT_S, kafka_errors
from helenus_connector.log._kafka_watch import WAITS_S, Place, TopicWatch
from helenus_connector.log.events import OffsetRange, Offsets, pace_s
from helenus_schemas.errors import HelenusError, Kind

_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of brokers before 2.8
_BUSY_S = 3.0
"""So long a partition is asked for its end each time, where much came."""
_BOTH_S = WAITS_S + 1.5
"""So long it may take until new ones are waited for: up to a second to learn their leaders, and a request before."""
_COMMIT_ALL_S = 3600.0  # brokers forget the positions of a group that commits none for days


class KafkaPlanner:
    """The `events.Planner` of Kafka. `config` is librdkafka's. One that `watches` is for who asks for the ends of
    partitions all the time: Kafka says when something comes. Another asks for all of them.
    """

    def __init__(self, config: Mapping[str, str], watches: bool = False) -> None:
        self._config = config
        self._watches = watches
        self._where = config["bootstrap.servers"]
        with kafka_errors(self._where):
            self._admin = AdminClient({"log_level": "0", **config})
        self._leaders: dict[str, dict[str, int]] = {}
        self._watch = TopicWatch(config)
        self._asked: dict[str, int] = {}
        self._asked_at = 0.0
        self._ends: Offsets = {}
        self._asking: dict[Place, float] = {}  # until when each is asked for; for ever if it is not watched
        self._busy: dict[Place, float] = {}  # since when
        self._commits: dict[str, Future[Any]] = {}
        self._committed: dict[str, Offsets] = {}
        self._committed_at = time.monotonic()
        self._refused: set[str] = set()

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        with kafka_errors(self._where):
            known = self._admin.list_topics(timeout=TIMEOUT_S).topics
        led = {t for t in topics if t in known and all(p.leader >= 0 for p in known[t].partitions.values())}
        return {t: len(known[t].partitions) if t in led else 0 for t in topics}

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        with kafka_errors(self._where):
            return self._latest(partitions)

    def wait(self, pace: float, longest: float) -> None:
        now = time.monotonic()
        is_said = self._watches and not any(
            until > now for place, until in self._asking.items() if place[0] in self._ends
        )
        self._watch.wait(longest if is_said else pace)

    def _latest(self, partitions: Mapping[str, int]) -> Offsets:
        now, before = time.monotonic(), self._ends
        woken = self._woken(now)
        is_due = now - self._asked_at > pace_s(sum(partitions.values())) or self._watch.is_unsure
        found = None if is_due or not self._watches or partitions != self._asked else self._of_asking()
        is_whole = found is None
        if found is None:
            leaders: dict[str, dict[str, int]] = {}
            found = self._offsets(_places(partitions), OffsetSpec.latest(), leaders)
            self._leaders = leaders if leaders != self._leaders else self._leaders
            self._asked, self._asked_at, self._ends, self._watch.is_unsure = dict(partitions), now, found, False
        else:
            self._ends = {**before, **{topic: {**before.get(topic, {}), **ends} for topic, ends in found.items()}}
        if self._watches:
            news = {
                (topic, int(p)) for topic, of in found.items() for p, _ in of.items() - before.get(topic, {}).items()
            }
            self._follow(news - woken, now, is_whole)
        return dict(self._ends)

    def _woken(self, now: float) -> set[Place]:
        """Where something came. These are asked for now; for ever, if they are no longer watched."""
        woken = self._watch.woken()
        self._asking = {place: until for place, until in self._asking.items() if until > now}
        for place in woken:
            self._asking.setdefault(place, now)
            if place not in self._watch.places:
                self._asking[place], self._busy[place] = math.inf, now
        return woken

    def _of_asking(self) -> Offsets | None:
        """The ends of those that are to be asked for. None: all are."""
        leaders: dict[str, dict[str, int]] = {}
        try:
            found = self._offsets(self._asking, OffsetSpec.latest(), leaders) if self._asking else {}
        except HelenusError:  # others may answer
            found = {}
        known = {topic: {**self._leaders.get(topic, {}), **of} for topic, of in leaders.items()}
        if any(of != self._leaders.get(topic) for topic, of in known.items()):
            self._leaders = {**self._leaders, **known}
        return None if any(topic in self._ends and topic not in found for topic, _ in self._asking) else found

    def _follow(self, unsaid: Collection[Place], now: float, is_whole: bool) -> None:
        """Wait for records of the partitions that are not busy, from their ends on. For a while they are asked for,
        too; so are those where something came that is `unsaid` by Kafka.
        """
        if is_whole:
            there = set(_places({topic: n for topic, n in self._asked.items() if topic in self._ends}))
            self._watch.leave(self._watch.places - there)
            unwatched = set(_places(self._asked)) - self._watch.places
            both = {place: until for place, until in self._asking.items() if place in self._watch.places}
            self._asking = {**dict.fromkeys(unwatched, math.inf), **both}
            self._busy = {place: since for place, since in self._busy.items() if place in unwatched}
        for place in self._watch.places.intersection(unsaid):
            self._asking[place] = max(self._asking.get(place, 0.0), now + _BOTH_S)
        new = [
            place
            for place, until in self._asking.items()
            if until == math.inf and place[0] in self._ends and now - self._busy.get(place, -math.inf) >= _BUSY_S
        ]
        self._watch.add({place: self._ends[place[0]][str(place[1])] for place in new})
        self._asking.update(dict.fromkeys(new, now + _BOTH_S))

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        return self._offsets(_places(partitions), OffsetSpec.earliest())

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        return self._offsets(_places(partitions), OffsetSpec.for_timestamp(timestamp_ms))

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        with kafka_errors(self._where):
            wanted = TopicCollection(list(topics))
            asked = self._admin.describe_topics(wanted, request_timeout=TIMEOUT_S) if topics else {}
            for topic, future in asked.items():
                try:
                    found[topic] = str(future.result().topic_id)
                except KafkaException:  # it is missing, or may not be described: the request for its end shows which
                    continue
        return {topic: topic_id for topic, topic_id in found.items() if topic_id != _NO_ID}

    def leaders(self) -> dict[str, dict[str, int]]:
        return self._leaders

    def cut(self, topic: str, leaders: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, int]:
        """The client detects it (KIP-320) when it begins to read with the former leader epoch; it then starts where the
        records begin to differ.
        """
        now = self._leaders.get(topic, {})
        asked = {
            int(p): at for p, at in positions.items() if at and leaders.get(p, -1) >= 0 and now.get(p) != leaders[p]
        }
        if not asked:
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
        found: dict[str, int] = {}
        deadline = time.monotonic() + TIMEOUT_S
        try:
            with kafka_errors(f"topic {topic}"):
                consumer.assign([TopicPartition(topic, p, at, leader_epoch=leaders[str(p)]) for p, at in asked.items()])
                while asked:
                    for message in consumer.consume(len(asked), timeout=0.2):
                        error, at = message.error(), message.offset()
                        if error is not None and error.code() != KafkaError._PARTITION_EOF:
                            if not error.retriable() and error.code() not in AWAY:
                                raise KafkaException(error)
                        elif (partition := message.partition()) in asked and at < asked.pop(partition):
                            found[str(partition)] = at
                    if asked and time.monotonic() > deadline:
                        what = f"Kafka does not say whether {topic} has lost records"
                        raise HelenusError(Kind.BROKER_UNREACHABLE, what, self._where, SILENT)
        finally:
            consumer.close()
        return found

    def size(self, place: OffsetRange) -> int:
        return max(0, place.end - place.start)

    def advance(self, place: OffsetRange, events: int) -> int:
        return max(place.start, min(place.end, place.start + events))

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:  # noqa: ARG002
        """None: reading detects it."""
        return []

    def commit(self, group: str, offsets: Offsets) -> None:
        """Move a consumer group, which dashboards read as lag: where it is not there yet, as far as is known.

        A refusal by the broker is logged at the next call.
        """
        if time.monotonic() - self._committed_at > _COMMIT_ALL_S:
            self._committed, self._committed_at = {}, time.monotonic()
        before = self._commits.get(group)
        if before is not None:
            if not before.done():
                return
            if (error := before.exception()) is not None:
                structlog.get_logger(__name__).warning("source.commit_failed", group=group, error=str(error))
                self._committed.pop(group, None)
        known = self._committed.get(group, {})
        moved = {topic: dict(at) for topic, at in offsets.items() if at != known.get(topic)}
        if not moved:
            return
        places = [TopicPartition(t, int(p), o) for t, ps in moved.items() for p, o in ps.items()]
        asked = [ConsumerGroupTopicPartitions(group, places)]
        with kafka_errors(self._where):
            self._commits[group] = self._admin.alter_consumer_group_offsets(asked, request_timeout=TIMEOUT_S)[group]
        self._committed[group] = {**known, **moved}

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        """Nothing: the groups have no members."""

    def close(self) -> None:
        self._watch.close()

    def _offsets(self, places: Iterable[Place], spec: Any, leaders: dict[str, dict[str, int]] | None = None) -> Offsets:
        """With `leaders` to fill in, topics that can't be asked are left out, if others can."""
        wanted = {TopicPartition(*place): spec for place in places}
        found: Offsets = {}
        gone: set[str] = set()
        failed: dict[str, KafkaException] = {}
        with kafka_errors(self._where):
            asked = self._admin.list_offsets(wanted, request_timeout=TIMEOUT_S) if wanted else {}
            for place, future in asked.items():
                try:
                    answer = future.result()
                    found.setdefault(place.topic, {})[str(place.partition)] = answer.offset
                    if leaders is not None and answer.leader_epoch is not None and answer.leader_epoch >= 0:
                        leaders.setdefault(place.topic, {})[str(place.partition)] = answer.leader_epoch
                except KafkaException as error:
                    if error.args[0].code() not in _UNKNOWN:
                        if leaders is None:
                            raise
                        failed[place.topic] = error
                    gone.add(place.topic)
            if failed and gone >= {place.topic for place in wanted}:
                raise next(iter(failed.values()))
        refused = {topic: error for topic, error in failed.items() if not error.args[0].retriable()}
        for topic in refused.keys() - self._refused:
            structlog.get_logger(__name__).warning("source.refused", topic=topic, error=str(refused[topic]))
        self._refused = (self._refused | refused.keys()) - (found.keys() - gone)
        return {topic: offsets for topic, offsets in found.items() if topic not in gone}


def _places(partitions: Mapping[str, int]) -> list[Place]:
    return [(topic, partition) for topic, n in partitions.items() for partition in range(n)]

"""Reading events topics on Kafka: offsets for the planner, records for the tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
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

from helenus_connector.log.events import Message, Offsets, Range
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import broker_error

_CHUNK = 10_000
_CHUNK_BYTES = 8 << 20
_FIRST_CHUNK = 500  # until it is known how large events are
_SILENT = "look at the brokers' logs: the leader of the partition may be away"
_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 60.0
_FIRST = -2  # librdkafka's offset of a topic's start
_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of brokers before 2.8
_AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)


class Planner:
    """The `events.Planner` of Kafka. `config` is librdkafka's."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._where = config["bootstrap.servers"]
        with _told(self._where):
            self._admin = AdminClient({"log_level": "0", **config})
        self._leaders: dict[str, dict[str, int]] = {}
        self._commits: dict[str, Future[Any]] = {}
        self._refused: set[str] = set()

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        with _told(self._where):
            known = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        led = {t for t in topics if t in known and all(p.leader >= 0 for p in known[t].partitions.values())}
        return {t: len(known[t].partitions) if t in led else 0 for t in topics}

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        self._leaders = {}
        return self._offsets(partitions, OffsetSpec.latest(), self._leaders)

    def earliest(self, partitions: Mapping[str, int]) -> Offsets:
        return self._offsets(partitions, OffsetSpec.earliest())

    def since(self, partitions: Mapping[str, int], timestamp_ms: int) -> Offsets:
        return self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        with _told(self._where):
            wanted = TopicCollection(list(topics))
            asked = self._admin.describe_topics(wanted, request_timeout=_TIMEOUT_S) if topics else {}
            for topic, future in asked.items():
                try:
                    found[topic] = str(future.result().topic_id)
                except KafkaException:  # it is missing, or may not be described: asking for its end tells
                    continue
        return {topic: told for topic, told in found.items() if told != _NO_ID}

    def leaders(self) -> dict[str, dict[str, int]]:
        return self._leaders

    def cut(self, topic: str, leaders: Mapping[str, int], positions: Mapping[str, int]) -> dict[str, int]:
        """The client finds it out (KIP-320) where it begins to read with the leader epoch of before, and begins where
        the records are others then.
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
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            with _told(f"topic {topic}"):
                consumer.assign([TopicPartition(topic, p, at, leader_epoch=leaders[str(p)]) for p, at in asked.items()])
                while asked:
                    for message in consumer.consume(len(asked), timeout=0.2):
                        error, at = message.error(), message.offset()
                        if error is not None and error.code() != KafkaError._PARTITION_EOF:
                            if not error.retriable() and error.code() not in _AWAY:
                                raise KafkaException(error)
                        elif (partition := message.partition()) in asked and at < asked.pop(partition):
                            found[str(partition)] = at
                    if asked and time.monotonic() > deadline:
                        what = f"Kafka does not tell whether {topic} has lost records"
                        raise HelenusError(Kind.BROKER_UNREACHABLE, what, self._where, _SILENT)
        finally:
            consumer.close()
        return found

    def size(self, place: Range) -> int:
        return max(0, place.end - place.start)

    def advance(self, place: Range, events: int) -> int:
        return max(place.start, min(place.end, place.start + events))

    def gone(self, group: str, starts: Offsets) -> list[tuple[str, str]]:  # noqa: ARG002
        """None: reading tells."""
        return []

    def commit(self, group: str, offsets: Offsets) -> None:
        """Move a consumer group, which dashboards read as lag.

        Whether the broker took it is told by the log at the next call.
        """
        before = self._commits.get(group)
        if before is not None:
            if not before.done():
                return
            if (error := before.exception()) is not None:
                structlog.get_logger(__name__).warning("source.commit_failed", group=group, error=str(error))
        places = [TopicPartition(t, int(p), o) for t, ps in offsets.items() for p, o in ps.items()]
        asked = [ConsumerGroupTopicPartitions(group, places)]
        with _told(self._where):
            self._commits[group] = self._admin.alter_consumer_group_offsets(asked, request_timeout=_TIMEOUT_S)[group]

    def keep(self, groups: Mapping[str, Collection[str]]) -> None:
        """Nothing: the groups have no members."""

    def close(self) -> None:
        """Nothing: the client goes with this object."""

    def _offsets(
        self, partitions: Mapping[str, int], spec: Any, leaders: dict[str, dict[str, int]] | None = None
    ) -> Offsets:
        """With `leaders` to fill in, topics that can't be asked are left out, if others can."""
        wanted = {TopicPartition(t, p): spec for t, n in partitions.items() for p in range(n)}
        found: Offsets = {}
        gone: set[str] = set()
        failed: dict[str, KafkaException] = {}
        with _told(self._where):
            asked = self._admin.list_offsets(wanted, request_timeout=_TIMEOUT_S) if wanted else {}
            for place, future in asked.items():
                try:
                    told = future.result()
                    found.setdefault(place.topic, {})[str(place.partition)] = told.offset
                    if leaders is not None and told.leader_epoch is not None and told.leader_epoch >= 0:
                        leaders.setdefault(place.topic, {})[str(place.partition)] = told.leader_epoch
                except KafkaException as error:
                    if error.args[0].code() not in _UNKNOWN:
                        if leaders is None:
                            raise
                        failed[place.topic] = error
                    gone.add(place.topic)
            if failed and gone >= partitions.keys():
                raise next(iter(failed.values()))
        refused = {topic: error for topic, error in failed.items() if not error.args[0].retriable()}
        for topic in refused.keys() - self._refused:
            structlog.get_logger(__name__).warning("source.refused", topic=topic, error=str(refused[topic]))
        self._refused = (self._refused | refused.keys()) - (found.keys() - gone)
        return {topic: offsets for topic, offsets in found.items() if topic not in gone}


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Kafka's errors as ours."""
    try:
        yield
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None


# The client's own settings fetch most of a backlog ahead, which each batch lets go of again at its end: three times the
# CPU, and then pause for a second.
_AS_MUCH_AS_READ = {
    "queued.min.messages": "1000",
    "fetch.queue.backoff.ms": "5",
    "max.partition.fetch.bytes": "262144",
}
_consumers: dict[tuple[str, str], Consumer] = {}


def read(
    config: Mapping[str, str],
    places: Sequence[Range],
    data_loss: str,
    lost: Callable[[Range, int], None],
    failed: Callable[[Range, HelenusError], None],
) -> Generator[list[Message], None, None]:
    """As `brokers.read`, all ranges at once. The process keeps its consumers between calls."""
    open_ranges = {(r.topic, r.partition): r for r in places if r.start < r.end}
    if not open_ranges:
        return
    consumer = _consumer(config, data_loss)
    at = {place: r.start for place, r in open_ranges.items()}
    deadline = time.monotonic() + _READ_TIMEOUT_S

    closed: list[TopicPartition] = []

    def close(place: tuple[str, int]) -> None:
        del open_ranges[place]
        closed.append(TopicPartition(*place))
        consumer.pause(closed[-1:])

    chunk: list[Any] = []
    most, events, size = _FIRST_CHUNK, 0, 0
    try:
        consumer.assign([TopicPartition(t, p, r.start) for (t, p), r in open_ranges.items()])
        while open_ranges:
            chunk = []
            missing = sum(r.end - at[place] for place, r in open_ranges.items())
            for message in consumer.consume(min(most, missing), timeout=0.5):
                place = (message.topic(), message.partition())
                error = message.error()
                held = open_ranges.get(place)
                if error is not None and place[0] is None:
                    # Of no topic: the cluster's. What may pass is waited for.
                    if not error.retriable() and error.code() not in _AWAY:
                        raise KafkaException(error)
                elif held is None:
                    continue
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    # Compaction and transaction markers leave holes, at the end of a range too.
                    if at[place] == held.start and message.offset() > held.start:
                        lost(held, _gone(consumer, held))
                    if error is None and message.offset() < held.end:
                        chunk.append(message)
                        size += len(message.key() or b"") + len(message.value() or b"")
                    at[place] = max(at[place], message.offset() + (error is None))
                    if at[place] >= held.end:
                        close(place)
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    what = "the topic no longer has events that were not read"
                    failed(held, HelenusError(Kind.OFFSETS_LOST, what, str(held)))
                    close(place)
                elif not error.retriable() and error.code() not in _AWAY:
                    failed(held, broker_error(error, str(held)))
                    close(place)
            if chunk:
                deadline = time.monotonic() + _READ_TIMEOUT_S
                events += len(chunk)
                most = max(1, min(_CHUNK, _CHUNK_BYTES * events // max(size, 1)))
                yield chunk
            elif time.monotonic() > deadline:
                what = "no events come, though the topic has more"
                for held in open_ranges.values():
                    failed(held, HelenusError(Kind.BROKER_UNREACHABLE, what, str(held), _SILENT))
                return
    except KafkaException as failure:
        for held in open_ranges.values():
            failed(held, broker_error(failure.args[0], str(held)))
        if chunk:  # with the ends of ranges that are complete
            yield chunk
    finally:
        # A partition stays paused through the assignments to come.
        consumer.resume(closed)
        consumer.unassign()


def _consumer(config: Mapping[str, str], data_loss: str) -> Consumer:
    name = (config["bootstrap.servers"], data_loss)
    if name not in _consumers:
        settings = {
            "log_level": "0",
            "fetch.wait.max.ms": "20",
            **_AS_MUCH_AS_READ,
            **config,
            "group.id": "helenus-reader",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error" if data_loss == "fail" else "earliest",
            "enable.partition.eof": "true",
        }
        _consumers[name] = Consumer(settings)
    return _consumers[name]


def _gone(consumer: Consumer, place: Range) -> int:
    """How many offsets of a range are before the topic's first: holes behind that are no loss."""
    first, _ = consumer.get_watermark_offsets(TopicPartition(place.topic, place.partition), timeout=_TIMEOUT_S)
    return int(min(max(first - place.start, 0), place.end - place.start))


def unread(config: Mapping[str, str], group: str, topic: str, partition: int) -> Iterator[list[Message]]:
    """As `brokers.unread`."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.partition.eof": "true"}
    place = TopicPartition(topic, partition)
    where = f"topic {topic}, partition {partition}"
    with _told(where):
        consumer = Consumer({"log_level": "0", **config, **settings, "enable.auto.commit": "false"})
        try:
            (committed,) = consumer.committed([place], timeout=_TIMEOUT_S)
            _, end = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
            at = committed.offset if committed.offset >= 0 else _FIRST
            consumer.assign([TopicPartition(topic, partition, at)])
            while at < end:
                messages = consumer.consume(_CHUNK, timeout=_TIMEOUT_S)
                if not messages:
                    raise HelenusError(
                        Kind.BROKER_UNREACHABLE, "nothing comes, though the topic has more", where, _SILENT
                    )
                for message in messages:
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    at = max(at, message.offset() + (error is None))
                if found := [m for m in messages if m.error() is None and m.offset() < end]:
                    yield found
                    done = TopicPartition(topic, partition, found[-1].offset() + 1)
                    consumer.commit(offsets=[done], asynchronous=False)
        finally:
            consumer.close()

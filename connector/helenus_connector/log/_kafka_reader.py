"""Reading topics on Kafka: events for the tasks, and for the replay what a group has not read."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from helenus_connector.log._kafka_client import AWAY, SILENT, TIMEOUT_S, kafka_errors
from helenus_connector.log.events import Message, OffsetRange
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import broker_error

_CHUNK = 2_000  # of more, what was read first has left the processor's cache
_CHUNK_BYTES = 8 << 20
_FIRST_CHUNK = 500  # until it is known how large events are
_READ_TIMEOUT_S = 60.0
_FIRST = -2  # librdkafka's offset of a topic's start
# librdkafka's defaults prefetch far more than a batch reads, and discard it: three times the CPU, and a pause of 1 s.
_AS_MUCH_AS_READ = {
    "queued.min.messages": "1000",
    "fetch.queue.backoff.ms": "5",
    "max.partition.fetch.bytes": "262144",
}
_FEW = 8  # topics
_KNOWN_S = 300.0  # the client forgets a topic's leaders after 900 s
_consumers: dict[tuple[str, str], Consumer] = {}
_known: dict[tuple[Consumer, str], float] = {}  # when each topic's leaders were asked for


def read(
    config: Mapping[str, str],
    places: Sequence[OffsetRange],
    data_loss: str,
    lost: Callable[[OffsetRange, int], None],
    failed: Callable[[OffsetRange, HelenusError], None],
) -> Generator[list[Message], None, None]:
    """As `choice.read`, all ranges at once. The process keeps its consumers between calls."""
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

    chunks: dict[tuple[str, int], list[Any]] = {}
    most, events, size = _FIRST_CHUNK, 0, 0
    try:
        _learn(consumer, {topic for topic, _ in open_ranges})
        consumer.assign([TopicPartition(t, p, r.start) for (t, p), r in open_ranges.items()])
        while open_ranges:
            chunks = {}
            missing = sum(r.end - at[place] for place, r in open_ranges.items())
            for place, messages in _runs(consumer.consume(min(most, missing), timeout=0.5)):
                error = messages[0].error()
                held = open_ranges.get(place)
                if error is not None and place[0] is None:
                    # An error of the cluster, of no topic. A transient one is waited for.
                    if not error.retriable() and error.code() not in AWAY:
                        raise KafkaException(error)
                elif held is None:
                    continue
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    # Compaction and transaction markers leave holes, at the end of a range too.
                    if messages[0].offset() > held.start == at[place]:
                        lost(held, _gone(consumer, held))
                    at[place] = max(at[place], messages[-1].offset() + (error is None))
                    if error is None:
                        if at[place] > held.end:
                            messages = [m for m in messages if m.offset() < held.end]
                        if messages:
                            chunks.setdefault(place, []).extend(messages)
                        events += len(messages)
                        size += sum(map(len, filter(None, [m.key() for m in messages])))
                        size += sum(map(len, filter(None, [m.value() for m in messages])))
                    if at[place] >= held.end:
                        close(place)
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    what = "the topic no longer has events that were not read"
                    failed(held, HelenusError(Kind.OFFSETS_LOST, what, str(held)))
                    close(place)
                elif not error.retriable() and error.code() not in AWAY:
                    failed(held, broker_error(error, str(held)))
                    close(place)
            if chunks:
                deadline = time.monotonic() + _READ_TIMEOUT_S
                most = max(1, min(_CHUNK, _CHUNK_BYTES * events // max(size, 1)))
                yield from chunks.values()
            elif time.monotonic() > deadline:
                what = "no events come, though the topic has more"
                for held in open_ranges.values():
                    failed(held, HelenusError(Kind.BROKER_UNREACHABLE, what, str(held), SILENT))
                return
    except KafkaException as failure:
        for held in open_ranges.values():
            failed(held, broker_error(failure.args[0], str(held)))
        yield from chunks.values()  # with the ends of ranges that are complete
    finally:
        # A partition stays paused through the assignments to come.
        consumer.resume(closed)
        consumer.unassign()


def _runs(messages: Sequence[Any]) -> Iterator[tuple[tuple[str, int], list[Any]]]:
    """Those of one partition that follow each other, with its place. What has an error is by itself."""
    # A field of all of them after the other takes less than each one's fields. Errors are not compared: one that meets
    # None raises a TypeError.
    alone = [None if error is None else i for i, error in enumerate([m.error() for m in messages])]
    names = list(zip([m.topic() for m in messages], [m.partition() for m in messages], alone, strict=True))
    for (topic, partition, _), numbers in groupby(range(len(names)), names.__getitem__):
        of_run = list(numbers)
        yield (topic, partition), list(messages[of_run[0] : of_run[-1] + 1])


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


def _learn(consumer: Consumer, topics: Iterable[str]) -> None:
    """Ask for the leaders of a few topics that were not read for a while. By itself the client does so once a second:
    then for all of them in one request, so many are left to it.
    """
    now = time.monotonic()
    new = [topic for topic in topics if now - _known.get((consumer, topic), -_KNOWN_S) >= _KNOWN_S]
    for topic in new if len(new) <= _FEW else ():
        try:
            consumer.list_topics(topic, timeout=TIMEOUT_S)
        except KafkaException:  # reading shows why
            return
        _known[consumer, topic] = now


def _gone(consumer: Consumer, place: OffsetRange) -> int:
    """How many offsets of a range are before the topic's first: holes after that are no loss."""
    first, _ = consumer.get_watermark_offsets(TopicPartition(place.topic, place.partition), timeout=TIMEOUT_S)
    return int(min(max(first - place.start, 0), place.end - place.start))


def unread(config: Mapping[str, str], group: str, topic: str, partition: int) -> Iterator[list[Message]]:
    """As `choice.unread`."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.partition.eof": "true"}
    place = TopicPartition(topic, partition)
    where = f"topic {topic}, partition {partition}"
    with kafka_errors(where):
        consumer = Consumer({"log_level": "0", **config, **settings, "enable.auto.commit": "false"})
        try:
            (committed,) = consumer.committed([place], timeout=TIMEOUT_S)
            _, end = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            at = committed.offset if committed.offset >= 0 else _FIRST
            consumer.assign([TopicPartition(topic, partition, at)])
            while at < end:
                messages = consumer.consume(_CHUNK, timeout=TIMEOUT_S)
                if not messages:
                    raise HelenusError(
                        Kind.BROKER_UNREACHABLE, "nothing comes, though the topic has more", where, SILENT
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

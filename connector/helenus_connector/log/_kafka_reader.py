"""Reading topics on Kafka: events for the tasks, and for the replay what a group has not read."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from helenus_connector.log._kafka_client import NO_ANSWER_ADVICE, TIMEOUT_S, TRANSIENT_CODES, kafka_errors
from helenus_connector.log.events import Message, OffsetRange
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import broker_error

_CHUNK = 2_000  # of more, what was read first has left the processor's cache
_CHUNK_BYTES = 8 << 20
_FIRST_CHUNK = 500  # until it is known how large events are
_READ_TIMEOUT_S = 60.0
_BEGINNING = -2  # librdkafka's offset of a topic's start
# librdkafka's defaults prefetch far more than a batch reads, and discard it: three times the CPU, and a pause of 1 s.
_PREFETCH_LITTLE = {
    "queued.min.messages": "1000",
    "fetch.queue.backoff.ms": "5",
    "max.partition.fetch.bytes": "262144",
}
_FEW_TOPICS = 8  # topics
_LEADERS_FRESH_S = 300.0  # the client forgets a topic's leaders after 900 s
_consumers: dict[tuple[str, str], Consumer] = {}
_leaders_read_at: dict[tuple[Consumer, str], float] = {}  # when each topic's leaders were asked for


def read(
    config: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    data_loss: str,
    note_lost: Callable[[OffsetRange, int], None],
    note_failed: Callable[[OffsetRange, HelenusError], None],
) -> Generator[list[Message], None, None]:
    """Read as `choice.read`, all ranges at once. The process keeps its consumers between calls."""
    open_ranges = {(r.topic, r.partition): r for r in ranges if r.start < r.end}
    if not open_ranges:
        return
    consumer = _consumer(config, data_loss)
    positions = {topic_partition: r.start for topic_partition, r in open_ranges.items()}
    deadline = time.monotonic() + _READ_TIMEOUT_S

    closed: list[TopicPartition] = []

    def close(topic_partition: tuple[str, int]) -> None:
        del open_ranges[topic_partition]
        closed.append(TopicPartition(*topic_partition))
        consumer.pause(closed[-1:])

    chunks: dict[tuple[str, int], list[Any]] = {}
    max_messages, events_read, bytes_read = _FIRST_CHUNK, 0, 0
    try:
        _read_leaders(consumer, {topic for topic, _ in open_ranges})
        consumer.assign([TopicPartition(t, p, r.start) for (t, p), r in open_ranges.items()])
        while open_ranges:
            chunks = {}
            unread_offsets = sum(r.end - positions[topic_partition] for topic_partition, r in open_ranges.items())
            for topic_partition, messages in _runs(consumer.consume(min(max_messages, unread_offsets), timeout=0.5)):
                error = messages[0].error()
                open_range = open_ranges.get(topic_partition)
                if error is not None and topic_partition[0] is None:
                    # An error of the cluster, of no topic. A transient one is waited for.
                    if not error.retriable() and error.code() not in TRANSIENT_CODES:
                        raise KafkaException(error)
                elif open_range is None:
                    continue
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    # Compaction and transaction markers leave holes, at the end of a range too.
                    if messages[0].offset() > open_range.start == positions[topic_partition]:
                        note_lost(open_range, _count_expired(consumer, open_range))
                    positions[topic_partition] = max(
                        positions[topic_partition], messages[-1].offset() + (error is None)
                    )
                    if error is None:
                        if positions[topic_partition] > open_range.end:
                            messages = [m for m in messages if m.offset() < open_range.end]
                        if messages:
                            chunks.setdefault(topic_partition, []).extend(messages)
                        events_read += len(messages)
                        bytes_read += sum(map(len, filter(None, [m.key() for m in messages])))
                        bytes_read += sum(map(len, filter(None, [m.value() for m in messages])))
                    if positions[topic_partition] >= open_range.end:
                        close(topic_partition)
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    problem = "the topic no longer has events that were not read"
                    note_failed(open_range, HelenusError(Kind.OFFSETS_LOST, problem, str(open_range)))
                    close(topic_partition)
                elif not error.retriable() and error.code() not in TRANSIENT_CODES:
                    note_failed(open_range, broker_error(error, str(open_range)))
                    close(topic_partition)
            if chunks:
                deadline = time.monotonic() + _READ_TIMEOUT_S
                max_messages = max(1, min(_CHUNK, _CHUNK_BYTES * events_read // max(bytes_read, 1)))
                yield from chunks.values()
            elif time.monotonic() > deadline:
                problem = "no events come, though the topic has more"
                for open_range in open_ranges.values():
                    note_failed(
                        open_range, HelenusError(Kind.BROKER_UNREACHABLE, problem, str(open_range), NO_ANSWER_ADVICE)
                    )
                return
    except KafkaException as failure:
        for open_range in open_ranges.values():
            note_failed(open_range, broker_error(failure.args[0], str(open_range)))
        yield from chunks.values()  # with the ends of ranges that are complete
    finally:
        # A partition stays paused through the assignments to come.
        consumer.resume(closed)
        consumer.unassign()


def _runs(messages: Sequence[Any]) -> Iterator[tuple[tuple[str, int], list[Any]]]:
    """Yield runs of messages of one partition, each with its topic and partition. A message with an error is a run by
    itself.
    """
    # A field of all of them after the other takes less than each one's fields. Errors are not compared: one that meets
    # None raises a TypeError.
    error_index = [None if error is None else i for i, error in enumerate([m.error() for m in messages])]
    names = list(zip([m.topic() for m in messages], [m.partition() for m in messages], error_index, strict=True))
    for (topic, partition, _), indexes in groupby(range(len(names)), names.__getitem__):
        run_indexes = list(indexes)
        yield (topic, partition), list(messages[run_indexes[0] : run_indexes[-1] + 1])


def _consumer(config: Mapping[str, str], data_loss: str) -> Consumer:
    name = (config["bootstrap.servers"], data_loss)
    if name not in _consumers:
        settings = {
            "log_level": "0",
            "fetch.wait.max.ms": "20",
            **_PREFETCH_LITTLE,
            **config,
            "group.id": "helenus-reader",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error" if data_loss == "fail" else "earliest",
            "enable.partition.eof": "true",
        }
        _consumers[name] = Consumer(settings)
    return _consumers[name]


def _read_leaders(consumer: Consumer, topics: Iterable[str]) -> None:
    """Read the leaders of a few topics that were not read for a while. By itself the client does so once a second: then
    for all of them in one request, so many are left to it.
    """
    now = time.monotonic()
    new = [
        topic
        for topic in topics
        if now - _leaders_read_at.get((consumer, topic), -_LEADERS_FRESH_S) >= _LEADERS_FRESH_S
    ]
    for topic in new if len(new) <= _FEW_TOPICS else ():
        try:
            consumer.list_topics(topic, timeout=TIMEOUT_S)
        except KafkaException:  # reading shows why
            return
        _leaders_read_at[consumer, topic] = now


def _count_expired(consumer: Consumer, offset_range: OffsetRange) -> int:
    """Return how many offsets of a range are before the topic's first: holes after that are no loss."""
    first, _ = consumer.get_watermark_offsets(
        TopicPartition(offset_range.topic, offset_range.partition), timeout=TIMEOUT_S
    )
    return int(min(max(first - offset_range.start, 0), offset_range.end - offset_range.start))


def unread(config: Mapping[str, str], group: str, topic: str, partition: int) -> Iterator[list[Message]]:
    """Read as `choice.unread`."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.partition.eof": "true"}
    topic_partition = TopicPartition(topic, partition)
    where = f"topic {topic}, partition {partition}"
    with kafka_errors(where):
        consumer = Consumer({"log_level": "0", **config, **settings, "enable.auto.commit": "false"})
        try:
            (committed,) = consumer.committed([topic_partition], timeout=TIMEOUT_S)
            _, end = consumer.get_watermark_offsets(topic_partition, timeout=TIMEOUT_S)
            position = committed.offset if committed.offset >= 0 else _BEGINNING
            consumer.assign([TopicPartition(topic, partition, position)])
            while position < end:
                messages = consumer.consume(_CHUNK, timeout=TIMEOUT_S)
                if not messages:
                    raise HelenusError(
                        Kind.BROKER_UNREACHABLE, "nothing comes, though the topic has more", where, NO_ANSWER_ADVICE
                    )
                for message in messages:
                    error = message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    position = max(position, message.offset() + (error is None))
                if unread_messages := [m for m in messages if m.error() is None and m.offset() < end]:
                    yield unread_messages
                    next_position = TopicPartition(topic, partition, unread_messages[-1].offset() + 1)
                    consumer.commit(offsets=[next_position], asynchronous=False)
        finally:
            consumer.close()

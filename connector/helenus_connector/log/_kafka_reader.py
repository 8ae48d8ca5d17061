"""Reading topics on Kafka: events for the tasks, and for the replay what a group has not read."""

from __future__ import annotations

import threading
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
_WAIT_S, _WAIT_IN_TRANSACTIONS_S = 0.5, 0.02
_BEGINNING = -2  # librdkafka's offset of a topic's start
# librdkafka's defaults prefetch far more than a batch reads, and discard it: three times the CPU, and a pause of 1 s.
_PREFETCH_LITTLE = {
    "queued.min.messages": "1000",
    "fetch.queue.backoff.ms": "5",
    "max.partition.fetch.bytes": "262144",
}
_FEW_TOPICS = 8  # topics
_LEADERS_FRESH_S = 300.0  # the client forgets a topic's leaders after 900 s


class _Consumers(threading.local):
    """The consumers of a thread, by brokers and what happens where events are lost: threads of the driver read
    together, and each assigns to its own. `leaders_read_at` says when each topic's leaders were asked for.
    """

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], Consumer] = {}
        self.leaders_read_at: dict[tuple[Consumer, str], float] = {}


_consumers = _Consumers()


def read(
    config: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    data_loss: str,
    note_lost: Callable[[OffsetRange, int], None],
    note_failed: Callable[[OffsetRange, HelenusError], None],
    has_transactions: bool = False,
) -> Generator[list[Message], None, None]:
    """Read as `choice.read`, all ranges at once. A thread keeps its consumers between calls. Where a topic
    `has_transactions`, no read waits for as many messages as there are offsets: each transaction's end takes one.
    """
    ranges = [r for r in ranges if r.start < r.end]
    if not ranges:
        return
    wait_s = _WAIT_IN_TRANSACTIONS_S if has_transactions else _WAIT_S
    reads = RangeReads(_consumer(config, data_loss), ranges, note_lost, note_failed, wait_s)
    deadline = time.monotonic() + _READ_TIMEOUT_S
    try:
        reads.begin()
        while reads.open_ranges:
            reads.poll()
            if reads.chunks:
                yield from reads.chunks.values()
                deadline = time.monotonic() + _READ_TIMEOUT_S  # who reads may have taken longer than that
            elif time.monotonic() > deadline:
                reads.fail(_no_answer)
                return
    except KafkaException as failure:
        error = failure.args[0]
        reads.fail(lambda where: broker_error(error, where))
        yield from reads.chunks.values()  # with the ends of ranges that are complete
    finally:
        reads.end()


class RangeReads:
    """The reads of some ranges of topic partitions by one consumer. `open_ranges` are those not read to their end, and
    `chunks` has the messages of the last poll by topic partition.

    Those that were lost, and ranges that can't be read, go to the callbacks of `choice.read`. All but `fail` raises
    KafkaException if no range can be read now.
    """

    def __init__(
        self,
        consumer: Consumer,
        ranges: Sequence[OffsetRange],
        note_lost: Callable[[OffsetRange, int], None],
        note_failed: Callable[[OffsetRange, HelenusError], None],
        wait_s: float = _WAIT_S,
    ) -> None:
        self.open_ranges = {(r.topic, r.partition): r for r in ranges}
        self.chunks: dict[tuple[str, int], list[Any]] = {}
        self._consumer = consumer
        self._wait_s = wait_s
        self._note_lost = note_lost
        self._note_failed = note_failed
        self._positions = {name: r.start for name, r in self.open_ranges.items()}
        self._closed: list[TopicPartition] = []
        self._max_messages, self._events_read, self._bytes_read = _FIRST_CHUNK, 0, 0

    def begin(self) -> None:
        """Assign the ranges' topic partitions to the consumer."""
        _read_leaders(self._consumer, {topic for topic, _ in self.open_ranges})
        self._consumer.assign([TopicPartition(t, p, r.start) for (t, p), r in self.open_ranges.items()])

    def poll(self) -> None:
        """Put messages into `chunks`, as many as go well together. Waits for a moment if fewer are there."""
        self.chunks = {}
        unread_offsets = sum(r.end - self._positions[name] for name, r in self.open_ranges.items())
        messages = self._consumer.consume(min(self._max_messages, unread_offsets), timeout=self._wait_s)
        for topic_partition, run in _runs(messages):
            self._take_run(topic_partition, run)
        if self.chunks:
            self._max_messages = max(1, min(_CHUNK, _CHUNK_BYTES * self._events_read // max(self._bytes_read, 1)))

    def fail(self, make_error: Callable[[str], HelenusError]) -> None:
        """Note of the open ranges that they can't be read, with the error that is made for each."""
        for open_range in self.open_ranges.values():
            self._note_failed(open_range, make_error(str(open_range)))

    def end(self) -> None:
        """Give the topic partitions back."""
        # A partition stays paused through the assignments to come.
        self._consumer.resume(self._closed)
        self._consumer.unassign()

    def _take_run(self, topic_partition: tuple[str, int], run: list[Any]) -> None:
        """Take messages of one topic partition, or the one error of a run."""
        error = run[0].error()
        if error is not None and topic_partition[0] is None:
            # An error of the cluster, of no topic. A transient one is waited for.
            if not _is_transient(error):
                raise KafkaException(error)
            return
        open_range = self.open_ranges.get(topic_partition)
        if open_range is None:
            return
        if error is None:
            self._move_to(topic_partition, open_range, run[0].offset(), run[-1].offset() + 1)
            self._take_messages(topic_partition, open_range, run)
        elif error.code() == KafkaError._PARTITION_EOF:
            self._move_to(topic_partition, open_range, run[0].offset(), run[0].offset())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            problem = "the topic no longer has events that were not read"
            self._note_failed(open_range, HelenusError(Kind.OFFSETS_LOST, problem, str(open_range)))
            self._close(topic_partition)
            return
        elif not _is_transient(error):
            self._note_failed(open_range, broker_error(error, str(open_range)))
            self._close(topic_partition)
            return
        if self._positions[topic_partition] >= open_range.end:
            self._close(topic_partition)

    def _move_to(self, topic_partition: tuple[str, int], open_range: OffsetRange, first: int, position: int) -> None:
        """Move a topic partition's position past what was read, which begins at the offset `first`."""
        # Compaction and transaction markers leave holes, at the end of a range too.
        if first > open_range.start == self._positions[topic_partition]:
            self._note_lost(open_range, _count_expired(self._consumer, open_range))
        self._positions[topic_partition] = max(self._positions[topic_partition], position)

    def _take_messages(self, topic_partition: tuple[str, int], open_range: OffsetRange, messages: list[Any]) -> None:
        """Add messages to the chunks, without those past the range's end."""
        if self._positions[topic_partition] > open_range.end:
            messages = [m for m in messages if m.offset() < open_range.end]
        if messages:
            self.chunks.setdefault(topic_partition, []).extend(messages)
        self._events_read += len(messages)
        self._bytes_read += sum(map(len, filter(None, [m.key() for m in messages])))
        self._bytes_read += sum(map(len, filter(None, [m.value() for m in messages])))

    def _close(self, topic_partition: tuple[str, int]) -> None:
        """Read no more of a topic partition."""
        del self.open_ranges[topic_partition]
        self._closed.append(TopicPartition(*topic_partition))
        self._consumer.pause(self._closed[-1:])


def _no_answer(where: str) -> HelenusError:
    problem = "no events come, though the topic has more"
    return HelenusError(Kind.BROKER_UNREACHABLE, problem, where, NO_ANSWER_ADVICE)


def _is_transient(error: KafkaError) -> bool:
    return error.code() in TRANSIENT_CODES


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
    if name not in _consumers.by_name:
        settings = {
            "log_level": "0",
            "fetch.wait.max.ms": "5",
            **_PREFETCH_LITTLE,
            **config,
            "isolation.level": "read_committed",  # or a journal's entries would count that were aborted
            "group.id": "helenus-reader",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error" if data_loss == "fail" else "earliest",
            "enable.partition.eof": "true",
        }
        _consumers.by_name[name] = Consumer(settings)
    return _consumers.by_name[name]


def _read_leaders(consumer: Consumer, topics: Iterable[str]) -> None:
    """Read the leaders of a few topics that were not read for a while. By itself the client does so once a second: then
    for all of them in one request, so many are left to it.
    """
    now = time.monotonic()
    new = [
        topic
        for topic in topics
        if now - _consumers.leaders_read_at.get((consumer, topic), -_LEADERS_FRESH_S) >= _LEADERS_FRESH_S
    ]
    for topic in new if len(new) <= _FEW_TOPICS else ():
        try:
            consumer.list_topics(topic, timeout=TIMEOUT_S)
        except KafkaException:  # reading shows why
            return
        _consumers.leaders_read_at[consumer, topic] = now


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

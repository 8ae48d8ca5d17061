"""Dead letters, appended to the events topic again: `helenus-connector replay`."""

from __future__ import annotations

from collections.abc import Iterator

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from helenus_connector.config import ConnectorSettings, WorkerSettings
from helenus_schemas.change import decode, encode, unframed
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks import dead_letters
from helenus_sinks.kafka import KafkaLog, broker_error

_CHUNK = 1_000
_TIMEOUT_S = 10.0
_FLUSH_TIMEOUT_S = 60.0
_FIRST = -2  # librdkafka's offset of a topic's start


def replay(worker: WorkerSettings, settings: ConnectorSettings) -> int:
    """Append the dead letters that are there now, and were not replayed before, to the partitions they came from.

    Returns how many. Raises HelenusError: a dead letter of another topic (POISON_EVENT), and the broker's errors. What
    was appended before stays, and is noted.
    """
    log = KafkaLog(worker.producer_config)
    consumer = Consumer(
        {
            "log_level": "0",
            **worker.consumer_config,
            "group.id": f"helenus-replay-{settings.name}",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": "true",
        }
    )
    try:
        counts = log.topics()
        for topic in (settings.dead_letters, settings.events):
            if topic not in counts:
                raise HelenusError(Kind.CONFIG, f"there is no topic {topic}", settings.name)
        done = 0
        for partition in range(counts[settings.dead_letters]):
            place = TopicPartition(settings.dead_letters, partition)
            for letters in _unread(consumer, place):
                for letter in letters:
                    target = _target(letter, settings.events, counts[settings.events])
                    key, value = unframed(letter.key(), letter.value() or b"")
                    log.append(settings.events, target, key, _again(value))
                log.flush(_FLUSH_TIMEOUT_S)
                done += len(letters)
                end = TopicPartition(place.topic, partition, letters[-1].offset() + 1)
                consumer.commit(offsets=[end], asynchronous=False)
                structlog.get_logger(__name__).info("replay.done", connector=settings.name, events=done)
        return done
    except KafkaException as failure:
        raise broker_error(failure.args[0], f"topic {settings.dead_letters}") from None
    finally:
        log.close()
        consumer.close()


def _unread(consumer: Consumer, place: TopicPartition) -> Iterator[list[Message]]:
    """What a partition holds behind the group's offset, up to its end as it is now."""
    (committed,) = consumer.committed([place], timeout=_TIMEOUT_S)
    _, end = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
    at = committed.offset if committed.offset >= 0 else _FIRST
    consumer.assign([TopicPartition(place.topic, place.partition, at)])
    while at < end:
        messages = consumer.consume(_CHUNK, timeout=_TIMEOUT_S)
        if not messages:
            where = f"topic {place.topic}, partition {place.partition}"
            raise HelenusError(Kind.BROKER_UNREACHABLE, "no dead letters come, though the topic has more", where)
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            at = max(at, message.offset() + (error is None))
        if letters := [m for m in messages if m.error() is None and m.offset() < end]:
            yield letters


def _target(letter: Message, events: str, partitions: int) -> int:
    where = f"topic {letter.topic()}, partition {letter.partition()}, offset {letter.offset()}"
    try:
        topic, partition = dead_letters.origin(letter.headers())
    except ValueError as error:
        raise HelenusError(Kind.POISON_EVENT, f"not a dead letter: {error}", where) from None
    if topic != events or not 0 <= partition < partitions:
        what = f"a dead letter of {topic}, partition {partition}, not of {events}, which has {partitions}"
        raise HelenusError(Kind.POISON_EVENT, what, where)
    return partition


def _again(value: bytes) -> bytes:
    """The event without its node, so that it is no copy of one that is settled, and is always read."""
    try:
        return encode(decode(value)._replace(node=None))
    except ValueError:
        return value

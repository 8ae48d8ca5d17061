"""The Log on Kafka, over confluent-kafka's idempotent producer."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka._topics import KafkaTopics
from helenus_sinks.kafka.errors import MISSING, REFUSED, DeliveryReports, broker_error, new_client, text_of, topic_error
from helenus_sinks.kafka.partition_reader import PartitionReader
from helenus_sinks.kafka.rights import TopicUse, missing_rights
from helenus_sinks.kafka.settings import DEFAULTS, client_settings
from helenus_sinks.log import DeclaredSchemas, Headers, TopicError

_QUEUE_TIMEOUT_S = 60.0
_IN_FLIGHT_TIMEOUT_S = 5.0
_SLICE_S = 0.2
_POLL_S = 0.02
_LIMIT_MAX_AGE_S = 60.0  # s after which a topic's limit is asked for again
_MESSAGE_MAX_BYTES = 1_000_000  # librdkafka's default
_LINGERS = "linger.ms", "queue.buffering.max.ms"
_SEND_S = 0.002  # s for librdkafka's threads to notice that nothing is to linger, and for a broker nearby to answer
_FRAME_BYTES = 128  # size of a batch in addition to its records


class KafkaLog:
    """A `Log` on Kafka. `config` is librdkafka's, `bootstrap.servers` at least. `replication_factor`: how many brokers
    have the topics that are created, -1 for the brokers' default. Raises HelenusError CONFIG if `message.max.bytes` is
    not a number; other wrong settings librdkafka refuses at the start.
    """

    keeps_schemas = False

    def __init__(self, config: Mapping[str, str]) -> None:
        self.replication_factor = -1
        self._config = {**DEFAULTS, **config}
        if not (size := config.get("message.max.bytes", "0")).isdigit():
            raise HelenusError(
                Kind.CONFIG, f"message.max.bytes={size}: not a number of bytes", config["bootstrap.servers"]
            )
        if "queue.buffering.max.kbytes" not in config:  # a record larger than the queue would wait for ever
            least = int(str(DEFAULTS["queue.buffering.max.kbytes"]))
            self._config["queue.buffering.max.kbytes"] = str(max(least, self._max_request_bytes // 512))
        self._lingers_as_set = any(name in config for name in _LINGERS)
        self._where = config["bootstrap.servers"]
        self._limits: dict[str, int] = {}  # of topics that take less than the producer does
        self._limit_read_at = 0.0
        self._reports = DeliveryReports()
        self._topics = KafkaTopics(client_settings(config), self._where, self._reports)
        self._producer: Producer | None = None
        self._error: KafkaError | None = None
        self._failed_topic = ""  # the topic that `_error` concerns
        self._deadline = math.inf

    def topics(self) -> dict[str, int]:
        """Return how many partitions each topic has. Raises HelenusError BROKER_UNREACHABLE or BROKER_REFUSED."""
        return self._topics.partitions()

    def missing_rights(self, uses: Sequence[TopicUse]) -> Iterator[HelenusError]:
        """Yield what `rights.missing_rights` does, for this login."""
        yield from missing_rights({key: str(text) for key, text in self._config.items()}, uses)

    def cluster(self) -> str:
        """Return the cluster's id. Raises as `topics`."""
        return self._topics.cluster()

    def create(
        self, topic: str, partitions: int, config: Mapping[str, str], replication_factor: int | None = None
    ) -> int:
        factor = self.replication_factor if replication_factor is None else replication_factor
        return self._topics.create(topic, partitions, config, factor)

    def declare(self, topic: str, schemas: DeclaredSchemas) -> None:
        """Do nothing: schemas are in a registry."""

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        producer = self._producer or self._start()
        deadline = 0.0
        if topic in self._limits:
            self._check(topic, partition, key, value, headers)
        named = (headers if type(headers) is list else list(headers)) or None
        while True:
            try:
                # By names, arguments take a tenth of the time longer.
                producer.produce(topic, value, key, partition, self._on_delivery_error, None, 0, named)
                return
            except BufferError:
                deadline = deadline or time.monotonic() + _QUEUE_TIMEOUT_S
                if time.monotonic() > min(deadline, self._deadline):
                    raise HelenusError(Kind.APPEND_FAILED, "Kafka takes no records: the queue is full", topic) from None
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise _too_large_error(
                        topic, partition, _size(key, value, headers), self._max_request_bytes
                    ) from None
                raise self._producer_error(failure, topic) from None
            try:
                producer.poll(0.1)
            except KafkaException as failure:
                raise self._producer_error(failure, topic) from None

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        producer = self._producer or self._start()
        produce, failed = producer.produce, self._on_delivery_error
        limited = topic in self._limits
        try:
            for key, value in records:
                if limited:
                    self._check(topic, partition, key, value, ())
                try:
                    produce(topic, value, key, partition, failed)
                except BufferError:
                    self.append(topic, partition, key, value)
        except KafkaException as failure:
            raise self._producer_error(failure, topic) from None

    def start(self) -> None:
        """Connect now: the first record would wait for it. Raises HelenusError(CONFIG)."""
        if self._producer is None:
            self._start()

    def keep_short(self, timeout: float) -> None:
        """Do nothing: there are no transactions."""

    def hurry(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def send_lingering(self) -> None:
        if self._producer is None or self._lingers_as_set:
            return
        try:
            self._producer.flush(_SEND_S)  # meanwhile nothing lingers; who is not answered by then is flushed later
        except KafkaException as failure:
            raise self._producer_error(failure) from None

    def flush(self, timeout: float) -> None:
        if self._producer is None:
            return
        # librdkafka's own flush returns at once on success, but no signal handler runs in it, so none calls `hurry`.
        try:
            unacknowledged = self._producer.flush(min(timeout, _SLICE_S))
            fewest, since = unacknowledged, time.monotonic()
            while unacknowledged and not self._error:
                now = time.monotonic()
                if unacknowledged < fewest:
                    fewest, since = unacknowledged, now
                if now > min(since + timeout, self._deadline):
                    break
                unacknowledged = self._producer.flush(_POLL_S)
        except KafkaException as failure:
            raise self._producer_error(failure) from None
        if unacknowledged or self._error:
            error, cause, topic = self._error, self._error or self._reports.last, self._failed_topic
            self.close()
            if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._read_limit(topic)
                raise topic_error(error, self._where, topic)
            if error is not None and error.code() in REFUSED | MISSING:
                raise topic_error(error, self._where, topic)
            reason = f": {text_of(cause)}" if cause else ""
            raise HelenusError(
                Kind.APPEND_FAILED,
                f"Kafka did not acknowledge {unacknowledged or 'some'} records in time{reason}",
                self._where,
            )

    def deliver(self, timeout: float) -> None:
        """Wait as `flush`, and leave a transaction open where there are any."""
        self.flush(timeout)

    def partition_reader(self) -> PartitionReader:
        """Return what reads partitions of this cluster with this login."""
        return PartitionReader(client_settings({key: str(text) for key, text in self._config.items()}))

    def close(self) -> None:
        if self._producer is not None:
            # Records in flight arrive before any that are written after this, if the broker acknowledges them in time.
            self._producer.purge(in_flight=False)
            with contextlib.suppress(KafkaException):
                self._producer.flush(max(0.0, min(_IN_FLIGHT_TIMEOUT_S, self._deadline - time.monotonic())))
            self._producer.purge()
            with contextlib.suppress(KafkaException):  # it raises the error that broke it again
                self._producer.flush(1)
            self._producer = None
        self._error = None
        self._topics.forget()

    @property
    def largest(self) -> int:
        """Return bytes of the largest record that every topic takes."""
        return min([self._max_request_bytes, *self._limits.values()])

    @property
    def _max_request_bytes(self) -> int:
        """Return bytes of the largest record, or batch of them, that the producer takes."""
        return int(str(self._config.get("message.max.bytes", _MESSAGE_MAX_BYTES)))

    def _check(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        size = _size(key, value, headers)
        if size > self._limits[topic] and time.monotonic() > self._limit_read_at + _LIMIT_MAX_AGE_S:
            self._read_limit(topic)  # somebody may have raised it
        if size > self._limits[topic]:
            raise _too_large_error(topic, partition, size, self._limits[topic])

    def _read_limit(self, topic: str) -> None:
        """Learn a topic's limit, if this login may ask. From now on `append` raises for the record that is too large.

        A batch has to fit too, so the batches of all topics become that small.
        """
        self._limit_read_at = time.monotonic()
        max_bytes = self._topics.largest(topic)
        if max_bytes is not None:
            self._limits[topic] = min(max(1000, max_bytes - _FRAME_BYTES), self._max_request_bytes)
            self._config["batch.size"] = str(min(self.largest, int(str(self._config.get("batch.size", self.largest)))))

    def _start(self) -> Producer:
        self._error = None
        self._producer = new_client(Producer, self._config, self._reports, self._where)
        return self._producer

    def _producer_error(self, failure: KafkaException, topic: str = "") -> HelenusError:
        """Return an error that a producer raised. After a fatal one it takes nothing more: the next record starts
        another.
        """
        error = failure.args[0]
        if error.code() == KafkaError._FATAL and self._producer is not None:
            try:
                self._producer.poll(0)  # raises the error itself
            except KafkaException as fatal:
                error = fatal.args[0]
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.close()
        return topic_error(error, self._where, topic) if topic else broker_error(error, self._where)

    def _on_delivery_error(self, error: KafkaError | None, record: Any) -> None:
        if self._error is None:
            self._error, self._failed_topic = error, record.topic()


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(content) for name, content in headers)


def _too_large_error(topic: str, partition: int, size: int, limit: int) -> TopicError:
    message = f"a record of {size} bytes, where {limit} are allowed"
    return TopicError(Kind.RECORD_TOO_LARGE, message, f"topic {topic}, partition {partition}", topic)

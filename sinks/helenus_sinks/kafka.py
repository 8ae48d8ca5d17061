"""The Log on Kafka, over confluent-kafka's idempotent producer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.log import Headers

_ANSWER_TIMEOUT = 5.0
_ROOM_TIMEOUT = 60.0
_DEFAULTS: dict[str, object] = {
    "enable.idempotence": "true",
    "acks": "all",
    "compression.type": "lz4",
    "linger.ms": "5",
    "log_level": "0",
    # Success needs no call: `flush` counts what is left and `_failed` hears of errors.
    "delivery.report.only.error": True,
}
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.MSG_SIZE_TOO_LARGE,
}
_VAGUE = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}


def broker_error(error: KafkaError, where: str) -> HelenusError:
    """A Kafka error as ours: refused by the broker, or out of reach."""
    kind = Kind.BROKER_REFUSED if error.code() in _REFUSED else Kind.BROKER_UNREACHABLE
    return HelenusError(kind, f"Kafka: {error.str()}", where)


class KafkaLog:
    """A `Log` on Kafka. `config` is librdkafka's, `bootstrap.servers` at least."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._client = {"log_level": "0", **{k: v for k, v in config.items() if _is_client(k)}}
        self._config = {**_DEFAULTS, **config}
        self._where = config["bootstrap.servers"]
        self._producer: Producer | None = None
        self._error: KafkaError | None = None
        self._heard: KafkaError | None = None

    def topics(self) -> dict[str, int]:
        """How many partitions each topic has. Raises HelenusError BROKER_UNREACHABLE or BROKER_REFUSED."""
        try:
            # All of them: to ask for one by name would create it, where the broker is set to do that.
            known = self._admin().list_topics(timeout=_ANSWER_TIMEOUT).topics
        except KafkaException as failure:
            raise self._told(failure.args[0]) from None
        return {name: len(topic.partitions) for name, topic in known.items()}

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        known = self.topics()
        if topic in known:
            return known[topic]
        new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config))
        # The client must outlive its request: the answer comes through it.
        admin = self._admin()
        try:
            admin.create_topics([new], operation_timeout=_ANSWER_TIMEOUT)[topic].result()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._told(failure.args[0]) from None
            return self.topics()[topic]
        return partitions

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        producer = self._producer or self._start()
        deadline = 0.0
        while True:
            try:
                if headers:
                    producer.produce(topic, value, key, partition, self._failed, headers=list(headers))
                else:
                    producer.produce(topic, value, key, partition, self._failed)
                return
            except BufferError:
                deadline = deadline or time.monotonic() + _ROOM_TIMEOUT
                if time.monotonic() > deadline:
                    raise HelenusError(Kind.APPEND_FAILED, "Kafka takes no records: the queue is full", topic) from None
                producer.poll(0.1)
            except KafkaException as failure:
                raise broker_error(failure.args[0], f"{self._where}, topic {topic}") from None

    def flush(self, timeout: float) -> None:
        if self._producer is None:
            return
        left = self._producer.flush(timeout)
        if left or self._error:
            error, heard = self._error, self._heard
            self.close()
            if error is not None and error.code() in _REFUSED:
                raise broker_error(error, self._where)
            cause = error or heard
            told = f": {cause.str()}" if cause else ""
            raise HelenusError(
                Kind.APPEND_FAILED,
                f"Kafka did not acknowledge {left or 'some'} records in {timeout:g} s{told}",
                self._where,
            )

    def close(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1)
            self._producer = None
        self._error = None

    def _admin(self) -> AdminClient:
        return AdminClient({**self._client, "error_cb": self._hear})

    def _told(self, error: KafkaError) -> HelenusError:
        """The error, or what the connections met on the way where it only says that time ran out."""
        return broker_error(self._heard if self._heard and error.code() in _VAGUE else error, self._where)

    def _start(self) -> Producer:
        self._error = None
        self._producer = Producer({**self._config, "error_cb": self._hear})
        return self._producer

    def _failed(self, error: KafkaError | None, _: Any) -> None:
        self._error = self._error or error

    def _hear(self, error: KafkaError) -> None:
        # _ALL_BROKERS_DOWN follows the error that says why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._heard is None:
            self._heard = error


def _is_client(key: str) -> bool:
    """True for settings of the connection, which every kind of client takes."""
    return key.startswith(("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl.", "client.", "broker.", "socket."))

"""A data topic of Kafka, followed from where a store is: what batches.py reads from.

Needs confluent-kafka.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from records import Failure
from settings import Notes, Settings

_BATCH_RECORDS = 10_000  # some tens of MB of rows, and few enough commits for stores that make files of them
_BATCH_S = 5.0
_BATCH_ONCE_S = 1.0  # as the end is known when it is reached
_CONNECT_S = 5.0  # librdkafka tries several times within it
_PATIENCE_S = 30.0  # with --once, without a record or the end of a partition
_BACKOFF_MAX_S = 30.0
_LOOK_S = 30.0  # between looks for partitions that the topic got
IDENTITY = -1
"""In the place of a partition: the number there is made of the topic's id. Another topic of its name has another."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of brokers before 2.8
notes = Notes()


class Topic:
    """A consumer of all partitions of a topic, each from the offset that `read_offsets` has for it, or else its first.

    A broker that can't be reached is tried again, without end; with --once, Failure is raised then. It is always for
    records that are no longer there.

    `identity` is to be stored with the offsets: it is empty where brokers give topics no ids.
    """

    def __init__(self, settings: Settings, read_offsets: Callable[[list[int]], dict[int, int]]) -> None:
        self._topic, self._brokers, self._once = settings.topic, settings.brokers, settings.once
        self._partitions: set[int] = set()
        self._assigned: set[int] = set()
        self.identity: dict[int, int] = {}
        self._ended: set[int] = set()
        self._fault: KafkaError | None = None
        self._group = settings.kafka.get("group.id")
        quiet = logging.getLogger("recipes.kafka")  # librdkafka's lines: what they say comes as errors too
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        conf = {
            "group.id": "recipes",  # the client wants one; without any of the user's it is not used
            "isolation.level": "read_committed",
            **settings.kafka,
            "bootstrap.servers": settings.brokers,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "error_cb": self._on_error,
        }
        self._conf, self._logger = conf, quiet
        try:
            self._consumer = Consumer(conf, logger=quiet)
        except KafkaException as error:
            raise Failure(f"a property of the Kafka client is wrong: {error.args[0].str()}") from None
        self._assign(read_offsets)
        self._heard_at = time.monotonic()
        self._look_at = self._heard_at + _LOOK_S

    @property
    def is_at_end(self) -> bool:
        """Whether all partitions have been read to the ends that they had."""
        return self._partitions <= self._ended

    def consume(self) -> list[Message]:
        """Return what comes in a while. Raises Failure; with --once also when neither a record nor an end comes."""
        self._add_partitions()
        messages = []
        for message in self._consumer.consume(_BATCH_RECORDS, timeout=_BATCH_ONCE_S if self._once else _BATCH_S):
            self._heard_at, error = time.monotonic(), message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(message.partition())
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise Failure(
                    f"{self._topic}: {error.str()}: records are gone that were not stored. Fill an empty table"
                )
            else:
                self._on_error(error)
                if self._once:
                    raise Failure(self._cause())
        if messages:
            self._fault = None
        elif self._once and not self.is_at_end and time.monotonic() - self._heard_at > _PATIENCE_S:
            raise Failure(self._cause())
        elif self._fault is not None and not self._once and self._find_fault() is not None:
            self._say_cause()
        return messages

    def commit(self) -> None:
        """Note the position in the consumer group of --config, if it names one: for whoever watches its lag."""
        if self._group is None:
            return
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            notes.say(f"the offsets of the consumer group {self._group} were not committed: {error.args[0].str()}")

    def _add_partitions(self) -> None:
        """Read partitions too that the topic got since the start, from their first records on."""
        if self._once or self._fault is not None or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_S
        if self._find_fault() is None and (added := self._partitions - self._assigned):
            notes.say(f"{self._topic} has {len(added)} more partitions, which are read too")
            self._consumer.incremental_assign([TopicPartition(self._topic, n, OFFSET_BEGINNING) for n in sorted(added)])
            self._assigned |= added

    def close(self) -> None:
        """End the consumer."""
        self._consumer.close()

    def _assign(self, read_offsets: Callable[[list[int]], dict[int, int]]) -> None:
        pause = 1.0
        while True:
            try:
                if self._find_fault() is None:
                    self._consumer.incremental_assign(self._find_offsets(read_offsets))
                    self._assigned = set(self._partitions)
                    return
            except KafkaException as error:
                self._fault = error.args[0]
            if self._once:
                raise Failure(self._cause())
            self._say_cause()
            time.sleep(pause)
            pause = min(pause * 2, _BACKOFF_MAX_S)

    def _find_fault(self) -> KafkaError | None:
        """Ask the brokers for the topic's partitions. Returns, and keeps, why they give none."""
        try:
            metadata = self._consumer.list_topics(self._topic, timeout=_CONNECT_S).topics[self._topic]
            self._fault, self._partitions = metadata.error, set(metadata.partitions)
        except KafkaException as error:
            self._consumer.poll(0)  # calls _on_error for what happened meanwhile, which says more
            self._fault = self._fault or error.args[0]
        return self._fault

    def _find_offsets(self, read_offsets: Callable[[list[int]], dict[int, int]]) -> list[TopicPartition]:
        """Where to begin. Says which records are gone; raises Failure if the topic is not the one that was stored."""
        partitions = []
        stored = read_offsets([IDENTITY, *sorted(self._partitions)])
        self.identity = self._read_identity()
        if self.identity and stored.get(IDENTITY, self.identity[IDENTITY]) != self.identity[IDENTITY]:
            raise Failure(f"{self._topic} was made anew since its records were stored. Fill an empty table")
        for number in sorted(self._partitions):
            partition = TopicPartition(self._topic, number, stored.get(number, OFFSET_BEGINNING))
            partitions.append(partition)
            if number not in stored:
                continue
            first, end = self._consumer.get_watermark_offsets(partition, timeout=_CONNECT_S)
            where = f"{self._topic}, partition {number}"
            if partition.offset > end:
                problem = f"{where} ends at {end}, and records up to {partition.offset} are stored: it was made anew"
                raise Failure(f"{problem}. Fill an empty table")
            if partition.offset < first:
                notes.say(
                    f"{where} begins at {first}: records from {partition.offset} on are gone, and not in the table"
                )
                partition.offset = first
        return partitions

    def _read_identity(self) -> dict[int, int]:
        """Return `identity`. Raises KafkaException while brokers are away."""
        admin = AdminClient(self._conf, logger=self._logger)
        request: Any = admin.describe_topics(TopicCollection([self._topic]), request_timeout=_CONNECT_S)
        try:
            topic_id = str(request[self._topic].result().topic_id)
        except KafkaException as error:
            if error.args[0].code() in _AWAY_CODES:
                raise
            return {}  # brokers that speak Kafka's protocol without this
        if topic_id == _NO_ID:
            return {}
        digest = hashlib.sha256(topic_id.encode()).digest()
        return {IDENTITY: int.from_bytes(digest[:8], "big") >> 1}

    def _cause(self) -> str:
        """What is wrong, and what to do."""
        where = f"{self._topic} at {self._brokers}"
        if self._fault is None:
            return f"{where}: nothing comes, though its end is not reached: does a broker lack, or a transaction last?"
        advice, problem = _ADVICE.get(self._fault.code()), self._fault.str()
        return f"{where}: {problem}" + (f": {advice}" if advice else "")

    def _say_cause(self) -> None:
        notes.say(f"{self._cause()}; trying again", kind=self._fault and self._fault.name())

    def _on_error(self, error: KafkaError) -> None:
        """Keep what says most: that all brokers are down comes after the reason."""
        if self._fault is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._fault = error


_AWAY_CODES = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
_LOGIN = "--config has security.protocol, ssl.ca.location, sasl.mechanisms, sasl.username and sasl.password"
_AWAY = f"is the broker there, and does it want TLS or a login? {_LOGIN}"
_ADVICE = {
    KafkaError._TRANSPORT: _AWAY,
    KafkaError._TIMED_OUT: _AWAY,
    KafkaError._ALL_BROKERS_DOWN: _AWAY,
    KafkaError._RESOLVE: "is that the broker's name?",
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: _LOGIN,
    KafkaError.UNKNOWN_TOPIC_OR_PART: "is that the topic's name, and has the connector published a record?",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user may not read the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the user may not commit in the consumer group of --config",
}

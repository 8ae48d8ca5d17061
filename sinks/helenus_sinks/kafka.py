"""The Log on Kafka, over confluent-kafka's idempotent producer."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.settings import masking
from helenus_sinks.log import Headers, Schemas, TopicError

_log = structlog.get_logger(__name__)
_ONE_REPLICA = (
    "one broker alone has it: raise its replication factor with kafka-reassign-partitions, and for topics to come set "
    "topic.creation.default.replication.factor"
)
_ANSWER_TIMEOUT = 5.0
_ROOM_TIMEOUT = 60.0
_LANDING_TIMEOUT = 5.0
_SLICE = 0.2
_POLL = 0.02
_FRESH = 1.0  # s for which topics that were listed are taken to be there
_ASK_AGAIN = 60.0  # s after which a topic's limit is asked for again
_MESSAGE_MAX_BYTES = 1_000_000  # librdkafka's default
_FRAME_BYTES = 128  # what a batch takes beside its records
_DEFAULTS: dict[str, object] = {
    "enable.idempotence": "true",
    "acks": "all",
    "compression.type": "lz4",
    "linger.ms": "5",
    "log_level": "0",
    # A topic is made by `create`, as it is to be. Where brokers make topics by themselves, they have other settings.
    "allow.auto.create.topics": "false",
    # Success needs no call: `flush` counts what is left and `_failed` hears of errors.
    "delivery.report.only.error": True,
    # What waits while the broker is away; each record takes about 250 bytes more than its own.
    "queue.buffering.max.messages": "50000",
    "queue.buffering.max.kbytes": "32768",
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
}
# Those of them that say nothing of one topic, when it is written to.
_OF_ALL = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_ADVICE = {
    Kind.BROKER_UNREACHABLE: "check bootstrap.servers and that the brokers are up",
    Kind.BROKER_REFUSED: "check the broker's ACLs, the security.*, ssl.* and sasl.* settings and the topic's name",
    Kind.CONFIG: "correct that setting of librdkafka in the properties file",
}
_ECHO = "sasl.oauthbearer.config beginning at: "
_TOGETHER = "Failed to create"  # begins what librdkafka says of settings that do not go together
_VAGUE = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}


def broker_error(error: KafkaError, where: str) -> HelenusError:
    """A Kafka error as ours: a setting that the client does not take, refused by the broker, out of reach, …"""
    if error.code() == KafkaError._INVALID_ARG:
        kind = Kind.CONFIG
    elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        kind = Kind.RECORD_TOO_LARGE
    elif error.code() in _MISSING:
        kind = Kind.TOPIC_MISSING
    # librdkafka tells a certificate that it does not trust as _SSL or, met while it reads, as _TRANSPORT.
    elif error.code() in _REFUSED or "certificate verify failed" in error.str():
        kind = Kind.BROKER_REFUSED
    else:
        kind = Kind.BROKER_UNREACHABLE
    return HelenusError(kind, f"Kafka: {said(error)}", where, _ADVICE.get(kind, ""))


def said(error: KafkaError) -> str:
    """An error's text without what it may show of secret settings: a login in an address, `sasl.oauthbearer.config`."""
    text, mark, _ = error.str().partition(_ECHO)
    return masking.shown(text + mark, secret=False) + (masking.STARS if mark else "")


def _of_topic(error: KafkaError, where: str, topic: str) -> HelenusError:
    """What came of a topic's records: an error of this topic alone, unless it passes, or is about who asks."""
    told = broker_error(error, f"{where}, topic {topic}")
    if told.action is Action.RETRY or error.fatal() or error.code() in _OF_ALL:
        return told
    return TopicError(told.kind, told.what, told.where, topic, told.advice)


class KafkaLog:
    """A `Log` on Kafka. `config` is librdkafka's, `bootstrap.servers` at least. `replication_factor`: how many brokers
    have the topics that are made, -1: as the brokers have it. Raises HelenusError CONFIG if `message.max.bytes` is no
    number; what else is wrong librdkafka says at the start.
    """

    keeps_schemas = False

    def __init__(self, config: Mapping[str, str]) -> None:
        self.replication_factor = -1
        self._client = {"log_level": "0", **{k: v for k, v in config.items() if _is_client(k)}}
        self._config = {**_DEFAULTS, **config}
        if not (size := config.get("message.max.bytes", "0")).isdigit():
            raise HelenusError(
                Kind.CONFIG, f"message.max.bytes={size}: not a number of bytes", config["bootstrap.servers"]
            )
        if "queue.buffering.max.kbytes" not in config:  # a record larger than the queue would wait for ever
            least = int(str(_DEFAULTS["queue.buffering.max.kbytes"]))
            self._config["queue.buffering.max.kbytes"] = str(max(least, self._most // 512))
        self._where = config["bootstrap.servers"]
        self._limits: dict[str, int] = {}  # of topics that take less than the producer does
        self._asked = 0.0
        self._brokers = 0
        self._alone: set[str] = set()  # topics that one broker has
        self._warned: set[str] = set()
        self._admin_client: AdminClient | None = None
        self._listed: tuple[float, dict[str, int]] = -math.inf, {}
        self._producer: Producer | None = None
        self._error: KafkaError | None = None
        self._failing = ""  # the topic that it is about
        self._heard: KafkaError | None = None
        self._latest = math.inf

    def topics(self) -> dict[str, int]:
        """How many partitions each topic has. Raises HelenusError BROKER_UNREACHABLE or BROKER_REFUSED."""
        known = self._known()
        found = {name: len(topic.partitions) for name, topic in known.topics.items()}
        self._brokers = len(known.brokers)
        self._alone = {name for name, topic in known.topics.items() if _factor(topic.partitions.values()) == 1}
        self._listed = time.monotonic(), found
        return found

    def cluster(self) -> str:
        """The cluster's id. Raises as `topics`."""
        return str(self._known().cluster_id)

    def _known(self) -> Any:
        admin = self._admin()
        try:
            # All of them: to ask for one by name would create it, where the broker is set to do that.
            return admin.list_topics(timeout=_ANSWER_TIMEOUT)
        except KafkaException as failure:
            raise self._told(failure.args[0], admin) from None

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> int:
        # One listing serves for all the topics that are asked for one after the other.
        listed, known = self._listed
        if time.monotonic() > listed + _FRESH:
            known = self.topics()
        if topic in known:
            if topic in self._alone:
                self._warn(topic)
            return known[topic]
        factor = self.replication_factor
        new = NewTopic(topic, num_partitions=partitions, replication_factor=factor, config=dict(config))
        # The client must outlive its request: the answer comes through it.
        admin = self._admin()
        try:
            admin.create_topics([new], operation_timeout=_ANSWER_TIMEOUT)[topic].result()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                told = self._told(failure.args[0], admin, f", topic {topic}")
                if told.action is not Action.RETRY:
                    told = TopicError(told.kind, told.what, told.where, topic, told.advice)
                raise told from None
            deadline = time.monotonic() + _ANSWER_TIMEOUT
            while topic not in (there := self.topics()):  # it is being made, or deleted
                if time.monotonic() > deadline:
                    what = "Kafka: the topic is there, and is not described to us"
                    where = f"{self._where}, topic {topic}"
                    advice = "grant DESCRIBE on the topic to this login"
                    raise TopicError(Kind.BROKER_REFUSED, what, where, topic, advice) from None
                time.sleep(_SLICE)
            return there[topic]
        known[topic] = partitions
        if self._brokers > 1 and (factor == 1 or (factor == -1 and self._has_one_broker(topic))):
            self._warn(topic)
        return partitions

    def _has_one_broker(self, topic: str) -> bool:
        """Of a topic that was just made; False if nobody may ask."""
        asked = self._admin().describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_TIMEOUT)
        try:
            return _factor(asked[topic].result().partitions) == 1
        except KafkaException:
            return False

    def _warn(self, topic: str) -> None:
        if self._brokers > 1 and topic not in self._warned:
            self._warned.add(topic)
            _log.warning("topic.one_replica", topic=topic, brokers=self._brokers, advice=_ONE_REPLICA)

    def declare(self, topic: str, schemas: Schemas) -> None:
        """Nothing: schemas are in a registry beside Kafka."""

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> None:
        producer = self._producer or self._start()
        deadline = 0.0
        if topic in self._limits:
            self._check(topic, partition, key, value, headers)
        while True:
            try:
                if headers:
                    producer.produce(topic, value, key, partition, self._failed, headers=list(headers))
                else:
                    producer.produce(topic, value, key, partition, self._failed)
                return
            except BufferError:
                deadline = deadline or time.monotonic() + _ROOM_TIMEOUT
                if time.monotonic() > min(deadline, self._latest):
                    raise HelenusError(Kind.APPEND_FAILED, "Kafka takes no records: the queue is full", topic) from None
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise _too_large(topic, partition, _size(key, value, headers), self._most) from None
                raise self._refused(failure, topic) from None
            try:
                producer.poll(0.1)
            except KafkaException as failure:
                raise self._refused(failure, topic) from None

    def extend(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        producer = self._producer or self._start()
        produce, failed = producer.produce, self._failed
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
            raise self._refused(failure, topic) from None

    def start(self) -> None:
        """Connect now: the first record would wait for it. Raises HelenusError(CONFIG)."""
        if self._producer is None:
            self._start()

    def hurry(self, seconds: float) -> None:
        self._latest = min(self._latest, time.monotonic() + seconds)

    def flush(self, timeout: float) -> None:
        if self._producer is None:
            return
        # librdkafka's own flush hears of success at once, but no signal handler runs within it, and none calls `hurry`.
        try:
            left = self._producer.flush(min(timeout, _SLICE))
            least, since = left, time.monotonic()
            while left and not self._error:
                now = time.monotonic()
                if left < least:
                    least, since = left, now
                if now > min(since + timeout, self._latest):
                    break
                self._producer.poll(_POLL)
                left = len(self._producer)
        except KafkaException as failure:
            raise self._refused(failure) from None
        if left or self._error:
            error, heard, topic = self._error, self._heard, self._failing
            self.close()
            if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._limit_to(topic)
                raise _of_topic(error, self._where, topic)
            if error is not None and error.code() in _REFUSED | _MISSING:
                raise _of_topic(error, self._where, topic)
            cause = error or heard
            told = f": {said(cause)}" if cause else ""
            raise HelenusError(
                Kind.APPEND_FAILED,
                f"Kafka did not acknowledge {left or 'some'} records in time{told}",
                self._where,
            )

    def close(self) -> None:
        if self._producer is not None:
            # What is on its way lands before anything that is written after this, if the broker says so in time.
            self._producer.purge(in_flight=False)
            with contextlib.suppress(KafkaException):
                self._producer.flush(max(0.0, min(_LANDING_TIMEOUT, self._latest - time.monotonic())))
            self._producer.purge()
            with contextlib.suppress(KafkaException):  # it tells again what broke it
                self._producer.flush(1)
            self._producer = None
        self._error = None
        self._forget()

    @property
    def largest(self) -> int:
        """Bytes of the largest record that is taken of every topic."""
        return min([self._most, *self._limits.values()])

    @property
    def _most(self) -> int:
        """Bytes of the largest record, or batch of them, that the producer takes."""
        return int(str(self._config.get("message.max.bytes", _MESSAGE_MAX_BYTES)))

    def _check(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        size = _size(key, value, headers)
        if size > self._limits[topic] and time.monotonic() > self._asked + _ASK_AGAIN:
            self._limit_to(topic)  # somebody may have raised it
        if size > self._limits[topic]:
            raise _too_large(topic, partition, size, self._limits[topic])

    def _limit_to(self, topic: str) -> None:
        """From now on of the topic is taken what it takes: so `append` says which record is too large, and only that.

        A batch has to fit too: those of all topics are made that small.
        """
        self._asked = time.monotonic()
        admin = self._admin()
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        with contextlib.suppress(KafkaException):  # who may not ask is told no more than the broker said
            told = admin.describe_configs([resource], request_timeout=_ANSWER_TIMEOUT)[resource].result()
            limit = max(1000, int(told["max.message.bytes"].value) - _FRAME_BYTES)
            self._limits[topic] = min(limit, self._most)
            self._config["batch.size"] = str(min(self.largest, int(str(self._config.get("batch.size", self.largest)))))

    def _admin(self) -> AdminClient:
        self._heard = None
        if self._admin_client is None:
            self._admin_client = self._made(AdminClient, self._client)
        return self._admin_client

    def _forget(self) -> None:
        """What was learned of the cluster is in doubt; another client tries at once, and says what it meets."""
        self._admin_client = None
        self._listed = -math.inf, {}

    def _made(self, client: Any, config: Mapping[str, object]) -> Any:
        try:
            return client({**config, "error_cb": self._hear})
        except KafkaException as failure:
            raise broker_error(failure.args[0], self._where) from None

    def _told(self, error: KafkaError, admin: AdminClient, where: str = "") -> HelenusError:
        """The error, or what the connections met on the way where it only says that time ran out."""
        admin.poll(0)  # calls _hear
        told = self._heard if self._heard and error.code() in _VAGUE else error
        if broker_error(told, "").action is Action.RETRY:
            self._forget()
        if told.code() == KafkaError._ALL_BROKERS_DOWN:  # connected, and nothing was heard but that
            what = "Kafka closes the connection"
            advice = "check that its listener speaks the security.protocol that is set, PLAINTEXT if none is"
            return HelenusError(Kind.BROKER_UNREACHABLE, what, self._where + where, advice)
        return broker_error(told, self._where + where)

    def _start(self) -> Producer:
        self._error = None
        self._producer = self._made(Producer, self._config)
        return self._producer

    def _refused(self, failure: KafkaException, topic: str = "") -> HelenusError:
        """What a producer raised. After a fatal error it takes nothing more: the next record starts another."""
        error = failure.args[0]
        if error.code() == KafkaError._FATAL and self._producer is not None:
            try:
                self._producer.poll(0)  # raises the error itself
            except KafkaException as told:
                error = told.args[0]
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.close()
        return _of_topic(error, self._where, topic) if topic else broker_error(error, self._where)

    def _failed(self, error: KafkaError | None, record: Any) -> None:
        if self._error is None:
            self._error, self._failing = error, record.topic()

    def _hear(self, error: KafkaError) -> None:
        # _ALL_BROKERS_DOWN follows the error that says why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self._heard is None:
            self._heard = error


def objections(config: Mapping[str, str], asked: Collection[str]) -> dict[str, str]:
    """What librdkafka says against settings of a producer, before it connects: a reason for each wrong one of those
    `asked` about, and under "" for what it names none of them.
    """
    if not _objection(config):
        return {}
    found: dict[str, str] = {}
    for key in asked:
        reason = _objection({"bootstrap.servers": "none:1", key: config[key]})
        if reason and not reason.startswith(_TOGETHER):
            found[key] = reason
    left = {key: value for key, value in config.items() if key not in found}
    while (reason := _objection(left)) and "" not in found:
        named = (key for key in asked if key in left and re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", reason))
        key = next(named, "")
        found[key] = reason
        left.pop(key, None)
    return found


def _objection(config: Mapping[str, str]) -> str:
    try:
        Producer({**_DEFAULTS, **config, "log_level": "0"})
    except KafkaException as failure:
        return said(failure.args[0])
    return ""


def _factor(partitions: Iterable[Any]) -> int:
    """How many brokers have a topic, by its partition that the fewest have."""
    return min((len(partition.replicas) for partition in partitions), default=0)


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return len(key or b"") + len(value or b"") + sum(len(name) + len(content) for name, content in headers)


def _too_large(topic: str, partition: int, size: int, limit: int) -> TopicError:
    what = f"a record of {size} bytes, where {limit} are allowed"
    return TopicError(Kind.RECORD_TOO_LARGE, what, f"topic {topic}, partition {partition}", topic)


def _is_client(key: str) -> bool:
    """True for settings of the connection, which every kind of client takes."""
    return key.startswith(("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl.", "client.", "broker.", "socket."))

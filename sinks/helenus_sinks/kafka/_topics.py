"""The topics of a Kafka cluster, through an admin client that is kept as long as it works."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.kafka.errors import DeliveryReports, broker_error, new_client
from helenus_sinks.log import TopicError

_log = structlog.get_logger(__name__)
_ONE_REPLICA = (
    "one broker alone has it: raise its replication factor with kafka-reassign-partitions, and for topics to come set "
    "topic.creation.default.replication.factor"
)
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.2
_LISTING_MAX_AGE_S = 1.0  # s for which a listing of topics counts as current
_VAGUE_ERRORS = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}


class KafkaTopics:
    """Lists, creates and describes topics. `reports` is what connections report; it is emptied before each request.

    Methods raise HelenusError BROKER_UNREACHABLE or BROKER_REFUSED.
    """

    def __init__(self, config: Mapping[str, object], where: str, reports: DeliveryReports) -> None:
        self._config = config
        self._where = where
        self._reports = reports
        self._admin: AdminClient | None = None
        self._listing: tuple[float, dict[str, int]] = -math.inf, {}
        self._brokers = 0
        self._on_one_broker: set[str] = set()
        self._warned: set[str] = set()

    def partitions(self) -> dict[str, int]:
        """Return how many partitions each topic has."""
        metadata = self._list()
        partitions = {name: len(topic.partitions) for name, topic in metadata.topics.items()}
        self._brokers = len(metadata.brokers)
        self._on_one_broker = {
            name for name, topic in metadata.topics.items() if _replication_factor(topic.partitions.values()) == 1
        }
        self._listing = time.monotonic(), partitions
        return partitions

    def cluster(self) -> str:
        """Return the cluster's id."""
        return str(self._list().cluster_id)

    def create(self, topic: str, partitions: int, config: Mapping[str, str], factor: int) -> int:
        """Make the topic if it is missing; return the number of partitions it has. `factor`: how many brokers are to
        have it, -1 for the brokers' default.
        """
        # One listing serves for all topics that are created one after the other.
        listed_at, partitions_by_topic = self._listing
        if time.monotonic() > listed_at + _LISTING_MAX_AGE_S:
            partitions_by_topic = self.partitions()
        if topic in partitions_by_topic:
            if topic in self._on_one_broker:
                self._warn_of_one_replica(topic)
            return partitions_by_topic[topic]
        new = NewTopic(topic, num_partitions=partitions, replication_factor=factor, config=dict(config))
        # The client must outlive its request: the answer comes through it.
        admin = self._client()
        try:
            admin.create_topics([new], operation_timeout=_ANSWER_TIMEOUT_S)[topic].result()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                error = self._request_error(failure.args[0], admin, f", topic {topic}")
                if error.action is not Action.RETRY:
                    error = TopicError(error.kind, error.what, error.where, topic, error.advice)
                raise error from None
            return self._await_listing(topic)
        partitions_by_topic[topic] = partitions
        if self._brokers > 1 and (factor == 1 or (factor == -1 and self._has_one_broker(topic))):
            self._warn_of_one_replica(topic)
        return partitions

    def largest(self, topic: str) -> int | None:
        """Return bytes of the largest batch that a topic takes; None if this login may not ask."""
        admin = self._client()
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            topic_config = admin.describe_configs([resource], request_timeout=_ANSWER_TIMEOUT_S)[resource].result()
        except KafkaException:
            return None
        return int(topic_config["max.message.bytes"].value)

    def forget(self) -> None:
        """Drop the client and the listing, after a failure: a new client connects at once, and reports its errors."""
        self._admin = None
        self._listing = -math.inf, {}

    def _list(self) -> Any:
        admin = self._client()
        try:
            # All of them: where brokers create topics by themselves, asking for one by name would create it.
            return admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
        except KafkaException as failure:
            raise self._request_error(failure.args[0], admin) from None

    def _await_listing(self, topic: str) -> int:
        """Wait until a topic is listed that the broker has and did not list: it is just being created, or deleted."""
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while topic not in (listed := self.partitions()):
            if time.monotonic() > deadline:
                message = "Kafka: the topic is there, and is not described to us"
                where = f"{self._where}, topic {topic}"
                advice = "grant DESCRIBE on the topic to this login"
                raise TopicError(Kind.BROKER_REFUSED, message, where, topic, advice) from None
            time.sleep(_POLL_S)
        return listed[topic]

    def _has_one_broker(self, topic: str) -> bool:
        """Return whether one broker alone has a topic that was just created; False if this login may not ask."""
        descriptions = self._client().describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_TIMEOUT_S)
        try:
            return _replication_factor(descriptions[topic].result().partitions) == 1
        except KafkaException:
            return False

    def _warn_of_one_replica(self, topic: str) -> None:
        if self._brokers > 1 and topic not in self._warned:
            self._warned.add(topic)
            _log.warning("topic.one_replica", topic=topic, brokers=self._brokers, advice=_ONE_REPLICA)

    def _client(self) -> AdminClient:
        self._reports.last = None
        if self._admin is None:
            self._admin = new_client(AdminClient, self._config, self._reports, self._where)
        return self._admin

    def _request_error(self, error: KafkaError, admin: AdminClient, topic: str = "") -> HelenusError:
        """Return the error of a request. If it only says that time ran out, the error that connections reported
        meanwhile.
        """
        admin.poll(0)  # calls `_reports`
        cause = self._reports.last if self._reports.last and error.code() in _VAGUE_ERRORS else error
        if broker_error(cause, "").action is Action.RETRY:
            self.forget()
        if cause.code() == KafkaError._ALL_BROKERS_DOWN:  # it connected, and nothing else was reported
            message = "Kafka closes the connection"
            advice = "check that its listener speaks the security.protocol that is set, PLAINTEXT if none is"
            return HelenusError(Kind.BROKER_UNREACHABLE, message, self._where + topic, advice)
        return broker_error(cause, self._where + topic)


def _replication_factor(partitions: Iterable[Any]) -> int:
    """Return how many brokers have a topic, by its partition that the fewest have."""
    return min((len(partition.replicas) for partition in partitions), default=0)

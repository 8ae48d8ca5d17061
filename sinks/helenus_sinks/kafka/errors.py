"""librdkafka's errors as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_schemas.settings import masking
from helenus_sinks.log import TopicError

REFUSED = {
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
MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
MOVING = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.REQUEST_TIMED_OUT,
}
"""Of a partition that was just made, or gets a new leader. librdkafka marks errors as `retriable` where they are of
transactions, never those of consumers and administration.
"""
# Those of `REFUSED` that concern the login, not the topic that is written to.
_LOGIN_ERRORS = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
}
_COLLISION_TEXT = "collides with existing topic"
"""How Kafka words it when the names of two topics differ in `.` and `_` alone: its metrics have `_` for both."""
_COLLISION_ADVICE = (
    "Kafka takes one of two topics whose names differ in . and _ alone. Of events: leave one of the tables out with "
    "table.exclude.list, or recreate it under another name, or use Pulsar. Of records: give one connector another "
    "data.topic"
)
_WRONG_SETTING = "correct that setting of librdkafka in the properties file"
_SHOWS_SECRETS = "sasl.oauthbearer.config beginning at: "


class DeliveryReports:
    """The last error that a client's connections reported by themselves, None if none did: librdkafka's `error_cb`."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # _ALL_BROKERS_DOWN follows the error that says why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or self.last is None:
            self.last = error


def new_client(kind: Any, config: Mapping[str, object], reports: DeliveryReports, where: str) -> Any:
    """Return a client of librdkafka. Raises HelenusError: CONFIG for a setting that it refuses."""
    try:
        return kind({**config, "error_cb": reports})
    except KafkaException as failure:
        raise broker_error(failure.args[0], where) from None


def broker_error(error: KafkaError, where: str) -> HelenusError:
    """Return a Kafka error as ours: a setting that the client refuses, refused by the broker, out of reach, …"""
    advice = ""
    if error.code() == KafkaError._INVALID_ARG:
        kind, advice = Kind.CONFIG, _WRONG_SETTING
    elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        kind = Kind.RECORD_TOO_LARGE
    elif error.code() in MISSING:
        kind = Kind.TOPIC_MISSING
    # librdkafka reports a certificate that it does not trust as _SSL or, if that happens while it reads, as _TRANSPORT.
    elif error.code() in REFUSED or "certificate verify failed" in error.str():
        kind = Kind.BROKER_REFUSED
        advice = _COLLISION_ADVICE if _COLLISION_TEXT in error.str() else ""
    else:
        kind = Kind.BROKER_UNREACHABLE
    return HelenusError(kind, f"Kafka: {text_of(error)}", where, advice)


def text_of(error: KafkaError) -> str:
    """Return an error's text without secret settings that it may show: a login in an address,
    `sasl.oauthbearer.config`.
    """
    text, mark, _ = error.str().partition(_SHOWS_SECRETS)
    return masking.shown(text + mark, secret=False) + (masking.STARS if mark else "")


def topic_error(error: KafkaError, where: str, topic: str) -> HelenusError:
    """Return an error of a topic's records: a TopicError, unless the error is passing or concerns the login."""
    kafka_error = broker_error(error, f"{where}, topic {topic}")
    if kafka_error.action is Action.RETRY or error.fatal() or error.code() in _LOGIN_ERRORS:
        return kafka_error
    return TopicError(kafka_error.kind, kafka_error.what, kafka_error.where, topic, kafka_error.advice)

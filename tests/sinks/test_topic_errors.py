"""Which errors of a Log are one topic's alone."""

from __future__ import annotations

import pickle

import pytest
from confluent_kafka import KafkaError

from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import topic_error
from helenus_sinks.log import TopicError
from helenus_sinks.pulsar import log as pulsar
from helenus_sinks.pulsar._admin import Refused
from helenus_sinks.pulsar.errors import AUTHENTICATION, AUTHORIZATION, INCOMPATIBLE_SCHEMA, broker_error


@pytest.mark.parametrize(
    ("code", "alone"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True),
        (KafkaError.MSG_SIZE_TOO_LARGE, True),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, False),
        (KafkaError._AUTHENTICATION, False),
        (KafkaError.NOT_ENOUGH_REPLICAS, False),  # it passes
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),  # it is made again
    ],
)
def test_of_kafka(code: int, alone: bool) -> None:
    error = topic_error(KafkaError(code), "h:1", "t")
    assert isinstance(error, TopicError) is alone
    assert getattr(error, "topic", "t") == "t"
    assert "h:1, topic t" in str(error)


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        (broker_error(AUTHORIZATION, "no", "b"), True),
        (broker_error(INCOMPATIBLE_SCHEMA, "no", "b"), True),
        (broker_error(0, "schema auto updating is disabled", "b"), True),
        (Refused(403, "no"), True),
        (HelenusError(Kind.REGISTRY_REFUSED, "its fields would be taken for others"), True),
        (broker_error(AUTHENTICATION, "no", "b"), False),
        (HelenusError(Kind.BROKER_REFUSED, "certificate verify failed"), False),
        (Refused(503, "not now"), False),
        (broker_error(6, "not ready", "b"), False),
    ],
)
def test_of_pulsar(error: HelenusError, alone: bool) -> None:
    converted = pulsar._as_topic_error(error, "b", "t")
    assert isinstance(converted, TopicError) is alone
    assert (converted.kind, converted.what) == (error.kind, error.what)


def test_they_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(TopicError(Kind.RECORD_TOO_LARGE, "large", "t", "t")))
    assert (error.kind, error.what, error.where) == (Kind.RECORD_TOO_LARGE, "large", "t")

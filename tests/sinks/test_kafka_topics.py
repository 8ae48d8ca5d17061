"""The Log on Kafka and topics that are not there, against the broker that librdkafka has for its own tests.

That one makes topics by itself, as Kafka does where `auto.create.topics.enable` is left as it is.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks import kafka
from helenus_sinks.kafka import KafkaLog
from helenus_sinks.log import TopicError


@pytest.fixture(scope="module")
def address() -> Any:
    held = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": "1", "log_level": "0"})
    (broker,) = held.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del held


def test_a_topic_that_is_gone_is_named_and_not_made_by_the_way(address: str) -> None:
    """It would have the broker's partitions, and forget by age what is to be kept."""
    log = KafkaLog({"bootstrap.servers": address, "topic.metadata.propagation.max.ms": "200"})
    log.append("gone", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="Unknown topic") as error:
        log.flush(30)
    assert (error.value.kind, error.value.action) == (Kind.TOPIC_MISSING, Action.RETRY)
    assert error.value.where == f"{address}, topic gone"
    assert not isinstance(error.value, TopicError), "it is made again: nothing of it is to be left out"
    assert "gone" not in log.topics()
    log.close()


def test_a_partition_that_is_gone(address: str) -> None:
    made = KafkaLog({"bootstrap.servers": address, "allow.auto.create.topics": "true"})
    made.append("small", 0, b"k", b"v")
    made.flush(30)
    with pytest.raises(HelenusError, match="Unknown partition") as error:
        made.append("small", 99, b"k", b"v")
    assert error.value.kind is Kind.TOPIC_MISSING
    made.close()


def test_a_topic_that_is_between_being_there_and_not(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker says that it has it, and does not list it."""

    def create(*_: object, **__: object) -> dict[str, Future[None]]:
        answer: Future[None] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
        return {"half": answer}

    monkeypatch.setattr(AdminClient, "create_topics", create)
    monkeypatch.setattr(kafka, "_ANSWER_TIMEOUT", 1.0)
    with pytest.raises(TopicError, match="not described to us") as error:
        KafkaLog({"bootstrap.servers": address}).create("half", 3, {})
    assert error.value.kind is Kind.BROKER_REFUSED


def test_what_is_on_its_way_lands_before_the_log_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again may be written by another process: an older record is not to land after it."""
    slow = {"test.mock.num.brokers": "1", "test.mock.broker.rtt": "400", "allow.auto.create.topics": "true"}
    log = KafkaLog({"bootstrap.servers": "none:1", "linger.ms": "0", **slow})
    heard: list[Any] = []
    monkeypatch.setattr(log, "_failed", lambda error, _: heard.append(error.name()))
    log.append("there", 0, b"k", b"first")
    log.flush(30)
    log.append("there", 0, b"k", b"on its way")
    time.sleep(0.2)
    log.close()
    assert heard == []

"""The Log on Kafka and topics that are not there, against the broker that librdkafka has for its own tests.

That one makes topics by itself, as Kafka does where `auto.create.topics.enable` is left as it is.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from helenus_schemas.errors import Action, HelenusError, Kind
from helenus_sinks.kafka import _topics
from helenus_sinks.kafka import log as log_module
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.log import TopicError


@pytest.fixture(scope="module")
def address() -> Any:
    mock_cluster = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": "1", "log_level": "0"})
    (broker,) = mock_cluster.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del mock_cluster


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


def test_a_partition_that_disappears(address: str) -> None:
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
    monkeypatch.setattr(_topics, "_ANSWER_TIMEOUT_S", 1.0)
    with pytest.raises(TopicError, match="not described to us") as error:
        KafkaLog({"bootstrap.servers": address}).create("half", 3, {})
    assert error.value.kind is Kind.BROKER_REFUSED


def test_records_in_flight_arrive_before_the_log_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again may be written by another process: an older record is not to land after it."""
    slow = {"test.mock.num.brokers": "1", "test.mock.broker.rtt": "400", "allow.auto.create.topics": "true"}
    log = KafkaLog({"bootstrap.servers": "none:1", "linger.ms": "0", **slow})
    heard: list[Any] = []
    monkeypatch.setattr(log, "_on_delivery_error", lambda error, _: heard.append(error.name()))
    log.append("there", 0, b"k", b"first")
    log.flush(30)
    log.append("there", 0, b"k", b"on its way")
    time.sleep(0.2)
    log.close()
    assert heard == []


def test_one_client_and_one_listing_serve_for_all_topics(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tables are a listing at the start, and one more after a failure."""
    made, listed = [], []

    class Counted(AdminClient):
        def __init__(self, config: Any) -> None:
            made.append(self)
            super().__init__(config)

        def list_topics(self, *arguments: Any, **more: Any) -> Any:
            listed.append(self)
            return super().list_topics(*arguments, **more)

    monkeypatch.setattr(_topics, "AdminClient", Counted)
    monkeypatch.setattr(_topics, "_LISTING_MAX_AGE_S", 60.0)
    before = KafkaLog({"bootstrap.servers": address, "allow.auto.create.topics": "true"})
    for n in range(50):
        before.append(f"many{n}", 0, b"k", b"v")
    before.flush(30)
    log = KafkaLog({"bootstrap.servers": address, "topic.metadata.propagation.max.ms": "200"})
    assert {log.create(f"many{n}", 7, {}) for n in range(50)} == {4}
    assert (len(made), len(listed)) == (1, 1)
    log.append("none", 0, b"k", b"v")
    with pytest.raises(HelenusError, match="Unknown topic"):
        log.flush(30)
    assert {log.create(f"many{n}", 7, {}) for n in range(50)} == {4}
    assert (len(made), len(listed)) == (2, 2)
    assert len(log.topics()) >= 50
    assert len(listed) == 3, "a later question gets the current topics"
    for open_log in (before, log):
        open_log.close()


class Cluster:
    """Stands for an `AdminClient` of a cluster of `brokers`, whose `default.replication.factor` is 1."""

    def __init__(self, brokers: int) -> None:
        self.brokers = brokers
        self.topics: dict[str, Any] = {"before": self._topic(1), "well": self._topic(2)}

    def __call__(self, config: Any) -> Cluster:
        return self

    @staticmethod
    def _topic(replicas: int) -> Any:
        partitions = [SimpleNamespace(replicas=list(range(replicas)))] * 2
        return SimpleNamespace(partitions=dict(enumerate(partitions)))

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics=dict(self.topics), brokers=dict.fromkeys(range(self.brokers)))

    def create_topics(self, new: list[Any], **more: object) -> dict[str, Future[None]]:
        creation: Future[None] = Future()
        creation.set_result(None)
        factor = new[0].replication_factor
        self.topics[new[0].topic] = self._topic(1 if factor == -1 else factor)
        return {new[0].topic: creation}

    def describe_topics(self, topics: Any, **more: object) -> dict[str, Future[Any]]:
        description: Future[Any] = Future()
        (name,) = self.topics.keys() - {"before", "well"}
        description.set_result(SimpleNamespace(partitions=list(self.topics[name].partitions.values())))
        return {name: description}


@pytest.mark.parametrize(
    ("brokers", "factor", "expected"),
    [(1, -1, []), (3, -1, ["before", "new"]), (3, 3, ["before"]), (3, 1, ["before", "new"])],
)
def test_topics_that_one_broker_has(
    brokers: int, factor: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are lost with it: where there are others, that is worth a warning, once a topic."""
    cluster = Cluster(brokers)
    monkeypatch.setattr(_topics, "AdminClient", cluster)
    log = KafkaLog({"bootstrap.servers": "none:1"})
    log.replication_factor = factor
    with capture_logs() as logs:
        for topic in ("before", "well", "new", "before", "new"):
            log.create(topic, 2, {})
    assert [line["topic"] for line in logs if line["event"] == "topic.one_replica"] == expected
    made = cluster.list_topics(1).topics["new"].partitions[0]
    assert len(made.replicas) == max(factor, 1)


@pytest.mark.parametrize("setting", [{}, {"linger.ms": "60000"}, {"queue.buffering.max.ms": "60000"}])
def test_what_lingers_is_sent_when_nothing_follows(
    address: str, setting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless an operator has set how long it lingers."""
    monkeypatch.setitem(log_module.DEFAULTS, "linger.ms", "60000")
    topic = f"lingers-{len(setting)}-{sum(map(len, setting))}"
    log = KafkaLog({"bootstrap.servers": address, "allow.auto.create.topics": "true", **setting})
    log.append(topic, 0, b"k", b"first")
    log.flush(30)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "lingers", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 1)])
    log.append(topic, 0, b"k", b"second")
    assert consumer.poll(1) is None
    for _ in range(1 if setting else 100):
        log.send_lingering()
        if message := consumer.poll(0.3):
            break
    assert message is None if setting else message is not None and message.value() == b"second"
    log.flush(30)
    consumer.close()
    log.close()

"""What the recipes read of a topic that changes: more partitions, and another topic of its name."""

from __future__ import annotations

from typing import Any

import pytest
import topic as module
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from connector.test_kafka_live import make
from patience import eventually
from records import Failure
from settings import Settings
from topic import IDENTITY, Topic

from helenus_stack.stack import Stack

pytestmark = pytest.mark.integration


@pytest.fixture
def servers(only_kafka: Stack) -> str:
    return only_kafka.status().bootstrap_servers


def append(servers: str, name: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for n in range(count):
        producer.produce(name, str(n), partition=partition)
    assert producer.flush(30) == 0


def open_topic(servers: str, name: str, stored: dict[int, int]) -> Topic:
    return Topic(Settings(servers, "", name, []), lambda partitions: {n: stored[n] for n in partitions if n in stored})


def read_all(topic: Topic, count: int) -> list[tuple[int, int]]:
    records: list[tuple[int, int]] = []

    def are_there() -> bool:
        records.extend((message.partition(), message.offset()) for message in topic.consume())
        return len(records) >= count

    eventually(are_there, lambda: str(records))
    return records


def test_partitions_that_a_topic_got_are_read_without_a_restart(servers: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    admin = AdminClient({"bootstrap.servers": servers})
    make(admin, "recipe-grows", 1)
    append(servers, "recipe-grows", 0, 2)
    topic = open_topic(servers, "recipe-grows", {0: 1})
    assert read_all(topic, 1) == [(0, 1)]
    admin.create_partitions([NewPartitions("recipe-grows", 2)])["recipe-grows"].result()
    eventually(lambda: len(admin.list_topics("recipe-grows").topics["recipe-grows"].partitions) == 2, "it has two")
    append(servers, "recipe-grows", 1, 2)
    assert read_all(topic, 2) == [(1, 0), (1, 1)]
    topic.close()


def test_a_topic_that_was_made_anew_is_refused_also_if_it_is_longer(servers: str) -> None:
    """Its first records would never be stored."""
    admin = AdminClient({"bootstrap.servers": servers})
    make(admin, "recipe-anew", 1)
    append(servers, "recipe-anew", 0, 2)
    topic = open_topic(servers, "recipe-anew", {})
    assert read_all(topic, 2) == [(0, 0), (0, 1)]
    stored = {**topic.identity, 0: 2}
    topic.close()
    open_topic(servers, "recipe-anew", stored).close()
    admin.delete_topics(["recipe-anew"])["recipe-anew"].result()
    eventually(lambda: "recipe-anew" not in admin.list_topics(timeout=10).topics, "it is gone")
    make(admin, "recipe-anew", 1)
    append(servers, "recipe-anew", 0, 5)
    with pytest.raises(Failure, match="recipe-anew was made anew"):
        open_topic(servers, "recipe-anew", stored)
    del stored[IDENTITY]  # as earlier recipes stored it
    reopened = open_topic(servers, "recipe-anew", stored)
    assert len(read_all(reopened, 3)) == 3
    reopened.close()

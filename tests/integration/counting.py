"""A workload whose records show by themselves whether they are in order: it counts up in each key."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pulsar as client
from confluent_kafka import Consumer, TopicPartition

from helenus_sinks.pulsar.config import PulsarConfig


class Counting:
    """Counts up in every key of a table `(k int PRIMARY KEY, n bigint)`, as fast as it can, while it is entered."""

    def __init__(self, session: Any, table: str, keys: int) -> None:
        self._session = session
        self._keys = keys
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._insert = session.prepare(f"INSERT INTO {table} (k, n) VALUES (?, ?)")

    def _run(self) -> None:
        n = time.time_ns()
        while not self._stop.wait(0.005):
            n += 1
            self._session.execute(self._insert, (n % self._keys, n))

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def check_order(counts: list[tuple[int, int]], keys: int) -> None:
    """No record, a key and its count, shows an older row than one of its key before it, and all keys are there."""
    latest: dict[int, int] = {}
    for index, (key, n) in enumerate(counts):
        assert n >= latest.get(key, 0), f"key {key} goes back at record {index}"
        latest[key] = n
    assert len(latest) == keys


def stored_pulsar_counts(settings: PulsarConfig, topic: str) -> list[tuple[int, int]]:
    """The same of a topic on Pulsar."""
    quiet = client.FileLogger(client.LoggerLevel.Error, "/dev/null")
    talking = client.Client(settings.service_url, logger=quiet)
    counts = []
    try:
        for partition in talking.get_topic_partitions(settings.name(topic)):
            reader = talking.create_reader(partition, client.MessageId.earliest)
            while reader.has_message_available():
                if data := reader.read_next(20_000).data():
                    row = json.loads(data)
                    counts.append((int(row["k"]), int(row["n"])))
    finally:
        talking.close()
    return counts


def stored_counts(brokers: str, topic: str, isolation: str) -> list[tuple[int, int]]:
    """What a reader of this isolation level gets of a topic with `output.format=json`: keys and counts, by partition in
    order.
    """
    settings = {"bootstrap.servers": brokers, "group.id": "counts", "isolation.level": isolation}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    counts, ended = [], set[int]()
    try:
        while len(ended) < len(partitions):
            message = consumer.poll(20)
            assert message is not None, "no end came"
            if message.error() is not None:
                ended.add(message.partition())
            elif (value := message.value()) is not None:
                row = json.loads(value)
                counts.append((int(row["k"]), int(row["n"])))
    finally:
        consumer.close()
    return counts

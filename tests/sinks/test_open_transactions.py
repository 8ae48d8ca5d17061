"""Transactions that a real Kafka left open: which partitions they keep from readers, and how an operator ends them."""

from __future__ import annotations

import struct
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bench.chaos import open_transactions
from bench.chaos.open_transactions import end_open_transactions
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from patience import eventually

from helenus_schemas.errors import HelenusError
from helenus_sinks.kafka import groups
from helenus_sinks.kafka.groups import read_group, send_positions
from helenus_sinks.kafka.log import KafkaLog
from helenus_sinks.kafka.open_transactions import HeldBack, find_held_back, partition_of_group
from helenus_stack.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TOPIC, GROUP = "data-open", "helenus-orders"
_BATCH_HEAD = struct.Struct(">qi")  # base offset, and the size of what follows


def transact(config: dict[str, str], name: str, value: bytes, commits: bool = True) -> Producer:
    producer = Producer({**config, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(TOPIC, value, b"key", 0)
    assert producer.flush(30) == 0
    if commits:
        producer.commit_transaction(30)
    return producer


def read_committed(config: dict[str, str]) -> list[bytes]:
    """Return what a reader gets until it is at the end of what it may read."""
    more = {"group.id": "reader", "isolation.level": "read_committed", "enable.partition.eof": "true"}
    values = []
    with closing(Consumer({**config, **more})) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                return values
            values.append(message.value() or b"")


def remove_last_batch(partition: Path) -> None:
    """Leave a partition's log as if its last batch had not been written. The broker does not run."""
    (log,) = partition.glob("*.log")
    data, offset, last = log.read_bytes(), 0, 0
    while offset + _BATCH_HEAD.size <= len(data) and (size := _BATCH_HEAD.unpack_from(data, offset)[1]):
        last, offset = offset, offset + _BATCH_HEAD.size + size
    log.write_bytes(data[:last])
    for snapshot in partition.glob("*.snapshot"):  # of producers: it is made of the log again
        snapshot.unlink()


@pytest.mark.parametrize(
    ("count", "group", "partition"), [(50, "hello", 22), (5, "a", 2), (50, "polygenelubricants", 0)]
)
def test_a_group_has_the_partition_that_kafka_gives_it(count: int, group: str, partition: int) -> None:
    assert partition_of_group(group, count) == partition


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "_OPEN_S", 1.0)


def test_positions_that_an_open_transaction_keeps_back_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stack(tmp_path, only=["kafka"]) as stack:
        config = {"bootstrap.servers": str(stack.status().bootstrap_servers)}
        with closing(KafkaLog(config)) as log:
            log.create(TOPIC, 1, {})
        read_group(config, GROUP, [TopicPartition(TOPIC, 0)])  # so that the broker has made its topic of positions
        monkeypatch.setattr(groups, "_ANSWER_TIMEOUT_S", 3.0)
        hung = transact(config, "helenus-former-0", b"not committed", commits=False)
        with closing(Consumer({**config, "group.id": GROUP})) as consumer:
            send_positions(hung, consumer.consumer_group_metadata(), [TopicPartition(TOPIC, 0, 7)], 30)
        Producer({**config, "transactional.id": "helenus-former-0"}).init_transactions(30)
        stack.kill("kafka")
        (partition,) = (
            log.parent for log in tmp_path.glob("kafka/data/__consumer_offsets-*/*.log") if any(log.read_bytes())
        )
        remove_last_batch(partition)
        stack.start("kafka")
        with pytest.raises(
            HelenusError, match=f"positions of {GROUP} back: a transaction is open from offset 0"
        ) as caught:
            read_group(config, GROUP, [TopicPartition(TOPIC, 0)])
        number = int(partition.name.rpartition("-")[2])
        assert caught.value.where.endswith(f"topic __consumer_offsets, partition {number}")
        (ended,) = end_open_transactions(config["bootstrap.servers"], ["__consumer_offsets"])
        assert (ended.partition, ended.offset) == (number, 0)
        (position,) = read_group(config, GROUP, [TopicPartition(TOPIC, 0)])
        assert position.offset < 0


def test_a_transaction_whose_end_was_left_out_is_found(tmp_path: Path) -> None:
    with Stack(tmp_path, only=["kafka"]) as stack:
        config = {"bootstrap.servers": str(stack.status().bootstrap_servers)}
        with closing(KafkaLog(config)) as log:
            log.create(TOPIC, 2, {})
        transact(config, "helenus-former-0", b"first")
        hung = transact(config, "helenus-former-0", b"not committed", commits=False)
        Producer({**config, "transactional.id": "helenus-former-0"}).init_transactions(30)  # fences it: it is aborted
        assert find_held_back(config, [TOPIC, "not-there"], 0) == []
        stack.kill("kafka")
        remove_last_batch(tmp_path / "kafka" / "data" / f"{TOPIC}-0")
        stack.start("kafka")
        transact(config, "helenus-next-0", b"second")
        # Kafka says that a transaction is committed before its mark is in the partition.
        wanted = [HeldBack(TOPIC, 0, 2, 5)]
        eventually(lambda: find_held_back(config, [TOPIC, "not-there"], 0) == wanted, "the first one is found")
        assert read_committed(config) == [b"first"], "and nothing that comes after"
        assert end_open_transactions(config["bootstrap.servers"], [TOPIC]) == wanted
        assert find_held_back(config, [TOPIC], 0) == []
        assert read_committed(config) == [b"first", b"second"]
        del hung


def test_a_transaction_that_ends_soon_holds_nothing_back(only_kafka: Any) -> None:
    config = {"bootstrap.servers": str(only_kafka.status().bootstrap_servers)}
    with closing(KafkaLog(config)) as log:
        log.create(TOPIC, 2, {})
    producer = transact(config, "helenus-soon-0", b"committed soon", commits=False)
    assert len(find_held_back(config, [TOPIC], 0)) == 1
    ending = threading.Timer(1.0, lambda: producer.commit_transaction(30))
    ending.start()
    assert find_held_back(config, [TOPIC], 5.0) == []
    ending.join()

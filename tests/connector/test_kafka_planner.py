"""The planner on Kafka, with what brokers say of a topic alone."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as ClientMessage
from structlog.testing import capture_logs

from helenus_connector.log import _kafka_reader
from helenus_connector.log._kafka_planner import KafkaPlanner
from helenus_connector.log.events import OffsetRange
from helenus_connector.testing.broker import MemoryMessage
from helenus_schemas.errors import HelenusError, Kind
from helenus_sinks.kafka.errors import MOVING


class Admin:
    """Every partition ends at 9, unless its topic has an error."""

    end = 9

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}

    def list_offsets(self, wanted: dict[TopicPartition, Any], request_timeout: float) -> dict[TopicPartition, Any]:
        answers: dict[TopicPartition, Any] = {}
        for topic_partition in wanted:
            answers[topic_partition] = Future()
            if topic_partition.topic in self.errors:
                answers[topic_partition].set_exception(KafkaException(KafkaError(self.errors[topic_partition.topic])))
            else:
                answers[topic_partition].set_result(SimpleNamespace(offset=self.end, leader_epoch=3))
        return answers


def test_a_refused_topic_is_logged_once_and_left_out() -> None:
    """As when the permission to describe it is revoked. One without a leader comes back by itself."""
    planner, admin = KafkaPlanner({"bootstrap.servers": "127.0.0.1:1"}), Admin()
    planner._admin = admin
    both, ends = {"a": 1, "b": 1}, {"0": 9}
    with capture_logs() as logs:
        for _ in range(2):
            assert planner.latest(both) == {"a": ends, "b": ends}
            admin.errors = {"b": KafkaError.TOPIC_AUTHORIZATION_FAILED}
            for _ in range(2):
                assert planner.latest(both) == {"a": ends}
            admin.errors = {}
        assert [(entry["event"], entry["topic"]) for entry in logs] == [("source.refused", "b")] * 2
        for passing in (KafkaError.UNKNOWN_TOPIC_OR_PART, *MOVING):
            admin.errors = {}
            assert planner.latest(both) == {"a": ends, "b": ends}
            admin.errors = {"b": passing}
            assert planner.latest(both) == {"a": ends}
    assert len(logs) == 2
    admin.errors = dict.fromkeys(both, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(HelenusError) as error:
        planner.latest(both)
    assert error.value.kind is Kind.BROKER_REFUSED
    with pytest.raises(HelenusError):
        planner.earliest({"b": 1})


def test_chunks_are_limited_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand events of 64 kB would be more than a task can hold."""
    counts_requested: list[int] = []

    class Consumer:
        next_offset = 0

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def consume(self, count: int, timeout: float) -> list[MemoryMessage]:
            counts_requested.append(count)
            self.next_offset += count
            return [
                MemoryMessage("t", 0, n, key=b"k" * 65_535, value=b"v")
                for n in range(self.next_offset - count, self.next_offset)
            ]

    monkeypatch.setattr(_kafka_reader, "_consumer", lambda *_: Consumer())
    chunks = list(_kafka_reader.read({}, [OffsetRange("t", 0, 0, 2_000)], "fail", lambda *_: None, lambda *_: None))
    assert sum(map(len, chunks)) == 2_000
    assert max(counts_requested) * 65_536 <= 32 << 20
    assert max(counts_requested[1:]) * 65_536 <= 8 << 20


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_a_partition_ends_beside_others_events(monkeypatch: pytest.MonkeyPatch, chunk_size: int) -> None:
    """Offset 2 of partition 0 is a transaction's marker: its end comes as a message with an error."""
    end = KafkaError(KafkaError._PARTITION_EOF)
    events = [(0, 0), (0, 1), (1, 0), (1, 1)]
    sent = [
        *(ClientMessage("t", partition=p, offset=n, key=b"k", value=b"v") for p, n in events[:2]),
        ClientMessage("t", partition=0, offset=3, error=end),
        ClientMessage("t", partition=1, offset=0, error=end),
        *(ClientMessage("t", partition=p, offset=n, key=b"k", value=b"v") for p, n in events[2:]),
    ]
    failed: list[object] = []

    class Consumer:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def consume(self, count: int, timeout: float) -> list[ClientMessage]:
            messages = sent[: min(count, chunk_size)]
            del sent[: len(messages)]
            return messages

    monkeypatch.setattr(_kafka_reader, "_consumer", lambda *_: Consumer())
    places = [OffsetRange("t", 0, 0, 3), OffsetRange("t", 1, 0, 2)]
    chunks = list(
        _kafka_reader.read({}, places, "fail", lambda *_: None, lambda *offset_range: failed.append(offset_range))
    )
    assert sorted((m.partition(), m.offset()) for chunk in chunks for m in chunk) == events
    assert not failed


def test_a_caller_that_takes_long_over_a_chunk_is_not_taken_for_a_silent_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes next may take a moment, as a consumer fetches no more while nobody takes what it has."""
    answers = [[0], [], [1]]
    failed: list[object] = []

    class Consumer:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

        def consume(self, count: int, timeout: float) -> list[MemoryMessage]:
            return [MemoryMessage("t", 0, n, key=b"k", value=b"v") for n in (answers.pop(0) if answers else ())]

    monkeypatch.setattr(_kafka_reader, "_consumer", lambda *_: Consumer())
    monkeypatch.setattr(_kafka_reader, "_READ_TIMEOUT_S", 10.0)
    now = [0.0]
    monkeypatch.setattr(_kafka_reader.time, "monotonic", lambda: now[0])
    offsets: list[int] = []
    for chunk in _kafka_reader.read(
        {}, [OffsetRange("t", 0, 0, 2)], "fail", lambda *_: None, lambda *failure: failed.append(failure)
    ):
        offsets += [message.offset() for message in chunk]
        now[0] += 60.0
    assert offsets == [0, 1]
    assert not failed


def test_one_that_does_not_watch_asks_for_all_ends_each_time() -> None:
    """A snapshot is complete when all before the ends is done: none may be of some seconds ago."""
    planner, admin = KafkaPlanner({"bootstrap.servers": "127.0.0.1:1"}), Admin()
    planner._admin = admin
    many = {"a": 70, "b": 1}
    planner.latest(many)
    admin.end = 10
    assert planner.latest(many) == {"a": {str(p): 10 for p in range(70)}, "b": {"0": 10}}

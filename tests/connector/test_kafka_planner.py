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
from helenus_connector.log._kafka_planner import Planner
from helenus_connector.log.events import Range
from helenus_connector.testing.broker import Message
from helenus_schemas.errors import HelenusError, Kind


class Admin:
    """Every partition ends at 9, unless its topic has an error."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}

    def list_offsets(self, wanted: dict[TopicPartition, Any], request_timeout: float) -> dict[TopicPartition, Any]:
        answers: dict[TopicPartition, Any] = {}
        for place in wanted:
            answers[place] = Future()
            if place.topic in self.errors:
                answers[place].set_exception(KafkaException(KafkaError(self.errors[place.topic])))
            else:
                answers[place].set_result(SimpleNamespace(offset=9, leader_epoch=3))
        return answers


def test_a_refused_topic_is_logged_once_and_left_out() -> None:
    """As when the permission to describe it is revoked. One without a leader comes back by itself."""
    planner, admin = Planner({"bootstrap.servers": "127.0.0.1:1"}), Admin()
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
        for passing in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION):
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
    asked: list[int] = []

    class Consumer:
        at = 0

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

        def consume(self, count: int, timeout: float) -> list[Message]:
            asked.append(count)
            self.at += count
            return [Message("t", 0, n, key=b"k" * 65_535, value=b"v") for n in range(self.at - count, self.at)]

    monkeypatch.setattr(_kafka_reader, "_consumer", lambda *_: Consumer())
    chunks = list(_kafka_reader.read({}, [Range("t", 0, 0, 2_000)], "fail", lambda *_: None, lambda *_: None))
    assert sum(map(len, chunks)) == 2_000
    assert max(asked) * 65_536 <= 32 << 20
    assert max(asked[1:]) * 65_536 <= 8 << 20


@pytest.mark.parametrize("taken", [1, 3, 100])
def test_a_partition_ends_beside_others_events(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
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
            return lambda *_: None

        def consume(self, count: int, timeout: float) -> list[ClientMessage]:
            some = sent[: min(count, taken)]
            del sent[: len(some)]
            return some

    monkeypatch.setattr(_kafka_reader, "_consumer", lambda *_: Consumer())
    places = [Range("t", 0, 0, 3), Range("t", 1, 0, 2)]
    chunks = list(_kafka_reader.read({}, places, "fail", lambda *_: None, lambda *place: failed.append(place)))
    assert sorted((m.partition(), m.offset()) for chunk in chunks for m in chunk) == events
    assert not failed

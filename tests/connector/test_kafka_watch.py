"""Which partitions the planner waits for, with a client that gives it what a test says."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from helenus_connector.log import _kafka_watch
from helenus_connector.log._kafka_planner import KafkaPlanner
from helenus_connector.log._kafka_watch import TopicWatch
from helenus_connector.testing.broker import MemoryMessage

A, B = ("t", 0), ("t", 1)


class Consumer:
    def __init__(self, config: dict[str, Any]) -> None:
        self.failed = config["error_cb"]
        self.given: list[Any] = []
        self.assigned: dict[tuple[str, int], int] = {}

    def incremental_assign(self, places: list[Any]) -> None:
        self.assigned |= {
            (topic_partition.topic, topic_partition.partition): topic_partition.offset for topic_partition in places
        }

    def incremental_unassign(self, places: list[Any]) -> None:
        for topic_partition in places:
            del self.assigned[topic_partition.topic, topic_partition.partition]

    def poll(self, seconds: float) -> Any:
        return self.given.pop(0) if self.given else None

    def consume(self, max_messages: int, timeout: float) -> list[Any]:
        messages, self.given = self.given, []
        return messages

    def close(self) -> None:
        """There is nothing to close."""


class Record(MemoryMessage):
    wrong: object = None

    def error(self) -> object:
        return self.wrong


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> TopicWatch:
    monkeypatch.setattr(_kafka_watch, "Consumer", Consumer)
    monkeypatch.setattr(_kafka_watch, "_BUSY_S", 0.0)
    made = TopicWatch({})
    made.watch({A: 5, B: 7})
    return made


def records(partition: int, count: int) -> list[Record]:
    return [Record("t", partition, n, key=b"k", value=b"v") for n in range(count)]


def test_a_partition_is_waited_for_while_little_comes(watch: TopicWatch) -> None:
    assert watch._consumer.assigned == {A: 5, B: 7}
    for _ in range(3):
        watch._consumer.given = records(0, 2)
        watch.wait(1.0)
        assert watch.take_woken() == {A}
        assert watch.topic_partitions == {A, B}
    assert watch.take_woken() == set()


@pytest.mark.parametrize("again_s", [0.0, 60.0])
def test_one_where_much_comes_is_left(watch: TopicWatch, monkeypatch: pytest.MonkeyPatch, again_s: float) -> None:
    """In one look, or often: its records would all be read twice."""
    monkeypatch.setattr(_kafka_watch, "_BUSY_S", again_s)
    for count in (1, 1) if again_s else (11,):
        watch._consumer.given = records(0, count)
        assert watch.take_woken() == {A}
    assert watch.topic_partitions == {B} == watch._consumer.assigned.keys()


def test_one_with_an_error_is_left(watch: TopicWatch) -> None:
    watch._consumer.given = records(1, 1)
    watch._consumer.given[0].wrong = "offset out of range"
    assert watch.take_woken() == {B}
    assert watch.topic_partitions == {A}


def test_all_are_asked_for_when_no_broker_is_there(watch: TopicWatch) -> None:
    watch._consumer.failed(KafkaError(KafkaError._TRANSPORT))
    assert not watch.is_unsure
    watch._consumer.failed(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert watch.is_unsure


class Asked:
    """An admin client that notes what it is asked for; `refused` topics have no answer."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}
        self.asked: list[int] = []
        self.refused: set[str] = set()

    def list_offsets(self, wanted: dict[Any, Any], request_timeout: float) -> dict[Any, Any]:
        self.asked.append(len(wanted))
        answers: dict[Any, Any] = {}
        for topic_partition in wanted:
            answers[topic_partition] = Future()
            if topic_partition.topic in self.refused:
                error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
                answers[topic_partition].set_exception(KafkaException(error))
            else:
                end = self.ends.get((topic_partition.topic, topic_partition.partition), 0)
                answers[topic_partition].set_result(SimpleNamespace(offset=end, leader_epoch=1))
        return answers


def test_many_partitions_are_waited_for_longer_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has all of them. Until those of another client have, the former one says what comes."""
    made: list[Consumer] = []

    class Counted(Consumer):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            self.wait_ms, self.is_closed = int(config["fetch.wait.max.ms"]), False
            made.append(self)

        def close(self) -> None:
            self.is_closed = True

    now = [1000.0]
    monkeypatch.setattr(_kafka_watch, "Consumer", Counted)
    monkeypatch.setattr(_kafka_watch, "time", type("T", (), {"monotonic": lambda: now[0]}))
    watch, ends = TopicWatch({}), {("t", n): n for n in range(1_600)}
    watch.watch(dict(list(ends.items())[:400]))
    watch.wait_longer(ends)
    assert [consumer.wait_ms for consumer in made] == [2_000], "they are too few"
    watch.watch(dict(list(ends.items())[400:]))
    watch.wait_longer(ends)
    watch.wait_longer(ends)
    first, second = made
    assert (first.wait_ms, second.wait_ms, watch.waits_s) == (2_000, 4_000, 4.0)
    assert first.assigned == second.assigned == ends
    watch.watch({("u", 0): 5})
    assert ("u", 0) not in first.assigned
    watch.unwatch([("u", 0), ("t", 1)])
    assert first.assigned.keys() == second.assigned.keys() == ends.keys() - {("t", 1)}
    for consumer in (first, second):
        consumer.given = records(0, 1)
        watch.wait(1.0)
        assert watch.take_woken() == {A}
        now[0] += 1.0
    assert not first.is_closed
    now[0] += 4.0
    assert watch.take_woken() == set()
    assert (first.is_closed, second.is_closed) == (True, False)
    second.given = records(0, 1)
    watch.wait(1.0)
    assert watch.take_woken() == {A}
    watch.close()
    assert second.is_closed


def test_only_what_came_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a topic is refused."""
    monkeypatch.setattr(_kafka_watch, "Consumer", Consumer)
    now = [1000.0]
    for module in ("_kafka_planner", "_kafka_watch"):
        monkeypatch.setattr(f"helenus_connector.log.{module}.time", type("T", (), {"monotonic": lambda: now[0]}))
    planner, admin = KafkaPlanner({"bootstrap.servers": "127.0.0.1:1"}, watches=True), Asked()
    planner._admin = admin
    topics = {"t": 3, "refused": 2}
    admin.refused = {"refused"}

    def look(after: float) -> int:
        """How many partitions are asked for."""
        now[0] += after
        admin.asked.clear()
        ends = planner.latest(topics)
        assert ends == {"t": {str(p): admin.ends.get(("t", p), 0) for p in range(3)}}
        return sum(admin.asked)

    assert look(0) == 5
    assert look(0.1) == 5, "for a while they are asked for, too"
    assert look(4) == 2, "the refused ones, which can't be waited for"
    admin.ends["t", 1] = 4
    planner._watch._consumer.given = records(1, 4)
    assert look(0.1) == 3
    assert look(0.1) == 2
    admin.ends["t", 2] = 9
    assert planner.latest(topics)["t"]["2"] == 0, "Kafka has not said so"
    assert look(6) == 5, "what it does not say is found then"


def test_a_client_that_fails_does_not_have_the_planner_spin(watch: TopicWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL))

    slept: list[float] = []
    monkeypatch.setattr(watch._consumer, "poll", fails)
    monkeypatch.setattr(_kafka_watch.time, "sleep", slept.append)
    watch.wait(0.4)
    assert (slept, watch.is_unsure) == ([0.4], True)

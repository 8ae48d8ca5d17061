"""The status of connectors as records for the tools of Kafka Connect."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from patience import eventually

from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control.status import ConnectorStatus, TaskStatus
from helenus_connector.group import status_topic
from helenus_connector.group._topic_writer import Fenced
from helenus_connector.group.status_topic import StatusTopic, status_values
from helenus_schemas.errors import HelenusError, Kind

WORKER = {"bootstrap.servers": "h:1", "checkpoint.dir": "/c", "group.id": "w", "listeners": "http://127.0.0.1:9001"}
RUNNING = ConnectorStatus("RUNNING", None, [TaskStatus(0, "RUNNING"), TaskStatus(1, "FAILED", "no table")])
AWAY = HelenusError(Kind.BROKER_UNREACHABLE, "away", "h:1")


def record(state: str, trace: str | None = None) -> dict[str, Any]:
    return {"state": state, "trace": trace, "worker_id": "127.0.0.1:9001", "generation": 3}


class Writer:
    """Stands for a TopicWriter. Each write, or start, raises the next of the `errors`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"status-topic-t:connector-a": {}, "status-task-gone-0": record("RUNNING")}
        self.is_started = self.is_closed = False
        self.errors: list[Exception] = []
        self.commits: list[dict[str, Any]] = []
        self.attempted = threading.Event()

    def create(self, _factor: int, _key: str) -> None:
        self._fail()

    def start(self, _deadline: float) -> None:
        self._fail()
        self.is_started = True

    def commit(self, changes: Mapping[str, Any], _deadline: float) -> None:
        self.is_started = False
        self._fail()
        self.commits.append(dict(changes))
        self.values = {key: value for key, value in {**self.values, **changes}.items() if value is not None}
        self.is_started = True

    def close(self) -> None:
        self.is_closed = True

    def _fail(self) -> None:
        self.attempted.set()
        if self.errors:
            raise self.errors.pop(0)


class Leader:
    """A worker that leads, whose connectors have a status."""

    def __init__(self, writer: Writer) -> None:
        self.statuses: dict[str, ConnectorStatus] = {"a": RUNNING}
        self.leads = True
        worker = WorkerSettings.from_properties(WORKER, "worker")
        self.topic = StatusTopic(worker, 3, lambda: dict(self.statuses), lambda: self.leads)
        self.writer = writer

    def await_values(self, expected: Mapping[str, Any]) -> None:
        def shown() -> dict[str, Any]:
            return {key: value for key, value in self.writer.values.items() if not key.startswith("status-topic-")}

        eventually(lambda: shown() == expected, lambda: f"{shown()} is {expected}")


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    writer = Writer()
    monkeypatch.setattr(status_topic, "topic_writer", lambda *_: writer)
    monkeypatch.setattr(status_topic, "_TURN_S", 0.01)
    leader = Leader(writer)
    yield leader
    if not writer.is_closed:
        leader.topic.close()


def test_records_are_as_kafka_connects() -> None:
    """As its KafkaStatusBackingStore writes and reads them: without a trace there is a null."""
    assert status_values({"shop-orders": RUNNING}, "127.0.0.1:9001", 3) == {
        "status-connector-shop-orders": record("RUNNING"),
        "status-task-shop-orders-0": record("RUNNING"),
        "status-task-shop-orders-1": record("FAILED", "no table"),
    }


def test_only_what_changed_is_written_and_what_is_gone_removed(leader: Leader) -> None:
    leader.topic.start()
    first = status_values({"a": RUNNING}, "127.0.0.1:9001", 3)
    leader.await_values(first)
    assert leader.writer.commits == [{**first, "status-task-gone-0": None}]
    leader.statuses["b"] = ConnectorStatus("STOPPED", None, [])
    eventually(lambda: leader.writer.commits[1:] == [{"status-connector-b": record("STOPPED")}], "b is there")
    leader.statuses = {"b": leader.statuses["b"]}
    leader.await_values({"status-connector-b": record("STOPPED")})
    assert leader.writer.values["status-topic-t:connector-a"] == {}, "what others keep there stays"


def test_brokers_that_are_away_are_waited_for(leader: Leader) -> None:
    leader.writer.errors = [AWAY, AWAY, ValueError("a fault"), AWAY]
    leader.topic.start()
    assert leader.writer.attempted.wait(10)
    leader.statuses = {"a": ConnectorStatus("PAUSED", None, [])}
    leader.await_values({"status-connector-a": record("PAUSED")})
    assert len(leader.writer.commits) == 1, "the last state wins"


def test_a_worker_that_was_fenced_begins_anew_if_it_leads(leader: Leader) -> None:
    leader.topic.start()
    leader.await_values(status_values({"a": RUNNING}, "127.0.0.1:9001", 3))
    leader.writer.errors = [Fenced(Kind.NOT_OWNER, "fenced", "h:1")]
    leader.statuses = {"a": ConnectorStatus("PAUSED", None, [])}
    leader.await_values({"status-connector-a": record("PAUSED")})
    leader.leads = False
    leader.statuses = {}
    leader.topic.close()
    leader.await_values({"status-connector-a": record("PAUSED")})


def test_what_ran_with_a_worker_that_ends_is_unassigned(leader: Leader) -> None:
    leader.topic.start()
    leader.await_values(status_values({"a": RUNNING}, "127.0.0.1:9001", 3))
    leader.topic.close()
    leader.await_values(
        {
            "status-connector-a": record("UNASSIGNED"),
            "status-task-a-0": record("UNASSIGNED"),
            "status-task-a-1": record("FAILED", "no table"),
        }
    )


def test_a_worker_ends_without_brokers(leader: Leader) -> None:
    leader.writer.errors = [AWAY] * 1000
    leader.topic.start()
    leader.writer.attempted.wait(10)
    leader.topic.close()
    assert leader.writer.commits == []


def test_where_the_topic_is() -> None:
    worker = WorkerSettings.from_properties(WORKER, "worker")
    assert worker.status_topic == "helenus-status-w"
    named = WorkerSettings.from_properties({**WORKER, "status.storage.topic": "connect-status"}, "worker")
    assert named.status_topic == "connect-status-w"

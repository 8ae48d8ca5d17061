"""The topics of a connector's tables, made when they are missing: no servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from helenus_connector.config.connector import ConnectorSettings
from helenus_connector.config.worker import WorkerSettings
from helenus_connector.control import topics as topics_module
from helenus_connector.control.status import Task
from helenus_connector.control.topics import TopicQueries
from helenus_connector.log.events import Offsets
from helenus_connector.testing.log import MemoryLog
from helenus_schemas.errors import HelenusError, Kind

GONE = HelenusError(Kind.TOPIC_MISSING, "Unknown topic or partition", "h:1, topic data-ks.t")


class Broker(MemoryLog):
    """A Log, and a planner of its topics, which are empty. Topics that are `refused` may not be read."""

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__(counts)
        self.refused: set[str] = set()
        self.asked: list[list[str]] = []

    @property
    def made(self) -> dict[str, tuple[int, dict[str, str]]]:
        return {topic: (count, self.configs.get(topic, {})) for topic, count in self.counts.items()}

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        return {topic: self.counts.get(topic, 0) for topic in topics}

    def latest(self, partitions: Mapping[str, int]) -> Offsets:
        self.asked.append(list(partitions))
        if partitions and self.refused >= partitions.keys():
            raise HelenusError(Kind.BROKER_REFUSED, "not authorized", ", ".join(partitions))
        return {topic: {str(p): 0 for p in range(n)} for topic, n in partitions.items() if topic not in self.refused}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker({"events-ks.t": 3})
    for name in ("events_log", "data_log", "planner"):
        monkeypatch.setattr(topics_module, name, lambda _: broker)
    return broker


@pytest.fixture
def topics(broker: Broker, tmp_path: Path) -> TopicQueries:
    return TopicQueries(
        WorkerSettings.from_properties({"bootstrap.servers": "h:1", "checkpoint.dir": str(tmp_path)}, "worker")
    )


@pytest.fixture
def task() -> Task:
    properties = {"name": "n", "keyspace": "ks", "table": "t", "output.format": "json", "errors.tolerance": "all"}
    return Task(0, ConnectorSettings.from_properties(properties, "n"))


@pytest.mark.parametrize("gone", ["data-ks.t", "dlq-ks.t"])
def test_a_deleted_topic_is_created_again_as_it_was(
    topics: TopicQueries, broker: Broker, task: Task, gone: str
) -> None:
    topics.create_topics([task])
    assert task.ready
    before = broker.made
    assert before == {"events-ks.t": (3, {}), "data-ks.t": (3, {"cleanup.policy": "compact"}), "dlq-ks.t": (1, {})}
    del broker.counts[gone]
    task.note_failure(GONE, 10.0)
    assert (task.ready, task.error, task.trouble) == (False, None, GONE)
    topics.create_topics([task])
    assert (task.ready, broker.made) == (True, before)


def test_only_a_restart_checks_topics_again_after_other_errors(
    topics: TopicQueries, broker: Broker, task: Task
) -> None:
    topics.create_topics([task])
    task.note_failure(HelenusError(Kind.CASSANDRA_READ, "timed out"), 10.0)
    assert task.ready
    task.note_failure(HelenusError(Kind.POISON_EVENT, "not an event"), 10.0)
    assert task.ready
    task.restart()
    assert (task.ready, task.error) == (False, None)
    broker.counts["data-ks.t"] = 1
    topics.create_topics([task])
    assert task.error is not None
    assert task.error.kind is Kind.PARTITIONS_CHANGED


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_the_ends_of_many_topics_are_one_question_and_refused_ones_fail_alone(
    topics: TopicQueries, broker: Broker, refused: int
) -> None:
    properties = {"name": "n", "keyspace": "ks", "output.format": "json"}
    tasks = [Task(n, ConnectorSettings.from_properties({**properties, "table": f"t{n}"}, "n")) for n in range(3)]
    broker.counts.update({task.settings.events: 4 for task in tasks})
    broker.refused = {task.settings.events for task in tasks[:refused]}
    topics.create_topics(tasks)
    assert [task.error.where if task.error else None for task in tasks] == [
        *(task.settings.events for task in tasks[:refused]),
        *[None] * (3 - refused),
    ]
    assert [task.ready for task in tasks] == [task.error is None for task in tasks]
    assert broker.asked == [
        [task.settings.events for task in tasks],
        *([task.settings.events] for task in tasks[:refused]),
    ]
